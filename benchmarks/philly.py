"""The whole of Philly (64,000 jobs) on 310 nodes x 8 GPUs under FIFO, SRTF and LAS.

Counted: CPU seconds of the whole simulation of one policy, jobs already mapped. Not counted:
compilation, reading the trace.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import _common

from rlpto.core.loop import run
from rlpto.core.records import RunRecord
from rlpto.evaluation.metrics import measure
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.simulator.cluster import SimulatedCluster

POLICIES = ("fifo", "srtf", "las")
LOOPS = 400.0
"""Calibration loops that a policy may take."""


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("--trace", type=Path, help="trace in any format that rlpto imports")
    arguments.add_argument("--repeats", type=int, default=3)
    options = arguments.parse_args()
    trace = _common.needed(options.trace, "traces", "philly.csv.gz")
    overrides = [
        f"workload.path={json.dumps(str(trace))}",
        "workload.source=files",
        "workload.format=null",
        "workload.skip_days=0",
        "workload.load=null",
        "workload.mapping.max_duration=1e9",
        "cluster.nodes=[{count: 310, gpus: 8}]",
        "simulator.decide_on=interval",
    ]
    with _common.bad_input():
        experiment = Experiment(load_config(_common.CONFIGS / "philly.yaml", overrides))
        (window,) = experiment.windows()
        jobs = experiment.jobs(window, 0)
    checks, facts = [], {"trace": trace, "jobs": len(jobs)}
    last: dict[str, RunRecord] = {}

    def simulate(policy: str) -> None:
        config = experiment.config
        cluster = SimulatedCluster(experiment.shape, jobs, experiment.tables, config.simulator)
        last[policy] = run(cluster, experiment.policy(policy), config.queue, config.reward)

    calls = {policy: partial(simulate, policy) for policy in POLICIES}
    for policy, taken in _common.calibrated("philly", calls, options.repeats).items():
        checks.append(_common.Check(f"{policy}, whole trace", taken.loops, "calibration loops", LOOPS, False))
        jct, decisions = measure(last[policy])["jct_mean"], len(last[policy].decisions.time)
        facts[policy] = f"{taken.seconds:.1f} CPU-s, mean JCT {jct:,.0f} s, {decisions:,} decisions"
    _common.finish(checks, options.json, **facts)


if __name__ == "__main__":
    main()
