"""The policy coach in the simulator: jobs with parameter servers, probes and restarts included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlpto.core.cluster import Allocation, ClusterState, Node
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.policy import Policy
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.performance.compile import compile_tables
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.parameter_server import ServerParams, SpeedSurface
from rlpto.performance.profiles import builtin_profiles
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

NODES = (Node(4, 4), Node(4, 4))
MOST = 8
BATCH = 128
"""Samples: the model's own batch, at which progress is counted in epochs of data."""
RESTART_SECONDS = 30.0
INTERVAL_SECONDS = 60.0
EPOCHS = (19.0, 95.0)
"""Of a job: as many as the original's single jobs took, and five times that."""


class Static:
    """Every job the same workers and servers."""

    def __init__(self, workers: int, servers: int) -> None:
        self.name = f"{workers}w{servers}s"
        self.workers, self.servers = workers, servers

    def reset(self, seed: int) -> None:
        pass

    def __call__(self, state: ClusterState) -> Allocation:
        count = len(state.jobs)
        return Allocation(np.full(count, self.workers), servers=np.full(count, self.servers))


def trained(surfaces: Sequence[SpeedSurface]) -> list[dict[str, object]]:
    """Rows: one to three jobs at once, mean completion time of coach relative to that of the best static choice."""
    tables = _tables(surfaces)
    rows: list[dict[str, object]] = []
    for epochs in EPOCHS:
        for count in (1, 2, 3):
            ratios: dict[str, list[float]] = {"coach": [], "coach:probes=corners": []}
            changes = []
            for first in range(len(surfaces)):
                models = [(first + step) % len(surfaces) for step in range(count)]
                best = min(
                    _mean_jct(tables, models, epochs, Static(w, p))[0]
                    for w in range(1, MOST // count + 1)
                    for p in range(1, MOST // count + 1)
                )
                for spec, found in ratios.items():
                    mean, restarts = _mean_jct(tables, models, epochs, make_policy(spec))
                    found.append(mean / best)
                    if spec == "coach":
                        changes.append(restarts / count)
            rows.append(
                {
                    "jobs": count,
                    "epochs": int(epochs),
                    **{spec: round(float(np.mean(of)), 3) for spec, of in ratios.items()},
                    "restarts a job with coach": round(float(np.mean(changes)), 1),
                }
            )
    return rows


def _tables(surfaces: Sequence[SpeedSurface]) -> SpeedTables:
    """Speeds of one model a surface, whose seconds are those of an epoch with the whole data in one step."""
    base = builtin_profiles()["cifar10"]
    steps = base.samples / BATCH
    profiles = {}
    for i, surface in enumerate(surfaces):
        a, b, c, d, e = (value / steps for value in surface.parameters)
        profiles[f"m{i}"] = replace(base, name=f"m{i}", throughput=ServerParams(a / BATCH, b, c, d, e, 1, MOST))
    types = [JobType(name, BATCH) for name in profiles]
    compiled = compile_tables(FittedProfiles(profiles), types, MOST, 4, choose_servers=True)
    return compiled.with_rescale_delay(RESTART_SECONDS)


def _mean_jct(tables: SpeedTables, models: list[int], epochs: float, policy: Policy) -> tuple[float, int]:
    """Mean completion time [s] of jobs submitted at once, and their restarts in all."""
    jobs = [
        Job(
            name=f"job{i}",
            submit_time=0.0,
            model=f"m{model}",
            batch_size=BATCH,
            epochs=epochs,
            data_size=float(tables.samples[model]),
            requested_gpus=1,
            min_gpus=1,
            max_gpus=MOST,
        )
        for i, model in enumerate(models)
    ]
    cluster = SimulatedCluster(NODES, jobs, tables, SimulatorSettings(interval=INTERVAL_SECONDS))
    record = run(cluster, policy, QueueSettings(), RewardWeights())
    return float(np.mean(record.jobs.finish_time)), int(cluster.store.rescales.sum())
