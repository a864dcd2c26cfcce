"""Shared fixtures, and how property tests run."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import rlpto  # noqa: F401 - before NumPy: it decides the last digits

# Tests run in as many processes as there are cores: threads of all of them would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Workers of local Ray clusters are forked from a process that has imported torch: a tenth of the time to start one.
if hasattr(os, "pidfd_open"):
    os.environ.setdefault("RLPTO_WORKER_PROGRAM", str(Path(__file__).parent / "ray_cluster" / "fork_server.py"))

# Whoever starts them in the background of a shell has them ignore Ctrl-C, which some test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no failure.
settings.register_profile("rlpto", deadline=None)
settings.load_profile("rlpto")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Tests that may go on for long: of broken inputs, and of real jobs."""
    parser.addoption(
        "--soak", type=int, help="months of service, drawn requests, decisions of policies, minutes of chaos: this many"
    )
    parser.addoption(
        "--cases", type=int, help="tests/fuzz: break each kind of input so often, with a new seed each time"
    )


@pytest.fixture(autouse=True)
def ctrl_c_kept() -> Iterator[None]:
    """A handler that a test leaves in place would swallow the Ctrl-C of a later one, which then waits for ever."""
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before, "the test has left a handler of Ctrl-C in place"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder with real traces and profiles; skips where this machine has none."""
    named = os.environ.get("RLPTO_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "traces").is_dir() or not (folder / "profiles").is_dir():
        pytest.skip(f"no real data: {folder} lacks traces/ and profiles/ (set RLPTO_DATA)")
    return folder
