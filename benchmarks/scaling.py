"""Evaluations on a cluster: speed-up here, the driver's costs of a task, and the efficiency of a thousand slots.

    python benchmarks/scaling.py [speedup] [tasks] [slots] [--repeats CELLS]

slots simulates events with measured costs: the driver is serial, tasks run in order of submission on the next free
slot, and at most twice as many tasks as slots are in flight, as in `rlpto.experiments.ray_workers`.
"""

from __future__ import annotations

import heapq
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from _common import ROOT, Found, main, progress

from rlpto.bench.results import read_rows
from rlpto.bench.submissions import board
from rlpto.bench.suite import FIFO_FILE, REALISTIC, Case, cases
from rlpto.evaluation.runner import BegunEvaluation, Cell, Evaluation, evaluate_all, run_measured
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment, prepare, run_cell
from rlpto.experiments.inputs import runner_for
from rlpto.experiments.on_host import VERSIONS, Stored, call_there
from rlpto.experiments.ray_workers import AHEAD, RayWorkers
from rlpto.io.arrays import FloatArray
from rlpto.io.workers import LocalWorkers, Workers
from rlpto.ray_cluster.nodes.environment import ray_environment
from rlpto.ray_cluster.nodes.local import start_nodes
from rlpto.ray_cluster.nodes.processes import make_folder, remove_cluster, unused_folder

SLOTS, TASKS = 1_000, 2_000
WINDOWS = 200_000
WINDOW_S, UPDATE_S = 0.005, 0.014
"""A training's seconds to play a window (12,000 of an agent of `submissions/agent_microsoft` took 55 CPU-seconds), and
to move the mean by PPO, from another measurement."""
ROLLOUTS = 128, 1_024, 8_192, 65_536


class Costs(NamedTuple):
    """CPU seconds of the driver for a task: to submit it, to get its result, to write a finished cell; and of a wait
    for TASKS tasks in flight. start: of a host's process, for its imports."""

    submit: float
    result: float
    merge: float
    wait: float
    start: float


@contextmanager
def raylets(count: int) -> Iterator[Workers]:
    """Nodes of one CPU each, and a head without any."""
    folder = unused_folder()
    with ray_environment(folder):
        make_folder(folder)
        try:
            options = [{"cpus": 1, "gpus": 0}] * count
            head, *_ = start_nodes(options, progress, cpus=0)
            with RayWorkers(str(head.gcs_address)) as workers:
                yield workers
        finally:
            remove_cluster(folder)


def evaluation(workers: Workers, out: Path) -> Evaluation:
    """Three policies on eight windows of the quickstart."""
    config = load_config(ROOT / "configs" / "quickstart.yaml", ["workload.windows.limit=8", "policies=[fifo,srtf,las]"])
    experiment = Experiment(config)
    return Evaluation(experiment.cells(), runner_for(workers, config), out, experiment.outcome(), config.reward)


def speedup(repeats: int) -> Found:  # noqa: ARG001
    """The same evaluation in this process, on one raylet of one CPU and on two; each after a run that warms up."""

    def seconds(workers: Workers) -> float:
        taken = []
        for _ in range(2):
            with TemporaryDirectory() as out:
                begun = time.perf_counter()
                list(evaluate_all([evaluation(workers, Path(out))], False, workers))
                taken.append(time.perf_counter() - begun)
        return taken[-1]

    found = {"this process": seconds(LocalWorkers())}
    for count in (1, 2):
        with raylets(count) as workers:
            found[f"{count} raylet{'s' * (count > 1)} of one CPU"] = seconds(workers)
    first = found["this process"]
    return [], {f"{name}, s": f"{taken:.1f} (speed-up {first / taken:.2f})" for name, taken in found.items()}


@cache
def realistic() -> tuple[list[tuple[Case, str]], list[tuple[str, ...]]]:
    """Windows of the realistic division, and the policies of each submission."""
    chosen = {case.id: case for case in cases() if case.counts and case.division == REALISTIC}
    windows = [(chosen[row.case], row.window) for row in read_rows(FIFO_FILE) if row.case in chosen]
    return windows, [card.policies for card, _ in board(ROOT / "submissions", ROOT / "runs")]


@cache
def sample(repeats: int) -> tuple[dict[str, list[float]], Any]:
    """CPU seconds of drawn cells of each submission's first policy, as in a new process: with the preparation of the
    configuration; and an outcome."""
    windows, submissions = realistic()
    rng, found = np.random.default_rng(0), dict[str, list[float]]()
    for policy, *_ in submissions:
        for _ in range(repeats):
            case, window = windows[rng.integers(len(windows))]
            config = case.config().model_copy(update={"policies": (policy,)})
            prepare.cache_clear()
            begun = time.process_time()
            outcome = run_measured(partial(run_cell, config, sealed=True), None, Cell(policy, window, config.seed))
            found.setdefault(policy, []).append(time.process_time() - begun)
        progress(f"{policy.rpartition('/')[2]}: {found[policy][-1]:.2f} s")
    return found, outcome


@cache
def costs(repeats: int) -> tuple[Costs, int]:
    """Costs of a task with results as large as those of a drawn cell, and the size of such a result."""
    import ray

    text = "import time, rlpto.bench.submissions, rlpto.experiments.ray_workers; print(time.process_time())"
    start = float(subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, check=True).stdout)
    _, outcome = sample(repeats)

    def taken(call: Callable[[], object]) -> float:
        begun = time.thread_time()
        call()
        return time.thread_time() - begun

    with raylets(2) as workers, TemporaryDirectory() as out:
        one = evaluation(workers, Path(out))
        begun, stored = BegunEvaluation(one), Stored.of(_Echo(outcome))
        task = ray.remote(num_cpus=1)(call_there)
        pending = list[Any]()
        submit = taken(lambda: pending.extend(task.remote(stored, VERSIONS, one.cells[0]) for _ in range(TASKS)))
        wait = np.median([taken(lambda: ray.wait(pending, num_returns=1, timeout=10)) for _ in range(20)])
        ray.wait(pending, num_returns=TASKS, timeout=300)
        wait += np.median([taken(lambda: ray.wait(pending, num_returns=TASKS, timeout=0)) for _ in range(20)])
        result = taken(lambda: [ray.get(reference) for reference in pending])

        def merge() -> None:
            for cell in one.cells:
                begun.keep(cell, outcome)

        merged = taken(merge) / len(one.cells)
    return Costs(submit / TASKS, result / TASKS, merged, float(wait), start), len(outcome.record)


class _Echo:
    def __init__(self, outcome: Any) -> None:
        self.outcome = outcome

    def __call__(self, _: Cell) -> Any:
        return self.outcome


def tasks(repeats: int) -> Found:
    """The driver's seconds for a task, and times of the realistic division's cells."""
    found, size = costs(repeats)
    seconds = np.concatenate([*sample(repeats)[0].values()])
    low, middle, high = np.quantile(seconds, [0.1, 0.5, 0.9])
    facts = {f"driver, {name}, ms": f"{1000 * value:.2f}" for name, value in found._asdict().items()}
    text = f"{middle:.2f} ({low:.2f} to {high:.2f}; mean {seconds.mean():.2f}, longest {seconds.max():.1f})"
    return [], {**facts, "record, kB": f"{size / 1000:.0f}", f"cell, median of {len(seconds)} and 80 %, CPU-s": text}


def makespan(durations: FloatArray, paid: Costs) -> float:
    """Seconds until all results of tasks [n] are written, by events."""
    free, pending, now, begun = [paid.start] * SLOTS, list[float](), 0.0, 0
    while pending or begun < len(durations):
        while begun < len(durations) and len(pending) < AHEAD * SLOTS:
            now += paid.submit
            end = max(heapq.heappop(free), now) + float(durations[begun])
            heapq.heappush(free, end)
            heapq.heappush(pending, end)
            begun += 1
        now = max(now, pending[0]) + paid.wait * len(pending) / TASKS
        done = sum(end <= now for end in pending)
        for _ in range(done):
            heapq.heappop(pending)
        now += done * (paid.result + paid.merge)
    return now


def slots(repeats: int) -> Found:
    """Efficiency of a thousand slots, by simulated events."""
    paid, _ = costs(repeats)
    seconds, (windows, submissions), rng = sample(repeats)[0], realistic(), np.random.default_rng(1)
    board_once = np.array([rng.choice(seconds[one[0]]) for _ in windows for one in submissions for _ in one])
    facts = dict[str, object]()
    for name, durations, its in (
        ("board", board_once, paid),
        ("board, processes up", board_once, paid._replace(start=0.0)),
        ("board, processes up, longest first", np.sort(board_once)[::-1], paid._replace(start=0.0)),
        ("ten boards, processes up", np.tile(board_once, 10), paid._replace(start=0.0)),
    ):
        taken, busy = makespan(durations, its), len(durations) * (its.submit + its.result + its.merge)
        text = f"{durations.sum() / SLOTS / taken:.2f} ({len(durations):,} cells, {taken:.1f} s, driver busy for "
        facts[f"efficiency, {name}"] = f"{text}{busy:.1f} s, longest cell {durations.max():.1f} s)"
    for rollout in ROLLOUTS:
        parts = min(AHEAD * SLOTS, rollout // 2)
        played = rng.lognormal(0.0, 0.3, rollout) * WINDOW_S
        durations = np.array([part.sum() for part in np.array_split(played, parts)])
        taken = makespan(durations, paid._replace(start=0.0, merge=0.0)) + UPDATE_S
        text = f"{durations.sum() / SLOTS / taken:.2f} ({WINDOWS / rollout * taken:.1f} s in all)"
        facts[f"efficiency, {WINDOWS:,} windows by {rollout:,}"] = text
    return [], facts


if __name__ == "__main__":
    main(__doc__, {"speedup": speedup, "tasks": tasks, "slots": slots}, repeats=2)
