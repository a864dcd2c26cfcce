"""Nodes that fail, spot nodes, which their owner takes away, and what the GPUs cost that jobs hold."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import Node, SpotSettings
from rlpto.core.loop import job_records
from rlpto.core.records import JobRecords
from rlpto.evaluation.metrics import measure
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import FloatArray
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.job_kernels import best_interval
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

from ..builders import advance_to, give, job, linear_tables, make_cluster, played, run_out


def up_nodes(nodes: Sequence[Node], seed: int = 0, busy: bool = False, **settings: object) -> FloatArray:
    """[T, N] whether each node is up, every half hour of 400 h."""
    rules = SimulatorSettings(interval=1800.0, **settings)
    cluster = SimulatedCluster(tuple(nodes), [job(epochs=1e9)], linear_tables(), rules, seed)
    seen = []
    while cluster.time < 400 * 3600:
        if busy and cluster.up_gpus and not cluster.held_gpus:
            give(cluster, [1])
        cluster.advance()
        if cluster.time % 1800.0 == 0:
            seen.append([node.up for node in cluster.shape])
    return np.array(seen, dtype=np.float64)


@pytest.mark.parametrize(
    "failures",
    [
        FailureSettings(mtbf_hours=0.5, mttr_hours=0.2),
        FailureSettings(gpu_mtbf_hours=2, mttr_hours=0.2, restart_share=0.5, lemon_share=0.5, lemon_factor=3),
    ],
)
def test_failures_do_not_depend_on_what_runs(failures):
    nodes = [Node(4), Node(3), Node(2)]
    busy, idle = (up_nodes(nodes, busy=busy, failures=failures) for busy in (True, False))
    assert np.array_equal(busy, idle)
    assert not np.array_equal(busy, up_nodes(nodes, seed=2, busy=True, failures=failures))


def test_nodes_fail_in_proportion_to_their_gpus():
    failures = FailureSettings(gpu_mtbf_hours=8.0, mttr_hours=1.0)
    up = up_nodes([Node(2)] * 15 + [Node(8)] * 15, failures=failures).mean(axis=0)
    assert up[:15].mean() == pytest.approx(4 / (4 + 1), abs=0.03)
    assert up[15:].mean() == pytest.approx(1 / (1 + 1), abs=0.03)


def test_lemons_fail_more_often_and_the_others_as_before():
    def up(lemons: float, seed: int = 0) -> FloatArray:
        failures = FailureSettings(mtbf_hours=30.0, mttr_hours=1.0, lemon_share=lemons)
        return up_nodes([Node(1)] * 30, seed, failures=failures).mean(axis=0)

    plain, some = up(0.0), up(0.4)
    lemon = some < 0.86
    assert 6 <= lemon.sum() <= 18
    assert some[lemon].mean() == pytest.approx(3 / (3 + 1), abs=0.05)
    assert np.array_equal(some[~lemon], plain[~lemon])
    assert not np.array_equal(lemon, up(0.4, seed=1) < 0.86)


def test_a_failure_that_leaves_the_node_up_stops_the_job_on_one_gpu():
    jobs = [job(i, epochs=1e9) for i in range(3)]
    rules = FailureSettings(gpu_mtbf_hours=4.0, restart_share=1.0)
    cluster = make_cluster(jobs, linear_tables(), [4, 4], 3, failures=rules)
    stopped = []
    while cluster.time < 400 * 3600:
        give(cluster, [1, 1, 1])
        cluster.advance()
        assert cluster.up_gpus == 8
        stopped += np.flatnonzero(cluster.store.gpus == 0).tolist()
        assert (cluster.store.gpus == 0).sum() <= 1
    assert np.bincount(stopped) == pytest.approx(100, abs=30), "400 h / 4 h, however many jobs are on the node"


def test_the_best_interval_is_that_of_young_and_daly():
    assert best_interval(50.0, 10_000.0, False) == 1000.0
    part = 50.0 / 20_000.0
    assert best_interval(50.0, 10_000.0, True) == pytest.approx(1000.0 * (1 + part**0.5 / 3 + part / 9) - 50.0)
    assert best_interval(300.0, 100.0, True) == 100.0
    wasted = {every: 50.0 / every + every / 2 / 1e6 for every in np.geomspace(100, 1e6, 4001)}
    assert best_interval(50.0, 1e6, False) == pytest.approx(min(wasted, key=wasted.get), rel=0.01)


@pytest.mark.parametrize(
    ("gpus", "restarts", "mtbf"),
    [(1, 0.0, 10_000), (8, 0.0, 5000), (1, 1.0, 40_000), (2, 0.5, 40_000 / 3), (8, 1, 5000)],
)
def test_writing_checkpoints_slows_a_job_by_how_often_it_is_stopped(gpus, restarts, mtbf):
    """On nodes of 4 GPUs that fail every 10,000 h: of 8 GPUs, on two nodes; of 1 GPU that alone is hit, a fourth."""
    rules = {"mtbf_hours": 1e4, "restart_share": restarts, "checkpoint_seconds": 30.0}
    for chosen, interval in ((120.0, 120.0), ("young", np.sqrt(2 * 30.0 * mtbf * 3600))):
        failures = FailureSettings(checkpoint_interval=chosen, **rules)
        cluster = make_cluster([job(epochs=80.0, gpus=gpus)], linear_tables(delay=7.0), [4, 4], failures=failures)
        give(cluster, [gpus])
        assert run_out(cluster) == pytest.approx(7.0 + 8000.0 / gpus * (interval + 30.0) / interval)


def test_an_interval_is_chosen_again_when_the_gpus_change():
    failures = FailureSettings(gpu_mtbf_hours=2e4, checkpoint_interval="young", checkpoint_seconds=600.0)
    cluster = make_cluster([job(epochs=1e4, max_gpus=8)], linear_tables(), [4, 4], failures=failures, growth="overlap")
    for gpus in (1, 8, 1):
        give(cluster, [gpus])
        start, before = cluster.time, cluster.store.progress[0]
        advance_to(cluster, start + 3600.0)
        interval = np.sqrt(2 * 600.0 * 3600 * 5000 / (2 if gpus == 8 else 1))
        expected = (cluster.time - start) * 0.01 * gpus * interval / (interval + 600.0)
        assert cluster.store.progress[0] - before == pytest.approx(expected)


@given(st.integers(0, 10_000), st.sampled_from([0.0, 7.0]), st.sampled_from([0.0, 25.0]), st.sampled_from([0.0, 0.6]))
def test_work_that_is_kept_and_work_that_is_lost_are_all_that_was_trained(seed, delay, cost, restarts):
    rules = {"restart_share": restarts, "checkpoint_interval": 90.0, "checkpoint_seconds": cost}
    failures = FailureSettings(mtbf_hours=0.3, mttr_hours=0.05, **rules)
    jobs = [job(i, submit=40.0 * i, epochs=8.0) for i in range(5)]
    cluster = make_cluster(jobs, linear_tables(delay=delay), [2, 2], seed, failures=failures)
    found = played(cluster).jobs
    assert found.kept_seconds == pytest.approx(800.0)
    trained = (found.kept_seconds + found.lost_gpu_seconds) * (90.0 + cost) / 90.0
    started = found.gpu_seconds - trained
    assert np.all(started <= (1 + found.rescales) * delay + 1e-6), "a start may be cut short"
    assert np.all(started >= delay - 1e-6)


@pytest.mark.parametrize("interval", [20.0, 40.0, 200.0])
def test_training_while_new_workers_start_counts(interval):
    cluster = make_cluster([job(epochs=5.0)], linear_tables(delay=50.0), interval=interval, growth="overlap")
    give(cluster, [1])
    advance_to(cluster, 200.0)
    give(cluster, [2])
    run_out(cluster)
    assert cluster.store.rescales[0] == 1
    assert job_records(cluster).kept_seconds[0] == pytest.approx(cluster.store.finish_time[0] - 50.0)


def times(**rules: float) -> tuple[JobRecords, dict[str, float]]:
    record = played(make_cluster([job(epochs=2.0)], linear_tables(delay=50.0), failures=FailureSettings(**rules)))
    return record.jobs, measure(record)


def test_the_training_time_ratio_counts_all_but_training_that_stays():
    _, calm = times()
    assert calm["ettr"] == pytest.approx(200 / 250)
    assert np.isnan(calm["lost_gpu_hours"]), "nothing can fail"
    _, writing = times(checkpoint_interval=100.0, checkpoint_seconds=25.0)
    assert writing["ettr"] == pytest.approx(200 / 300)
    lasting, failing = times(mtbf_hours=0.02, mttr_hours=0.05, checkpoint_interval=1e6)
    assert failing["lost_gpu_hours"] > 0
    assert failing["ettr"] == pytest.approx(200 / lasting.finish_time[0])
    alone = measure(played(make_cluster([job(epochs=2.0)], linear_tables())))
    assert alone["ettr"] == pytest.approx(1.0)


def test_the_training_time_ratio_of_a_long_job_is_that_of_its_closed_form():
    """Kokolis et al. (2025) for a job that never waits: by its failures an hour, start, interval and writing [h]."""
    rate, start, interval, writing = 1 / 10, 300 / 3600, 0.5, 60 / 3600
    writes = {"checkpoint_interval": 3600 * interval, "checkpoint_seconds": 3600 * writing}
    failures = FailureSettings(mtbf_hours=1 / rate, restart_share=1.0, **writes)
    long = job(epochs=3600 * 5000 * 8 / 100, gpus=8, max_gpus=8)
    found = measure(played(make_cluster([long], linear_tables(delay=3600 * start), [8], failures=failures)))
    assert found["ettr"] == pytest.approx((1 - rate * (start + interval / 2)) / (1 + writing / interval), abs=0.003)


SPOT = SpotSettings(mean_hours=3.0, away_hours=1.0)


def cluster_of(nodes: list[Node], *jobs: object, seed: int = 0, **settings: object) -> SimulatedCluster:
    rules = SimulatorSettings(**settings)
    return SimulatedCluster(tuple(nodes), jobs or (job(epochs=1e9),), linear_tables(), rules, seed)


def test_spot_nodes_come_and_go_and_the_others_stay():
    nodes = [Node(1)] * 5 + [Node(1, spot=SPOT)] * 30
    up = up_nodes(nodes)
    assert up[:, :5].all()
    assert up[:, 5:].mean() == pytest.approx(3 / (3 + 1), abs=0.03)
    assert np.array_equal(up, up_nodes(nodes, busy=True)), "no matter what runs"
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
