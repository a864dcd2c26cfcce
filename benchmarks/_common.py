"""What all programs here share: arguments, CPU time, and checks that decide the exit code."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"

# One of the programs here is called like the package `forecasting`, which has to be found first.
sys.path.insert(0, str(ROOT))

from rlpto.io.errors import RlptoError  # noqa: E402


@dataclass(frozen=True)
class Check:
    """A figure and its limit. least: True if `limit` is a lower bound, else it is an upper bound."""

    name: str
    value: float
    unit: str
    limit: float
    least: bool

    @property
    def passed(self) -> bool:
        return self.value >= self.limit if self.least else self.value <= self.limit


Found = tuple[list[Check], dict[str, object]]
"""Checks of a part of a program, and other figures by name."""


class NoDataError(Exception):
    """Raised if real data that a part needs is missing."""


class Timing(NamedTuple):
    """CPU seconds, and their ratio to the calibration loops right before and after (`loops`)."""

    seconds: float
    loops: float


def data_folder() -> Path:
    """Folder with real traces and profiles: $RLPTO_DATA, else shared/ next to the checkout."""
    named = os.environ.get("RLPTO_DATA")
    return Path(named) if named else ROOT.parent / "shared"


class OneLineParser(argparse.ArgumentParser):
    """A parser whose error messages are one line."""

    def error(self, message: str) -> NoReturn:
        refuse(f"{message}; see --help")


def parser(description: str | None, what: str, names: Iterable[str]) -> argparse.ArgumentParser:
    """The parser of a program with `names` of `what` to choose from. description: only its first line is used."""
    arguments = OneLineParser(description=(description or "").split("\n")[0])
    arguments.add_argument("names", nargs="*", metavar=what, help=f"{', '.join(names)}; without any: all")
    return arguments


def at_least(least: int) -> Callable[[str], int]:
    """A reader of whole numbers from `least` on, as the type of an option."""

    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}, expected {least} or more")
        return int(text)

    return number


def chosen(kind: str, names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """Return the names as a tuple. Ends the program if a name is unknown."""
    if unknown := [name for name in names if name not in known]:
        refuse(f"there is no {kind} {unknown[0]!r}: expected some of {', '.join(known)}")
    return tuple(names)


def refuse(message: str) -> NoReturn:
    """End the program over bad input: one line, exit code 2."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def real(name: str) -> Path:
    """A file or folder of the data folder. Raises NoDataError if it is missing."""
    path = data_folder() / name
    if not path.exists():
        raise NoDataError(f"no real data at {path} (set RLPTO_DATA)")
    return path


def progress(text: str) -> None:
    """Show the program's present activity on stderr."""
    print(f"  {text}", file=sys.stderr, flush=True)


def calibration() -> None:
    """Fixed work, 0.05 to 0.1 s of CPU time: interpreted Python, and sorts and sums of NumPy.

    On a quiet machine, one commit was once 1.7 times as fast as a few minutes before, which rules out thresholds in
    seconds. Programs time this loop in alternation with the measured code, and compare ratios.
    """
    numbers = np.random.default_rng(0).random(200_000)
    for _ in range(3):
        np.sort(numbers).cumsum()
    counts: dict[int, int] = {}
    for i in range(200_000):
        counts[i * 7919 % 1013] = counts.get(i % 1013, 0) + i


USUAL_LOOP_S = 0.06
"""Usual duration of the calibration loop [s], on which limits of wall-clock times are based."""


def seconds_of(call: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Duration of one call [s], by CPU time or another clock."""
    start = clock()
    call()
    return clock() - start


def timed(call: Callable[[], object]) -> Timing:
    """Time one call, between two calibration loops."""
    before = seconds_of(calibration)
    own = seconds_of(call)
    return Timing(own, own * 2 / (before + seconds_of(calibration)))


def calibrated(name: str, calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Timing]:
    """Medians of each call, timed in turns, after one round that warms up (compilation, caches)."""
    taken: dict[str, list[Timing]] = {key: [] for key in calls}
    for repeat in range(repeats + 1):
        for key, call in calls.items():
            progress(f"{name}, {key}: {'warming up' if repeat == 0 else f'{repeat} of {repeats}'}")
            taken[key].append(timed(call))
    return {key: Timing(*np.median(each[1:], axis=0).tolist()) for key, each in taken.items()}


def main(description: str | None, parts: Mapping[str, Callable[..., Found]], repeats: int | None = None) -> None:
    """Run the parts of a program that are named on the command line, or all, and end it.

    repeats: default of --repeats, the argument of every part. Default: parts take no argument.
    Limits of times and rates are for a machine whose calibration loop takes USUAL_LOOP_S. They are widened in
    proportion on a slower or busier machine, by the loop's wall-clock time before and after a part.
    """
    arguments = parser(description, "part", parts)
    if repeats is not None:
        arguments.add_argument("--repeats", type=at_least(1), default=repeats)
    options, checks = arguments.parse_args(), list[Check]()
    facts: dict[str, object] = {}
    for name in chosen("part", options.names, tuple(parts)) or parts:
        progress(name)
        part = parts[name] if repeats is None else partial(parts[name], options.repeats)
        before = seconds_of(calibration, time.perf_counter)
        try:
            found, more = part()
        except NoDataError as lack:
            print(f"{name} skipped: {lack}")
            continue
        except RlptoError as error:
            refuse(f"{error}")
        loop = (before + seconds_of(calibration, time.perf_counter)) / 2
        checks += [in_pace(check, max(loop / USUAL_LOOP_S, 1.0)) for check in found]
        facts |= more | {f"calibration loop around {name}, s": round(loop, 3)}
    finish(checks, **facts)


def in_pace(check: Check, slowness: float) -> Check:
    """A check with its limit for a machine that is `slowness` times as slow as usual."""
    factor = {"s": slowness, "ms": slowness, "1/s": 1 / slowness}.get(check.unit, 1.0)
    return replace(check, limit=check.limit * factor)


def finish(checks: list[Check], **facts: object) -> None:
    """Print all checks and exit, with code 1 if a check failed."""
    for name, fact in facts.items():
        print(f"{name}: {fact}")
    width = max((len(check.name) for check in checks), default=0)
    for check in checks:
        verdict = "ok  " if check.passed else "SHORT"
        bound = "at least" if check.least else "at most"
        print(f"{verdict:5} {check.name:{width}} {check.value:14,.4g} {check.unit}  ({bound} {check.limit:,.4g})")
    sys.exit(0 if all(check.passed for check in checks) else 1)
