"""A policy that gets sealed states finds no truth behind them, and decides as it would without the seal."""

import gc
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

from rlpto.bench.suite import find_case
from rlpto.core.cluster import Allocation, ClusterState, Node, SpotSettings
from rlpto.core.loop import DecisionLoop, run
from rlpto.core.policy import Policy
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.core.sealed import SealedStates
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import AnyArray, FloatArray
from rlpto.io.errors import ConfigError
from rlpto.policies.registry import BUILT_IN, make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings
from tests.slow import few

from ..builders import Scripted, job, linear_tables

REALISTIC, EXACT, KINDS = "microsoft04-1.1", "synthetic-failures-exact", "kinds"
HISTORY = f"{REALISTIC}-history"

WAYS: dict[str, Callable[[ClusterState], Any]] = {
    "epochs of the store": lambda state: state.jobs.store.epochs,
    "records of the store": lambda state: state.jobs.store.records["epochs"],
    "room of the store": lambda state: state.jobs.store.room["epochs"],
    "where jobs stop early": lambda state: state.jobs.store.stop_epoch,
    "jobs to come": lambda state: state.jobs.store.submit_time,
    "times of the simulator": lambda state: state.jobs.store.finish_at,
    "rates of the simulator": lambda state: state.jobs.store.rate,
    "accuracy that can be gained": lambda state: state.jobs.store.gain_scale,
    "a copy of the store": lambda state: state.jobs.store.take(state.jobs.index).epochs,
    "array behind a column": lambda state: np.asarray(state.jobs.store.epochs.base)["epochs"],
    "store behind estimates": lambda state: state.jobs._left._store.epochs,
    "cluster behind estimates": lambda state: state.jobs._left._accuracy_at.__self__.store.epochs,
    "cluster behind placement": lambda state: state.placement.__self__.store.epochs,
    "jobs behind placement": lambda state: [job.epochs for job in state.placement.__self__.jobs],
    "tables behind placement": lambda state: state.placement.__self__.tables.rates,
}
"""Ways past the columns to what is not known, all of which lead there without the seal."""
OPEN_WAYS: dict[str, Callable[[ClusterState], Any]] = {
    "remaining work": lambda state: state.jobs.remaining,
    "epochs": lambda state: state.jobs.epochs,
    "remaining time": lambda state: 1 / state.jobs.remaining_time(state.jobs.max_gpus),
    "accuracy once finished": lambda state: state.jobs.final_accuracy,
    "copied columns": lambda state: state.jobs.columns().epochs,
    "reordered columns": lambda state: state.jobs.reordered(*2 * (np.arange(len(state.jobs)),)).columns().stop_epoch,
    "speed": lambda state: state.jobs.speed,
    "speed on several nodes": lambda state: state.jobs.speed_on(2),
    "speed at batch sizes": lambda state: state.jobs.speed_at_batch_sizes,
    "rates of estimated tables": lambda state: state.jobs.estimates().tables.rates,
    "best rates of estimated tables": lambda state: state.jobs.estimates().tables.best_rates(0),
}
"""What a policy may call, which never says it."""


@lru_cache(maxsize=6)
def experiment(case: str, max_hours: float = 100.0) -> tuple[Experiment, str]:
    """A case that is over after some hours, and its window with the fewest jobs."""
    config = find_case(case).config()
    ends = config.simulator.model_copy(update={"max_hours": max_hours})
    found = Experiment(config.model_copy(update={"simulator": ends}))
    return found, min(found.windows(), key=lambda window: len(found.jobs(window, found.config.seed)))


def moments(case: str = REALISTIC) -> Iterator[tuple[SimulatedCluster, ClusterState]]:
    """Moments of a run in which jobs run."""
    found, window = experiment(case)
    policy = make_policy("equal_share")
    cluster = found.cluster(window, found.config.seed, policy)
    loop = DecisionLoop(cluster, found.config.queue)
    for _ in range(120):
        if cluster.active_jobs:
            loop.decide(policy)
            if (loop.state().jobs.gpus > 0).any():
                yield cluster, loop.state()
        cluster.advance()


def secrets(cluster: SimulatedCluster, state: ClusterState) -> FloatArray:
    """True numbers that a policy must not find: lengths and true speeds of active jobs, all of jobs to come."""
    store, active = cluster.store, state.jobs.index[state.jobs.progress < cluster.store.stop_epoch[state.jobs.index]]
    to_come = np.flatnonzero(store.submit_time > state.time)
    rows = cluster.tables.row[np.unique(store.type_index)][:, :, 1:]
    gained = 1 / store.gain_scale[active]
    parts = (
        *(store[column] for store in (store.records[to_come],) for column in ("submit_time", "epochs")),
        *(store.records[active][column] for column in ("epochs", "stop_epoch", "rate")),
        gained[~np.isin(gained, cluster.tables.accuracy[:, -1])],  # else the model says it: it no longer changes
        store.finish_at[active],
        np.unique(cluster.tables.rates[rows]),
    )
    numbers = np.concatenate([np.asarray(part, dtype=np.float64).reshape(-1) for part in parts])
    return np.asarray(numbers[np.isfinite(numbers) & (numbers != np.round(numbers, 2))])


def reveals(found: Any, hidden: FloatArray) -> bool:
    """Whether one of these numbers, or its inverse, is in an array."""
    numbers = np.asarray(found, dtype=np.float64).reshape(-1)
    with np.errstate(divide="ignore"):
        return bool(np.isin(numbers, hidden).any() or np.isin(numbers, 1 / hidden).any())


@pytest.mark.parametrize("way", WAYS)
def test_ways_past_the_columns_are_closed(way: str) -> None:
    for cluster, state in list(moments())[-3:]:
        assert reveals(WAYS[way](state), secrets(cluster, state)), "the way leads there without the seal"
        try:
            found = WAYS[way](SealedStates()(state))
        except AttributeError:
            continue
        assert not reveals(found, secrets(cluster, state))


@pytest.mark.parametrize("way", OPEN_WAYS)
def test_what_a_policy_may_call_says_the_same_and_not_the_truth(way: str) -> None:
    for cluster, state in list(moments())[-3:]:
        found = OPEN_WAYS[way](SealedStates()(state))
        np.testing.assert_array_equal(found, OPEN_WAYS[way](state))
        assert not reveals(found, secrets(cluster, state))


def reachable(root: Any) -> tuple[list[AnyArray], set[str]]:
    """All arrays, and the names of all classes, that attributes, items, bound methods and closures lead to."""
    seen, arrays, classes, queue = {id(root)}, list[AnyArray](), set[str](), deque([root])
    while queue:
        thing = queue.popleft()
        classes.add(type(thing).__name__)
        further = [] if isinstance(thing, FunctionType) else gc.get_referents(thing)
        if isinstance(thing, FunctionType):
            further = [thing.__closure__, thing.__defaults__, thing.__dict__]
        if isinstance(thing, np.ndarray):
            arrays.append(thing)
            further = [*further, thing.base]
        for other in further:
            if id(other) not in seen and not isinstance(other, (type, ModuleType)):
                seen.add(id(other))
                queue.append(other)
    return arrays, classes


def numbers_in(array: AnyArray) -> FloatArray:
    """All numbers of an array, those of its columns too."""
    columns = [array[name] for name in array.dtype.names] if array.dtype.names else [array]
    numeric = [column.astype(np.float64).reshape(-1) for column in columns if column.dtype.kind in "fiu"]
    return np.concatenate(numeric) if numeric else np.zeros(0)


@pytest.mark.parametrize("case", few([REALISTIC, HISTORY], REALISTIC))
def test_nothing_that_a_sealed_state_leads_to_holds_the_truth(case: str) -> None:
    inside = {"SimulatedCluster", "World", "OnlineJobs", "JobEstimates", "RemainingWork", "Job", "Experiment"}
    for cluster, state in list(moments(case))[-3:]:
        hidden = secrets(cluster, state)
        arrays, classes = reachable(state)
        assert len(classes & inside) >= 5
        assert any(reveals(numbers_in(array), hidden) for array in arrays), "without the seal the truth is found"
        arrays, classes = reachable(SealedStates()(state))
        assert not classes & inside
        assert len(arrays) > 30
        assert not [array.dtype for array in arrays if reveals(numbers_in(array), hidden)]


def forger(arrays: Callable[[ClusterState], list[AnyArray]]) -> Scripted:
    """FIFO, which writes into arrays that it is given. arrays: which of them, of a state."""
    fifo = make_policy("fifo")

    def decide(state: ClusterState) -> Allocation:
        decided = fifo(state).gpus.copy()
        for array in arrays(state):
            if array.flags.writeable and array.dtype.kind in "bifV" and array.size:
                for column in [array[name] for name in array.dtype.names] if array.dtype.names else [array]:
                    column[...] = column * 0.5 if column.dtype.kind == "f" else 1
        return Allocation(decided)

    return Scripted(decide)


@pytest.mark.parametrize("case", few([REALISTIC, HISTORY, EXACT, KINDS], REALISTIC))
def test_what_a_policy_writes_changes_nothing(case: str) -> None:
    found, window = experiment(case)

    def outcome(policy: Policy, *, sealed: bool = True) -> FloatArray:
        jobs = found.run_policy(policy, window, found.config.seed, sealed=sealed).jobs
        return np.concatenate([jobs.finish_time, jobs.final_accuracy])

    honest = outcome(make_policy("fifo"))
    np.testing.assert_array_equal(outcome(forger(lambda state: reachable(state)[0])), honest)
    np.testing.assert_array_equal(outcome(make_policy("fifo")), honest, "nor a run that comes later")
    in_store = forger(lambda state: [state.jobs.store.records["progress"]])
    assert (outcome(in_store, sealed=False) != honest).any(), "without the seal it does"


@pytest.mark.parametrize("case", few([REALISTIC, EXACT, KINDS], REALISTIC))
@pytest.mark.parametrize("name", sorted({*BUILT_IN, "pretrained"} - {"agent"}))
def test_policies_decide_as_without_the_seal(name: str, case: str) -> None:
    found, window = experiment(case, max_hours=2.0)
    spec = "pretrained:philly" if name == "pretrained" else name
    plain, sealed = (
        found.run_policy(found.policy(spec), window, found.config.seed, sealed=sealed) for sealed in (False, True)
    )
    np.testing.assert_array_equal(sealed.jobs.finish_time, plain.jobs.finish_time)
    np.testing.assert_array_equal(sealed.decisions.reward, plain.decisions.reward)
    np.testing.assert_array_equal(sealed.decisions.time, plain.decisions.time)


def test_noisy_estimates_cannot_be_sealed() -> None:
    found, window = experiment(EXACT)
    noisy = found.config.knowledge.model_copy(update={"mode": "noisy"})
    cluster = Experiment(found.config.model_copy(update={"knowledge": noisy})).cluster(window, 0)
    with pytest.raises(ConfigError, match=r"knowledge.mode noisy: estimates cannot"):
        run(cluster, make_policy("fifo"), QueueSettings(), RewardWeights(), sealed=True)


def test_notices_of_nodes_that_go_are_copied() -> None:
    spot = SpotSettings(mean_hours=1.0, notice_seconds=10**6)
    nodes, jobs = (Node(2), Node(2, spot=spot)), [job(epochs=1e6)]
    state = SimulatedCluster(nodes, jobs, linear_tables(), SimulatorSettings()).state()
    sealed = SealedStates()(state)
    assert np.isfinite(sealed.leaves_in).tolist() == [False, True]
    np.testing.assert_array_equal(sealed.leaves_in, state.leaves_in)
    assert isinstance(sealed.notices.__self__, np.ndarray), "it leads to no cluster"  # type: ignore[union-attr]
