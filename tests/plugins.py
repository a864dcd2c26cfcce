"""Packages with plug-ins, found in one test as if they were installed."""

import tomllib
from pathlib import Path

import pytest

SHOCKWAVE = Path(__file__).parents[1] / "examples" / "plugins"


def policies_of(package: Path) -> dict[str, str]:
    """Return the policies that a package offers, `module:Class` by name."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    offered: dict[str, str] = project["entry-points"]["rlpto.policies"]
    return offered


def install(package: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python find a package's modules and policies, as after `pip install -e`. site: an empty folder."""
    offered = "".join(f"{name} = {value}\n" for name, value in policies_of(package).items())
    (site / "plugin-1.dist-info").mkdir()
    (site / "plugin-1.dist-info" / "entry_points.txt").write_text(f"[rlpto.policies]\n{offered}")
    monkeypatch.syspath_prepend(str(package))
    monkeypatch.syspath_prepend(str(site))
