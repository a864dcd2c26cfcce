"""Shared fixtures, and how property tests run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Tests run in as many processes as there are cores: threads of all of them would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine is no failure.
settings.register_profile("rlpto", deadline=None)
settings.load_profile("rlpto")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with real traces and profiles; skips where this machine has none."""
    named = os.environ.get("RLPTO_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "traces").is_dir() or not (folder / "profiles").is_dir():
        pytest.skip(f"no real data: {folder} lacks traces/ and profiles/ (set RLPTO_DATA)")
    return folder
