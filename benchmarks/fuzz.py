"""Break every kind of file, setting, answer and argument: no traceback, no hang, no memory without bounds.

`python benchmarks/fuzz.py --cases 100000` prints its seed, and every finding with the command that repeats it. A case
depends on the seed and its number alone. Linux only: memory is bounded by RLIMIT_AS.
"""

from __future__ import annotations

import argparse
import os
import resource
import secrets
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from types import FrameType
from typing import Any

import _common  # noqa: F401  finds the packages of this checkout
import numpy as np

CASE_TIMEOUT_S = 20.0
"""CPU-seconds of a case."""
STUCK_TIMEOUT_S = 300.0
"""Seconds until a process in which nothing moves, not even its own clock, is killed."""
LARGEST_GROWTH_BYTES = 2**30
REPORT_INTERVAL_S = 60.0
"""Between two lines that say how far it is."""

_PREPARING = -1


class HangError(BaseException):
    """A case took too long. No Exception: nothing that is tried may catch it."""


def run_case(seed: int, case: int, keep: Path | None = None) -> tuple[str, str]:
    """Name of the target of a case, and what was found: a traceback, or nothing."""
    from _fuzz_targets import TARGETS

    rng = np.random.default_rng([seed, case])
    weights = np.array([weight for weight, _, _ in TARGETS])
    _, target, allowed = TARGETS[int(rng.choice(len(TARGETS), p=weights / weights.sum()))]
    folder = Path(tempfile.mkdtemp(prefix="case-", dir=keep))
    begun, found = time.process_time(), ""
    try:
        target(rng, folder)
    except allowed as refused:
        if isinstance(refused, MemoryError) or (len(allowed) == 2 and "\n" in str(refused)):
            found = f"an error of several lines: {refused!r}"
    except (Exception, HangError):
        found = traceback.format_exc()
    if not found and time.process_time() - begun > CASE_TIMEOUT_S:
        found = f"took {time.process_time() - begun:.0f} CPU-s"
    left = [path.name for path in folder.rglob("*.part")]
    if not found and left:
        found = f"left unfinished: {', '.join(left)}"
    if keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    return target.__name__, found


def _prepare(folder: Path) -> None:
    """Load and compile everything once, then bound time and memory."""
    from _fuzz_targets import PREPARED

    os.chdir(folder)
    for prepare in PREPARED:
        prepare()
    for case in range(40):  # whatever is imported or compiled late
        run_case(0, case)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + LARGEST_GROWTH_BYTES, resource.RLIM_INFINITY))
    signal.signal(signal.SIGPROF, _hangs)


def _hangs(_: int, __: FrameType | None) -> None:
    raise HangError(f"more than {CASE_TIMEOUT_S:g} CPU-s")


def _timed_case(seed: int, case: int, keep: Path | None = None) -> tuple[str, str]:
    signal.setitimer(signal.ITIMER_PROF, CASE_TIMEOUT_S)
    try:
        return run_case(seed, case, keep)
    except HangError:  # in between two cases
        return "?", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _work(
    seed: int, first: int, stride: int, cases: int, now: Synchronized[int], answers: SimpleQueue[Any], folder: Path
) -> None:
    """Every `stride`th case from the first on; `now` is the one under way."""
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        _prepare(folder)
        for case in range(first, cases, stride):
            now.value = case
            answers.put((case, *_timed_case(seed, case)))
    now.value = cases


def fuzz(seed: int, cases: int, workers: int) -> tuple[Counter[str], list[tuple[int, str, str]]]:
    """Cases run of every target, and findings (case, target, what)."""
    context = get_context("spawn")
    counts: Counter[str] = Counter()
    findings: list[tuple[int, str, str]] = []
    answers: SimpleQueue[Any] = context.SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="rlpto-fuzz-") as scratch:

        def start(first: int) -> Any:
            now = context.Value("q", _PREPARING)
            folder = Path(tempfile.mkdtemp(dir=scratch))
            arguments = (seed, first, workers, cases, now, answers, folder)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            return [first, process, now, now.value, time.monotonic()]

        running = [start(0)]
        while running[0][2].value == _PREPARING and running[0][1].is_alive():  # what it compiles, the others load
            time.sleep(0.05)
        running += [start(number) for number in range(1, min(workers, cases))]
        told = time.monotonic()
        while running:
            if time.monotonic() - told > REPORT_INTERVAL_S:
                told = time.monotonic()
                print(f"{sum(counts.values()):,} cases, {len(findings)} findings", flush=True)
            while not answers.empty():
                case, name, found = answers.get()
                counts[name] += 1
                if found:
                    findings.append((case, name, found))
                    print(f"case {case} ({name}): {found.strip().splitlines()[-1][:200]}", flush=True)
            for entry in list(running):
                first, process, now, before, since = entry
                if now.value != before:
                    entry[3:] = [now.value, time.monotonic()]
                stuck = before != _PREPARING and time.monotonic() - since > STUCK_TIMEOUT_S
                if stuck:
                    process.kill()
                    process.join()
                if process.is_alive():
                    continue
                running.remove(entry)
                if now.value < cases:
                    case = max(now.value, first)
                    findings.append((case, "?", "stuck" if stuck else f"process ended with {process.exitcode}"))
                    print(f"case {case}: {findings[-1][2]}", flush=True)
                    if now.value != _PREPARING and case + workers < cases:
                        running.append(start(case + workers))
            time.sleep(0.05)
        while not answers.empty():
            case, name, found = answers.get()
            counts[name] += 1
            if found:
                findings.append((case, name, found))
    return counts, sorted(findings)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--cases", type=int, default=2000)
    arguments.add_argument("--seed", type=int, help="of all cases; drawn and printed if not given")
    arguments.add_argument("--case", type=int, help="only this one, with its traceback and its files")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    given = arguments.parse_args()
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    if given.case is not None:
        keep = Path(tempfile.mkdtemp(prefix="rlpto-fuzz-"))
        _prepare(keep)
        name, found = _timed_case(seed, given.case, keep)
        print(f"seed {seed}, case {given.case} ({name}), files in {keep}\n{found or 'nothing found'}")
        sys.exit(1 if found else 0)
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # no process is left behind
    begun = time.monotonic()
    counts, findings = fuzz(seed, given.cases, given.jobs)
    print(", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())))
    for case, name, found in findings:
        print(f"\ncase {case} ({name}); again: python benchmarks/fuzz.py --seed {seed} --case {case}\n{found}")
    print(f"{sum(counts.values()):,} cases in {time.monotonic() - begun:.0f} s: {len(findings)} findings")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
