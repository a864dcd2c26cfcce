"""The rule by which jobs stop early, and what becomes of jobs that do in simulation."""

import math
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import Node
from rlpto.core.job_store import JobStore
from rlpto.core.queues import Queue, QueueSettings
from rlpto.core.stopping import StopRule, has_flattened, parse_rule, stop_epoch
from rlpto.evaluation.metrics import measure
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import prepare
from rlpto.io.arrays import FloatArray
from rlpto.knowledge.known import Knowledge
from rlpto.knowledge.remaining import RemainingKnowledge
from rlpto.performance.tables import SpeedTables
from rlpto.planning.planner import Planner
from rlpto.planning.snapshot import take_snapshot
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import FailureSettings, SimulatorSettings
from rlpto.workloads.listed import LISTED_WINDOW

from ..builders import (
    advance_to,
    give,
    job,
    make_cluster,
    make_tables,
    played,
    random_jobs,
    random_tables,
    remaining_work,
    with_batch_sizes,
)

SIZES = (4, 6)
UNGUARDED = StopRule(after=0)


def saturating(epochs: int, scale: float) -> FloatArray:
    """[epochs + 1] accuracy that has gained all but e**-p of it after p * scale epochs."""
    return np.asarray(0.9 - 0.8 * np.exp(-np.arange(epochs + 1) / scale))


def flat_tables(epochs: int = 10, scale: float = 1.0, rate: float = 0.01) -> SpeedTables:
    """Model m0 at `rate` epochs/s on one GPU, with an accuracy that flattens."""
    return make_tables([[[[rate] * epochs]]], accuracy=saturating(epochs, scale))


def naive_stop(rule: StopRule, declared: float, curve: list[float]) -> float:
    """The rule word by word."""
    for epoch in range(1, math.ceil(declared)):
        accuracy = [curve[min(p, len(curve) - 1)] for p in range(epoch + 1)]
        if epoch < rule.after * declared - 1e-6:
            continue
        older = [a for p, a in enumerate(accuracy) if p <= epoch - rule.over * declared + 1e-6]
        newest = accuracy[len(older) :]
        if older and median(newest) - max(older) <= rule.gain * median(newest):
            return float(epoch)
    return declared


@given(
    curve=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=40),
    declared=st.one_of(st.integers(1, 60).map(float), st.floats(0.1, 60.0)),
    gain=st.sampled_from([0.0, 0.001, 0.01, 0.2]),
    over=st.sampled_from([0.01, 0.05, 0.1, 0.25, 0.5, 1.0]),
    after=st.sampled_from([0.0, 0.3, 0.5, 0.7, 1.0]),
    falls=st.booleans(),
)
def test_a_job_ends_where_the_rule_says_word_by_word(
    curve: list[float], declared: float, gain: float, over: float, after: float, falls: bool
) -> None:
    rule = StopRule(gain=gain, over=over, after=after)
    known = curve if falls else np.maximum.accumulate(curve).tolist()
    found = stop_epoch(rule, declared, np.array(known))
    assert found == naive_stop(rule, declared, known)
    assert found == declared or after * declared - 1e-6 <= found < declared
    # Given one evaluation after the other, as of a real job, the rule fires at the same one.
    evaluated = np.array([known[min(p, len(known) - 1)] for p in range(math.ceil(declared))])
    fired = (
        p for p in range(1, len(evaluated)) if has_flattened(rule, declared, np.arange(p + 1.0), evaluated[: p + 1])
    )
    assert next(fired, declared) == found


def test_a_plateau_ends_a_job_only_without_the_guard() -> None:
    plateau = np.concatenate([saturating(40, 4.0), saturating(60, 4.0)[1:] * 0.1 + 0.9])
    assert 25 < stop_epoch(UNGUARDED, 100.0, plateau) < 40
    assert stop_epoch(StopRule(), 100.0, plateau) == 70
    assert not has_flattened(UNGUARDED, 120.0, np.zeros(0), np.zeros(0))
    assert not has_flattened(UNGUARDED, 120.0, np.array([100.0]), np.array([0.9])), "nothing to compare with"
    shortest = StopRule(over=1e-12, after=0)
    assert has_flattened(shortest, 9.0, np.array([1.0, 2.0]), np.array([0.5, 0.5])), "the newest is in the window"


def test_rules_are_written_as_text() -> None:
    rule = StopRule(gain=0.002, over=0.1, after=0.5)
    assert parse_rule(rule.text) == rule
    assert parse_rule("0.002/0.1") == StopRule(gain=0.002, over=0.1)
    for wrong in ("0.1", "a/b", "0.1/0.1/0.1/0.1", "-1/0.1", "0.1/2"):
        with pytest.raises(ValueError, match=r"expected|could not convert|should be"):
            parse_rule(wrong)


def test_a_job_stops_and_its_record_says_so() -> None:
    tables = flat_tables()
    stops, trains = job(0, epochs=10.0, stop=StopRule(after=0.5, over=0.1)), job(1, epochs=10.0)
    record = played(make_cluster([stops, trains], tables, (2,)))
    end = stop_epoch(StopRule(after=0.5, over=0.1), 10.0, tables.accuracy[0])
    assert 5 <= end < 10
    assert record.jobs.trained_epochs.tolist() == [end, 10.0]
    assert record.jobs.epochs.tolist() == [10.0, 10.0]
    assert record.jobs.finish_time == pytest.approx([100 * end, 1000.0])
    assert record.jobs.alone_time == pytest.approx([100 * end, 1000.0])
    found = measure(record)
    assert found["epochs_saved"] == pytest.approx(1 - end / 10)
    assert found["accuracy_lost"] == pytest.approx(100 * (tables.accuracy[0, 10] - tables.accuracy[0, int(end)]))
    assert found["slowdown_mean"] == pytest.approx(1.0)


@pytest.mark.parametrize("left", ["declared", "learnt", "unknown"])
def test_a_scratch_cluster_runs_to_the_declared_end(left: RemainingKnowledge) -> None:
    jobs = [job(0, epochs=10.0, stop=StopRule(after=0.5))]
    knowledge = Knowledge(remaining=left)
    cluster = SimulatedCluster((Node(1),), jobs, flat_tables(), SimulatorSettings(), knowledge=knowledge)
    assert cluster.store.stop_epoch[0] < 10
    give(cluster, [1])
    advance_to(cluster, 300.0)
    state = Queue(QueueSettings()).order(cluster.state())
    rollout, _ = Planner().start_of_rollouts(state)
    assert np.array_equal(rollout.world.jobs["stop_epoch"], rollout.world.jobs["epochs"])
    snapshot = take_snapshot(cluster, state)
    assert np.array_equal(snapshot.columns.stop_epoch, snapshot.columns.epochs)
    scratch = snapshot.restore(SimulatorSettings())
    record = played(scratch)
    assert record.jobs.trained_epochs == pytest.approx([10.0 if left == "declared" else 6.0])
    assert record.jobs.finish_time == pytest.approx([1000.0 if left == "declared" else 600.0])


def test_what_finished_jobs_trained_is_learnt_from() -> None:
    tables = flat_tables()
    store = JobStore.from_jobs([job(0, epochs=10.0, stop=StopRule(after=0.5)), job(1, epochs=10.0)], tables)
    store.finish_time[0], store.progress[0] = 700.0, store.stop_epoch[0]
    (estimated,) = remaining_work("learnt", store, tables)(np.array([1]))
    assert estimated == store.stop_epoch[0] < 10
    store.progress[1] = 9.0  # longer than any that has finished
    assert remaining_work("learnt", store, tables)(np.array([1])).tolist() == [18.0]


@given(
    seed=st.integers(0, 10_000),
    policy=st.sampled_from(["fifo", "srtf", "optimus", "las"]),
    resolution=st.sampled_from([0.0, 30.0]),
    growth=st.sampled_from(["pause", "overlap"]),
    mtbf=st.sampled_from([0.0, 2.0]),
)
def test_jobs_with_a_rule_run_as_shorter_jobs_do(
    seed: int, policy: str, resolution: float, growth: str, mtbf: float
) -> None:
    """FIFO never looks at declared epochs, so that a run is that of shorter jobs to the last bit; under any policy all
    jobs train exactly to their ends."""
    tables = random_tables(seed, 10, 20.0, epochs=8)
    tables = replace(tables, accuracy=np.tile(saturating(8, 1.0), (3, 1)))
    rule = StopRule(gain=0.05, over=0.2, after=0.3)
    stopping = [replace(one, stop=rule) for one in random_jobs(seed, 8, 6, 10)]
    ends = JobStore.from_jobs(stopping, tables).stop_epoch
    shorter = [replace(one, epochs=float(end), stop=None) for one, end in zip(stopping, ends, strict=True)]
    more: dict[str, object] = {
        "growth": growth,
        "epoch_resolution": resolution if growth == "pause" else 0.0,
        "decide_on": "interval",
        "failures": FailureSettings(mtbf_hours=mtbf),
    }
    found = played(make_cluster(stopping, tables, SIZES, **more), policy)
    assert np.array_equal(found.jobs.trained_epochs, ends)
    if policy == "fifo":
        expected = played(make_cluster(shorter, tables, SIZES, **more))
        assert np.array_equal(found.jobs.finish_time, expected.jobs.finish_time)
        assert np.array_equal(found.jobs.gpu_seconds, expected.jobs.gpu_seconds)
        assert np.array_equal(found.jobs.alone_time, expected.jobs.alone_time)
        assert np.array_equal(found.changes.time, expected.changes.time)


def test_a_job_whose_batch_size_is_chosen_ends_by_the_curve_it_was_submitted_with() -> None:
    tables = with_batch_sizes(flat_tables(), {100: 2.0})
    cluster = make_cluster([job(0, epochs=10.0, stop=StopRule(after=0.5))], tables, (1,))
    record = played(cluster, "max_throughput:choose_batch_size=true")
    end = stop_epoch(StopRule(after=0.5), 10.0, tables.accuracy[0])
    assert record.jobs.trained_epochs.tolist() == [end]
    assert record.jobs.finish_time == pytest.approx([50 * end])


@pytest.mark.parametrize("mode", ["exact", "online"])
def test_jobs_that_choose_their_batches_stop_early(mode: str) -> None:
    listed = {"model": "ncf", "count": 2, "every": 30.0, "gpus": 2, "min_gpus": 2, "data_size": 1e8}
    found = {}
    for stop in (None, {"gain": 0.01, "after": 0.3}):
        config = Config.model_validate(
            {
                "cluster": {"nodes": [{"count": 1, "gpus": 4}]},
                "workload": {"source": "jobs", "jobs": [listed | {"stop": stop}]},
                "knowledge": {"mode": mode},
            }
        )
        found[stop is None] = prepare(config).run_policy(make_policy("optimus"), LISTED_WINDOW, 0).jobs
    assert found[True].trained_epochs.tolist() == [10.0, 10.0]
    assert 3.0 <= found[False].trained_epochs[0] < 10.0
    assert (found[False].finish_time < found[True].finish_time).all()
