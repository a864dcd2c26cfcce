"""Policies by name: the ones of this project, and plug-ins."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from importlib import metadata
from typing import cast

from pydantic import ValidationError

from rlpto.core.policy import Policy, PolicyClass
from rlpto.io.errors import ConfigError, RlptoError
from rlpto.io.reading import one_line
from rlpto.io.settings import Settings
from rlpto.io.settings_text import first_problem, inline_yaml
from rlpto.policies.coach import Coach
from rlpto.policies.configuration_manager import ConfigurationManager
from rlpto.policies.elastic import EqualShare, Hesrpt, MaxThroughput, Optimus, RandomPolicy, Rubick
from rlpto.policies.elastic_fifo import ElasticFifo
from rlpto.policies.index import Index
from rlpto.policies.pollux.policy import Pollux
from rlpto.policies.reward_greedy import RewardGreedy
from rlpto.policies.rigid import Fifo, Las, RoundRobin, Sjf, Srtf, Tiresias
from rlpto.policies.shockwave import Shockwave
from rlpto.policies.sia import Sia
from rlpto.policies.spec import UNNAMED, PolicySpec, parse_spec
from rlpto.policies.switching import SwitchingPolicy
from rlpto.policies.time_shares import Allox, GandivaFair, Gavel, MaxSumThroughput, MinDuration, Themis

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
        (name, "" if field.is_required() else inline_yaml(field.default), " ".join((field.description or "").split()))
        for name, field in policy.Options.model_fields.items()
    ]


def make_policy(spec: str, adapt: Callable[[Policy], Policy] = lambda policy: policy) -> Policy:
    """A new policy from `name` or `name:option=value,...`.

    A class may have an option whose name need not be given, `POSITIONAL`: `pretrained:synthetic`.
    `fifo>3600:las` are two policies one after the other, see `rlpto.policies.switching`.
    Its name is the option `label`, else the spec as written.
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
    if UNNAMED in options:
        unnamed = getattr(policy_class, "POSITIONAL", None)
        if unnamed is None or unnamed in options:
            raise ConfigError(f"policy {spec}: expected name:option=value,option=value, got {options[UNNAMED]!r}")
        options[unnamed] = options.pop(UNNAMED)
    try:
        checked = policy_class.Options.model_validate(options)
    except ValidationError as error:
        said = first_problem(error, policy_class.Options, "values")[1]
        raise ConfigError(f"policy {name}: option {said}") from None
    except RlptoError as error:
        raise ConfigError(f"policy {name}: {error}") from None
    policy = adapt(policy_class(checked))
    policy.name = spec.label
    return policy


def _find(name: str) -> PolicyClass:
    """The class of a policy's name."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    plugins = _plugins()
    if name in plugins:
        return _load(plugins[name])
    known = [*BUILT_IN, *sorted(plugins)]
    near = difflib.get_close_matches(name, known, 1, 0.0)[0]
    raise ConfigError(f"no policy {name!r}; did you mean {near}? known: {', '.join(known)}")


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
