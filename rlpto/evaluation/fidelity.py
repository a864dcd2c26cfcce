"""How close the simulator is to real clusters: the same workload under the same policies on both."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from rich.markup import escape
from rich.table import Table

from rlpto.evaluation.formatting import NOTHING, scale_for
from rlpto.evaluation.metrics import METRIC, completion_times
from rlpto.evaluation.runner import FinishedCell
from rlpto.evaluation.tables import STYLE, percent_change
from rlpto.io.errors import ConfigError
from rlpto.io.files import write_text

COMPARED = ("jct_mean", "makespan", "utilisation", "reward")
"""Metrics that are compared, as means over cells."""
RANKED = ("jct_mean", "reward")
"""Metrics by which policies are ranked."""


@dataclass(frozen=True)
class Pair:
    """One metric in the simulator and on the real cluster."""

    simulated: float
    real: float

    @property
    def difference(self) -> float:
        """Simulated minus real."""
        return self.simulated - self.real

    @property
    def relative(self) -> float:
        """The difference relative to the real value; NaN if that is 0."""
        return self.difference / abs(self.real) if self.real else math.nan


@dataclass(frozen=True)
class PolicyFidelity:
    """One policy on both. metrics: those of COMPARED. jobs: JCT [s] of every job that finished on both, mean over
    seeds, by window and name. unfinished: jobs that one of them finished and the other did not."""

    policy: str
    metrics: dict[str, Pair]
    jobs: dict[str, Pair]
    unfinished: int

    @property
    def job_errors(self) -> list[float]:
        """Absolute relative differences of the jobs' JCTs, ascending."""
        return sorted(abs(pair.relative) for pair in self.jobs.values())


@dataclass(frozen=True)
class Fidelity:
    """All policies, best by real mean JCT first."""

    policies: tuple[PolicyFidelity, ...]

    def ranking(self, metric: str, real: bool) -> tuple[str, ...]:
        """Policies from best to worst by a metric of COMPARED."""
        side = "real" if real else "simulated"
        ranked = sorted(
            self.policies,
            key=lambda found: float(getattr(found.metrics[metric], side)),
            reverse=METRIC[metric].better == "higher",
        )
        return tuple(found.policy for found in ranked)

    def agreeing_pairs(self, metric: str) -> tuple[int, int]:
        """Number of pairs of policies that both rank in the same order, and number of all pairs."""
        place = {policy: at for at, policy in enumerate(self.ranking(metric, real=False))}
        pairs = list(combinations(self.ranking(metric, real=True), 2))
        return sum(place[better] < place[worse] for better, worse in pairs), len(pairs)


def simulated_against_real(simulated: Sequence[FinishedCell], real: Sequence[FinishedCell]) -> Fidelity:
    """Compare cells of the same policies, windows and seeds.

    Raises ConfigError if the two sides have different cells.
    """
    by_cell = {done.cell: done for done in simulated}
    if by_cell.keys() != {done.cell for done in real}:
        raise ConfigError("simulated and real cells differ: expected the same policies, windows and seeds")
    by_policy: dict[str, list[tuple[FinishedCell, FinishedCell]]] = {}
    for done in real:
        by_policy.setdefault(done.cell.policy, []).append((by_cell[done.cell], done))
    found = [_policy(name, pairs) for name, pairs in by_policy.items()]
    return Fidelity(tuple(sorted(found, key=lambda policy: policy.metrics["jct_mean"].real)))


def _policy(name: str, pairs: Sequence[tuple[FinishedCell, FinishedCell]]) -> PolicyFidelity:
    metrics = {
        metric: Pair(*(float(np.mean([done.metrics[metric] for done in side])) for side in zip(*pairs, strict=True)))
        for metric in COMPARED
    }
    times = pd.concat([pd.DataFrame({"simulated": _times(ours), "real": _times(theirs)}) for ours, theirs in pairs])
    means = times.dropna().groupby(level=0).mean()
    jobs = {str(job): Pair(float(ours), float(theirs)) for job, ours, theirs in means.itertuples()}
    return PolicyFidelity(name, metrics, jobs, int(times.isna().any(axis=1).sum()))


def _times(done: FinishedCell) -> pd.Series[float]:
    """JCT [s] of every job that finished, by window and name."""
    jobs = done.record().jobs
    return pd.Series(completion_times(jobs), [f"{done.cell.window}/{name}" for name in jobs.names]).dropna()


def fidelity_table(fidelity: Fidelity) -> Table:
    """Simulated and real figures of every policy for the terminal."""
    table = Table(
        title="Simulated against real, best real JCT first",
        caption="means over cells; differences are simulated minus real; jobs: |difference| of each job's JCT",
        **STYLE,
    )
    table.add_column("policy", overflow="fold", min_width=8)
    rows = {found.policy: [escape(found.policy)] for found in fidelity.policies}
    for name in COMPARED:
        pairs = {found.policy: found.metrics[name] for found in fidelity.policies}
        scale = scale_for(METRIC[name], [figure for pair in pairs.values() for figure in (pair.real, pair.simulated)])
        unit = f" \\[{scale.unit}]" if scale.unit else ""
        table.add_column(f"{METRIC[name].label}\nsim, real{unit}", justify="right")
        table.add_column("\ndiff", justify="right")
        for policy, pair in pairs.items():
            relative = METRIC[name].unit == "s"
            difference = percent_change(pair.relative) if relative else scale.signed(pair.difference)
            rows[policy] += [f"{scale.number(pair.simulated)}, {scale.number(pair.real)}", difference]
    table.add_column("jobs\nmedian, worst", justify="right")
    for found in fidelity.policies:
        errors = found.job_errors
        worst = f"{float(np.median(errors)):.1%}, {errors[-1]:.1%}" if errors else NOTHING
        table.add_row(*rows[found.policy], worst)
    return table


def verdicts(fidelity: Fidelity) -> list[str]:
    """Sentences on whether both rank the policies the same, and on jobs that finished on one side only."""
    said = []
    for metric in RANKED if len(fidelity.policies) > 1 else ():
        (agree, pairs), label = fidelity.agreeing_pairs(metric), METRIC[metric].label
        real, simulated = (", ".join(fidelity.ranking(metric, side)) for side in (True, False))
        if agree == pairs:
            said.append(f"both rank the policies the same by {label}: {real}")
        else:
            said.append(
                f"rankings by {label} differ ({agree} of {pairs} pairs agree): real {real}; simulated {simulated}"
            )
    said += [
        f"{found.policy}: {found.unfinished} jobs finished on one of the two only, and are not compared"
        for found in fidelity.policies
        if found.unfinished
    ]
    return said


def write_fidelity(fidelity: Fidelity, path: Path) -> None:
    """Write everything as JSON; undefined figures are null. Raises CheckpointError if that is not possible."""
    rankings = {
        metric: {"real": fidelity.ranking(metric, True), "simulated": fidelity.ranking(metric, False)}
        for metric in RANKED
    }
    content = {
        "policies": [
            {
                "policy": found.policy,
                "metrics": {name: _row(pair) for name, pair in found.metrics.items()},
                "jobs": {name: _row(pair) for name, pair in found.jobs.items()},
                "unfinished": found.unfinished,
            }
            for found in fidelity.policies
        ],
        "same_ranking": {metric: ranked["real"] == ranked["simulated"] for metric, ranked in rankings.items()},
        "rankings": rankings,
    }
    write_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n", "the comparison")


def _row(pair: Pair) -> dict[str, float | None]:
    figures = {**asdict(pair), "difference": pair.difference, "relative": pair.relative}
    return {name: figure if math.isfinite(figure) else None for name, figure in figures.items()}
