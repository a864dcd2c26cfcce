"""Decision latency of the baselines at 1,000 nodes x 8 GPUs with 10,000 active jobs (configs/large.yaml).

Counted as one decision, in CPU time: the table of jobs, the queue's order, the policy, checks and trimming, and the
placement on nodes. Jobs are those of the config's test window, all submitted in the first hour, in which nearly none
finishes. Every policy decides for a few seconds, so that all are done within three minutes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import _common
import numpy as np

from rlpto.core.jobs import Job
from rlpto.core.queues import Queue
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.policies.registry import available, is_complete
from rlpto.policies.spec import split_specs
from rlpto.simulator.cluster import SimulatedCluster

ACTIVE = 10_000
LOOPS = 2.0
"""Calibration loops that nearly every decision may take."""
SECONDS = 4.0
"""That each policy decides for, from the first decision on."""
SMALLER = ("pollux", "sia")
"""Searches that are not meant for this size: two decisions of sia take over a minute. Only if named; they are measured
at their own sizes by pollux_objective.py and `study.py sia`."""


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("--trace", type=Path, help="take the jobs of this trace instead of the synthetic ones")
    arguments.add_argument("--decisions", type=int, default=200, help="decisions of each policy at most")
    arguments.add_argument("--policies", help="comma-separated, instead of all")
    options = arguments.parse_args()
    overrides = []
    if options.trace is not None:
        path = json.dumps(str(_common.needed(options.trace)))
        overrides = [f"workload.path={path}", "workload.source=files", "workload.format=null", "workload.load=null"]
    with _common.bad_input():
        experiment = Experiment(load_config(_common.CONFIGS / "large.yaml", overrides))
        jobs = crowd(experiment)
    complete = [name for name, policy in available().items() if is_complete(policy)]  # an agent needs a file
    complete = [name for name in complete if name not in SMALLER]
    names = split_specs(options.policies) if options.policies else complete
    checks, facts = [], {"gpus": experiment.shape.capacity, "active jobs": ACTIVE}
    for name in names:
        _common.progress(f"large: {name}")
        loop = _common.seconds_of(_common.calibration)
        latency = latencies(experiment, name, jobs, options.decisions, SECONDS, time.process_time)
        loop = 500 * (loop + _common.seconds_of(_common.calibration))
        slow = float(np.percentile(latency, 99))
        checks.append(_common.Check(f"{name}, p99", slow / loop, "calibration loops", LOOPS, False))
        facts[f"{name}, p99"] = f"{slow:.1f} ms of {len(latency)} decisions"
    _common.finish(checks, options.json, **facts)


def crowd(experiment: Experiment) -> list[Job]:
    """The longest 10,000 jobs of the test window (repeated if it has fewer), submitted in the first hour."""
    found = experiment.jobs(experiment.windows()[0], 0)
    found = sorted(found, key=lambda job: -job.data_size * job.epochs)[:ACTIVE]
    rng = np.random.default_rng(0)
    submits = np.sort(rng.uniform(0, 3600, ACTIVE))
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
    """Milliseconds of every decision after the first hour and a first one, which compiles; ends after some seconds."""
    settings = experiment.config.simulator.model_copy(update={"decide_on": "interval"})
    cluster = SimulatedCluster(experiment.shape, jobs, experiment.tables, settings)
    while cluster.active_jobs < ACTIVE:
        cluster.advance()
    queue, policy = Queue(experiment.config.queue), experiment.policy(name)
    policy.reset(0)
    taken: list[float] = []
    until = time.monotonic() + seconds
    while len(taken) < 2 or (len(taken) <= decisions and time.monotonic() < until):
        start = clock()
        state = queue.order(cluster.state())
        cluster.apply(state, queue.admit(state, policy(state), name))
        taken.append((clock() - start) * 1000)
        cluster.advance()
    return taken[1:]


if __name__ == "__main__":
    main()
