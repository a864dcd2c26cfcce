"""Shared fixtures, which tests run, and in which order."""

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
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
settings.register_profile("few", deadline=None, max_examples=12)
settings.register_profile("all", deadline=None, max_examples=100)

SECOND_CLUSTER = ("test_commands", "test_own_clusters", "test_schedulearn", "test_first_job")
"""Files whose cluster tests run in the second of two processes with Ray clusters; all others run in the first."""
DEAR = ("test_frozen", "test_training", "test_all", "test_openapi", "test_browser", "test_months")
"""Files of the longest tests without a cluster, which start first, so that none of them is left for the end."""
DEV_ONLY = (
    *("ray_cluster", "service", "elastic", "store/test_object_storage.py", "test_client.py"),
    *("cli/test_cluster.py", "cli/test_profile.py"),
)
"""Files and folders that are left out where the libraries of `make dev` are missing."""
collect_ignore = [] if find_spec("ray") and find_spec("starlette") else DEV_ONLY


def pytest_addoption(parser: pytest.Parser) -> None:
    """Tests that may go on for long."""
    parser.addoption("--all", action="store_true", help="run slow tests too, and more examples of property tests")
    parser.addoption(
        "--soak", type=int, help="months of service, drawn requests, decisions of policies, minutes of chaos: this many"
    )
    parser.addoption(
        "--cases", type=int, help="tests/fuzz: break each kind of input so often, with a new seed each time"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw as many examples as are asked for."""
    settings.load_profile("all" if config.getoption("--all") else "few")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out."""
    if collect_ignore:
        terminalreporter.write_line(f"Ray is not installed (make dev), so these were left out: {', '.join(DEV_ONLY)}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark cluster tests, skip slow ones, and put the tests that run in one process into a group, longest groups first.

    A file is a group: its fixtures are made once. Cluster tests, which mostly wait, are two groups that start at once.
    """
    places = {}
    for item in items:
        if "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")
        if item.get_closest_marker("slow") and not config.getoption("--all"):
            item.add_marker(pytest.mark.skip(reason="slow: runs with --all"))
        file = item.path.stem
        places[item], group = 2 if file in DEAR else 3, f"{item.path.parent.name}/{file}"
        if item.get_closest_marker("cluster"):
            places[item] = int(file in SECOND_CLUSTER)
            group = f"cluster {places[item] + 1}"
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=places.__getitem__)


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
