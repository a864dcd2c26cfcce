"""The order of service: classes, strict or as weights and head starts, and fairness between users."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import ClusterState
from rlpto.core.jobs import Job
from rlpto.core.queues import Queue, QueueSettings
from rlpto.core.records import RunRecord
from rlpto.policies.index import Index
from rlpto.policies.index_weights import IndexWeights
from rlpto.policies.registry import BUILT_IN, make_policy

from ..builders import SAMPLES, advance_to, give, job, linear_tables, make_cluster, played, random_jobs, random_tables
from ..policies.builders import J, make_state
from .test_queues import workload

WEIGHTED = QueueSettings(classes="weighted", aging_normal=30, aging_low=50)
STRICT = QueueSettings(aging_normal=30, aging_low=50)
OF_CLASSES = ("index", "reward_greedy")
"""Policies whose own formula knows the class of a job, under any queue."""


def places(jobs: Sequence[Job], time: float, rule: QueueSettings) -> list[int]:
    """Numbers of the jobs that have been submitted by `time` in the order in which they are served."""
    cluster = make_cluster(jobs, linear_tables(), interval=1.0)
    advance_to(cluster, time)
    return Queue(rule).order(cluster.state()).jobs.index.tolist()


@st.composite
def queues(draw: st.DrawFn) -> tuple[list[Job], QueueSettings, float]:
    """Waiting jobs of all classes, head starts of weighted classes, and a time at which all are there."""
    submits = sorted(draw(st.lists(st.integers(0, 200), min_size=1, max_size=20)))
    jobs = [job(i, float(at), priority=draw(st.integers(0, 2))) for i, at in enumerate(submits)]
    normal, low = draw(st.integers(1, 120)), draw(st.integers(1, 120))
    return jobs, QueueSettings(classes="weighted", aging_normal=normal, aging_low=low), submits[-1] + 1.0


class TestHeadStarts:
    @given(queues())
    def test_jobs_queue_as_if_submitted_earlier_by_the_head_start_of_their_class(self, case):
        jobs, rule, time = case
        ahead = (rule.aging_low + rule.aging_normal, rule.aging_low, 0.0)
        wanted = sorted(range(len(jobs)), key=lambda i: (jobs[i].submit_time - ahead[jobs[i].priority], i))
        assert places(jobs, time, rule) == wanted

    def test_running_jobs_keep_their_place(self):
        jobs = [job(0, 0.0, epochs=100, priority=1), job(1, 5.0, epochs=100, priority=0)]
        cluster = make_cluster(jobs, linear_tables(), interval=1.0)
        advance_to(cluster, 5)
        give(cluster, [1, 0])
        advance_to(cluster, 60)
        table = Queue(WEIGHTED).order(cluster.state()).jobs
        assert table.index.tolist() == [1, 0]
        assert table.effective_priority.tolist() == [0, 1], "and running jobs do not age"


def ordered(jobs: list[J], capacity: int, rule: QueueSettings, time: float = 0.0) -> ClusterState:
    return Queue(rule).order(make_state(jobs, capacity, time=time))


def got(policy: str, jobs: list[J], capacity: int, rule: QueueSettings) -> list[int]:
    """GPUs of the jobs, in the order given, at time 0."""
    state = ordered(jobs, capacity, rule)
    gpus = make_policy(policy)(state).gpus
    return [int(gpus[list(state.jobs.index).index(i)]) for i in range(len(jobs))]


class TestPolicies:
    @pytest.mark.parametrize(
        ("policy", "what", "little", "much", "of_the_other"),
        [
            ("srtf", "work", 390.0, 410.0, 100.0),
            ("sjf", "work", 390.0, 410.0, 100.0),
            ("las", "attained", 3500.0, 3700.0, 800.0),
            ("tiresias", "attained", 200_000.0, 240_000.0, 0.0),
        ],
    )
    def test_what_a_policy_orders_jobs_by_counts_over_the_weight(self, policy, what, little, much, of_the_other):
        for mine, weighted in ((little, [1, 0]), (much, [0, 1])):
            jobs = [J(**{what: mine}, priority=0), J(**{what: of_the_other}, priority=2)]
            assert got(policy, jobs, 1, WEIGHTED) == weighted
            assert got(policy, jobs, 1, STRICT) == [1, 0]

    def test_a_class_that_was_risen_to_weighs(self):
        jobs = [J(work=190.0, priority=2), J(work=100.0, priority=1, submitted=79.0)]
        for time, gpus in ((79.0, [0, 1]), (80.0, [1, 0])):
            state = ordered(jobs, 1, WEIGHTED, time)
            assert make_policy("srtf")(state).gpus[np.argsort(state.jobs.index)].tolist() == gpus

    def test_only_strict_classes_start_before_what_the_index_prefers(self):
        jobs = [J(work=1e6, highest=8, priority=0), J(work=10, highest=8, priority=2)]
        size = Index(index_weights=IndexWeights(remaining=-2.0, priority=0.0).array())
        assert size(ordered(jobs, 1, STRICT)).gpus.tolist() == [1, 0]
        assert size(ordered(jobs, 1, WEIGHTED)).gpus.tolist() == [0, 1]
        classes = Index(index_weights=IndexWeights(remaining=0.0, priority=1.0).array())
        assert classes(ordered(jobs, 1, WEIGHTED)).gpus.tolist() == [1, 0], "a weight of its own is obeyed"

    @pytest.mark.parametrize("policy", sorted(set(BUILT_IN) - set(OF_CLASSES) - {"agent", "index"}))
    def test_classes_of_no_weight_are_no_classes(self, policy):
        """Nothing but the weights and head starts of the queue sets classes apart."""
        given_ = random_jobs(3, 8, 8, 10)
        jobs = [replace(one, submit_time=one.submit_time + 0.5 * i) for i, one in enumerate(given_)]
        alike = [replace(one, priority=1) for one in jobs]
        rule = QueueSettings(classes="weighted", class_weights=(1.0, 1.0, 1.0), aging_normal=1e-3, aging_low=1e-3)
        ends = []
        for each in (jobs, alike):
            cluster = make_cluster(each, random_tables(3, 8, 20.0), (4, 4, 2), decide_on="events")
            ends.append(played(cluster, policy, rule).jobs.finish_time)
        np.testing.assert_array_equal(*ends)


@pytest.mark.parametrize("classes", ["strict", "weighted"])
@given(st.integers(0, 10_000), st.integers(1, 4), st.sampled_from([0.5, 0.9, 1.5, 5.0]), st.sampled_from([50.0, 900.0]))
def test_no_job_waits_beyond_its_bound_and_the_service_of_those_before_it(classes, seed, capacity, load, aging):
    """What can be proved for jobs of one GPU under FIFO, at any load.

    From 3 * `aging` after its submission no job that comes can go before it: it counts as high, or has the head
    start of its class. With n of those before it still waiting then, it starts after n + 1 GPUs have become free, and
    within the longest service time every one of the c GPUs does: it waits at most bound + ceil((n + 1) / c) x longest.
    """
    jobs = workload(seed, 80, capacity, load, [1])
    rule = QueueSettings(classes=classes, aging_normal=aging, aging_low=2 * aging)
    record = played(make_cluster(jobs, linear_tables(), [capacity]), "fifo", rule).jobs
    submit, waited = record.submit_time, record.start_time - record.submit_time
    key = submit if classes == "strict" else submit - np.array([3 * aging, 2 * aging, 0.0])[record.priority]
    for j in np.flatnonzero(waited > 3 * aging):
        before = (key < key[j]) & (record.start_time > submit[j] + 3 * aging)
        assert (submit[before] <= submit[j] + 3 * aging).all()
        services = -(-(int(before.sum()) + 1) // capacity)
        assert waited[j] <= 3 * aging + services * record.requested_time.max() + 1e-6


HOUR = 3600.0


def many_and_few() -> list[Job]:
    """ann submits 60 jobs of two hours at once; bob one of half an hour every hour. 8 GPUs, one for each job."""
    ann = [Job(f"ann-{i}", 0.0, "m0", 72.0, SAMPLES, user="ann") for i in range(60)]
    bob = [Job(f"bob-{i}", 600.0 + i * HOUR, "m0", 18.0, SAMPLES, user="bob") for i in range(12)]
    return sorted([*ann, *bob], key=lambda job: job.submit_time)


def served(inside: str) -> RunRecord:
    cluster = make_cluster(many_and_few(), linear_tables(), interval=300.0, decide_on="events")
    queue = QueueSettings.model_validate({"inside": inside, "aging_normal": 1e9, "aging_low": 1e9})
    return played(cluster, "fifo", queue)


def mean_wait(record: RunRecord, user: str) -> float:
    """Hours from submission to the first GPU."""
    own = np.array([name.startswith(user) for name in record.jobs.names])
    return float((record.jobs.start_time - record.jobs.submit_time)[own].mean()) / HOUR


def test_who_asks_for_little_waits_less_and_the_other_hardly_more() -> None:
    first_come, fair = served("fifo"), served("fair_users")
    assert np.isfinite(fair.jobs.finish_time).all()
    assert mean_wait(first_come, "bob") > 6.0
    assert mean_wait(fair, "bob") < 1.5
    assert mean_wait(fair, "ann") == pytest.approx(mean_wait(first_come, "ann"), rel=0.15)
    ends = first_come.jobs.finish_time.max(), fair.jobs.finish_time.max()
    assert ends[1] == pytest.approx(ends[0], rel=0.1), "no GPU is left idle for it"


def test_a_class_comes_before_fairness() -> None:
    jobs = [
        *(Job(f"ann-{i}", 0.0, "m0", 50.0, SAMPLES, priority=0, user="ann") for i in range(20)),
        Job("bob-0", 1.0, "m0", 5.0, SAMPLES, priority=1, user="bob"),
    ]
    cluster = make_cluster(jobs, linear_tables(), decide_on="events")
    queue = QueueSettings(inside="fair_users", aging_normal=1e9)
    record = played(cluster, "fifo", queue)
    assert record.jobs.start_time[-1] >= record.jobs.start_time[:-1].max()
