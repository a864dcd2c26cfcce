"""What looking ahead is worth: `planner` against the index that it steers; see docs/planning.md, docs/results.md.

PART is one of: windows (test windows of the workloads of docs/results.md, drawn anew), reward (the same by total
reward, against all policies that are compared there),
pollux (Pollux's workloads with jobs that choose their batch sizes, by what is known), latency. But in reward, time
alone counts: other weights are 0.
With `--write` the block of the page is replaced by what was measured: docs/results.md for windows and reward,
docs/planning.md for all others.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import _common
import numpy as np
from _common import TIME_ONLY, Check
from parity import PUBLISHED

from rlpto.core.queues import Queue
from rlpto.core.records import RunRecord
from rlpto.evaluation.metrics import completion_times
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import FloatArray
from rlpto.simulator.cluster import SimulatedCluster

PAGE = _common.ROOT / "docs" / "planning.md"
RESULTS_PAGE = _common.ROOT / "docs" / "results.md"
ON_RESULTS_PAGE = ("windows", "reward")
PARTS = ("windows", "reward", "pollux", "latency")
WINDOWS = {"synthetic": 6, "philly": 25, "pollux": 24}
"""At most so many of each cell, in windows and reward: a window of synthetic takes many times the others' time."""
DRAWS = 3
"""Of the jobs of a window, in windows and reward."""
FRESH_SEED = 71
"""Draws windows of synthetic and pollux that nothing was tuned or compared on before."""
LOADS = (0.5, 0.7, 0.9, 1.1)
ONLINE = ("knowledge.mode=online", "knowledge.fits=shared", "workload.mapping.fixed_batch_models=[ncf]")
KNOWN: dict[str, tuple[str, ...]] = {
    "true speeds, declared epochs": (),
    "shared fits, declared epochs": ONLINE,
    "shared fits, epochs unknown": (*ONLINE, "knowledge.remaining=unknown"),
}
CLAIMS = {"true speeds, declared epochs": 0.79, "shared fits, declared epochs": 0.88}
"""Of Pollux's published mean JCT: at most what the planner comes to. Nothing is claimed where epochs are unknown."""
SEARCH = "perturbations=24,spread=0.25"
"""Options of the planner on Pollux's workloads: chosen on the generated workloads 101 to 106."""
JOBS, LIMIT_MS = 100, 50.0
LARGE_JOBS, LARGE_LIMIT_MS = 10_000, 100.0

Rows = list[dict[str, object]]


class StudyProgress(list[dict[str, object]]):
    """Rows of a table, each shown on stderr as soon as it is measured: a table takes many minutes."""

    def append(self, row: dict[str, object]) -> None:
        super().append(row)
        print(" | ".join(f"{value}" for value in row.values()), file=sys.stderr, flush=True)


def measured(
    experiment: Experiment, spec: str, windows: Sequence[str], draws: int, figure: Callable[[RunRecord], float]
) -> FloatArray:
    """[W] a figure of each window under a policy, mean over draws."""
    policy = experiment.policy(spec)
    found = [[figure(experiment.run_policy(policy, name, draw)) for draw in range(draws)] for name in windows]
    means: FloatArray = np.array(found).mean(axis=1)
    return means


def mean_jct_of(record: RunRecord) -> float:
    """Mean JCT [s] of a run."""
    return float(completion_times(record.jobs).mean())


def total_reward_of(record: RunRecord) -> float:
    """Total reward of a run."""
    return float(record.decisions.reward.sum())


def counting(decisions: list[int]) -> Callable[[RunRecord], float]:
    """As `mean_jct_of`; notes how many decisions each run took."""

    def of(record: RunRecord) -> float:
        decisions.append(len(record.decisions.time))
        return mean_jct_of(record)

    return of


def mean_jct(experiment: Experiment, spec: str, windows: Sequence[str], draws: int = 1) -> FloatArray:
    """[W] mean JCT [s] of each window, mean over draws."""
    return measured(experiment, spec, windows, draws, mean_jct_of)


def interval(ratio_of: tuple[FloatArray, FloatArray]) -> tuple[float, float, float]:
    """Ratio of means over windows, and its 95 % bootstrap interval."""
    one, other = ratio_of
    draws = np.random.default_rng(0).integers(0, len(one), (2000, len(one)))
    low, high = np.percentile(one[draws].mean(axis=1) / other[draws].mean(axis=1), [2.5, 97.5])
    return float(one.mean() / other.mean()), float(low), float(high)


def cell(workload: str, load: float, limit: int | None, *settings: str) -> Experiment:
    """Fresh windows of a workload at a load: as many as WINDOWS says, at most `limit`."""
    count = min(WINDOWS[workload], limit or WINDOWS[workload])
    given = (f"workload.load={load}", f"workload.windows.limit={count}", f"seed={FRESH_SEED}", *settings)
    return Experiment(load_config(_common.CONFIGS / "results" / f"{workload}.yaml", given))


def tuned_for_jct(workload: str) -> Path:
    """Constants of the index, tuned for JCT where classes are weighted."""
    return _common.CONFIGS / "tuned" / f"{workload}-jct-weighted.yaml"


def windows(limit: int | None, noisy: bool, workloads: Sequence[str] = tuple(WINDOWS)) -> tuple[list[Check], Rows]:
    """The twelve cells under weighted classes, each against the index tuned for JCT."""
    rows: Rows = StudyProgress()
    ratios = []
    for workload, load in itertools.product(workloads, LOADS):
        base = tuned_for_jct(workload)
        settings = [*TIME_ONLY, "queue.classes=weighted", *(["knowledge.mode=noisy"] if noisy else [])]
        experiment = cell(workload, load, limit, *settings)
        names = experiment.windows()
        index = mean_jct(experiment, f"index:weights={base}", names, DRAWS)
        began = time.process_time()
        decisions: list[int] = []
        planned = measured(experiment, f"planner:base={base}", names, DRAWS, counting(decisions))
        taken = time.process_time() - began
        ratio, low, high = interval((planned, index))
        ratios.append(ratio)
        rows.append(
            {"workload": workload, "load": load, "windows x draws": f"{len(names)} x {DRAWS}"}
            | {"planner / tuned index": f"{ratio:.3f}", "95 % interval": f"{low:.3f} to {high:.3f}"}
            | {"CPU ms a decision": f"{1e3 * taken / sum(decisions):.1f}"}
        )
    overall = float(np.exp(np.mean(np.log(ratios))))
    what = "with 20 % noise of estimates, " if noisy else ""
    return [
        Check(f"{what}geometric mean of the cells", overall, "of the tuned index's mean JCT", 0.965, False),
        Check(f"{what}worst cell", max(ratios), "of the tuned index's mean JCT", 1.003, False),
    ], rows


def above(one: FloatArray, other: FloatArray) -> tuple[float, float, float]:
    """Mean difference over windows, and its 95 % bootstrap interval."""
    draws = np.random.default_rng(0).integers(0, len(one), (2000, len(one)))
    low, high = np.percentile((one - other)[draws].mean(axis=1), [2.5, 97.5])
    return float((one - other).mean()), float(low), float(high)


def reward(limit: int | None, workloads: Sequence[str] = tuple(WINDOWS)) -> tuple[list[Check], Rows]:
    """The twelve cells by total reward: against every policy of the configs, and against the planner's own base."""
    rows: Rows = StudyProgress()
    ahead = beyond = 0
    for workload, load in itertools.product(workloads, LOADS):
        experiment = cell(workload, load, limit)
        names, start = experiment.windows(), _common.CONFIGS / "tuned" / f"{workload}-steering.yaml"
        others = {spec: measured(experiment, spec, names, 1, total_reward_of) for spec in experiment.config.policies}
        best = sorted(others, key=lambda spec: float(others[spec].mean()))[-2:]
        rivals = {spec: measured(experiment, spec, names, DRAWS, total_reward_of) for spec in best}
        runner_up = max(rivals, key=lambda spec: float(rivals[spec].mean()))
        base = measured(experiment, f"index:weights={start}", names, DRAWS, total_reward_of)
        planned = measured(experiment, f"planner:base={start}", names, DRAWS, total_reward_of)
        against, beside = above(planned, rivals[runner_up]), above(planned, base)
        ahead, beyond = ahead + (against[1] > 0), beyond + (beside[1] > 0)
        rows.append(
            {"workload": workload, "load": load, "windows x draws": f"{len(names)} x {DRAWS}"}
            | {"planner": f"{planned.mean():.1f}", "runner-up": f"{experiment.policy(runner_up).name}"}
            | {"planner - runner-up": difference(against), "planner - agent_start": difference(beside)}
        )
    return [
        Check("cells where the planner's total reward is above every other policy's", ahead, "of 12", 12, True),
        Check("cells where it is above its base's, agent_start", beyond, "of 12", 8, True),
    ], rows


def difference(found: tuple[float, float, float]) -> str:
    """A mean and its interval."""
    return f"{found[0]:+.2f} [{found[1]:+.2f}, {found[2]:+.2f}]"


def pollux(data: Path) -> tuple[list[Check], Rows]:
    """Pollux's four workloads, by what is known, relative to Pollux's published mean."""
    published = float(np.mean([jct for (policy, _), jct in PUBLISHED.items() if policy == "pollux"]))
    base = _common.CONFIGS / "tuned" / "pollux-adaptive.yaml"
    checks, rows = [], []
    for name, settings in KNOWN.items():
        given = [
            f"workload.path={json.dumps(str(data / 'traces' / 'pollux' / 'workload-*.csv'))}",
            f"profiles.folder={json.dumps(str(data / 'profiles'))}",
            *("workload.mapping.adaptive_batch=true", *TIME_ONLY, *settings),
        ]
        experiment = Experiment(load_config(_common.CONFIGS / "pollux.yaml", given))
        names = [window for window in experiment.windows() if ("pollux", window) in PUBLISHED]
        index, planned = (
            mean_jct(experiment, spec, names).mean() / published
            for spec in (f"index:weights={base}", f"planner:base={base},{SEARCH}")
        )
        if name in CLAIMS:
            checks.append(Check(f"planner, {name}", float(planned), "of Pollux's mean JCT", CLAIMS[name], False))
        rows.append({"known": name, "tuned index": f"{index:.3f}", "planner": f"{planned:.3f}"})
    return checks, rows


def latency() -> tuple[list[Check], Rows]:
    """Wall-clock time of a decision in which a plan is made, at 100 jobs; and of any at 10,000 on 1,000 nodes."""
    checks, rows = [], []
    for file, nodes, active, bound in (
        ("results/synthetic", 16, JOBS, LIMIT_MS),
        ("large", 1000, LARGE_JOBS, LARGE_LIMIT_MS),
    ):
        experiment = Experiment(load_config(_common.CONFIGS / f"{file}.yaml"))
        jobs = experiment.jobs(experiment.windows()[0], 0)
        picked = np.random.default_rng(0).choice(len(jobs), active, replace=len(jobs) < active)
        crowd = [replace(jobs[one], name=f"job-{i}", submit_time=0.0) for i, one in enumerate(picked)]
        cluster = SimulatedCluster(experiment.shape, crowd, experiment.tables, experiment.config.simulator)
        policy, queue = experiment.policy("planner"), Queue(experiment.config.queue)
        taken = []
        for _ in range(60):
            state = queue.order(cluster.state())
            policy.reset(0)  # so that it plans every time
            began = time.perf_counter()
            wishes = policy(state)
            taken.append((time.perf_counter() - began) * 1e3)
            cluster.apply(state, queue.admit(state, wishes, policy.name))
            cluster.advance()
        p99 = float(np.percentile(taken[2:], 99))
        checks.append(Check(f"decision, {active} jobs on {nodes} nodes, p99", p99, "ms", bound, False))
        rows.append(
            {"active jobs": active, "nodes": nodes, "median ms": f"{np.median(taken):.1f}", "p99 ms": f"{p99:.1f}"}
        )
    return checks, rows


def as_table(rows: Rows) -> str:
    """Rows in Markdown."""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "| " + " | ".join("---" for _ in names) + " |"]
    return "\n".join([*lines, *("| " + " | ".join(str(row[name]) for name in names) + " |" for row in rows)])


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all if none is named")
    arguments.add_argument("--limit", type=int, help="at most so many windows of each cell")
    arguments.add_argument("--noisy", action="store_true", help="windows: with errors of estimates")
    arguments.add_argument("--write", action="store_true", help="put the tables of these parts into the docs")
    options = arguments.parse_args()
    if unknown := [part for part in options.parts if part not in PARTS]:
        _common.refuse(f"{unknown[0]}: no such part, expected {', '.join(PARTS)}")
    data, checks = _common.data_folder(), []
    for part in options.parts or PARTS:
        if part != "latency" and data is None:
            _common.refuse(f"{part}: needs traces and profiles, expected their folder in $RLPTO_DATA")
        began = time.process_time()
        with _common.bad_input():
            if part == "windows":
                found, rows = windows(options.limit, options.noisy)
            elif part == "reward":
                found, rows = reward(options.limit)
            else:
                found, rows = pollux(data) if part == "pollux" else latency()
        checks += found
        label = f"{part} --noisy" if part == "windows" and options.noisy else part
        limited = f" --limit {options.limit}" if options.limit and part in PARTS[:3] else ""
        command = f"python benchmarks/planning.py {label}{limited}"
        text = f"`{command}`, {time.process_time() - began:.0f} CPU-s:\n\n{as_table(rows)}"
        if options.write:
            write(label, text)
        elif not options.json:
            print(f"{text}\n", flush=True)
    _common.finish(checks, options.json)


def write(part: str, text: str) -> None:
    """Replace what stands between the marks of a part on the page."""
    begin, end = f"<!-- begin: {part} -->", f"<!-- end: {part} -->"
    page = RESULTS_PAGE if part in ON_RESULTS_PAGE else PAGE
    before, rest = page.read_text(encoding="utf-8").split(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
