"""Provisioners by name, built in or from installed packages."""

from __future__ import annotations

from importlib import metadata
from inspect import isabstract
from pathlib import Path
from typing import Any

from rlpto.io.errors import ConfigError, nearest
from rlpto.io.reading import one_line
from rlpto.io.settings import Settings
from rlpto.policies.registry import is_own, options_for, package_files
from rlpto.policies.spec import PolicySpec
from rlpto.provisioning.base import Provisioner
from rlpto.provisioning.rules import Average, Fixed, ForecastDemand, Reactive, Scheduled, Spare

ENTRY_POINTS = "rlpto.provisioning"
"""Group of entry points under which an installed package offers provisioners: name = class."""

BUILT_IN: dict[str, Any] = {kind.name: kind for kind in (Fixed, Reactive, Spare, Average, Scheduled, ForecastDemand)}
"""Built-in provisioners except the agent, in the order of lists."""


def make_provisioner(spec: PolicySpec) -> Provisioner:
    """Create a provisioner from its spec. Raises ConfigError for an unknown name or option."""
    kind = BUILT_IN.get(spec.name) or _plugin(spec.name)
    found: Provisioner = kind(options_for(kind, spec, "provisioner"))
    found.name = spec.label
    return found


def plugin_files(name: str) -> list[Path]:
    """Return the Python files of the package that a provisioner comes from; none for RLPTO's own."""
    points = () if name in BUILT_IN else metadata.entry_points(group=ENTRY_POINTS)
    return [file for point in points if point.name == name and not is_own(point) for file in package_files(point)]


def _plugin(name: str) -> Any:
    """Return the provisioner class of an installed package."""
    points = {point.name: point for point in metadata.entry_points(group=ENTRY_POINTS)}
    if name not in points:
        raise ConfigError(f"no provisioner {name!r}; {nearest(name, [*BUILT_IN, *sorted(points)])}")
    what = f"provisioner {name} ({points[name].value})"
    try:
        kind = points[name].load()
    except Exception as error:  # a module may raise anything, errors of syntax too
        raise ConfigError(f"{what}: cannot be loaded: {one_line(error)}") from None
    options = getattr(kind, "Options", None)
    complete = "__call__" in dir(kind) and not isabstract(kind)
    if not (isinstance(options, type) and issubclass(options, Settings) and complete):
        raise ConfigError(
            f"{what}: expected a class with `Options` and `__call__`, or `further` if it is derived from "
            "PlannedProvisioner, as rlpto.provisioning.base has it"
        )
    return kind


def spec_of(provisioner: Provisioner) -> str:
    """Return the spec that creates a provisioner like this one."""
    options = getattr(provisioner, "options", None)
    values = {} if options is None else options.model_dump(mode="json")
    given = [f"{key}={'null' if value is None else value}" for key, value in values.items()]
    return ":".join([type(provisioner).name, ",".join(given)]) if given else type(provisioner).name
