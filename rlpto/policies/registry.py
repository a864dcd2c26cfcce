"""Policies by name: RLPTO's own, plug-ins, and classes in Python files."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from pydantic import ValidationError

from rlpto.core.policy import Policy, PolicyClass, naming_line
from rlpto.io.errors import ConfigError, RlptoError, nearest
from rlpto.io.files import digest
from rlpto.io.reading import MIB, one_line, read_text
from rlpto.io.settings import Settings
from rlpto.io.settings_text import first_problem, inline_yaml
from rlpto.policies.coach import Coach
from rlpto.policies.configuration_manager import ConfigurationManager
from rlpto.policies.elastic import EqualShare, Hesrpt, MaxThroughput, Optimus, RandomPolicy
from rlpto.policies.elastic_fifo import ElasticFifo
from rlpto.policies.gavel import Gavel
from rlpto.policies.index import Index
from rlpto.policies.pollux.policy import Pollux
from rlpto.policies.reward_greedy import RewardGreedy
from rlpto.policies.rigid import Fifo, Las, RoundRobin, Sjf, Srtf, Tiresias
from rlpto.policies.sia import Sia
from rlpto.policies.spec import CODE_ENDING, PROVISION, UNNAMED, PolicySpec, parse_spec
from rlpto.policies.switching import SwitchingPolicy

ENTRY_POINTS = "rlpto.policies"
"""Group of entry points under which an installed package offers policies: name = class."""
_FILE_MODULE = "rlpto_policy_"
"""Beginning of the names of modules that are loaded from Python files."""

_CLASSES = (
    *(Fifo, ElasticFifo, RoundRobin, Sjf, Srtf, Las, Tiresias, EqualShare, MaxThroughput, Optimus, Hesrpt),
    *(RewardGreedy, Index, Pollux, Sia, Gavel, Coach, ConfigurationManager, RandomPolicy),
)
BUILT_IN: dict[str, PolicyClass] = {policy.name: policy for policy in _CLASSES}
"""RLPTO's own policies, the planner and agents apart, in the order in which they are listed."""


def own_policies() -> dict[str, PolicyClass]:
    """Return RLPTO's own policies by name. Tests, pages and studies look at no others."""
    return BUILT_IN | {name: _load(point) for name, point in sorted(_plugins().items()) if is_own(point)}


def available(broken: Callable[[str], None] | None = None) -> dict[str, PolicyClass]:
    """Return all installed policies by name: RLPTO's own, then plug-ins in order of their names.

    broken: called with the problem of a plug-in that cannot be loaded or is no policy, which is left out. Default:
    such a plug-in raises ConfigError.
    """
    found = own_policies()
    for name, plugin in sorted(_plugins().items()):
        try:
            found[name] = _load(plugin)
        except ConfigError as wrong:
            if broken is None:
                raise
            broken(str(wrong))
    return found


def code_files(policy: Policy) -> dict[str, str]:
    """Return the Python files that a policy's classes were loaded from, by the names of their modules.

    Pickles name these modules, which another process has only after `load_files`.
    """
    modules = {type(one).__module__ for one in getattr(policy, "policies", (policy,))}
    return {name: str(sys.modules[name].__file__) for name in sorted(modules) if name.startswith(_FILE_MODULE)}


def load_files(files: Mapping[str, str]) -> None:
    """Load the `code_files` of another process. Raises ConfigError if one cannot be loaded or has changed since."""
    for name, path in files.items():
        if name not in sys.modules and _module(Path(path), f"policy {path}").__name__ != name:
            raise ConfigError(f"policy {path}: it, or a file that it imports, has changed since the policy was made")


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
    """A new policy from `name` or `name:option=value,...`, where the name may be `FILE.py:Class`.

    A class may have an option whose name need not be given, `POSITIONAL`: `pretrained:synthetic`.
    `fifo>3600:las` are two policies one after the other, see `rlpto.policies.switching`.
    Its name is the option `label`, else the spec as written.
    adapt: applied to each new policy, such as setting the weights of an experiment's reward.
    Raises ConfigError for a name or an option that does not exist, a value an option cannot have, or a plug-in or file
    that cannot be loaded, and PolicyError for an exception in a user's constructor.
    """
    whole = parse_spec(spec)
    if whole.provisioner is not None:
        raise ConfigError(f"policy {spec}: no nodes are rented here, expected a policy without {PROVISION}")
    first, later = _single(whole.first, adapt), [(time, _single(part, adapt)) for time, part in whole.later]
    return SwitchingPolicy(whole.label, first, later) if later else first


def _single(spec: PolicySpec, adapt: Callable[[Policy], Policy]) -> Policy:
    """A single policy, without switches."""
    policy_class = _class_in_file(spec) if spec.file else _find(spec.name)
    checked = options_for(policy_class, spec, "policy")
    with naming_line(str(spec), policy_class):
        policy = adapt(policy_class(checked))
    policy.name = spec.label
    return policy


def options_for(kind: Any, spec: PolicySpec, what: str) -> Any:
    """The options of a spec as those of its class. what: policy or provisioner, for errors. Raises ConfigError."""
    name, options = spec.name, spec.options
    label = options.pop("label", None)
    if label is not None and not (isinstance(label, str) and label):
        raise ConfigError(f"{what} {name}: label: expected a name, got {label!r}")
    if UNNAMED in options:
        unnamed = getattr(kind, "POSITIONAL", None)
        if unnamed is None or unnamed in options:
            raise ConfigError(f"{what} {spec}: expected name:option=value,option=value, got {options[UNNAMED]!r}")
        options[unnamed] = options.pop(UNNAMED)
    try:
        return kind.Options.model_validate(options)
    except ValidationError as error:
        raise ConfigError(f"{what} {name}: option {first_problem(error, kind.Options, 'values')[1]}") from None
    except RlptoError as error:
        raise ConfigError(f"{what} {name}: {error}") from None


def plugin_files(name: str) -> list[Path]:
    """Return the Python files of the package that a plug-in comes from; none for RLPTO's own policies."""
    point = _plugins().get(name)
    return [] if point is None or is_own(point) else package_files(point)


def package_files(point: metadata.EntryPoint) -> list[Path]:
    """Return the Python files of the package that an entry point is in."""
    package = importlib.util.find_spec(point.module.partition(".")[0])
    folders = package and package.submodule_search_locations
    if folders:
        return sorted(file for folder in folders for file in Path(folder).rglob(f"*{CODE_ENDING}"))
    return [Path(package.origin)] if package and package.origin else []


def local_modules(file: Path) -> list[Path]:
    """Return a Python file, and all files of modules and packages in its folder that it or they import."""
    found, waiting = set[Path](), [file]
    while waiting:
        path = waiting.pop()
        found.add(path)
        try:
            nodes = list(ast.walk(ast.parse(path.read_bytes())))
        except (OSError, SyntaxError, ValueError):
            continue  # where it is loaded, the reason is given
        names = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
        names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
        for top in sorted({name.partition(".")[0] for name in names} - {"rlpto"}):
            module = file.parent / top
            files = [module.with_suffix(CODE_ENDING), *(module.rglob(f"*{CODE_ENDING}") if module.is_dir() else ())]
            waiting += [one for one in files if one.is_file() and one not in {*found, *waiting}]
    return sorted(found)


def _find(name: str) -> PolicyClass:
    """Return the class of an installed policy."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    plugins = _plugins()
    if name in plugins:
        return _load(plugins[name])
    known = nearest(name, [*BUILT_IN, *sorted(plugins)])
    raise ConfigError(f"no policy {name!r} (`rlpto policies` lists all; or name a FILE.py:Class); {known}")


def _plugins() -> dict[str, metadata.EntryPoint]:
    """Return the entry points of the group. A plug-in cannot take over the name of one of RLPTO's own policies."""
    points = sorted(metadata.entry_points(group=ENTRY_POINTS), key=is_own)
    return {point.name: point for point in points if point.name not in BUILT_IN}


def is_own(point: metadata.EntryPoint) -> bool:
    """Whether an entry point is RLPTO's own."""
    return point.value.startswith("rlpto.")


def _load(point: metadata.EntryPoint) -> PolicyClass:
    """Import a plug-in's class."""
    what = f"policy plug-in {point.name} ({point.value})"
    try:
        loaded = point.load()
    except Exception as error:  # a module may raise anything, errors of syntax too
        raise ConfigError(f"{what}: cannot be loaded: {one_line(error)}") from None
    return _checked(loaded, what)


def _class_in_file(spec: PolicySpec) -> PolicyClass:
    """Return the class of FILE.py:Class."""
    module = _module(Path(spec.file), f"policy {spec}")
    if (loaded := getattr(module, spec.kind, None)) is None:
        classes = [key for key, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__]
        known = nearest(spec.kind, classes) if classes else "it has no classes"
        raise ConfigError(f"policy {spec}: no class {spec.kind!r} in {spec.file}; {known}")
    return _checked(loaded, f"policy {spec}")


def _module(path: Path, what: str) -> ModuleType:
    """Return the module of a file, loaded once for each content of it and of the modules in its folder.

    It is not imported under its own name, and Python's cache of compiled files, which may miss a quick edit, is not
    used.
    """
    text = read_text(path, "a Python file", ConfigError, MIB)
    others = [file for file in local_modules(path) if file != path]
    content = "".join([f"{path}:{text}", *map(digest, others)])
    name = f"{_FILE_MODULE}{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    if name not in sys.modules:
        known = {str(file.absolute()) for file in others}
        for other in [key for key, one in sys.modules.items() if getattr(one, "__file__", None) in known]:
            del sys.modules[other]  # it may have been edited since
        module = sys.modules[name] = ModuleType(name)  # typed options look up their annotations there
        module.__file__ = str(path)
        sys.path.insert(0, str(path.parent.absolute()))  # for modules in its folder
        try:
            exec(compile(text, path, "exec"), vars(module))
        except Exception as error:
            del sys.modules[name]
            lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_globals is vars(module)]
            line = lines[-1] if lines else getattr(error, "lineno", 1)
            said = one_line(traceback.format_exception_only(error)[-1])
            raise ConfigError(f"{what}: {path}:{line}: {said}") from None
        finally:
            sys.path.remove(str(path.parent.absolute()))
    return sys.modules[name]


def _checked(loaded: object, what: str) -> PolicyClass:
    """Return a loaded class. Raises ConfigError, with the attributes that it lacks, unless it is a policy's."""
    options = getattr(loaded, "Options", None)
    known = {
        **{key: isinstance(getattr(loaded, key, None), str) for key in ("summary", "source")},
        "Options": isinstance(options, type) and issubclass(options, Settings),
        **{key: isinstance(loaded, type) and key in dir(loaded) for key in ("reset", "__call__")},
    }
    if lacking := [f"`{key}`" for key, there in known.items() if not there]:
        raise ConfigError(
            f"{what}: expected a class with `summary`, `source`, `Options`, `reset` and `__call__`, as in "
            f"rlpto.core.policy.PolicyClass; it has no {', '.join(lacking)}"
        )
    return cast(PolicyClass, loaded)
