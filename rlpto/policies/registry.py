"""Policies by name: the ones of this project, and plug-ins."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import ValidationError

from rlpto.core.policy import Policy, PolicyClass
from rlpto.io.errors import ConfigError, RlptoError
from rlpto.io.reading import one_line
from rlpto.io.settings import Settings
from rlpto.policies.coach import Coach
from rlpto.policies.configuration_manager import ConfigurationManager
from rlpto.policies.elastic import EqualShare, Hesrpt, MaxThroughput, Optimus, RandomPolicy
from rlpto.policies.elastic_fifo import ElasticFifo
from rlpto.policies.gavel import Gavel
from rlpto.policies.index import Index
from rlpto.policies.pollux.policy import Pollux
from rlpto.policies.reward_greedy import RewardGreedy
from rlpto.policies.rigid import Fifo, Las, RoundRobin, Sjf, Srtf, Tiresias
from rlpto.policies.rubick import Rubick
from rlpto.policies.shockwave import Shockwave
from rlpto.policies.sia import Sia
from rlpto.policies.spec import UNNAMED, PolicySpec, parse_spec
from rlpto.policies.switching import SwitchingPolicy
from rlpto.policies.time_shares import Allox, GandivaFair, MaxSumThroughput, MinDuration, Themis

ENTRY_POINTS = "rlpto.policies"
"""Group of entry points under which an installed package offers policies: name = class."""

_CLASSES = (
    *(Fifo, ElasticFifo, RoundRobin, Sjf, Srtf, Las, Tiresias, EqualShare, MaxThroughput, Optimus, Hesrpt),
    *(RewardGreedy, Index, Pollux, Sia, Gavel, Themis, Allox, MaxSumThroughput, MinDuration, GandivaFair, Shockwave),
    *(Rubick, Coach, ConfigurationManager, RandomPolicy),
)
BUILT_IN: dict[str, PolicyClass] = {policy.name: policy for policy in _CLASSES}
"""The project's own policies, agents apart, in the order in which they are listed."""


def available(broken: Callable[[str], None] | None = None) -> dict[str, PolicyClass]:
    """All policies by name: the project's own, then plug-ins in order of their names.

    broken: is called with what is wrong with a plug-in that cannot be loaded or is not a policy, which is left out;
    None: raises ConfigError for it.
    """
    found = dict(BUILT_IN)
    for name, plugin in sorted(_plugins().items()):
        try:
            found[name] = _load(plugin)
        except ConfigError as wrong:
            if broken is None:
                raise
            broken(str(wrong))
    return found


def is_complete(policy: PolicyClass) -> bool:
    """True if the name of a policy alone is enough, without options."""
    return bool(getattr(policy, "COMPLETE", True))


def options_of(policy: PolicyClass) -> list[tuple[str, str, str]]:
    """Options of a policy: name, default as text, and what it means."""
    return [
        (name, "" if field.is_required() else _as_text(field.default), " ".join((field.description or "").split()))
        for name, field in policy.Options.model_fields.items()
    ]


def make_policy(spec: str, adapt: Callable[[Policy], Policy] = lambda policy: policy) -> Policy:
    """A new policy from `name` or `name:option=value,...`.

    A class may have an option whose name need not be given, `POSITIONAL`: `pretrained:synthetic`.
    The policy's `name` is its option `label`, else the spec, which differs between variants.
    `fifo>3600:las` are two policies one after the other, see `rlpto.policies.switching`.
    adapt: applied to each new policy, such as setting the weights of an experiment's reward.
    Raises ConfigError for a name or an option that does not exist, a value an option cannot have, or
    a plug-in that cannot be loaded.
    """
    whole = parse_spec(spec)
    first, later = _single(whole.first, adapt), [(time, _single(part, adapt)) for time, part in whole.later]
    return SwitchingPolicy(whole.label, first, later) if later else first


def _single(spec: PolicySpec, adapt: Callable[[Policy], Policy]) -> Policy:
    """A single policy, without switches."""
    name, options = spec.name, spec.options
    label = options.pop("label", None)
    if label is not None and not (isinstance(label, str) and label):
        raise ConfigError(f"policy {name}: label: expected a name, got {label!r}")
    policy_class = _find(name)
    unnamed = None
    if UNNAMED in options:
        unnamed = getattr(policy_class, "POSITIONAL", None)
        if unnamed is None or unnamed in options:
            raise ConfigError(f"policy {spec}: expected name:option=value,option=value, got {options[UNNAMED]!r}")
        options = {unnamed: options.pop(UNNAMED), **options}
    policy = adapt(policy_class(_checked(name, policy_class.Options, options)))
    policy.name = label or _label(name, options, unnamed)
    return policy


def _find(name: str) -> PolicyClass:
    """The class of a policy's name."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    plugins = _plugins()
    if name in plugins:
        return _load(plugins[name])
    known = [*BUILT_IN, *sorted(plugins)]
    raise ConfigError(f"no policy {name!r}; did you mean {_nearest(name, known)}? known: {', '.join(known)}")


def _plugins() -> dict[str, metadata.EntryPoint]:
    """Entry points of the group; built-in names cannot be taken over."""
    return {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS) if point.name not in BUILT_IN}


def _load(point: metadata.EntryPoint) -> PolicyClass:
    """Import a plug-in's class."""
    try:
        loaded = point.load()
    except Exception as error:  # a module may raise anything, errors of syntax too
        raise ConfigError(f"policy plug-in {point.name} ({point.value}): cannot be loaded: {one_line(error)}") from None
    options = getattr(loaded, "Options", None)
    described = all(isinstance(getattr(loaded, key, None), str) for key in ("summary", "source"))
    decides = {"reset", "__call__"} <= set(dir(loaded))
    if not (decides and described and isinstance(options, type) and issubclass(options, Settings)):
        raise ConfigError(
            f"policy plug-in {point.name} ({point.value}): expected a class with `summary`, `source`, `Options`, "
            "`reset` and `__call__`, as in rlpto.core.policy.PolicyClass"
        )
    return cast(PolicyClass, loaded)


def _checked(name: str, settings: type[Settings], options: Mapping[str, object]) -> Settings:
    """Typed options, or a ConfigError that names the wrong one."""
    try:
        return settings.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            known = _known_at(settings, first["loc"])
            hint = f"did you mean {_nearest(str(first['loc'][-1]), known)}?" if known else "it has none"
            raise ConfigError(f"policy {name}: unknown option {key}; {hint}") from None
        raise ConfigError(f"policy {name}: option {key}: {first['msg']}, got {first['input']!r}") from None
    except RlptoError as error:
        raise ConfigError(f"policy {name}: {error}") from None


def _known_at(settings: type[Settings], location: tuple[int | str, ...]) -> list[str]:
    """Options that exist where `location` does not."""
    for part in location[:-1]:
        inner: Any = settings.model_fields[str(part)].annotation
        settings = inner
    return list(settings.model_fields)


def _as_text(value: object) -> str:
    """A value as it would be written in a spec."""
    if isinstance(value, Settings):
        value = value.model_dump()
    elif isinstance(value, tuple):
        value = list(value)
    elif isinstance(value, Path):
        value = str(value)
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")


def _label(name: str, options: Mapping[str, object], unnamed: str | None) -> str:
    """`name:option=value,...` with the options as given; unnamed: the option given without its name."""
    given = ",".join(
        _as_text(value) if key == unnamed else f"{key}={_as_text(value)}" for key, value in options.items()
    )
    return f"{name}:{given}" if given else name


def _nearest(name: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(name, list(known), 1, 0.0)[0]
