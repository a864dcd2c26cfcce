"""Small hand-made speed tables, jobs and clusters for the tests of the core."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, ClusterShape, ClusterState, Node, SpotSettings
from rlpto.core.job_store import JobStore
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.queues import Queue, QueueSettings
from rlpto.core.records import RunRecord
from rlpto.core.rewards import RewardWeights
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.knowledge.remaining import RemainingKnowledge, RemainingWork
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.parameter_server import ServerParams
from rlpto.performance.profiles import builtin_profiles
from rlpto.performance.tables import JobType, SpeedTables, elapsed_from_rates
from rlpto.performance.throughput import StepMeasurements, ThroughputParams, gradient_time
from rlpto.policies.registry import BUILT_IN, make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import FailureSettings, SimulatorSettings

SAMPLES = 1000.0
"""Samples per epoch of every made-up model: a job with this data_size runs at the tables' own rates."""


def make_tables(
    rates: FloatArray | Sequence[Sequence[Sequence[Sequence[float]]]],
    delay: Sequence[float] = (0.0,),
    accuracy: FloatArray | None = None,
) -> SpeedTables:
    """Tables of models m0, m1, ... from `rates` [T, S, K, P]: epochs/s by nodes spanned, GPUs and epoch."""
    given = np.asarray(rates, dtype=np.float64)
    types, spans, gpus, epochs = given.shape
    flat = np.concatenate([np.zeros((1, epochs)), given.reshape(-1, epochs)])
    row = np.zeros((types, spans, gpus + 1), dtype=np.int32)
    row[:, :, 1:] = 1 + np.arange(types * spans * gpus).reshape(types, spans, gpus)
    curve = np.linspace(0.1, 0.9, epochs + 1) ** 0.5 if accuracy is None else accuracy
    return SpeedTables(
        types=tuple(JobType(f"m{i}") for i in range(types)),
        rates=flat,
        elapsed=elapsed_from_rates(flat),
        row=row,
        accuracy=np.tile(curve, (types, 1)),
        epochs=np.full(types, epochs),
        samples=np.full(types, SAMPLES),
        rescale_delay=np.resize(np.asarray(delay, dtype=np.float64), types),
        exact_keys=np.zeros(0, dtype=np.int64),
        exact_rows=np.zeros(0, dtype=np.int32),
    )


def with_batch_sizes(tables: SpeedTables, factors: Mapping[int, float]) -> SpeedTables:
    """The same tables where a scheduler may choose batch sizes, which multiply the speed of every type by `factors`."""
    sizes = [0, *factors]
    return _variants(
        tables,
        [1.0, *factors.values()],
        types=tuple(JobType(own.model, size or own.batch_size) for size in sizes for own in tables.types),
        own=np.tile(np.arange(len(tables.types)), len(sizes)),
        batch_size=np.repeat(sizes, len(tables.types)),
    )


def with_servers(tables: SpeedTables, most: int = 4, first: int = 1) -> SpeedTables:
    """The same tables where all types train through servers, by themselves one; p of them make a job p times as fast.

    first: types from this number on have servers; those before have none.
    """
    count, numbers = len(tables.types), list(range(1, most + 1))
    served = np.arange(count) >= first - 1
    return _variants(
        tables,
        numbers,
        types=tuple(JobType(own.model, servers=p if p > 1 else None) for p in numbers for own in tables.types),
        own=np.tile(np.arange(count), most),
        batch_size=np.zeros(most * count, dtype=np.int64),
        servers=np.repeat(numbers, count) * np.tile(served, most),
        most_servers=np.tile(np.where(served, most, 0), most),
    )


def with_gpu_types(tables: SpeedTables, gpu_types: Mapping[str, tuple[float, int]]) -> SpeedTables:
    """The same tables on several GPU types. gpu_types: factor on all speeds, and GPUs of the largest node."""
    count = len(tables.types)
    return _variants(
        tables,
        [factor for factor, _ in gpu_types.values()],
        gpu_types=tuple(gpu_types),
        gpu_type=np.repeat(np.arange(len(gpu_types)), count),
        node_gpus=np.repeat([gpus for _, gpus in gpu_types.values()], count),
    )


def _variants(tables: SpeedTables, factors: Sequence[float], **columns: Any) -> SpeedTables:
    """The same tables once for each of `factors` on all speeds. columns: those that do not just repeat."""
    times = len(factors)
    rates = np.concatenate([tables.rates * factor for factor in factors])
    shifts = len(tables.rates) * np.arange(times)[:, None, None, None]
    row = np.where(tables.row > 0, tables.row + shifts, 0).reshape(-1, *tables.row.shape[1:]).astype(np.int32)
    alike = ("epochs", "samples", "rescale_delay", "own", "batch_size", "servers", "most_servers")
    repeated: dict[str, Any] = {name: np.tile(getattr(tables, name), times) for name in alike}
    repeated |= {"types": tables.types * times, "accuracy": np.tile(tables.accuracy, (times, 1))} | columns
    return replace(tables, rates=rates, elapsed=elapsed_from_rates(rates), row=row, **repeated)


def served_profiles(laws: Mapping[str, ServerParams], **more: Any) -> FittedProfiles:
    """cifar10, and the same by other names that trains through parameter servers by `laws`. more: fields of these."""
    base = builtin_profiles()["cifar10"]
    served = {name: replace(base, name=name, throughput=law, **more) for name, law in laws.items()}
    return FittedProfiles({**served, "cifar10": base})


def measured_steps(
    law: ThroughputParams, sizes: Sequence[tuple[int, int]], local_batches: Sequence[float]
) -> StepMeasurements:
    """What a law says of these nodes and GPUs, with each of these batches per GPU."""
    nodes, gpus, local = np.array([(*size, batch) for size in sizes for batch in local_batches], dtype=np.float64).T
    step = law.step_time(nodes, gpus, local)
    return StepMeasurements(nodes, gpus, local, step, step - gradient_time(law, local))


def linear_tables(rate: float = 0.01, gpus: int = 8, delay: float = 0.0) -> SpeedTables:
    """One model m0 that runs at `rate` epochs/s per GPU in every epoch, however its GPUs are spread."""
    return make_tables([[[[rate * (k + 1)] * 3 for k in range(gpus)]]], [delay])


def random_tables(seed: int, gpus: int, delay: float, types: int = 3, epochs: int = 4) -> SpeedTables:
    """Models that scale like a power of their GPUs, slower across nodes, faster or slower in every epoch."""
    rng = np.random.default_rng(seed)
    power = rng.uniform(0.3, 1.0, types)[:, None, None, None]
    spread = np.array([1.0, 0.8])[None, :, None, None]
    unit = np.exp(rng.uniform(np.log(0.001), np.log(0.02), (types, 1, 1, epochs)))
    wobble = rng.uniform(0.9, 1.1, (types, 2, gpus, epochs))
    rates = unit * spread * wobble * np.arange(1, gpus + 1)[None, None, :, None] ** power
    return make_tables(rates, delay * np.arange(1, types + 1))


def job(i: int = 0, submit: float = 0.0, epochs: float = 1.0, gpus: int = 1, **more: object) -> Job:
    """A job of model m0 that wants exactly `gpus` GPUs unless `more` says otherwise."""
    given: dict[str, object] = {"model": "m0", "data_size": SAMPLES, "min_gpus": gpus, "max_gpus": gpus} | more
    return Job(name=f"job{i}", submit_time=submit, epochs=epochs, requested_gpus=gpus, **given)


def random_jobs(seed: int, count: int, most: int, capacity: int, types: int = 3) -> list[Job]:
    """Jobs of all kinds: ties in submit times, fractions of an epoch, more epochs than were measured."""
    rng = np.random.default_rng(seed)
    submits = np.sort(rng.choice([0.0, 60.0, 120.0, 300.0, *rng.uniform(0, 5000, 8)], count))
    jobs = []
    for i, submit in enumerate(submits):
        requested = int(rng.integers(1, min(most, capacity, 6) + 1))
        jobs.append(
            Job(
                name=f"job{i}",
                submit_time=float(submit),
                model=f"m{rng.integers(types)}",
                epochs=float(rng.choice([0.05, 0.3, 1.0, 2.5, 4.0, 7.3])),
                data_size=SAMPLES * float(rng.choice([0.5, 1.0, 3.0])),
                requested_gpus=requested,
                min_gpus=int(rng.integers(1, requested + 1)),
                max_gpus=int(rng.integers(requested, most + 1)),
                priority=int(rng.integers(3)),
            )
        )
    return jobs


PRICE, SPOT = 2.0, SpotSettings(mean_hours=0.5, away_hours=0.05, notice_seconds=10)
"""Of nodes of random cases."""


@dataclass(frozen=True)
class Case:
    """Everything a run depends on."""

    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    tables: SpeedTables
    settings: SimulatorSettings
    queue: QueueSettings
    policy: str
    seed: int


@st.composite
def cases(draw: st.DrawFn, policies: Sequence[str] = tuple(BUILT_IN)) -> Case:
    """Random workloads on random clusters under random policies and settings."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=5))
    seed = draw(st.integers(0, 10_000))
    decide_on = draw(st.sampled_from(["interval", "events"]))
    failing = draw(st.booleans())
    delay = draw(st.sampled_from([0.0, 10.0]))
    most = draw(st.integers(1, 10))
    placement = draw(st.sampled_from(["pack", "most_free"]))
    growth = draw(st.sampled_from(["pause", "overlap"])) if placement == "pack" else "pause"
    settings = SimulatorSettings(
        interval=draw(st.sampled_from([59.9, 60.0, 300.0])),
        decide_on=decide_on,
        placement=placement,
        growth=growth,
        epoch_resolution=draw(st.sampled_from([0.0, 1.0])) if decide_on == "interval" and growth == "pause" else 0.0,
        failures=FailureSettings(
            **(draw(st.sampled_from([{"mtbf_hours": 0.5}, {"gpu_mtbf_hours": 2.0}])) if failing else {}),
            mttr_hours=0.05,
            restart_share=draw(st.sampled_from([0.0, 0.5])),
            lemon_share=draw(st.sampled_from([0.0, 0.3])),
            lemon_factor=3.0,  # with 10, jobs of a single node may never reach a checkpoint
            checkpoint_interval=draw(st.sampled_from([50.0, 600.0, *(["young", "daly"] if failing else [])])),
            checkpoint_seconds=20.0 if failing else draw(st.sampled_from([0.0, 20.0])),
        ),
    )
    classes = draw(st.sampled_from(["strict", "weighted"]))
    queue = QueueSettings(
        classes=classes,
        aging_normal=draw(st.sampled_from([100.0, 1800.0])),
        aging_low=draw(st.sampled_from([130.0, 3600.0])),
        reserve_after=draw(st.sampled_from([None, 100.0, 1000.0])),
    )
    return Case(
        nodes=tuple(Node(size, price=PRICE, spot=draw(st.sampled_from([None, SPOT]))) for size in sizes),
        jobs=tuple(random_jobs(seed, draw(st.integers(1, 20)), most, sum(sizes))),
        tables=random_tables(seed, most, delay),
        settings=settings,
        queue=queue,
        policy=draw(st.sampled_from(policies)),
        seed=seed,
    )


def make_cluster(
    jobs: Sequence[Job], tables: SpeedTables, sizes: Sequence[int] = (8,), seed: int = 0, **settings: object
) -> SimulatedCluster:
    """A cluster of nodes of these sizes."""
    return SimulatedCluster(tuple(Node(size) for size in sizes), jobs, tables, SimulatorSettings(**settings), seed)


def played(
    cluster: SimulatedCluster, policy: object = "fifo", queue: QueueSettings | None = None, seed: int = 0
) -> RunRecord:
    """A whole run. policy: the spec of one, or one itself."""
    decides = make_policy(policy) if isinstance(policy, str) else policy
    return run(cluster, decides, queue or QueueSettings(), RewardWeights(), seed=seed)


def run_out(cluster: SimulatedCluster) -> float:
    """Pass decision points without deciding anything until all jobs have finished; when the first one did."""
    while not cluster.done:
        cluster.advance()
    return float(cluster.store.finish_time[0])


def give(
    cluster: SimulatedCluster,
    gpus: Sequence[int],
    order: Sequence[int] | None = None,
    batch_size: Sequence[int] | None = None,
) -> None:
    """Carry out an allocation to the active jobs, in order of submission."""
    placed = None if order is None else np.array(order)
    batches = None if batch_size is None else np.array(batch_size)
    cluster.apply(cluster.state(), Allocation(np.array(gpus, dtype=np.int64), placed, batches))


def admit(cluster: SimulatedCluster, gpus: Sequence[int] | None = None, **chosen: object) -> Allocation:
    """Carry out what the queue lets through of an allocation to the active jobs, in order of submission.

    gpus: None: those of `placement`. chosen: further fields of `Allocation`, or None.
    """
    state, wishes = cluster.state(), {name: np.array(given) for name, given in chosen.items() if given is not None}
    wished = wishes["placement"].sum(axis=1) if gpus is None else np.array(gpus)
    admitted = Queue(QueueSettings()).admit(state, Allocation(wished, **wishes), "mine")
    cluster.apply(state, admitted)
    return admitted


def shape_of(*nodes: tuple[str, int]) -> ClusterShape:
    """Nodes by the type and the number of their GPUs."""
    return ClusterShape(Node(gpus, gpu=gpu_type) for gpu_type, gpus in nodes)


def advance_to(cluster: SimulatedCluster, time: float) -> None:
    """Pass decision points without deciding anything until the first one not earlier than `time`."""
    while cluster.time < time:
        cluster.advance()


class Scripted:
    """A policy that does what a function says."""

    def __init__(self, decide: Callable[[ClusterState], object], name: str = "scripted") -> None:
        self.name = name
        self._decide = decide

    def reset(self, seed: int) -> None:
        """Nothing is remembered."""

    def __call__(self, state: ClusterState) -> Allocation:
        """Wrap a bare array of GPUs; hand on whatever else it is."""
        decided = self._decide(state)
        return Allocation(decided) if isinstance(decided, np.ndarray | list) else decided


def on_nodes(cluster: SimulatedCluster, jobs: Sequence[int]) -> list[list[int]]:
    """Nodes of the GPUs of these jobs."""
    return [cluster.nodes_of(j).tolist() for j in jobs]


def remaining_work(how: RemainingKnowledge, store: JobStore, tables: SpeedTables) -> RemainingWork:
    """Estimates of the remaining work of jobs of a store; unknown work is twice what was done."""

    def accuracy_at(index: IntArray, progress: FloatArray) -> FloatArray:
        return tables.accuracy_at(store.type_index[index], progress)

    return RemainingWork(how, 2.0, store, tables, accuracy_at)
