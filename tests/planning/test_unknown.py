"""What is not known of jobs cannot be reached: two clusters differ in all of it, and in nothing that is shown."""

from collections.abc import Callable

import numpy as np
import pytest

from rlpto.core.cluster import Allocation, ClusterState, Node
from rlpto.core.jobs import VIEW, EstimateNoise, Job
from rlpto.core.loop import run
from rlpto.core.queues import Queue, QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.envs.observation import observe
from rlpto.io.arrays import AnyArray
from rlpto.knowledge.known import BatchCache, EstimateRules, Knowledge
from rlpto.knowledge.remaining import RemainingKnowledge
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.planning.predictor import predict
from rlpto.planning.snapshot import take_snapshot
from rlpto.policies.registry import BUILT_IN, make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import Scripted, random_tables, with_batch_sizes, with_servers
from ..slow import few
from .test_planner import Noted
from .test_snapshot import with_known, with_scores

NODES, QUEUE, TIMES = (
    (Node(4, cpus=4), Node(4, cpus=4)),
    QueueSettings(),
    SimulatorSettings(interval=60.0, rescale_delay=20.0),
)
JOBS = 9
MODELS = ("cifar10", "deepspeech2", "ncf")
PROFILES = load_profiles(None)
SHOWN = (
    *(VIEW.names or ()),
    *("speed", "class_weight", "keepable", "metric", "batch_sizes", "chosen_batch_size", "speed_at_batch_sizes"),
)


def made_up(seed: int) -> SpeedTables:
    return with_batch_sizes(random_tables(seed, 8, 13.0), {100: 0.9, 200: 1.2})


def profiled(_: int) -> SpeedTables:
    return compile_tables(PROFILES, [JobType(model) for model in MODELS], 8, 4)


SETTINGS: dict[str, tuple[Callable[[int], SpeedTables], str]] = {
    "noisy": (made_up, "noisy"),
    "noisy, work in a unit of its own": (lambda seed: with_known(made_up(seed), seed), "noisy"),
    "noisy, another metric": (lambda seed: with_scores(made_up(seed), seed), "noisy"),
    "noisy profiles": (profiled, "noisy"),
    "noisy, servers": (lambda seed: with_servers(random_tables(seed, 8, 13.0), 3), "noisy"),
    "exact": (made_up, "exact"),
    "exact, work in a unit of its own": (lambda seed: with_known(made_up(seed), seed), "exact"),
    "online": (profiled, "online"),
    "online, fits with a prior": (profiled, "online, bayes"),
}


def cluster_of(tables: SpeedTables, mode: str, remaining: RemainingKnowledge, noise: EstimateNoise) -> SimulatedCluster:
    rng, own = np.random.default_rng(3), {job_type.model: i for i, job_type in reversed(list(enumerate(tables.types)))}
    jobs = [
        Job(
            f"job{i}",
            *(50.0 * i, list(own)[i % 3], float(rng.choice([0.05, 2.5, 3.5, 7.3])), tables.samples[i % 3] / 2, 2, 1),
            max_gpus=8,
            priority=i % 3,
        )
        for i in range(JOBS)
    ]
    known = Knowledge(
        noise if mode == "noisy" else None,
        remaining,
        performance=BatchCache(PROFILES) if "online" in mode else None,
        rules=BAYES if "bayes" in mode else EstimateRules(shared=True),
    )
    return SimulatedCluster(NODES, jobs, tables, TIMES, knowledge=known)


BAYES = EstimateRules(True, "bayes", 0.2, 0.25)
POLICIES = (
    *BUILT_IN,
    *("max_throughput:choose_batch_size=true", "coach:probes=corners", "coach:form=parabola"),
    *("pollux:favour=remaining", "pretrained:synthetic"),
)
"""Options that add to what a policy looks at or decides, and an agent, next to the policies themselves."""


class _ReachedError(Exception):
    """A run has come to the state that is compared."""


def until_reached() -> Scripted:
    """Decides as `elastic_fifo` does until a job has finished and another is in the middle of its work."""
    policy = make_policy("elastic_fifo")

    def decide(state: ClusterState) -> Allocation:
        jobs = state.jobs
        if jobs.index.max() == JOBS - 1 and len(jobs) < JOBS and (jobs.progress > 0.3).any():
            raise _ReachedError
        return policy(state)

    return Scripted(decide)


def change(cluster: SimulatedCluster, noise: EstimateNoise, mode: str, remaining: RemainingKnowledge) -> None:
    """Change all that is not known of the jobs that are there, so that nothing changes of what is shown."""
    records, tables = cluster.store.records, cluster.tables
    there = np.isnan(records["finish_time"])
    hides_work = mode == "noisy" and tables.known_remaining is None  # a profile's own work is that of its epochs
    more = 7.0 if remaining != "declared" else 4.0 if hides_work else 1.0
    hidden_work = more if remaining == "declared" else 1.0  # else the true amount has no part in what is shown
    if mode == "noisy":
        factor = 2.0 ** (1.0 + tables.own)
        by_row = np.ones(len(tables.rates))
        for job_type, row in enumerate(tables.row):
            by_row[row.reshape(-1)] = factor[job_type]
        tables.rates[:] *= by_row[:, None]
        tables.elapsed[:] /= by_row[:, None]
        noise.speed[:] /= factor[tables.own[records["type_index"]]]
        noise.remaining[:] /= hidden_work
        if tables.score_rates is not None:
            tables.score_rates[:] *= by_row[:, None]
        if tables.known_speed is not None:
            tables.known_speed[:] *= factor[:, None]
        noise._factors.clear()
    elif "online" in mode:
        tables.rates[:] *= 3.0
        tables.elapsed[:] /= 3.0
    records["epochs"][there] = (records["progress"] + (records["epochs"] - records["progress"]) * more)[there]
    for name in ("stop_epoch", "finish_at", "rate", "epoch_end"):
        if mode != "exact" or name in ("stop_epoch", "finish_at"):
            records[name][there] = 12_345.0


@pytest.mark.parametrize("remaining", few(["declared", "unknown", "learnt_or_curve"], "unknown", "learnt_or_curve"))
@pytest.mark.parametrize("setting", SETTINGS)
def test_what_is_not_known_changes_nothing_that_is_shown_or_decided(
    setting: str, remaining: RemainingKnowledge
) -> None:
    make_tables, mode = SETTINGS[setting]
    if mode == "exact" and remaining == "declared":
        remaining = "unknown"
    found = []
    for changed in (False, True):
        rng = np.random.default_rng(5)
        noise = EstimateNoise(rng.uniform(0.5, 2, JOBS), rng.uniform(0.5, 2, JOBS), rng.uniform(-0.2, 0.2, JOBS))
        cluster = cluster_of(make_tables(4), mode, remaining, noise)
        with pytest.raises(_ReachedError):
            run(cluster, until_reached(), QUEUE, RewardWeights())
        if changed:
            change(cluster, noise, mode, remaining)
        state, decisions = Queue(QUEUE).order(cluster.state()), {}
        figures: dict[str, AnyArray] = {name: getattr(state.jobs, name) for name in SHOWN}
        figures["observation"] = observe(state, cluster.held_gpus, 12, 2).jobs
        for name in POLICIES:
            policy = make_policy(name)
            policy.reset(1)
            given = policy(Queue(QUEUE).order(cluster.state()))
            decisions[name] = given.gpus, given.batch_size, given.servers
        planner = Noted(TIMES, known=0.0)
        decisions["planner"] = planner(Queue(QUEUE).order(cluster.state())).gpus, None, None
        figures["planner"] = planner.costs[0]
        made = predict(take_snapshot(cluster, state), make_policy("srtf"), QUEUE, TIMES)
        figures["predicted"] = made.finish
        found.append((figures, decisions))
    (figures, decisions), (others, other_decisions) = found
    assert len(figures["index"]) >= 3
    for name, values in figures.items():
        np.testing.assert_allclose(others[name], values, rtol=1e-9, atol=1e-12, err_msg=name)
    for name, allocation in decisions.items():
        for one, other in zip(allocation, other_decisions[name], strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)
