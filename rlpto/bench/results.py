"""Results of a submission, row by row, and its scores."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from rlpto.bench.suite import FIFO_FILE, Case, cases
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.metrics import completion_times, lower_bound, measure
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import CheckpointError
from rlpto.io.files import write_text
from rlpto.io.reading import one_line, parsing, read_text

FIGURES = ("jct", "p95", "rho", "reward", "gpu_hours", "rescales", "unfinished", "bound")
"""Figures of a cell, the same on every machine: mean and 95th percentile of JCTs [s], where unfinished jobs count until
the run's end, mean finish-time fairness, total reward, GPU-hours held, rescales per job, unfinished jobs, and the lower
bound of what the case scores."""
MEASURED = "cpu_ms"
"""Milliseconds of CPU time per decision, the simulation included; differs from run to run."""
_KEYS = ("case", "digest", "policy", "window")
RESAMPLES = 2000
ROUNDING = 1e-9
"""Largest share by which rounding takes a mean JCT or cost below its bound."""


@dataclass(frozen=True)
class Row:
    """A cell: a policy, written as in its card, on a window of a case."""

    case: str
    digest: str
    policy: str
    window: str
    figures: tuple[float, ...]
    cpu_ms: float

    @property
    def place(self) -> tuple[str, str, str]:
        """Case, policy and window."""
        return self.case, self.policy, self.window

    def scored(self, case: Case) -> float:
        """The figure that its case scores: the mean JCT [s], or the cost, the opposite of the reward."""
        return -self.figures[FIGURES.index("reward")] if case.by_cost else self.figures[0]


def row_of(case: Case, policy: str, record: RunRecord) -> Row:
    """The row of a run whose duration was measured as CPU time."""
    metrics = measure(record)
    jct, events = completion_times(record.jobs), (record.decisions.time, record.changes.time)
    # Version 1 ends a run at its last event, which a time limit may follow.
    end = max(float(times.max(initial=0.0)) for times in events)
    jct = np.where(np.isfinite(jct), jct, end - record.jobs.submit_time)
    figures = (
        float(jct.mean()),
        float(np.percentile(jct, 95)),
        metrics["fairness_mean"],
        metrics["reward"],
        metrics["gpu_hours"],
        metrics["rescales_per_job"],
        metrics["unfinished"],
        _least_cost(record, case.weights) if case.by_cost else lower_bound(record)["jct_mean"],
    )
    cpu_ms = 1000 * record.wall_seconds / max(len(record.decisions.time), 1)
    return Row(case.id, case.digest, policy, record.window, figures, round(cpu_ms, 3))


def _least_cost(record: RunRecord, weights: RewardWeights) -> float:
    """Bound of the cost: every job alone, at the price of one GPU. Jobs need not have finished."""
    hours = float(record.jobs.alone_time.sum()) / 3600
    return weights.time * hours + weights.resources * hours


def write_rows(rows: Iterable[Row], path: Path) -> None:
    """Write rows as CSV with all digits, whole or not at all."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_KEYS, *FIGURES, MEASURED])
    for row in rows:
        writer.writerow([row.case, row.digest, row.policy, row.window, *map(repr, row.figures), row.cpu_ms])
    write_text(path, text.getvalue(), "results")


def read_rows(path: Path) -> list[Row]:
    """Read a file of `write_rows`. Raises CheckpointError with the faulty line."""
    header = [*_KEYS, *FIGURES, MEASURED]
    expected = "results of rlpto bench"
    text = read_text(path, expected, CheckpointError)
    with parsing(path, expected, CheckpointError):
        first, *lines = csv.reader(io.StringIO(text))
    if first != header:
        raise CheckpointError(f"{path}:1: header {one_line(','.join(first))}, expected {','.join(header)}")
    rows: list[Row] = []
    for number, cells in enumerate(lines, 2):
        try:
            *figures, cpu_ms = map(float, cells[len(_KEYS) :])
            row = Row(cells[0], cells[1], cells[2], cells[3], tuple(figures), cpu_ms)
        except (ValueError, IndexError):
            row = None
        if row is None or len(row.figures) != len(FIGURES) or not 0 < row.figures[0] < np.inf:
            raise CheckpointError(f"{path}:{number}: expected {len(header)} values, as {','.join(header)}")
        rows.append(row)
    places = [row.place for row in rows]
    if len(set(places)) < len(places):
        twice = next(place for i, place in enumerate(places) if place in places[:i])
        raise CheckpointError(f"{path}: {' · '.join(twice)} is there twice, expected every cell once")
    return rows


def checked(rows: Sequence[Row], policies: Sequence[str]) -> tuple[list[Row], list[str]]:
    """The rows that are cells of these policies, and a line on every fault: unknown cases, digests, policies or
    windows, missing cells, and figures that no run can have."""
    known = {case.id: case for case in cases()}
    bounds = {(row.case, row.window): row.figures[FIGURES.index("bound")] for row in read_rows(FIFO_FILE)}
    windows = {name: [window for case, window in bounds if case == name] for name in known}
    good, wrong = [], []
    for name in dict.fromkeys(row.case for row in rows):
        mine = [row for row in rows if row.case == name]
        wanted = {(name, policy, window) for policy in policies for window in windows.get(name, ())}
        have = {row.place for row in mine}
        foreign = next((row.digest for row in mine if name in known and row.digest != known[name].digest), None)
        if name not in known:
            wrong.append(f"case {one_line(name)}: no such case, expected those of `rlpto bench list`")
        elif foreign is not None:
            wrong.append(f"case {name}: digest {one_line(foreign)}, expected {known[name].digest}")
        else:
            good += [row for row in mine if row.place in wanted]
        ours = [row for row in mine if row.place in wanted]
        impossible = {row.place for row in ours if not _is_possible(row, row.scored(known[name]), bounds)}
        faults = (
            ("is missing", wanted - have),
            ("is no cell of the card's policies", have - wanted),
            ("has figures that no run can have", impossible),
        )
        for what, places in faults:
            if places and name in known:
                more = f", and {len(places) - 1} more" if len(places) > 1 else ""
                wrong.append(f"case {name}: {one_line(' · '.join(min(places)[1:]))} {what}{more}")
    return good, wrong


def _is_possible(row: Row, scored: float, bounds: Mapping[tuple[str, str], float]) -> bool:
    """Whether the figures of a known cell are finite and positive where time and GPUs are, and what it scores is at
    least the suite's bound, which is also the row's own."""
    figures = dict(zip(FIGURES, row.figures, strict=True))
    bound = bounds[row.case, row.window]
    positive = min(figures[name] for name in ("p95", "rho", "gpu_hours"))
    counts = min(figures["rescales"], figures["unfinished"], row.cpu_ms)
    return bool(
        np.isfinite([*row.figures, row.cpu_ms]).all()
        and figures["bound"] == bound
        and scored >= bound * (1 - ROUNDING)
        and positive > 0
        and counts >= 0
    )


class Scores:
    """Scores of complete results in one division.

    A case scores 0 with the mean JCT of `fifo` and 100 with its lower bound, or the same by cost, relative to fifo's in
    each window, since costs are sums over jobs. A division scores the mean of its cases.
    rows: rows of all policies of a submission (one for each seed of training) on every window of the cases.
    """

    def __init__(self, rows: Sequence[Row], division: str) -> None:
        have = {row.case for row in rows}
        self.cases = [case.id for case in cases() if case.division == division and case.id in have]
        wanted = [case.id for case in cases() if case.division == division and case.counts]
        self.missing = [case for case in wanted if case not in have]
        self._rows = [row for row in rows if row.case in self.cases]

    def by_case(self) -> dict[str, float]:
        """Score of every case."""
        return {case: _score(*self._scored[case]) for case in self.cases}

    @cached_property
    def drawn(self) -> FloatArray:
        """[RESAMPLES] scores of the division's cases that count, with windows and policies resampled. The n-th resample
        has the same windows for all submissions, which makes their differences paired."""
        policies = len({row.policy for row in self._rows})
        members = np.random.default_rng(1).integers(0, policies, (RESAMPLES, policies))
        windows_of, found = np.random.default_rng(0), []
        for case in self._counting:
            mine, fifo, bound = self._scored[case]
            windows = windows_of.integers(0, len(fifo), (RESAMPLES, len(fifo)))
            means = mine[members[:, :, None], windows[:, None, :]].mean(axis=(1, 2))
            low, high = bound[windows].mean(axis=1), fifo[windows].mean(axis=1)
            found.append(100 * (high - means) / (high - low))
        return np.asarray(np.mean(found, axis=0))

    @cached_property
    def interval(self) -> tuple[float, float, float]:
        """Score of the cases that count, with its 95 % bootstrap interval over windows and policies together."""
        score = float(np.mean([_score(*self._scored[case]) for case in self._counting]))
        return score, *between(self.drawn)

    def mean(self, figure: str) -> float:
        """Mean of a figure over the cells of cases that count."""
        at = FIGURES.index(figure)
        return float(np.mean([row.figures[at] for row in self._rows if row.case in self._counting]))

    @property
    def cost(self) -> float | None:
        """Mean cost over the cases that count, each case relative to fifo's. Default: its cases score the mean JCT."""
        relative = [self._scored[case.id][0] for case in cases() if case.by_cost and case.id in self._counting]
        return float(np.mean([costs.mean() for costs in relative])) if relative else None

    @property
    def cpu_ms(self) -> float:
        """Median milliseconds of CPU time per decision."""
        return float(np.median([row.cpu_ms for row in self._rows]))

    @cached_property
    def _counting(self) -> list[str]:
        return [case.id for case in cases() if case.counts and case.id in self.cases]

    @cached_property
    def _scored(self) -> dict[str, tuple[FloatArray, FloatArray, FloatArray]]:
        """By case: what it scores [policies, windows], the same of fifo [windows], and its bound [windows]."""
        fifo = {(row.case, row.window): row for row in read_rows(FIFO_FILE)}
        found = {}
        for case in (case for case in cases() if case.id in self.cases):
            mine = [row for row in self._rows if row.case == case.id]
            windows = sorted({row.window for row in mine})  # resamples of all submissions draw the same ones by number
            policies = list(dict.fromkeys(row.policy for row in mine))
            at = {row.place: row for row in mine}
            theirs = np.array([[at[case.id, one, window].scored(case) for window in windows] for one in policies])
            of_fifo = [fifo[case.id, window] for window in windows]
            base = np.array([row.scored(case) for row in of_fifo])
            bound = np.array([row.figures[FIGURES.index("bound")] for row in of_fifo])
            scale = base if case.by_cost else np.ones(len(base))
            found[case.id] = theirs / scale, base / scale, bound / scale
        return found


def between(drawn: FloatArray) -> tuple[float, float]:
    """The middle 95 % of resampled figures."""
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(low), float(high)


def _score(mine: FloatArray, fifo: FloatArray, bound: FloatArray) -> float:
    return float(100 * (fifo.mean() - mine.mean()) / (fifo.mean() - bound.mean()))
