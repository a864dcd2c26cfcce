"""What holds for every registered policy: in every state, and where there is little or nothing."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rlpto.core.cluster import ClusterShape, ClusterState, Node, Placement, nowhere
from rlpto.core.queues import Queue, QueueSettings
from rlpto.io.arrays import IntArray
from rlpto.policies.registry import BUILT_IN, make_policy

from .builders import J, make_state, power, states

SPECS = (
    *BUILT_IN,
    "fifo:backfill=true",
    "elastic_fifo:backfill=true",
    "fifo:one_node=true",
    "elastic_fifo:one_node=true",
    "sjf:backfill=true",
    "pollux:min_util=0.35,max_util=0.65",
)


@pytest.mark.parametrize("spec", SPECS)
@given(case=states(), seed=st.integers(0, 5))
def test_allocations_are_possible_and_reproducible(spec: str, case: tuple[list[J], int], seed: int) -> None:
    jobs, capacity = case
    policy = make_policy(spec)
    policy.reset(seed)
    allocation = policy(make_state(jobs, capacity))
    gpus = allocation.gpus
    lowest, highest = np.array([job.lowest for job in jobs]), np.array([job.top for job in jobs])
    assert np.issubdtype(gpus.dtype, np.integer)
    assert gpus.shape == (len(jobs),)
    assert np.all((gpus == 0) | ((gpus >= lowest) & (gpus <= highest)))
    assert gpus.sum() <= capacity
    if allocation.order is not None:
        assert sorted(allocation.order) == list(range(len(jobs)))

    policy.reset(seed)
    renamed = [replace(job, name=f"z{len(jobs) - i}") for i, job in enumerate(jobs)]
    again = policy(make_state(renamed, capacity))
    assert np.array_equal(again.gpus, gpus), "the same seed and state give the same GPUs under any names"


@pytest.mark.parametrize("spec", SPECS)
@given(case=states())
@example(case=([J(work=10.0, speed=(0.001, 0.0005), requested=2, lowest=2, highest=2, delay=4e3)], 2))  # none pays
def test_no_job_that_fits_beside_the_others_is_forgotten_on_an_empty_cluster(
    spec: str, case: tuple[list[J], int]
) -> None:
    jobs, _ = case
    jobs = [replace(job, held=0) for job in jobs]
    capacity = sum(job.requested for job in jobs)
    gpus = make_policy(spec)(make_state(jobs, capacity)).gpus
    greedy = spec.startswith(("reward_greedy", "random", "index", "max_throughput"))
    assert gpus.any() or spec == "random"
    if not greedy and spec != "round_robin" and "one_node" not in spec:  # whose jobs wait for room on one node
        assert np.all(gpus > 0), "the cluster has room for every request at once"


JOBS = [
    J(work=100.0, requested=2, highest=4, held=2, speed=power(0.8, 4)),
    J(work=50.0, requested=4, highest=4, speed=power(0.8, 4)),
    J(work=50.0, requested=1, highest=2),
]


def with_shape(state: ClusterState, *nodes: Node) -> ClusterState:
    """The state on other nodes; of JOBS the first holds two GPUs of the first node that is up, if there is one."""
    shape = ClusterShape(nodes)
    first = int(np.argmax(shape.offered))

    def placement(index: IntArray) -> Placement:
        return replace(nowhere(index), nodes=tuple(np.full(JOBS[job].held, first) for job in index))

    return replace(state, shape=shape, placement=placement)


@pytest.mark.parametrize("spec", SPECS)
def test_where_there_is_nothing_to_give_or_to_do_there_is_no_fault(spec: str) -> None:
    """Real jobs report that they have trained all their epochs shortly before they end."""
    state, nothing = make_state(JOBS, 4), np.zeros(0, dtype=np.int64)
    without_jobs = replace(state, jobs=state.jobs.reordered(nothing, nothing))
    waiting = make_state([replace(job, held=0) for job in JOBS], 4)
    state.jobs.store.progress[0] = JOBS[0].work
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(make_policy(spec)(without_jobs).gpus) == 0
        assert 0 <= make_policy(spec)(state).gpus.sum() <= 4
    assert not make_policy(spec)(replace(waiting, shape=ClusterShape((Node(4, up=False),)))).gpus.any()


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    "nodes",
    [
        (Node(4, background=3), Node(4, background=1)),
        (Node(4, background=4), Node(4)),
        (Node(4), Node(4, up=False)),
        (Node(0, cpus=4), Node(4)),
        (Node(4),),
    ],
    ids=["others hold some", "others hold a node", "a node is down", "a node without GPUs", "one node"],
)
def test_no_more_is_given_than_nodes_offer(spec: str, nodes: tuple[Node, ...]) -> None:
    """The queue refuses a placement that does not fit."""
    state = with_shape(make_state(JOBS, 4), *nodes)
    allocation = Queue(QueueSettings()).admit(state, make_policy(spec)(state), spec)
    assert allocation.gpus.sum() <= state.shape.up_gpus
