"""Decisions on rented nodes in compiled code are those of the provisioner asked minute by minute."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import ClusterShape, Node
from rlpto.core.loop import run
from rlpto.core.policy import NoOptions
from rlpto.core.queues import QueueSettings
from rlpto.core.records import NodeRecords, RunRecord
from rlpto.core.renting import NodesState, RentedSettings
from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import PolicyError
from rlpto.policies.registry import make_policy
from rlpto.policies.spec import parse_spec
from rlpto.provisioning.base import PlannedProvisioner, Provisioner
from rlpto.provisioning.control import SimulatedNodes
from rlpto.provisioning.demand import LEVELS, demand_of
from rlpto.provisioning.registry import make_provisioner
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from ..builders import random_jobs, random_tables

MINUTES = 60
"""Minutes of demand that are known; runs last longer."""


class Asked:
    """A provisioner of which only the answers are known, so that no plan can be made."""

    def __init__(self, provisioner: Provisioner) -> None:
        self.name, self._provisioner, self.asked = provisioner.name, provisioner, 0

    def __call__(self, state: NodesState) -> FloatArray:
        """The other provisioner's answer."""
        self.asked += 1
        return self._provisioner(state)


def shape(rng: np.random.Generator) -> ClusterShape:
    """One or two groups of rented nodes, with nodes that are always there or without."""
    groups = [Node(4)] if rng.random() < 0.5 else []
    for gpus in (2, 4)[: int(rng.integers(1, 3))]:
        boot, idle = float(rng.choice([0.0, 90.0, 300.0])), float(rng.choice([0.0, 200.0]))
        rented = RentedSettings(most=4, boot=boot, boot_spread=0.3, idle=idle, minimum=60.0)
        groups += [Node(gpus, price=2.0, rented=rented, up=False)] * 4
    return ClusterShape(groups)


def played(seed: int, provisioner: Provisioner, on: str, policy: str) -> RunRecord:
    """A run of 10 jobs on a random cluster."""
    rng = np.random.default_rng(seed)
    nodes, jobs, tables = shape(rng), random_jobs(seed, 10, 8, 4), random_tables(seed, 8, 10.0)
    failures = FailureSettings(mtbf_hours=1.0, mttr_hours=0.1) if rng.random() < 0.3 else FailureSettings()
    settings = SimulatorSettings(failures=failures, decide_on=on)
    cluster = SimulatedCluster(tuple(nodes), jobs, tables, settings, seed)
    demand = demand_of(jobs, MINUTES, nodes, (rng.uniform(0, 3600, 20), rng.integers(1, 4, 20)), 1e9)
    groups = len(nodes.rented_groups)
    forecast = rng.exponential(3.0, (MINUTES + 1, groups, 1 + len(LEVELS)))
    control = SimulatedNodes(cluster, provisioner, demand.by_minute(forecast), demand.start)
    return run(cluster, make_policy(policy), QueueSettings(), RewardWeights(), seed=seed, nodes=control)


@given(
    st.integers(0, 10_000),
    st.sampled_from(["reactive", "spare:gpus=3", "average", "scheduled:day=5,night=1", "forecast:level=0.9"]),
    st.sampled_from(["events", "interval"]),
    st.sampled_from(["fifo", "index"]),
)
def test_a_plan_gives_the_run_of_the_provisioner_asked_every_minute(seed, spec, on, policy):
    asked = Asked(make_provisioner(parse_spec(spec)))
    planned, expected = played(seed, make_provisioner(parse_spec(spec)), on, policy), played(seed, asked, on, policy)
    for field in fields(NodeRecords):
        assert np.array_equal(getattr(planned.rented, field.name), getattr(expected.rented, field.name)), field.name
    assert asked.asked == len(expected.rented.time) > MINUTES * (expected.end > 3600.0)
    assert planned.end == expected.end
    assert np.array_equal(planned.jobs.finish_time, expected.jobs.finish_time)
    assert np.array_equal(planned.decisions.reward, expected.decisions.reward)
    assert np.array_equal(planned.changes.gpus, expected.changes.gpus)


class Looks(PlannedProvisioner[NoOptions]):
    """A provisioner whose further GPUs depend on jobs, which nobody knows ahead."""

    name, Options = "looks", NoOptions

    def further(self, state: NodesState) -> FloatArray:
        """A GPU more for each waiting job."""
        return state.waiting_jobs


def test_further_gpus_that_depend_on_jobs_are_refused():
    with pytest.raises(
        PolicyError, match=r"^provisioner looks: wants nan GPUs, expected a finite number of 0 or more$"
    ):
        played(0, Looks(), "events", "fifo")


def test_a_plan_for_a_fixed_number_of_nodes_counts_nodes_that_are_not_rented():
    for seed in range(8):
        planned = played(seed, make_provisioner(parse_spec("fixed:share=0.6")), "events", "fifo").rented
        expected = played(seed, Asked(make_provisioner(parse_spec("fixed:share=0.6"))), "events", "fifo").rented
        for field in fields(NodeRecords):
            assert np.array_equal(getattr(planned, field.name), getattr(expected, field.name)), field.name
