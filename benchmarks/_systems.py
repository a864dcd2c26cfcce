"""Runs of the studies of published systems: jobs of their own on a simulated cluster, and trainings of digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlpto.core.cluster import Allocation, ClusterShape, ClusterState, Node
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.policy import Policy
from rlpto.core.queues import QueueSettings
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.performance.tables import SpeedTables
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

if TYPE_CHECKING:
    from rlpto.ray_cluster.worker.training import Trainer

Row = dict[str, object]
"""A row of a table, by column."""
DIGITS = 1437
"""Samples."""


def play(
    nodes: ClusterShape | Sequence[Node],
    jobs: Sequence[Job],
    tables: SpeedTables,
    policy: Policy,
    settings: SimulatorSettings | None = None,
    queue: QueueSettings | None = None,
    **more: Any,
) -> RunRecord:
    """Let a policy schedule the jobs until all are over. more: of the cluster."""
    cluster = SimulatedCluster(nodes, jobs, tables, settings or SimulatorSettings(), **more)
    return run(cluster, policy, queue or QueueSettings(), RewardWeights())


class WatchedPolicy:
    """Decides as another policy does; a subclass looks at its states."""

    def __init__(self, policy: Policy) -> None:
        self.name, self._policy = policy.name, policy

    def reset(self, seed: int) -> None:
        """As the policy."""
        self._policy.reset(seed)

    def __call__(self, state: ClusterState) -> Allocation:
        """As the policy."""
        return self._policy(state)


def digits_trainer(program: str, batch_size: int, epochs: float, rule: str, seed: int, **options: Any) -> Trainer:
    """A training of scikit-learn's digits in this process. rule: of the learning rate. options: of the program."""
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
