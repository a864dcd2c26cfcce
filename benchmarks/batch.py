"""Speed of the batched simulator alone: decisions per CPU-second of 64 clusters with about 32 visible jobs.

Counted as one decision: one cluster's jobs are put in order and shown, its policy is asked (a trivial one, compiled in:
every job wishes for its requested GPUs), wishes are trimmed in queue order, changes are placed on nodes, and the
cluster runs to its next decision point, finishing and starting jobs and adding up the reward's parts.
Not counted: compilation, observations, decisions of an empty cluster.
"""

from __future__ import annotations

import _common
import numpy as np

from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.jobs import Job
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.envs.compiled_batch import CompiledBatch, Workload, begin, build_batch, run_requested
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.simulator.settings import SimulatorSettings

BATCH = 64
NODES = ClusterShape((Node(4),) * 16)
COUNTED = 100_000
LOOPS = 4.0
"""Calibration loops that so many decisions may take."""
HOUR = 3600.0


def workload(tables: SpeedTables, jobs: int, gap: float, seed: int) -> list[Job]:
    """Elastic jobs of 1 to 4 requested GPUs and 0.5 to 8 hours on one GPU, one every `gap` seconds on average."""
    rng = np.random.default_rng(seed)
    alone = tables.elapsed[tables.row[:, 0, 1], tables.epochs]
    submits = np.cumsum(rng.exponential(gap, jobs))
    made = []
    for number, submit in enumerate(submits):
        kind = int(rng.integers(len(tables.types)))
        share = rng.uniform(0.5, 8.0) * HOUR / alone[kind]
        gpus = int(rng.integers(1, 5))
        size = float(tables.samples[kind] * share)
        epochs = float(tables.epochs[kind])
        model = tables.types[kind].model
        made.append(Job(f"job-{number}", float(submit), model, epochs, size, gpus, 1, 16, int(rng.integers(3))))
    return made


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("--decisions", type=int, default=2000, help="decisions of each cluster in a repeat")
    arguments.add_argument("--repeats", type=int, default=7)
    arguments.add_argument("--gap", type=float, default=315.0, help="mean seconds between submissions")
    options = arguments.parse_args()
    profiles = load_profiles(None)
    tables = compile_tables(profiles, [JobType(model) for model in profiles.models], 16, 4)
    jobs = [Workload(f"{seed}", tuple(workload(tables, 400, options.gap, seed)), seed, 36.0) for seed in range(BATCH)]
    checks, facts = [], {}
    for decide_on in ("interval", "events"):
        parts = (SimulatorSettings(decide_on=decide_on), QueueSettings(), RewardWeights())
        clusters = build_batch(BATCH, NODES, jobs, tables, *parts)
        for b in range(BATCH):
            begin(clusters, b, b)
        run_requested(clusters, 200)
        counts, visible = [], []

        def decide(
            clusters: CompiledBatch = clusters, counts: list[int] = counts, visible: list[float] = visible
        ) -> None:
            counts.append(run_requested(clusters, options.decisions))
            visible.append(clusters.world.clusters["active"].mean())

        taken = _common.calibrated("batch", {decide_on: decide}, options.repeats)[decide_on]
        per = taken.loops * COUNTED / float(np.median(counts))
        facts[f"visible jobs, {decide_on}"] = f"{np.mean(visible):.1f} on average"
        facts[f"decisions per CPU-second, {decide_on}"] = f"{np.median(counts) / taken.seconds:,.0f}"
        checks.append(_common.Check(f"{COUNTED:,} decisions on {decide_on}", per, "calibration loops", LOOPS, False))
    _common.finish(checks, options.json, batch=BATCH, **facts)


if __name__ == "__main__":
    main()
