"""How a kind of input is broken over and over: no traceback, no hang, no memory without bounds, nothing half written.

`pytest tests/fuzz --cases 3000 -n auto` breaks each kind of input 3,000 times, with another seed at each call.
Hypothesis prints the smallest input that fails, and how to repeat it. Linux only: memory is bounded by RLIMIT_AS.
"""

import os
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from gymnasium.error import Error as GymnasiumError
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from rlpto.forecasting.series import ForecastError
from rlpto.io.errors import RlptoError

CASE_TIMEOUT_S = 20.0
"""CPU-seconds of a case."""
LARGEST_GROWTH_BYTES = 2**30

EXPECTED_ERRORS = (RlptoError, ForecastError)
"""What bad files and settings may raise: one line each."""
ARGUMENT_ERRORS = (*EXPECTED_ERRORS, ValueError, TypeError, GymnasiumError)
"""What bad arguments of the Python API may raise."""

Draw = Callable[[SearchStrategy[Any]], Any]
Target = Callable[[Draw, Path], object]
"""Breaks one input in an empty folder and uses it as a user would."""


class HangError(BaseException):
    """A case took too long. No Exception: nothing that is tried may catch it."""


def _hangs(_: int, __: FrameType | None) -> None:
    raise HangError(f"more than {CASE_TIMEOUT_S:g} CPU-s")


@contextmanager
def _bounded() -> Iterator[None]:
    """A limit to CPU time and to additional memory; nothing is printed."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + LARGEST_GROWTH_BYTES, before[1]))
    handler = signal.signal(signal.SIGPROF, _hangs)
    signal.setitimer(signal.ITIMER_PROF, CASE_TIMEOUT_S)
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def fuzzed(allowed: tuple[type[BaseException], ...] = EXPECTED_ERRORS, share: float = 1.0) -> Callable[[Target], Any]:
    """Decorator: a test that calls the target `share` of `--cases` times.

    A case may end well or with one of the allowed errors; some have to end with one, else nothing was broken.
    """

    def decorate(target: Target) -> Any:
        def test(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
            monkeypatch.chdir(tmp_path)
            cases = request.config.getoption("--cases")
            refused: list[BaseException] = []
            warm: list[bool] = []

            def attempt(data: st.DataObject) -> None:
                with tempfile.TemporaryDirectory(dir=tmp_path) as name:
                    folder, begun = Path(name), time.process_time()
                    try:
                        if warm:
                            with _bounded():
                                target(data.draw, folder)
                        else:  # compiles and imports
                            target(data.draw, folder)
                    except allowed as error:
                        refused.append(error)
                    finally:
                        warm.append(True)
                    assert time.process_time() - begun < CASE_TIMEOUT_S or len(warm) == 1
                    assert allowed is not EXPECTED_ERRORS or not any("\n" in str(error) for error in refused)
                    assert not list(folder.rglob("*.part")), "left unfinished"

            few = cases is None
            if few:
                cases = SUITE_CASES if request.config.getoption("--all") else FEW_CASES
            often = max(1, round(cases * share))
            limits = settings(max_examples=often, database=None, suppress_health_check=list(HealthCheck))
            run = limits(given(st.data())(attempt))
            if few:
                run = seed(7)(run)
            run()
            assert refused or often < SUITE_CASES, "nothing was broken"

        test.__doc__ = target.__doc__
        return test

    return decorate


FEW_CASES, SUITE_CASES = 4, 12
"""Of each kind in `make test`, and with `--all`: always the same."""


def put_file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path
