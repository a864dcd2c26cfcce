"""Runs for the studies of published systems: a study's jobs on a simulated cluster, and trainings of digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlpto.core.cluster import Allocation, ClusterShape, ClusterState, Node
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.policy import Policy
from rlpto.core.queues import QueueSettings
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.performance.compile import compile_tables
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.parameter_server import ServerParams
from rlpto.performance.profiles import builtin_profiles
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

if TYPE_CHECKING:
    from rlpto.ray_cluster.worker.training import Trainer

DIGITS = 1437
"""Number of samples in the digits' training set."""


def play(
    nodes: ClusterShape | Sequence[Node],
    jobs: Sequence[Job],
    tables: SpeedTables,
    policy: Policy,
    settings: SimulatorSettings | None = None,
    queue: QueueSettings | None = None,
    **more: Any,
) -> RunRecord:
    """Let a policy schedule the jobs until all are over. more: arguments of the cluster."""
    cluster = SimulatedCluster(nodes, jobs, tables, settings or SimulatorSettings(), **more)
    return run(cluster, policy, queue or QueueSettings(), RewardWeights())


def server_tables(laws: Mapping[str, ServerParams], batch: int, most_workers: int, **changes: Any) -> SpeedTables:
    """Tables of models that train with parameter servers by these laws. changes: changes to the profile of cifar10."""
    base = builtin_profiles()["cifar10"]
    profiles = {name: replace(base, name=name, throughput=law, **changes) for name, law in laws.items()}
    types = [JobType(name, batch) for name in laws]
    return compile_tables(FittedProfiles(profiles), types, most_workers, 4, choose_servers=True)


class WatchedPolicy:
    """Decides as another policy does; subclasses record its states."""

    def __init__(self, policy: Policy) -> None:
        self.name, self._policy = policy.name, policy

    def reset(self, seed: int) -> None:
        """Reset the policy."""
        self._policy.reset(seed)

    def __call__(self, state: ClusterState) -> Allocation:
        """Return the policy's decision."""
        return self._policy(state)


def digits_trainer(program: str, batch_size: int, epochs: float, rule: str, seed: int, **options: Any) -> Trainer:
    """A training of scikit-learn's digits in this process. rule: rule of the learning rate. options: of the program."""
    from rlpto.ray_cluster.messages import JobSpec
    from rlpto.ray_cluster.worker.training import Trainer

    return Trainer(
        JobSpec(
            id="job",
            name="digits",
            session="digits",
            training=f"rlpto.ray_cluster.programs.digits:{program}",
            options=options,
            folder="none",
            batch_size=batch_size,
            epochs=epochs,
            data_size=DIGITS,
            lr_rule=rule,  # type: ignore[arg-type]
            seed=seed,
            device="cpu",
        )
    )
