"""Spot nodes, which their owner takes away, and what the GPUs cost that jobs hold."""

from pathlib import Path

import numpy as np
import pytest

from rlpto.core.cluster import Node, SpotSettings
from rlpto.evaluation.metrics import measure
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.on_ray import real_nodes
from rlpto.io.errors import ConfigError
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from ..builders import give, job, linear_tables, played
from .test_failures import up_nodes

SPOT = SpotSettings(mean_hours=3.0, away_hours=1.0)


def cluster_of(nodes: list[Node], *jobs: object, seed: int = 0, **settings: object) -> SimulatedCluster:
    rules = SimulatorSettings(**settings)
    return SimulatedCluster(tuple(nodes), jobs or (job(epochs=1e9),), linear_tables(), rules, seed)


def test_spot_nodes_come_and_go_and_the_others_stay():
    nodes = [Node(1)] * 5 + [Node(1, spot=SPOT)] * 30
    up = up_nodes(nodes)
    assert up[:, :5].all()
    assert up[:, 5:].mean() == pytest.approx(3 / (3 + 1), abs=0.03)
    assert np.array_equal(up, up_nodes(nodes, busy=True)), "whatever runs"
    assert not np.array_equal(up, up_nodes(nodes, seed=1))


def test_nodes_fail_as_before_where_others_are_spot_and_spot_nodes_fail_too():
    failing = FailureSettings(mtbf_hours=6.0, mttr_hours=4.0)
    plain = up_nodes([Node(1)] * 40, failures=failing)
    some = up_nodes([Node(1)] * 10 + [Node(1, spot=SPOT)] * 30, failures=failing)
    assert np.array_equal(plain[:, :10], some[:, :10])
    # Up for 1 / (1/3 + 1/6) h on average; then away, in two of three cases, or in repair.
    assert some[:, 10:].mean() == pytest.approx(2 / (2 + 2 / 3 * 1 + 1 / 3 * 4), abs=0.03)


@pytest.mark.parametrize("mtbf", [0.0, 6.0])
def test_a_state_says_which_nodes_will_go_and_when(mtbf):
    spot = SpotSettings(mean_hours=3.0, away_hours=1.0, notice_seconds=120.0)
    nodes = [Node(1)] * 5 + [Node(1, spot=spot)] * 10
    failing = FailureSettings(mtbf_hours=mtbf) if mtbf else FailureSettings()
    cluster = cluster_of(nodes, failures=failing, interval=60.0, decide_on="events")
    noticed, unnoticed, went = set(), set(), set()
    while cluster.time < 100 * 3600:
        state = cluster.state()
        leaves_in = state.leaves_in.tolist()
        cluster.advance()
        for node, left in enumerate(leaves_in):
            if np.isfinite(left):
                assert 0 < left <= 120.0
                noticed.add((node, round(state.time + left, 3)))
            if state.shape[node].up and not cluster.shape[node].up:
                (went if np.isfinite(left) else unnoticed).add((node, round(cluster.time, 3)))
    assert len(went) > 100
    assert went == {(node, at) for node, at in noticed if at <= cluster.time}, "those that were said, and then"
    assert bool(unnoticed) == bool(mtbf), "failures come without notice"


@pytest.mark.parametrize(("notice", "lost"), [(0.0, 900.0), (59.0, 900.0), (60.0, 60.0), (1e6, 60.0)])
def test_a_reclaim_costs_a_failure_or_the_writing_of_a_checkpoint_if_there_is_notice(notice, lost):
    spot = SpotSettings(mean_hours=2.0, away_hours=0.1, notice_seconds=notice)
    rules = FailureSettings(checkpoint_interval=900.0 - 60.0, checkpoint_seconds=60.0)
    cluster = cluster_of([Node(1, spot=spot)], failures=rules, interval=60.0)
    seen = []
    for _ in range(300):
        if cluster.up_gpus:
            give(cluster, [1])
        start, before = cluster.time, float(cluster.store.lost[0])
        while cluster.held_gpus:
            cluster.advance()
        if (stopped := cluster.changes().time[-1]) > start:
            whole = 840.0 / 900.0
            seen.append(((stopped - start), (cluster.store.lost[0] - before) / whole))
        cluster.advance()
    ran, cost = np.array(seen).T
    assert len(seen) > 50
    assert cost == pytest.approx(np.minimum(ran % 900.0, lost)), "at least the last whole interval is kept"


def test_held_gpus_are_paid_by_the_node_they_are_on_until_the_job_ends():
    nodes = [Node(1, price=7.0), Node(2, price=2.0)]
    jobs = [job(0, epochs=1.0, gpus=2, max_gpus=2), job(1, epochs=3.0, gpus=1, max_gpus=1)]
    cluster = cluster_of(nodes, *jobs, interval=1e5)
    found, cost = measure(played(cluster)), (2 * 2.0 * 50 + 7.0 * 300) / 3600  # 100 s of a GPU for an epoch
    assert (found["cost"], found["cost_per_job"]) == pytest.approx((cost, cost / 2))
    assert np.isnan(measure(played(cluster_of([Node(3)], *jobs)))["cost"]), "no price is set"


def test_a_configuration_describes_the_nodes():
    changed = ["cluster.nodes=[{gpus: 2, price: 1.5, spot: {mean_hours: 4}}, {gpus: 8}]"]
    first, second = Experiment(load_config("quickstart", changed)).shape
    assert first == Node(2, price=1.5, spot=SpotSettings(mean_hours=4, away_hours=1, notice_seconds=120))
    assert (second.price, second.spot) == (0.0, None)


def test_a_local_ray_cluster_refuses_spot_nodes(tmp_path: Path):
    spot = load_config("ray", ["cluster.nodes=[{gpus: 2, spot: {mean_hours: 4}}]"])
    with pytest.raises(ConfigError, match="spot nodes are simulated only"), real_nodes(spot, None, tmp_path, print):
        pass
