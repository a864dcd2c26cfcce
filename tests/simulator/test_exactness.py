"""Finish times against closed forms: the simulator has no step size."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.io.arrays import FloatArray
from rlpto.performance.tables import SpeedTables, elapsed_from_rates

from ..builders import advance_to, give, job, linear_tables, make_cluster, make_tables, random_tables, run_out

INTERVALS = [0.1, 0.7, 1 / 3, 59.9, 60.0, 1000.0]


def rates_of(tables: SpeedTables, gpus: int) -> FloatArray:
    """[P] epochs/s of m0 on one node."""
    return tables.rates[tables.row[0, 0, gpus]]


def seconds(rates: FloatArray, start: float, end: float) -> float:
    """Sum over epochs: the part of each that lies between start and end, over its rate; the last repeats."""
    total, at = 0.0, start
    while at < end:
        until = min(np.floor(at) + 1, end)
        total += (until - at) / rates[min(int(at), len(rates) - 1)]
        at = until
    return float(total)


@given(
    st.integers(0, 1000),
    st.integers(1, 6),
    st.floats(0.01, 9.0),
    st.floats(0.2, 4.0),
    st.sampled_from([0.0, 1.5, 400.0]),
    st.floats(0.0, 500.0),
    st.sampled_from(INTERVALS[2:]),
)
def test_one_job_finishes_after_delay_and_the_sum_over_its_epochs(seed, gpus, epochs, size, delay, submit, interval):
    tables = random_tables(seed, 6, delay, types=1)
    one = job(submit=submit, epochs=epochs, gpus=gpus, data_size=1000.0 * size)
    cluster = make_cluster([one], tables, interval=interval)
    give(cluster, [gpus])
    run_out(cluster)
    expected = submit + delay + seconds(rates_of(tables, gpus), 0.0, epochs) * size
    assert cluster.store.start_time[0] == submit
    assert cluster.store.finish_time[0] == pytest.approx(expected, rel=1e-12)
    assert cluster.store.attained_service[0] == pytest.approx(gpus * (expected - submit), rel=1e-9)
    assert cluster.store.rescales[0] == 0


@given(st.integers(0, 1000), st.floats(0.5, 9.0), st.floats(1.0, 400.0), st.sampled_from([0.0, 30.0]))
def test_a_rescale_keeps_the_work_done_and_costs_its_delay_once(seed, epochs, after, delay):
    tables = random_tables(seed, 4, delay, types=1)
    before, now = rates_of(tables, 1), rates_of(tables, 4)
    alone = delay + seconds(before, 0.0, epochs)
    other = job(1, after, epochs=1.0, gpus=1)  # its arrival is the decision point
    cluster = make_cluster([job(epochs=epochs, max_gpus=4), other], tables, interval=1e6)
    give(cluster, [1])
    cluster.advance()
    if alone <= after:  # finished on the first GPU
        assert cluster.store.finish_time[0] == pytest.approx(alone)
        return
    assert cluster.time == after
    trained = max(0.0, after - delay)
    done = float(cluster.store.progress[0])
    assert seconds(before, 0.0, done) == pytest.approx(trained, rel=1e-9, abs=1e-9)
    give(cluster, [4, 0])
    cluster.advance()
    expected = after + delay + seconds(now, done, epochs)
    assert cluster.store.finish_time[0] == pytest.approx(expected, rel=1e-9)
    assert cluster.store.rescales[0] == 1


@given(st.floats(0.01, 500.0), st.sampled_from(["interval", "events"]))
def test_ticks_always_come_and_are_multiples_of_the_interval(interval, decide_on):
    """Dividing a multiple of an interval by it can round down, which must not stop time."""
    cluster = make_cluster([job(epochs=1e6)], linear_tables(), interval=interval, decide_on=decide_on)
    first = 0 if decide_on == "events" else 1
    for k in range(first, first + 60):
        assert cluster.time == k * interval
        cluster.advance()


class TestTicksAndEvents:
    def test_events_are_noticed_at_once_or_at_the_next_tick(self):
        jobs = [job(0, 10.0, epochs=0.4), job(1, 70.0, epochs=0.2)]
        events = make_cluster(jobs, linear_tables(), interval=60)
        assert events.time == 10.0
        give(events, [1])
        assert [float(events.advance()["end"][0]) for _ in range(2)] == [50.0, 70.0]
        ticks = make_cluster(jobs, linear_tables(), interval=60, decide_on="interval")
        assert ticks.time == 60.0
        give(ticks, [1])
        assert ticks.advance()["end"] == 120.0
        assert ticks.store.finish_time[0] == 100.0
        assert ticks.held_gpus == 0
        # An idle cluster goes straight to the next arrival.
        jobs = [job(0, 0.0, epochs=0.1), job(1, 1e6 + 1, epochs=0.1)]
        ends = []
        for decide_on in ("interval", "events"):
            cluster = make_cluster(jobs, linear_tables(), interval=60, decide_on=decide_on)
            give(cluster, [1])
            cluster.advance()
            ends.append(float(cluster.advance()["end"][0]))
        assert ends == [1000020.0, 1e6 + 1]


class TestDelay:
    def test_a_change_during_the_delay_starts_it_again(self):
        cluster = make_cluster([job(epochs=1.0, max_gpus=2)], linear_tables(delay=30.0), interval=20)
        give(cluster, [1])
        cluster.advance()
        assert cluster.store.rescale_left[0] == 10.0
        give(cluster, [2])
        assert cluster.advance()[["rescales", "rescale_seconds"]].tolist() == [(1, 30.0)]
        run_out(cluster)
        assert cluster.store.finish_time[0] == 20.0 + 30.0 + 50.0

    def test_stopping_is_free_and_resuming_a_rescale(self):
        cluster = make_cluster([job(epochs=1.0)], linear_tables(delay=10.0), interval=50)
        give(cluster, [1])
        cluster.advance()
        give(cluster, [0])
        assert cluster.store.wait_start[0] == 50.0
        assert cluster.advance()["rescales"] == 0
        assert cluster.store.progress[0] == pytest.approx(0.4)
        give(cluster, [1])
        assert cluster.advance()["rescales"] == 1
        cluster.advance()
        assert cluster.store.finish_time[0] == pytest.approx(100 + 10 + 60)


class TestGrowthThatOverlapsTraining:
    """Epochs of 60 s on one GPU, 30 s until new workers train."""

    def test_old_workers_train_on_until_new_ones_have_started(self) -> None:
        cluster = make_cluster([job(epochs=10.0)], linear_tables(1 / 60, delay=30.0), interval=50, growth="overlap")
        give(cluster, [1])
        advance_to(cluster, 150.0)  # 2 epochs
        give(cluster, [2])
        advance_to(cluster, 200.0)  # 30 s on one GPU, 20 s on two
        assert cluster.store.progress[0] == pytest.approx(2.0 + 30 / 60 + 20 / 30)
        assert cluster.store.rescales[0] == 1

    def test_a_start_that_is_under_way_is_waited_for(self) -> None:
        cluster = make_cluster([job(epochs=1.0)], linear_tables(rate=1 / 60, delay=30.0), interval=10, growth="overlap")
        give(cluster, [1])
        advance_to(cluster, 10.0)
        give(cluster, [2])  # from 30 s on one GPU, from 40 s on both
        run_out(cluster)
        assert cluster.store.finish_time[0] == pytest.approx(40.0 + (60.0 - 10.0) / 2)

    def test_a_job_about_to_finish_does_so_on_the_workers_it_has(self) -> None:
        cluster = make_cluster([job(epochs=1.0)], linear_tables(rate=1 / 60, delay=30.0), interval=40, growth="overlap")
        give(cluster, [1])
        advance_to(cluster, 80.0)
        give(cluster, [4])
        run_out(cluster)
        assert cluster.store.finish_time[0] == pytest.approx(90.0)

    def test_what_is_given_up_of_growth_is_what_has_not_started(self) -> None:
        cluster = make_cluster([job(epochs=10.0)], linear_tables(rate=1 / 60, delay=30.0), interval=1, growth="overlap")
        give(cluster, [2])
        advance_to(cluster, 150.0)  # 4 epochs
        give(cluster, [5])
        advance_to(cluster, 160.0)
        give(cluster, [3])  # two train on, the third joins at 180 s
        advance_to(cluster, 200.0)
        assert cluster.store.progress[0] == pytest.approx(4.0 + 30 * 2 / 60 + 20 * 3 / 60)
        give(cluster, [6])
        advance_to(cluster, 210.0)
        give(cluster, [2])  # below the three that train: at once, for nothing
        advance_to(cluster, 240.0)
        assert cluster.store.progress[0] == pytest.approx(6.0 + 10 * 3 / 60 + 30 * 2 / 60)
        run_out(cluster)
        assert cluster.store.finish_time[0] == pytest.approx(240.0 + (10.0 - 7.5) * 30)

    @given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6)), min_size=1, max_size=12), st.integers(0, 100))
    def test_a_job_that_keeps_its_first_workers_is_never_behind_one_that_is_left_alone(self, changes, seed) -> None:
        tables = random_tables(seed, 6, 30.0, types=1)
        tables = replace(tables, rates=np.sort(tables.rates, axis=0))  # more GPUs are never slower
        tables = replace(tables, elapsed=elapsed_from_rates(tables.rates))
        alone, changed = (
            make_cluster([job(epochs=1000.0, max_gpus=6)], tables, interval=1, growth="overlap") for _ in range(2)
        )
        for cluster in (alone, changed):
            give(cluster, [1])
        for seconds, gpus in changes:
            for cluster in (alone, changed):
                advance_to(cluster, cluster.time + seconds)
            assert changed.store.progress[0] >= alone.store.progress[0] - 1e-9
            give(changed, [gpus])


class TestEpochResolution:
    """Epochs of 10.4 s: an end that falls into an interval comes after 10 s, and the next epoch begins there."""

    def finish(self, epochs: float, interval: float) -> float:
        tables = make_tables([[[[1 / 10.4] * 3]]])
        settings = {"interval": interval, "decide_on": "interval", "epoch_resolution": 1.0}
        cluster = make_cluster([job(epochs=epochs)], tables, **settings)
        start = cluster.time
        give(cluster, [1])
        run_out(cluster)
        return float(cluster.store.finish_time[0] - start)

    def test_every_epoch_end_is_rounded(self):
        assert self.finish(3.0, 1000.0) == 30.0
        # 8 s of the first epoch in the first interval; 2.4 s left in the second, rounded to 2; then 10.
        assert self.finish(2.0, 8.0) == pytest.approx(8.0 + 2.0 + 6.0 + 4.0)
