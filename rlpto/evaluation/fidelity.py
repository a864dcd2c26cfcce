"""Fidelity of the simulator: the same workload under the same policies, simulated and on a real cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from rich.markup import escape
from rich.table import Table

from rlpto.evaluation.metrics import METRIC, NOTHING, completion_times, scale_for
from rlpto.evaluation.runner import FinishedCell
from rlpto.evaluation.tables import make_table, percent_change
from rlpto.io.errors import ConfigError
from rlpto.io.files import write_text

COMPARED = ("jct_mean", "makespan", "utilisation", "reward")
"""Metrics that are compared, as means over cells."""
RANKED = ("jct_mean", "reward")
"""Metrics by which policies are ranked."""


@dataclass(frozen=True)
class Fidelity:
    """Results of all policies on both sides. The tables have the columns simulated, real, difference (simulated minus
    real) and relative (the difference over the real value; NaN if the real value is 0).

    policies: best by real mean JCT first. metrics: a row for each policy and metric of COMPARED. jobs: JCT [s] of every
    job that finished on both sides, mean over seeds, a row for each policy and `window/name`. unfinished: by policy,
    the jobs that finished on one side only.
    """

    policies: tuple[str, ...]
    metrics: pd.DataFrame
    jobs: pd.DataFrame
    unfinished: dict[str, int]

    def ranking(self, metric: str, real: bool) -> tuple[str, ...]:
        """Policies from best to worst by a metric of COMPARED."""
        means = self.metrics.xs(metric, level="metric")["real" if real else "simulated"]
        return tuple(
            sorted(self.policies, key=lambda policy: float(means[policy]), reverse=METRIC[metric].better == "higher")
        )

    def agreeing_pairs(self, metric: str) -> tuple[int, int]:
        """Number of pairs of policies that both sides rank in the same order, and number of all pairs."""
        place = {policy: at for at, policy in enumerate(self.ranking(metric, real=False))}
        pairs = list(combinations(self.ranking(metric, real=True), 2))
        return sum(place[better] < place[worse] for better, worse in pairs), len(pairs)

    def job_errors(self, policy: str) -> list[float]:
        """Absolute relative differences of the JCTs of a policy's jobs, ascending."""
        relative = self.jobs["relative"]
        return sorted(relative[relative.index.get_level_values("policy") == policy].abs().tolist())


def simulated_against_real(simulated: Sequence[FinishedCell], real: Sequence[FinishedCell]) -> Fidelity:
    """Compare cells of the same policies, windows and seeds.

    Raises ConfigError if the two sides have different cells.
    """
    if {done.cell for done in simulated} != {done.cell for done in real}:
        raise ConfigError("simulated and real cells differ: expected the same policies, windows and seeds")
    metrics = _differences(_metric_means(simulated), _metric_means(real))
    jct = metrics.xs("jct_mean", level="metric")["real"]
    policies = sorted(jct.index, key=lambda policy: float(jct[policy]))
    times = pd.DataFrame({"simulated": _completion_times(simulated), "real": _completion_times(real)})
    missed = times.isna().any(axis=1).groupby("policy").sum()
    jobs = times.dropna().groupby(["policy", "job"]).mean()
    unfinished = {policy: int(missed.get(policy, 0)) for policy in policies}
    return Fidelity(tuple(policies), metrics, _differences(jobs["simulated"], jobs["real"]), unfinished)


def _differences(simulated: pd.Series[float], real: pd.Series[float]) -> pd.DataFrame:
    table = pd.DataFrame({"simulated": simulated, "real": real})
    table["difference"] = table["simulated"] - table["real"]
    table["relative"] = (table["difference"] / table["real"].abs()).where(table["real"] != 0)
    return table


def _metric_means(finished: Sequence[FinishedCell]) -> pd.Series[float]:
    """Return the means over cells by policy and metric; NaN if a cell lacks the metric."""
    rows = [(done.cell.policy, name, done.metrics[name]) for done in finished for name in COMPARED]
    by_metric = pd.DataFrame(rows, columns=["policy", "metric", "mean"]).groupby(["policy", "metric"], sort=False)
    return by_metric["mean"].agg(lambda values: values.mean(skipna=False))


def _completion_times(finished: Sequence[FinishedCell]) -> pd.Series[float]:
    """Return the JCT [s] of every finished job, by policy, `window/name` and seed."""
    rows = []
    for done in finished:
        jobs, cell = done.record().jobs, done.cell
        times = zip(jobs.names, completion_times(jobs), strict=True)
        rows += [(cell.policy, f"{cell.window}/{name}", cell.seed, time) for name, time in times]
    table = pd.DataFrame(rows, columns=["policy", "job", "seed", "jct"])
    return table.set_index(["policy", "job", "seed"])["jct"].dropna()


def fidelity_table(fidelity: Fidelity) -> Table:
    """Tabulate simulated and real figures of every policy for the terminal."""
    table = make_table(
        "Simulated against real, best real JCT first",
        "means over cells; differences are simulated minus real; jobs: |difference| of each job's JCT",
    )
    rows = {policy: [escape(policy)] for policy in fidelity.policies}
    for name in COMPARED:
        means = fidelity.metrics.xs(name, level="metric")
        scale = scale_for(METRIC[name], means[["simulated", "real"]].to_numpy().ravel())
        unit = f" \\[{scale.unit}]" if scale.unit else ""
        table.add_column(f"{METRIC[name].label}\nsim, real{unit}", justify="right")
        table.add_column("\ndiff", justify="right")
        for policy, row in rows.items():
            simulated, real, difference, relative = (float(figure) for figure in means.loc[policy].to_numpy())
            row.append(f"{scale.number(simulated)}, {scale.number(real)}")
            row.append(percent_change(relative) if METRIC[name].unit == "s" else scale.signed(difference))
    table.add_column("jobs\nmedian, worst", justify="right")
    for policy, row in rows.items():
        errors = fidelity.job_errors(policy)
        table.add_row(*row, f"{float(np.median(errors)):.1%}, {errors[-1]:.1%}" if errors else NOTHING)
    return table


def verdicts(fidelity: Fidelity) -> list[str]:
    """Return sentences on whether both sides rank the policies equally, and on jobs that finished on one side only."""
    found = []
    for metric in RANKED if len(fidelity.policies) > 1 else ():
        (agree, pairs), label = fidelity.agreeing_pairs(metric), METRIC[metric].label
        real, simulated = (", ".join(fidelity.ranking(metric, side)) for side in (True, False))
        if agree == pairs:
            found.append(f"both rank the policies the same by {label}: {real}")
        else:
            found.append(
                f"rankings by {label} differ ({agree} of {pairs} pairs agree): real {real}; simulated {simulated}"
            )
    return found + [
        f"{policy}: {count} jobs finished on one of the two only, and are not compared"
        for policy, count in fidelity.unfinished.items()
        if count
    ]


def write_fidelity(fidelity: Fidelity, folder: Path) -> None:
    """Write both tables as CSV: `fidelity.csv` by policy and metric, `fidelity_jobs.csv` by policy and job.

    Raises CheckpointError if a file cannot be written.
    """
    for name, table in (("fidelity", fidelity.metrics), ("fidelity_jobs", fidelity.jobs)):
        write_text(folder / f"{name}.csv", table.to_csv(lineterminator="\n"), "the comparison")
