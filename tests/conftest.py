"""Shared fixtures, which tests run, and in which order."""

import gc
import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import rlpto  # noqa: F401 - before NumPy: it decides the last digits

# Tests run in more processes than there are cores: threads of all of them would wait for each other.
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

CLUSTERS = (
    (
        "controller",
        "real",
        "rented_nodes",
        "faults",
        "parameter_server",
        "policies",
        "stopping",
        "profiling",
        "chaos",
        "trainings_on_ray",
        "workers",
    ),
    ("schedulearn", "own_clusters", "commands", "first_job", "shipped_code", "autoscaling", "slurm", "pages_as_typed"),
    ("spanning_jobs",),
)
"""Files with cluster tests, without `test_`: those of one row run in one process, the rows side by side."""
PAGE = "tests/test_pages_as_typed.py::test_what_a_page_says_works_as_it_is_typed["
"""Tests that each run in any process: a page without a cluster takes minutes."""
DEAR = ("frozen", "training", "all", "openapi", "browser", "months")
"""Files of the longest tests without a cluster, which start first, so that none of them is left for the end."""
DEV_ONLY = (
    *("ray_cluster", "service", "elastic", "store/test_object_storage.py", "test_client.py"),
    *("hosts/test_large_model.py", "hosts/test_spanning_jobs.py"),
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
    """Draw as many examples as are asked for. Nothing that is imported for tests is garbage (a sixth of that time)."""
    gc.disable()
    settings.load_profile("all" if config.getoption("--all") else "few")


def pytest_collection_finish() -> None:
    """From here on, only what tests make is looked at for garbage."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was left out."""
    if collect_ignore:
        terminalreporter.write_line(f"Ray is not installed (make dev), so these were left out: {', '.join(DEV_ONLY)}")


def row_of(file: Path) -> int | None:
    """The row of CLUSTERS that a file is in."""
    name = file.stem.removeprefix("test_") if file.parent.name in ("ray_cluster", "service", "hosts", "tests") else ""
    return next((row for row, names in enumerate(CLUSTERS) if name in names), None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark cluster tests, skip slow ones, and begin with files that take long. Cluster tests mostly wait."""
    places = {}
    for item in items:
        row = None if item.nodeid.startswith(PAGE) else row_of(item.path)
        if "ray_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")
        if item.get_closest_marker("cluster") and row is None:
            raise pytest.UsageError(f"{item.nodeid} needs a cluster: expected its file in tests/conftest.py:CLUSTERS")
        if item.get_closest_marker("slow") and not config.getoption("--all"):
            item.add_marker(pytest.mark.skip(reason="slow: runs with --all"))
        dear = item.nodeid.startswith(PAGE) or item.path.stem.removeprefix("test_") in DEAR
        places[item] = (2 if dear else 3) if row is None else row
    items.sort(key=places.__getitem__)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run a file, or a row of CLUSTERS, in one process, so that its fixtures are made once, in the order above. A PAGE
    has none."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            row = row_of(Path(file))
            return nodeid if nodeid.startswith(PAGE) else file if row is None else f"row {row}"

    return Files(config, log) if config.getoption("dist") == "loadscope" else None


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
