"""Who is served first, and where wishes meet capacity."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.jobs import Job
from rlpto.core.queues import Queue, QueueSettings
from rlpto.io.errors import PolicyError

from ..builders import advance_to, give, job, linear_tables, make_cluster, played

CLASSES = (0, 1, 2)


def waiting(priorities: Sequence[int], time: float = 0.0, **more: Sequence[float]) -> ClusterState:
    """A state at `time` with jobs of these classes that have waited since 0; more: lists of job fields."""
    jobs = [job(i, priority=p, **{name: values[i] for name, values in more.items()}) for i, p in enumerate(priorities)]
    cluster = make_cluster(jobs, linear_tables(), interval=1.0)
    advance_to(cluster, time)
    return cluster.state()


@given(st.lists(st.sampled_from(CLASSES), min_size=1, max_size=30))
def test_classes_are_strict_and_inside_the_first_comes_first(priorities):
    ordered = Queue(QueueSettings()).order(waiting(priorities)).jobs
    assert ordered.index.tolist() == np.argsort(priorities, kind="stable").tolist()


class TestAging:
    SETTINGS = QueueSettings(aging_normal=30, aging_low=50)

    @pytest.mark.parametrize(
        ("time", "classes"),
        [(29, [0, 1, 2]), (30, [0, 0, 2]), (49, [0, 0, 2]), (50, [0, 0, 1]), (79, [0, 0, 1]), (80, [0, 0, 0])],
    )
    def test_a_class_is_risen_at_the_bound(self, time, classes):
        state = Queue(self.SETTINGS).order(waiting([0, 1, 2], time))
        assert state.jobs.effective_priority[np.argsort(state.jobs.index)].tolist() == classes

    def test_no_job_is_demoted_again(self):
        """Not by running, nor by waiting again after that."""
        cluster = make_cluster([job(0, epochs=100, priority=1)], linear_tables(), interval=1.0)
        queue = Queue(self.SETTINGS)

        def classes() -> list[int]:
            return queue.order(cluster.state()).jobs.effective_priority.tolist()

        assert classes() == [1]
        advance_to(cluster, 30)
        assert classes() == [0]
        give(cluster, [1])
        advance_to(cluster, 40)
        assert classes() == [0]
        give(cluster, [0])
        advance_to(cluster, 41)
        assert classes() == [0]

    def test_who_begins_to_wait_is_counted_even_if_the_policy_looked_before(self):
        cluster = make_cluster([job(0, epochs=100, priority=1)], linear_tables(), interval=1.0)
        give(cluster, [1])
        advance_to(cluster, 10)
        queue = Queue(self.SETTINGS)
        state = queue.order(cluster.state())
        assert np.isnan(state.jobs.wait_start).all()
        cluster.apply(state, Allocation(np.array([0])))
        assert queue.stands_until(state) == 40


@st.composite
def wishes(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]], int]:
    """Classes in queue order, (min_gpus, wish) of every row, and a capacity."""
    classes = sorted(draw(st.lists(st.sampled_from(CLASSES), min_size=1, max_size=10)))
    rows = []
    for _ in classes:
        least = draw(st.integers(1, 3))
        rows.append((least, draw(st.sampled_from([0, least, least + 1, least + 4]))))
    return classes, rows, draw(st.integers(3, 25))


def admit(classes: list[int], rows: list[tuple[int, int]], capacity: int) -> list[int]:
    """What these wishes come to on a cluster of one node."""
    jobs = [
        job(i, gpus=least, min_gpus=least, max_gpus=least + 4, priority=p)
        for i, ((least, _), p) in enumerate(zip(rows, classes, strict=True))
    ]
    cluster = make_cluster(jobs, linear_tables(), [capacity])
    queue = Queue(QueueSettings())
    state = queue.order(cluster.state())
    admitted = queue.admit(state, Allocation(np.array([wish for _, wish in rows])), "test").gpus
    cluster.apply(state, Allocation(admitted))
    return admitted.tolist()


class TestTrimming:
    @given(wishes())
    def test_wishes_are_cut_in_queue_order(self, case):
        _, rows, capacity = case
        left = capacity
        for (least, wish), got in zip(rows, admit(*case), strict=True):
            fits = min(wish, left)
            assert got == (fits if fits >= least else 0)
            left -= got
        assert left >= 0


def workload(seed: int, count: int, capacity: int, load: float, sizes: Sequence[int], **limits: int) -> list[Job]:
    """Poisson arrivals of jobs with exponential durations of mean 600 s on their requested GPUs."""
    rng = np.random.default_rng(seed)
    gpus, duration = rng.choice(sizes, count), rng.exponential(600.0, count)
    submit = np.cumsum(rng.exponential((gpus * duration).mean() / (capacity * load), count))
    classes = rng.choice(CLASSES, count, p=[0.2, 0.5, 0.3])
    return [
        job(
            i,
            float(submit[i]),
            epochs=0.01 * float(duration[i] * gpus[i]),
            gpus=int(gpus[i]),
            priority=int(classes[i]),
            **limits,
        )
        for i in range(count)
    ]


@pytest.mark.parametrize(("policy", "limits"), [("fifo", {}), ("srtf", {}), ("index", {"min_gpus": 1, "max_gpus": 8})])
def test_at_high_load_the_high_class_waits_a_fraction_of_the_low(policy, limits):
    jobs = played(
        make_cluster(workload(0, 1000, 32, 0.9, [1, 1, 2, 4], **limits), linear_tables(), [8] * 4), policy
    ).jobs
    waited = jobs.start_time - jobs.submit_time
    high, low = (waited[jobs.priority == k].mean() for k in (0, 2))
    assert low > 0
    assert high <= 0.3 * low


def give_up(state: ClusterState, gpus: object, order: object = None) -> str:
    """The message with which an allocation is refused."""
    with pytest.raises(PolicyError) as caught:
        Queue(QueueSettings()).admit(state, Allocation(gpus, order), "mine")
    message = str(caught.value)
    assert "policy mine " in message
    assert "\n" not in message
    return message


class Elsewhere:
    """An array on a GPU."""

    def __array__(self, *_: object, **__: object) -> None:
        raise TypeError("can't convert it to numpy")


class TestRefusals:
    STATE = waiting([1, 1, 1], gpus=[2, 2, 2], min_gpus=[1, 2, 1], max_gpus=[4, 3, 4])

    @pytest.mark.parametrize(
        ("gpus", "said"),
        [
            ([0, 0, 5], "gave job 2 5 GPUs at 0 s: expected 0, or 1 to 4"),
            ([1.0, 2.5, 0], "returned 2.5 GPUs: expected whole numbers"),
            (None, "shape (): expected (3,), one per job"),
            ([True, False, True], "type bool: expected whole numbers"),
            ([[1], 2, 1], "ragged GPUs: expected 3 whole numbers"),
            (Elsewhere(), "returned no array: can't convert it to numpy"),
            (np.array([2**63 + 1, 0, 0], dtype=np.uint64), "expected 0, or 1 to 4"),
        ],
    )
    def test_gpus_that_are_no_allocation(self, gpus, said):
        assert said in give_up(self.STATE, gpus)

    @pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [-1, 0, 1], [0.0, 1.0, 2.0], [[0], 1, 2]])
    def test_orders_that_are_no_permutation(self, order):
        assert "a placement order that is no permutation of its 3 jobs" in give_up(self.STATE, [1, 2, 1], order)

    def test_a_placement_with_rows_of_different_lengths(self):
        ragged = Allocation(np.array([1, 2, 1]), placement=[[1], [1, 1], [1]])
        with pytest.raises(PolicyError, match=r"^policy mine returned a ragged placement: expected .* shape \(3, 1\)"):
            Queue(QueueSettings()).admit(self.STATE, ragged, "mine")

    def test_something_else_than_an_allocation(self):
        with pytest.raises(PolicyError, match="policy mine returned a ndarray: expected an Allocation"):
            Queue(QueueSettings()).admit(self.STATE, np.array([1, 2, 1]), "mine")

    def test_whole_floats_and_small_integers_are_fine(self):
        for dtype in (np.float32, np.int8, np.uint64):
            admitted = Queue(QueueSettings()).admit(self.STATE, Allocation(np.array([1, 2, 0], dtype=dtype)), "mine")
            assert admitted.gpus.tolist() == [1, 2, 0]
            assert admitted.gpus.dtype == np.int64
