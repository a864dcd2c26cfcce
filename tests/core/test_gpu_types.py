"""Clusters with several GPU types, which no job spans, under every policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, ClusterShape, ClusterState, Node
from rlpto.core.gpu_types import NO_GPU_TYPE, gpu_types_of, room_of
from rlpto.core.jobs import Job
from rlpto.core.loop import DecisionLoop
from rlpto.core.placement import pack
from rlpto.core.queues import Queue, QueueSettings
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.errors import ConfigError, JobError, ProfileError
from rlpto.planning.predictor import predict
from rlpto.planning.snapshot import take_snapshot
from rlpto.policies.registry import BUILT_IN, make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import (
    Case,
    admit,
    cases,
    job,
    linear_tables,
    played,
    random_jobs,
    random_tables,
    shape_of,
    with_batch_sizes,
    with_gpu_types,
)

GPU_TYPES = {"fast": 2.0, "slow": 0.7, "odd": 1.0}
BATCHES = "max_throughput:choose_batch_size=true"


class WatchedCluster(SimulatedCluster):
    """Checks every decision: one GPU type for each job, at whose speed it runs, and no node beyond its GPUs."""

    def apply(self, state: ClusterState, allocation: Allocation) -> None:
        super().apply(state, allocation)
        after = replace(state).held_nodes
        assert (after.sum(axis=0) <= state.shape.offered).all(), "no node is asked for more than it has"
        for j, now in zip(state.jobs.index, after, strict=True):
            gpu_type = set(self.shape.node_gpu_types[now > 0].tolist())
            assert gpu_type <= {self.tables.gpu_type[self.store.type_index[j]]}, "on one type, as fast as that is"


@st.composite
def on_gpu_types(draw: st.DrawFn) -> Case:
    """Random workloads on random clusters of up to three GPU types, on one of which every job fits."""
    case = draw(cases([*BUILT_IN, BATCHES]))
    nodes = tuple(replace(node, gpu=draw(st.sampled_from(tuple(GPU_TYPES)))) for node in case.nodes)
    jobs = random_jobs(case.seed, len(case.jobs), 10, ClusterShape(nodes).most_gpus)
    return replace(case, nodes=nodes, jobs=tuple(jobs), tables=random_tables(case.seed, 10, 10.0))


@pytest.mark.slow
@given(on_gpu_types())
def test_no_job_spans_kinds_no_node_is_overfilled_and_every_job_finishes(case: Case) -> None:
    tables, policy = case.tables, make_policy(case.policy)
    if case.policy == BATCHES:
        tables = with_batch_sizes(tables, {32: 0.5, 64: 1.5})
    if len(sizes := ClusterShape(case.nodes).node_sizes) > 1:
        tables = with_gpu_types(tables, {gpu_type: (GPU_TYPES[gpu_type], size) for gpu_type, size in sizes.items()})
    policy.reset(case.seed)
    cluster = WatchedCluster(case.nodes, case.jobs, tables, case.settings, case.seed)
    jobs = played(cluster, policy, case.queue, case.seed).jobs
    assert np.isfinite(jobs.finish_time).all()
    rounding = case.settings.epoch_resolution / 2 * np.ceil(jobs.epochs)
    assert (jobs.finish_time - jobs.submit_time >= jobs.alone_time * (1 - 1e-9) - rounding).all()


@pytest.mark.parametrize("allowed", [False, True])
def test_a_job_that_does_not_fit_the_fastest_kind_goes_to_another(allowed: bool) -> None:
    """allowed: it could do with one GPU, but 4 are its only allowed number."""
    nodes = (Node(3, gpu="fast"), Node(4, gpu="slow"))
    (job,) = random_jobs(0, 1, 10, 4)
    sizes = {gpu_type: (GPU_TYPES[gpu_type], size) for gpu_type, size in ClusterShape(nodes).node_sizes.items()}
    tables = with_gpu_types(random_tables(0, 10, 10.0), sizes)
    if allowed:
        only_four = np.where(np.arange(tables.max_gpus + 1) < 4, 0, 4)
        tables = replace(tables, floor_size=np.tile(only_four, (len(tables.types), 1)))
    jobs = (replace(job, min_gpus=1 if allowed else 4, max_gpus=4, requested_gpus=4),)
    cluster = WatchedCluster(nodes, jobs, tables, SimulatorSettings())
    assert np.isfinite(played(cluster, make_policy("fifo")).jobs.finish_time).all()


@given(cases())
def test_a_name_of_the_only_kind_changes_nothing(case: Case) -> None:
    finished = []
    for nodes in (case.nodes, tuple(replace(node, gpu="fast") for node in case.nodes)):
        cluster = SimulatedCluster(nodes, case.jobs, case.tables, case.settings, case.seed)
        finished.append(played(cluster, case.policy, case.queue, case.seed).jobs.finish_time)
    np.testing.assert_array_equal(*finished)


def two_gpu_types(jobs: Sequence[Job], fast: float = 2.0, delay: float = 0.0) -> SimulatedCluster:
    """Two nodes of four slow GPUs, then one of four GPUs that are `fast` times as fast."""
    tables = with_gpu_types(linear_tables(delay=delay), {"slow": (1.0, 4), "fast": (fast, 4)})
    nodes = (Node(4, gpu="slow"), Node(4, gpu="slow"), Node(4, gpu="fast"))
    return SimulatedCluster(nodes, jobs, tables, SimulatorSettings(interval=60.0))


class TestGpuTypes:
    def test_a_job_starts_where_it_finishes_first(self) -> None:
        cluster = two_gpu_types([job(0, gpus=3), job(1, gpus=3), job(2, gpus=1)])
        admit(cluster, [3, 3, 1])
        assert [set(cluster.nodes_of(j)) for j in range(3)] == [{2}, {0}, {2}]

    def test_a_running_job_stays_unless_moving_pays(self) -> None:
        cluster = two_gpu_types([job(0, gpus=4, epochs=4.0), job(1, gpus=1, max_gpus=4, epochs=20.0)])
        admit(cluster, [4, 2])
        assert set(cluster.nodes_of(1)) == {0}
        admit(cluster, [0, 2])
        assert set(cluster.nodes_of(1)) == {0}, "its wish is met where it is"
        admit(cluster, [0, 4])
        assert set(cluster.nodes_of(1)) == {0}, "nor does it move while it can grow as much as it is to"

    @pytest.mark.parametrize(("delay", "moves"), [(0.0, True), (1e6, False)])
    def test_a_job_that_finds_no_room_to_grow_moves_if_that_is_worth_a_rescale(self, delay: float, moves: bool) -> None:
        jobs = [job(0, gpus=7, epochs=50.0), job(1, gpus=1, max_gpus=4, epochs=50.0)]
        cluster = two_gpu_types(jobs, delay=delay)
        cluster.apply(cluster.state(), Allocation(np.array([7, 1]), placement=np.array([[4, 3, 0], [0, 1, 0]])))
        admit(cluster, [7, 4])
        assert cluster.nodes_of(1).tolist() == ([2, 2, 2, 2] if moves else [1])

    def test_a_job_that_fits_no_kind_keeps_one_from_those_behind_it(self) -> None:
        cluster = two_gpu_types([job(0, gpus=2), job(1, gpus=2), job(2, gpus=8), job(3, gpus=1)])
        # Two nodes of four slow GPUs: job 0 went to the fast ones, then those behind find 2 fast and 8 slow ones.
        placement = np.array([[0, 0, 2], [2, 0, 0], [0, 0, 0], [0, 0, 0]])
        cluster.apply(cluster.state(), Allocation(placement.sum(axis=1), placement=placement))
        given = admit(cluster, [0, 2, 8, 1])
        assert list(given.gpus) == [0, 2, 0, 1]
        assert set(cluster.nodes_of(3)) == {2}, "the slow ones are kept for job 2"

    def test_no_kind_is_kept_for_a_job_that_does_not_fit_it(self) -> None:
        """With a slow node down the first job fits neither type, so the second may have the fast one."""
        tables = with_gpu_types(linear_tables(), {"fast": (2.0, 4), "slow": (1.0, 4)})
        nodes = (Node(4, gpu="fast"), Node(4, gpu="slow"), Node(4, gpu="slow"))
        state = SimulatedCluster(nodes, [job(0, gpus=6), job(1, gpus=1)], tables, SimulatorSettings()).state()
        state = replace(state, shape=state.shape.with_up([True, True, False]))
        admitted = Queue(QueueSettings()).admit(state, Allocation(np.array([6, 1])), "mine")
        assert admitted.placement is not None
        assert admitted.placement.tolist() == [[0, 0, 0], [1, 0, 0]]

    def test_a_policy_that_spreads_a_job_over_kinds_has_counted_gpus(self) -> None:
        cluster = two_gpu_types([job(0, gpus=2)])
        assert admit(cluster, placement=[[0, 1, 1]]).placement.tolist() == [[0, 0, 2]]


def test_kinds_that_are_unknown_or_too_small_for_a_job_are_named() -> None:
    experiment = Experiment(load_config("kinds", ["cluster.nodes.1.gpu=h100"]))
    with pytest.raises(ProfileError, match=r"no speeds on GPUs of type 'h100'.*cluster.nodes: gpu"):
        experiment.check()
    with pytest.raises(ConfigError, match="no speeds on GPUs of type 'other'; known: slow, fast"):
        two_gpu_types([job(0)]).state().jobs.speed_on_gpu("other")
    with pytest.raises(JobError, match="job0 wants 9 GPUs, but the cluster has 8 in all for one job"):
        two_gpu_types([job(0, gpus=9)])


def test_what_is_predicted_comes_true_on_several_kinds() -> None:
    jobs = [job(j, submit=0.0, epochs=5.0 + j, gpus=1, max_gpus=6) for j in range(6)]
    cluster, policy, queue = two_gpu_types(jobs, delay=20.0), make_policy("equal_share"), QueueSettings()
    loop = DecisionLoop(cluster, queue)
    for _ in range(3):
        loop.decide(policy)
        cluster.advance()
    expected = predict(take_snapshot(cluster, loop.state()), policy, queue, SimulatorSettings(interval=60.0))
    while not cluster.done:
        loop.decide(policy)
        cluster.advance()
    assert expected.finish == pytest.approx(cluster.store.finish_time[expected.index])


class TestPlacing:
    def test_small_jobs_make_room_for_whole_nodes(self) -> None:
        shape = shape_of(("a", 4), ("a", 4), ("b", 8))
        held = np.array([[2, 0, 0], [0, 1, 0], [0, 0, 0]])
        gpus, gpu_type = np.array([2, 1, 4]), np.array([0, 0, 0])
        spread = pack(held, gpus, gpu_type, shape.node_gpu_types, shape.offered, False)
        assert spread[2].tolist() == [1, 3, 0]
        packed = pack(held, gpus, gpu_type, shape.node_gpu_types, shape.offered, True)
        assert packed.tolist() == [[2, 0, 0], [1, 0, 0], [0, 4, 0]], "the job that is cheapest to move has moved"

    @given(st.data())
    def test_whole_nodes_and_powers_of_two_always_pack(self, data: st.DataObject) -> None:
        shape = shape_of(*[("a", 4)] * 3, *[("b", 8)] * 2)
        sizes = {0: (1, 2, 4, 8, 12), 1: (1, 2, 4, 8, 16)}

        def draw() -> tuple[list[int], list[int]]:
            left, gpus, gpu_type = room_of(shape), [], []
            for _ in range(8):
                on = data.draw(st.integers(0, 1))
                size = data.draw(st.sampled_from(sizes[on]))
                fits = size <= left[on] and data.draw(st.booleans())
                left[on] -= size if fits else 0
                gpus.append(size if fits else 0)
                gpu_type.append(on if fits else NO_GPU_TYPE)
            return gpus, gpu_type

        held = np.zeros((8, len(shape)), dtype=np.int64)
        for _ in range(3):
            gpus, gpu_type = map(np.array, draw())
            placed = pack(held, gpus, gpu_type, shape.node_gpu_types, shape.offered, True)
            assert np.array_equal(placed.sum(axis=1), gpus)
            assert np.array_equal(gpu_types_of(placed, shape), gpu_type)
            assert not placed[gpu_type == 0, 3:].any(), "on no other type"
            assert not placed[gpu_type == 1, :3].any()
            assert (placed.sum(axis=0) <= shape.node_gpus).all()
            size = np.where(gpu_type == 0, 4, 8)
            assert ((placed > 0).sum(axis=1) == -(-gpus // size)).all(), "no job is spread over more than it needs"
            held = placed
