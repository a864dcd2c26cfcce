"""Speed of the simulator, of batched decisions, of fits, of decisions on a large cluster, and of the command line.

Each is stated in calibration loops, or in starts of Python, which are timed in alternation with it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import _common
import numpy as np
from _common import Check, Found

from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.policy import Policy
from rlpto.core.queues import Queue, QueueSettings
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.envs.compiled_batch import CompiledBatch, Workload, begin, build_batch, run_requested
from rlpto.evaluation.metrics import measure
from rlpto.evaluation.runner import Cell
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.knowledge.bayes_fit import fit_with_prior
from rlpto.knowledge.online_fit import fit_observed
from rlpto.knowledge.prior import prior_without
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.performance.throughput import StepMeasurements
from rlpto.policies.registry import is_complete, own_policies
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

HOUR = 3600.0

# The simulator ------------------------------------------------------------------------------------------------------

POLLUX_JOBS_PER_SECOND = 12.8
RUN_LOOPS, PHILLY_LOOPS = 2.5, 400.0
"""Largest number of calibration loops for a run of 160 jobs, and for a run of the whole of Philly."""


def simulator(repeats: int) -> Found:
    """Tiresias on a 160-job workload of the Pollux simulator, which processes 12.8 jobs per CPU-second there.

    Counted: building the cluster and the whole run, records included. Not counted: compilation, files, speed tables.
    """
    paths = {"workload.path": "traces/pollux/workload-1.csv", "profiles.folder": "profiles"}
    overrides = [f"{key}={json.dumps(str(_common.real(path)))}" for key, path in paths.items()]
    experiment = Experiment(load_config(_common.CONFIGS / "pollux.yaml", overrides))
    cell = Cell("tiresias", experiment.windows()[0], 0)
    jobs = len(experiment.run_cell(cell).jobs.names)
    calls = {"tiresias": partial(experiment.run_cell, cell)}
    taken = _common.calibrated("simulator", calls, repeats)["tiresias"]
    rate = jobs / taken.seconds
    return [Check(f"run of {jobs} jobs", taken.loops, "calibration loops", RUN_LOOPS, False)], {
        "jobs per CPU-second": round(rate, 1),
        "times the Pollux simulator": round(rate / POLLUX_JOBS_PER_SECOND),
    }


def philly(repeats: int) -> Found:
    """The whole of Philly (64,000 jobs) on 310 nodes x 8 GPUs under FIFO, SRTF and LAS.

    Counted: the whole simulation of one policy, jobs already mapped. Not counted: compilation, reading the trace.
    """
    trace = _common.real("traces/philly.csv.gz")
    overrides = [
        f"workload.path={json.dumps(str(trace))}",
        "workload.source=files",
        "workload.format=null",
        "workload.load=null",
        "workload.skip_days=0",
        "workload.mapping.max_duration=1e9",
        "workload.mapping.users=null",
        "cluster.nodes=[{count: 310, gpus: 8}]",
        "simulator.decide_on=interval",
    ]
    experiment = Experiment(load_config(_common.CONFIGS / "philly.yaml", overrides))
    (window,) = experiment.windows()
    jobs = experiment.jobs(window, 0)
    last: dict[str, RunRecord] = {}

    def simulate(policy: str) -> None:
        config = experiment.config
        cluster = SimulatedCluster(experiment.shape, jobs, experiment.tables(), config.simulator)
        last[policy] = run(cluster, experiment.policy(policy), config.queue, config.reward)

    calls = {policy: partial(simulate, policy) for policy in ("fifo", "srtf", "las")}
    checks, facts = [], {"trace": trace, "jobs": len(jobs)}
    for policy, taken in _common.calibrated("philly", calls, (repeats + 1) // 2).items():
        checks.append(Check(f"{policy}, whole trace", taken.loops, "calibration loops", PHILLY_LOOPS, False))
        jct, decisions = measure(last[policy])["jct_mean"], len(last[policy].decisions.time)
        facts[policy] = f"{taken.seconds:.1f} CPU-s, mean JCT {jct:,.0f} s, {decisions:,} decisions"
    return checks, facts


RENTED_TIMES, RENTED_DAYS = 3.0, 3
"""CPU time of a day with rented nodes relative to the same day with owned ones; number of simulated days."""


def rented(repeats: int) -> Found:
    """Days of a Microsoft cluster on 200 rented nodes, against the same jobs on 200 owned ones, under FIFO.

    Counted: building the cluster and the whole run, with a decision on the nodes each minute. Not counted: compilation.
    """
    path, owned = _common.CONFIGS / "rented.yaml", "cluster.nodes=[{count: 200, gpus: 4}]"
    on_owned = Experiment(
        load_config(path, [owned, "provision=reactive", "policies=[fifo]", "evaluation.reference=fifo"])
    )
    on_rented = Experiment(load_config(path, ["provision=reactive"]))
    kinds = {"fifo": on_owned, "fifo@fixed:share=1": on_rented, "fifo@average:factor=2,half_life=60": on_rented}

    def play(policy: str) -> None:
        for window in kinds[policy].windows()[:RENTED_DAYS]:
            kinds[policy].run_cell(Cell(policy, window, 0))

    for policy in kinds:
        play(policy)  # compiles
    found = _common.calibrated("rented", {policy: partial(play, policy) for policy in kinds}, repeats)
    checks: list[Check] = []
    facts: dict[str, object] = {"fifo, CPU-s a day": round(found["fifo"].seconds / RENTED_DAYS, 3)}
    for policy in list(kinds)[1:]:
        times = found[policy].seconds / found["fifo"].seconds
        checks.append(Check(policy, times, "times owned nodes", RENTED_TIMES, False))
        facts[f"{policy}, CPU-s a day"] = round(found[policy].seconds / RENTED_DAYS, 3)
    return checks, facts


# Batched decisions --------------------------------------------------------------------------------------------------

BATCH = 64
NODES = ClusterShape((Node(4),) * 16)
COUNTED, DECISIONS, BATCH_LOOPS = 100_000, 2000, 4.0
"""Number of decisions; decisions of each cluster in a repeat; most calibration loops for COUNTED decisions."""
GAP_S = 315.0


def batch(repeats: int) -> Found:
    """Decisions per CPU-second of 64 simulated clusters with about 32 visible jobs each.

    Counted as one decision: one cluster's jobs are put in order and shown, its policy decides (a trivial one, compiled
    in: every job gets its requested GPUs), allocations are trimmed in queue order, changes are placed on nodes, and the
    cluster runs to its next decision point, with the reward's parts. Not counted: compilation, observations, decisions
    of an empty cluster.
    """
    profiles = load_profiles(None)
    tables = compile_tables(profiles, [JobType(model) for model in profiles.models], 16, 4)
    jobs = [Workload(f"{seed}", tuple(workload(tables, 400, GAP_S, seed)), seed, 36.0) for seed in range(BATCH)]
    checks: list[Check] = []
    facts: dict[str, object] = {}
    for decide_on in ("interval", "events"):
        parts = (SimulatorSettings(decide_on=decide_on), QueueSettings(), RewardWeights())
        clusters = build_batch(BATCH, NODES, jobs, tables, *parts)
        for b in range(BATCH):
            begin(clusters, b, b)
        run_requested(clusters, 200)
        counts: list[int] = []
        visible: list[float] = []

        def decide(clusters: CompiledBatch, counts: list[int], visible: list[float]) -> None:
            counts.append(run_requested(clusters, DECISIONS))
            visible.append(clusters.world.clusters["active"].mean())

        calls = {decide_on: partial(decide, clusters, counts, visible)}
        taken = _common.calibrated("batch", calls, repeats)[decide_on]
        per = taken.loops * COUNTED / float(np.median(counts))
        facts[f"visible jobs, {decide_on}"] = f"{np.mean(visible):.1f} on average"
        facts[f"decisions per CPU-second, {decide_on}"] = f"{np.median(counts) / taken.seconds:,.0f}"
        checks.append(Check(f"{COUNTED:,} decisions on {decide_on}", per, "calibration loops", BATCH_LOOPS, False))
    return checks, facts


def workload(tables: SpeedTables, jobs: int, gap: float, seed: int) -> list[Job]:
    """Elastic jobs of 1 to 4 requested GPUs and 0.5 to 8 hours on one GPU, one every `gap` seconds on average."""
    rng = np.random.default_rng(seed)
    alone = tables.elapsed[tables.row[:, 0, 1], tables.epochs]
    made = []
    for number, submit in enumerate(np.cumsum(rng.exponential(gap, jobs)).tolist()):
        job_type = int(rng.integers(len(tables.types)))
        size = float(tables.samples[job_type] * (rng.uniform(0.5, 8.0) * HOUR / alone[job_type]))
        gpus, priority = int(rng.integers(1, 5)), int(rng.integers(3))
        model, epochs = tables.types[job_type].model, float(tables.epochs[job_type])
        made.append(Job(f"job-{number}", submit, model, epochs, size, gpus, 1, 16, priority))
    return made


# Fits of jobs' own speeds -------------------------------------------------------------------------------------------

FITS, FIT_LOOPS = 2500, 250.0
"""Number of fits, about as many as a workload of Pollux needs; largest number of calibration loops for all of them."""
OBSERVED = ("nodes", "gpus", "local", "step_time", "sync_time")


def fits(_: int) -> Found:
    """Time of fits to the observed steps of 30 stored cases of Pollux's simulator; tests compare them with its own."""
    cases = json.loads(_common.real("pollux/pollux-fit-cases.json").read_text(encoding="utf-8"))
    observed = [
        StepMeasurements(*(np.array([row[key] for row in case["observations"]], dtype=float) for key in OBSERVED))
        for case in cases
    ]

    def fit_all() -> None:
        for number in range(FITS):
            fit_observed(observed[number % len(observed)])

    def fit_all_with_prior() -> None:
        for number in range(FITS):
            fit_with_prior(observed[number % len(observed)], prior_without(""), 128.0)

    fit_all_with_prior()  # compiles
    taken = _common.calibrated("fits", {"fits": fit_all, "with prior": fit_all_with_prior}, repeats=1)
    ms = {name: round(1e3 * found.seconds / FITS, 2) for name, found in taken.items()}
    check = Check(f"{FITS:,} fits", taken["fits"].loops, "calibration loops", FIT_LOOPS, False)
    return [check], {"a fit by Pollux's rules, CPU-ms": ms["fits"], "one with a prior, CPU-ms": ms["with prior"]}


# Decisions on a large cluster ---------------------------------------------------------------------------------------

ACTIVE, MOST_DECISIONS = 10_000, 200
LARGE_LOOPS = 4.0
"""Largest 99th percentile of a decision [calibration loops]: about 0.1 s on a quiet machine of 2026."""
SECONDS = 4.0
"""Seconds for which each policy decides, from its first decision on; all policies take less than three minutes."""
SMALLER = ("pollux", "sia", "gavel")
"""Policies too slow for this size: two decisions of sia take over a minute, a decision of gavel takes 2.5 s.
`study.py pollux sia` measures two of them."""


def large(_: int) -> Found:
    """Decisions of every policy at 1,000 nodes x 8 GPUs with 10,000 active jobs (configs/large.yaml), in CPU time.

    Counted as one decision: the table of jobs, the queue's order, the policy, checks and trimming, and the placement on
    nodes. Jobs come from the config's test window and are all submitted in the first hour, in which nearly none
    finishes.
    """
    experiment = Experiment(load_config(_common.CONFIGS / "large.yaml"))
    jobs = crowd(experiment)
    # An agent needs a file.
    names = [name for name, policy in own_policies().items() if is_complete(policy) and name not in SMALLER]
    checks: list[Check] = []
    facts: dict[str, object] = {"gpus": experiment.shape.capacity, "active jobs": ACTIVE}
    for name in names:
        _common.progress(f"large: {name}")
        loop = _common.seconds_of(_common.calibration)
        latency = latencies(experiment, name, jobs, MOST_DECISIONS, SECONDS, time.process_time)
        loop = 500 * (loop + _common.seconds_of(_common.calibration))
        slow = float(np.percentile(latency, 99))
        checks.append(Check(f"{name}, p99", slow / loop, "calibration loops", LARGE_LOOPS, False))
        facts[f"{name}, p99"] = f"{slow:.1f} ms of {len(latency)} decisions"
    return checks, facts


def crowd(experiment: Experiment) -> list[Job]:
    """The longest 10,000 jobs of the test window (repeated if it has fewer), submitted in the first hour."""
    found = experiment.jobs(experiment.windows()[0], 0)
    found = sorted(found, key=lambda job: -job.data_size * job.epochs)[:ACTIVE]
    rng = np.random.default_rng(0)
    submits = np.sort(rng.uniform(0, HOUR, ACTIVE))
    order = rng.permutation(ACTIVE)
    return [
        replace(found[order[i] % len(found)], name=f"job-{i}", submit_time=float(submit))
        for i, submit in enumerate(submits)
    ]


def latencies(
    experiment: Experiment,
    name: str,
    jobs: list[Job],
    decisions: int,
    seconds: float = np.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Milliseconds of every decision after the first hour, without the first one, which compiles.

    Ends after that many decisions or seconds."""
    settings = experiment.config.simulator.model_copy(update={"decide_on": "interval"})
    cluster = SimulatedCluster(experiment.shape, jobs, experiment.tables(), settings)
    while cluster.active_jobs < ACTIVE:
        cluster.advance()
    policy = experiment.policy(name)
    policy.reset(0)
    taken: list[float] = []
    until = time.monotonic() + seconds
    for _, whole in decided(cluster, Queue(experiment.config.queue), policy, clock):
        taken.append(1000 * whole)
        if len(taken) >= 2 and (len(taken) > decisions or time.monotonic() >= until):
            break
    return taken[1:]


def decided(
    cluster: SimulatedCluster, queue: Queue, policy: Policy, clock: Callable[[], float] = time.perf_counter
) -> Iterator[tuple[float, float]]:
    """Let a policy decide repeatedly. Yields the seconds of the policy alone, and of the whole decision."""
    while True:
        start = clock()
        state = queue.order(cluster.state())
        shown = clock()
        wishes = policy(state)
        alone = clock() - shown
        cluster.apply(state, queue.admit(state, wishes, policy.name))
        yield alone, clock() - start
        cluster.advance()


# The command line ---------------------------------------------------------------------------------------------------

TIMES = 5.0
"""Largest duration of a command, relative to a Python that imports parts of its standard library."""
STANDARD = [sys.executable, "-c", "import argparse, asyncio, email, http.client, json, logging, sqlite3, unittest"]
COMMANDS = {
    "import rlpto.cli.main": [sys.executable, "-c", "import rlpto.cli.main"],
    "rlpto --help": [str(Path(sys.executable).with_name("rlpto")), "--help"],
}


def startup(repeats: int) -> Found:
    """Duration of the command line's import and of printing its help."""
    checks: list[Check] = []
    facts: dict[str, object] = {}
    for name, command in COMMANDS.items():
        # The first of each warms the file cache.
        pairs = [(started(command), started(STANDARD)) for _ in range(repeats + 1)][1:]
        times = statistics.median(own / usual for own, usual in pairs)
        checks.append(Check(name, times, "times a start of Python", TIMES, False))
        facts[f"{name}, seconds"] = round(statistics.median(own for own, _ in pairs), 2)
    return checks, facts


def started(command: Sequence[str]) -> float:
    """Wall-clock seconds of a command."""
    call = partial(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
    return _common.seconds_of(call, time.perf_counter)


PARTS = {part.__name__: part for part in (simulator, philly, rented, batch, fits, large, startup)}

if __name__ == "__main__":
    _common.main(__doc__, PARTS, repeats=7)
