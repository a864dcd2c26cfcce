"""Packages with plug-ins, found in one test as if they were installed."""

import tomllib
from pathlib import Path

import pytest

SHOCKWAVE = Path(__file__).parents[1] / "examples" / "plugins"


def policies_of(package: Path) -> dict[str, str]:
    """Return the policies that a package offers, `module:Class` by name."""
    return tomllib.loads((package / "pyproject.toml").read_text())["project"]["entry-points"]["rlpto.policies"]


def install(policies: dict[str, str], folder: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python find policies and their modules in `folder`, as after `pip install -e`. site: another folder."""
    about = site / "plugin-1.dist-info" / "entry_points.txt"
    about.parent.mkdir(parents=True)
    about.write_text("\n".join(["[rlpto.policies]", *(f"{name} = {value}" for name, value in policies.items())]))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.syspath_prepend(str(site))
