"""Other policies are asked for while jobs train: no job notices, and nothing is lost (Schedulearn's S1)."""

from __future__ import annotations

from pathlib import Path

from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.experiments.experiment import prepare
from rlpto.experiments.on_ray import real_cluster, session_of
from rlpto.experiments.switchable_policy import SwitchablePolicy
from rlpto.policies.registry import make_policy
from rlpto.policies.switching import switching
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.session_access import policy_answer, request_policy
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from tests.ray_cluster.conftest import GPUS
from tests.ray_cluster.test_real import CELL, STEPS, config

ORDER = ("elastic_fifo", "round_robin", "fifo")
LONG_EPOCHS, SHORT_EPOCHS = 70, 2
LONG = [{"name": f"long-{i}", "gpus": GPUS, "max_gpus": GPUS, "epochs": LONG_EPOCHS} for i in range(2)]
"""They fill a node each, and outlast the switches."""
SHORT = [{"name": f"short-{i}", "submit": 2 + i / 2, "max_gpus": 1, "epochs": SHORT_EPOCHS} for i in range(6)]


class Switcher:
    """Asks for the next policy each time another short job has finished, and looks at the workers of the long jobs.

    seen: process ids of all workers on the nodes that the long jobs fill, before the first request and after each.
    """

    def __init__(self, nodes: LocalCluster, path: Path) -> None:
        self._nodes, self._path = nodes, path
        self._full: set[str] = set()
        self._asked: list[int] = []
        self.seen: list[set[int]] = []

    def look(self) -> None:
        """Note who works now."""
        self.seen.append({pid for node in self._full for pid in self._nodes.worker_pids(node)})

    def __call__(self, cluster: RayCluster) -> None:
        """An observer of the cluster."""
        if not self.seen:
            reports = [cluster.reports.get(f"job-{number:06d}") for number in range(len(LONG))]
            if all(report is not None and len(report.training_on) == GPUS for report in reports):
                self._full = {node for report in reports if report is not None for node in report.training_on}
                self.look()
        elif len(self.seen) <= len(self._asked):
            if policy_answer(self._path, self._asked[-1]) is not None:
                self.look()
        elif len(self._asked) < len(ORDER) and cluster.columns.finished.sum() > len(self._asked):
            self._asked.append(request_policy(self._path, ORDER[len(self._asked)]))


def test_policies_change_while_jobs_train(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    session, experiment = session_of(tmp_path, CELL), prepare(config([*LONG, *SHORT]))
    backend = RayBackend(session)
    try:
        with SessionDatabase(tmp_path / "state.sqlite") as database:
            switcher = Switcher(ray_cluster, database.path)
            cluster = real_cluster(experiment, "jobs", 0, backend, database, session, [switcher])
            policy = SwitchablePolicy(database, make_policy, switching(make_policy("fifo")), cluster.deciding)
            record = run(cluster, policy, QueueSettings(), RewardWeights())
            events, rows = database.events(), database.jobs()
            cluster.close()
    finally:
        if backend.find():
            backend.end_all()
    switches = [event[5] for event in events if event[1] == "policy"]
    assert switches == ["fifo -> elastic_fifo", "elastic_fifo -> round_robin", "round_robin -> fifo"]
    assert len(switcher.seen[0]) == GPUS * len(LONG)
    assert switcher.seen == [switcher.seen[0]] * 4, "running workers are left alone"
    assert not record.jobs.rescales.any()
    assert [row.step for row in rows] == [LONG_EPOCHS * STEPS] * len(LONG) + [SHORT_EPOCHS * STEPS] * len(SHORT)
    assert not any(row.recoveries for row in rows)
