"""The loop of a service's scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from rlpto.arrivals.sampled import as_estimated
from rlpto.arrivals.volume import VolumeForecast
from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.jobs import Job
from rlpto.core.loop import DecisionLoop
from rlpto.core.policy import Policy
from rlpto.core.rewards import REWARD_PARTS, RewardWeights, reward_terms
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.nodes_on_ray import nodes_of_service
from rlpto.experiments.session_loop import SessionLoop, SwitchablePolicy, session_predictor, session_rules
from rlpto.io.arrays import FloatArray, IntArray
from rlpto.planning.predictor import Predictor, Sampled
from rlpto.planning.snapshot import Snapshot
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.job_knowledge import PolicyKnowledge
from rlpto.ray_cluster.scheduler.online_estimates import OnlineEstimates
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase, decision_records
from rlpto.ray_cluster.scheduler.session_folder import session_name
from rlpto.service.scheduler.admission import eligible, queue_rows
from rlpto.service.scheduler.catalogue import SESSION, Catalogue
from rlpto.service.scheduler.policy_catalogue import FALLBACK, catalogue_of, spec_of
from rlpto.service.scheduler.retention import Retention
from rlpto.service.scheduler.session import (
    Environment,
    finished_jobs,
    gpu_time_had,
    known_jobs,
    known_shape,
    volume_forecast,
)
from rlpto.service.scheduler.source import JobQueueSource
from rlpto.service.scheduler.status_writer import CurveWriter, StatusWriter
from rlpto.service.settings import ServiceSettings
from rlpto.store.events import add_event
from rlpto.store.jobs import on_hold
from rlpto.store.requests import Request, answer, get_request
from rlpto.store.rows import put_all
from rlpto.store.status import DecisionRow, PolicyEntry, note_leaving, set_volume
from rlpto.store.users import all_users

GUESSED, MEASURED = 0.4, 0.05
"""Standard deviations of the logarithm of a program's speed relative to its estimate: before its jobs have trained
(guesses are off by half), and after (for sizes that have not been measured)."""
MOST_TABLE_EPOCHS = 200
"""Epochs of a job after which tables assume constant speed, because jobs may request any number of epochs."""


@dataclass
class EligibleDecisions:
    """Decisions of a service: policies see only jobs that may run, and users see every decision.

    quota: GPUs that a user may hold unless set for the user. reward: by part [TERMS], since the last decision.
    """

    loop: DecisionLoop
    cluster: RayCluster
    source: JobQueueSource
    status: StatusWriter
    volume: VolumeForecast | None
    quota: int | None
    wall: Callable[[], float]
    reward: FloatArray
    _quotas: dict[str, int] = field(default_factory=dict)

    def decide(self, policy: SwitchablePolicy) -> Allocation | None:
        """Let the policy decide on the eligible jobs if a decision is due. Returns their allocation."""
        if not self.loop.due:
            return None
        whole, store = self.loop.state(), self.cluster.database
        if self.volume is not None:
            whole = replace(whole, forecast=self.volume(whole.time))
        quotas = self._quotas = self._present_quotas()
        by, ids, numbers = on_hold(store), self.cluster.ids, whole.jobs.index.tolist()
        owners = [self.cluster.jobs[number].user for number in numbers]
        limits = {owner: limit for owner in owners if (limit := quotas.get(owner, self.quota)) is not None}
        held = {row: by[ids[number]] for row, number in enumerate(numbers) if ids[number] in by}
        state, hidden = eligible(whole, owners, limits, self.source.drained, held)
        given = np.zeros(len(whole.jobs), dtype=np.int64)
        allocation = self.loop.decide(policy, state)
        assert allocation is not None
        given[np.setdiff1d(np.arange(len(given)), list(hidden))] = allocation.gpus
        self.status.queued(queue_rows(whole, ids, given, hidden, policy.name))
        self._record(whole, given, policy, asked=len(state.jobs) > 0)
        return allocation

    def quotas_changed(self) -> bool:
        """True if the last decision was made under other quotas."""
        return self._present_quotas() != self._quotas

    def _present_quotas(self) -> dict[str, int]:
        users = all_users(self.cluster.database)
        return {user.name: user.gpus_held for user in users if user.gpus_held is not None}

    def _record(self, state: ClusterState, given: IntArray, policy: SwitchablePolicy, asked: bool) -> None:
        waiting, held = int(np.count_nonzero(given == 0)), int(given.sum())
        active, latency = len(state.jobs), policy.latency if asked else 0.0
        steps = dict(getattr(policy.policy, "weight_steps", {}))
        row = DecisionRow(self.wall(), policy.name, latency, state.capacity, held, active, waiting, weight_steps=steps)
        self.status.decided(row, self.reward, state.time, applied=asked)
        self.reward = np.zeros(len(REWARD_PARTS))

    def futures(self, state: ClusterState) -> Callable[[Snapshot], Sampled] | None:
        """Futures sampled from the forecast of arrivals; None if there is none, or too little is known."""
        futures = None if self.volume is None else self.volume.futures(state.time)
        if futures is None:
            return None
        jobs, estimates = self.cluster.jobs, self.cluster.tracker.knowledge.estimates

        def sampled(snapshot: Snapshot) -> Sampled:
            measured = [estimates is None or estimates.is_measured(number) for number in snapshot.index.tolist()]
            found = as_estimated(snapshot.tables.types, futures, jobs, state.jobs.store.estimated_type)
            remaining = state.jobs.drawn_remaining(len(found.arrivals), np.random.default_rng(int(state.time)))
            if remaining is not None:
                remaining = remaining[:, np.argsort(state.jobs.index)]
            return Sampled(len(found.arrivals), found.jobs, np.where(measured, MEASURED, GUESSED), remaining)

        return sampled


@dataclass
class SchedulerLoop:
    """The scheduler of a service, from `make_scheduler`. It runs the session, announces leaving nodes, and forgets
    ended jobs."""

    environment: Environment
    weights: RewardWeights
    cluster: RayCluster
    policy: SwitchablePolicy
    source: JobQueueSource
    catalogue: Catalogue
    status: StatusWriter
    decisions: EligibleDecisions
    session: SessionLoop
    retention: Retention
    predictor: Predictor | None

    def close(self, keep: bool) -> None:
        """Leave the session in order. keep: jobs train on."""
        self.source.closed = True
        if self.predictor is not None:
            self.predictor.close()
        self.cluster.close(keep=keep)

    def step(self) -> None:
        """Decide if due, let time pass, and do housekeeping now and then."""
        if not self.cluster.active_jobs:
            self.status.queued(())
        while self.source.leaving:
            self._announce(self.source.leaving.popleft())
        passed = self.session.step()
        self.decisions.reward += reward_terms(passed, self.weights).sum(axis=0)
        self._keep_house()

    def _announce(self, request: Request) -> None:
        """Announce that a node leaves. Ray is asked outside of any transaction, which would block other writers."""
        node, seconds = str(request.body["node"]), float(request.body["seconds"])
        store, wall = self.cluster.database, self.environment.wall
        asked = get_request(store, request.seq)
        if asked is None or asked.done_at is not None:
            return  # it was withdrawn
        problem = self.environment.backend.drain(node, seconds)
        with store.transaction():
            if not problem:
                note_leaving(store, node, request.at + seconds)
                add_event(store, "nodes", wall(), body={"what": "leaves", "node": node, "by": request.by})
            answer(store, request.seq, wall(), problem)

    def _keep_house(self) -> None:
        """Do housekeeping now and then: new programs, task volume, and forgetting."""
        if not self.retention.due():
            return
        if self.decisions.quotas_changed():
            self.decisions.loop.invalidate()
        if self.catalogue.changed():
            self.cluster.tracker.take_tables(self.catalogue.tables)
            self.catalogue.write_previews()
        if (volume := self.decisions.volume) is not None:
            set_volume(self.cluster.database, volume.rows(self.cluster.time))
        self.status(self.cluster)
        lost = self.retention.clean_up(self.environment.wall(), self.cluster)
        if lost:
            self.policy.reset()
            self.decisions.loop.renumbered()


def make_scheduler(
    settings: ServiceSettings, config: Config, database: SessionDatabase, environment: Environment
) -> SchedulerLoop:
    """Build the scheduler of a service, which continues where the last one left.

    config: the experiment, with the cluster's actual nodes. Raises ClusterError if no node has GPUs.
    """
    # Without an end, and with decisions at events too: no job waits while GPUs are free.
    times = config.simulator.model_copy(update={"decide_on": "events", "max_hours": None})
    config = config.model_copy(update={"simulator": times})
    shape, wall, now = known_shape(config, database), environment.wall, environment.wall()
    name, folder = session_name(settings.folder, SESSION), settings.folder / "jobs"
    catalogue = Catalogue(database, config, shape, name, folder, environment.checks)
    catalogue.write_previews()
    clock = environment.clock(database.number("began"))
    jobs, specs = known_jobs(database, catalogue, now)
    volume = volume_forecast(config, catalogue, shape, database, clock, now)
    known = catalogue_of(settings.scheduler.policies)
    put_all(database, PolicyEntry, [entry for _, entry in known.values()])

    def make(name: str) -> Policy:
        return environment.make(spec_of(known, name))

    def can_switch(name: str) -> bool:
        return name not in known or environment.ready(known[name][0])

    def arrived(some: list[Job]) -> None:
        if volume is not None:
            volume.arrived(some, catalogue.tables, shape.gpus_per_node)

    latest = max((job.submit_time for job in jobs), default=0.0)
    given = (spec.id for spec in specs)
    source = JobQueueSource(database, catalogue, given, environment, clock, latest, arrived, can_switch)
    status = StatusWriter(database, wall, environment.timer, settings.scheduler.address or "local")
    ahead = None
    if environment.look_ahead:
        every, executor = settings.scheduler.predict_every, environment.executor
        ahead = session_predictor(config, database, every=every, executor=executor, timer=environment.timer)
    tables, rules, gpu_types = catalogue.tables, config.knowledge, shape.node_sizes
    estimates = OnlineEstimates(
        jobs, specs, catalogue.programs, tables, gpu_types, method=rules.fit, pooled=True, most_epochs=MOST_TABLE_EPOCHS
    )
    past = finished_jobs(database, config, now)
    knowledge = PolicyKnowledge(None, estimates, rules.remaining, rules.tail, rules.unseen_hours, past)
    timing, curves = session_rules(config, lambda *_: clock), CurveWriter()
    observers: list[Callable[[RayCluster], None]] = [status, *([] if ahead is None else [lambda _: ahead.publish()])]
    cluster = RayCluster(
        environment.backend, jobs, specs, tables, database, timing, observers, knowledge, source, curves
    )
    first, seed = settings.scheduler.policy, config.seed
    policy = SwitchablePolicy(database, make, first, cluster.deciding, wall=wall, seed=seed, fallback=FALLBACK)
    loop = DecisionLoop(cluster, config.queue, served=gpu_time_had(database, wall()))
    unseen, quota = decision_records(database, config.reward, newest=1).reward.sum(axis=0), settings.quotas.gpus_held
    decisions = EligibleDecisions(loop, cluster, source, status, volume, quota, wall, unseen)
    nodes, decide = nodes_of_service(Experiment(config), cluster), decisions.decide
    session = SessionLoop(cluster, policy, loop, ahead, nodes, decide, decisions.futures, source.switches)
    retention = Retention(database, settings.folder, settings.retention, timer=environment.timer)
    parts = cluster, policy, source, catalogue, status, decisions, session, retention, ahead
    return SchedulerLoop(environment, config.reward, *parts)
