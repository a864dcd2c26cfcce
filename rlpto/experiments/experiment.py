"""Build everything that a configuration describes: windows, jobs, clusters, and the runs of an evaluation.

Only this module and the command line import from all packages.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from rlpto.arrivals.online import ClassForecasts, WindowForecasts, load_model
from rlpto.core.cluster import background_at, check_servers_fit, place_background
from rlpto.core.job_store import JobStore
from rlpto.core.jobs import EstimateNoise, FinishedJob, Job
from rlpto.core.loop import run
from rlpto.core.policy import LookaheadPolicy, Policy, chooses, naming_line, reads_speeds
from rlpto.core.records import RunRecord
from rlpto.evaluation.runner import Cell
from rlpto.experiments.config import Config, KnowledgeSettings
from rlpto.experiments.run_folder import files_digest, outcome_of
from rlpto.experiments.window_demand import WindowDemand
from rlpto.experiments.workload import CHOICES, Choice, WindowedWorkload, window_seed
from rlpto.forecasting.base import Forecaster
from rlpto.io.errors import ConfigError, JobError
from rlpto.knowledge.by_size import COMPILED_WORK
from rlpto.knowledge.history import History, compile_history
from rlpto.knowledge.known import BatchCache, Knowledge
from rlpto.knowledge.remaining import LEARNING
from rlpto.performance.compile import load_profiles
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.tables import SpeedTables
from rlpto.planning.planner import Planner
from rlpto.planning.predictor import prediction_settings
from rlpto.policies.registry import make_policy
from rlpto.policies.reward_greedy import RewardGreedy
from rlpto.policies.spec import parse_provisioner, parse_spec
from rlpto.policies.switching import SwitchingPolicy
from rlpto.provisioning.base import MadeForNodes, Provisioner, needs_forecast
from rlpto.provisioning.control import NodeGroups, SimulatedNodes
from rlpto.provisioning.demand import KnownDemand
from rlpto.provisioning.registry import make_provisioner
from rlpto.simulator.cluster import SimulatedCluster

if TYPE_CHECKING:
    from rlpto.performance.measured import MeasuredProfiles


NO_JOBS = (
    "the mapping has left no jobs; expected workload.mapping.mode=given where a trace has models but no durations, "
    "or another workload.mapping.oversized where jobs want too much"
)
"""End of a message on windows."""


class Experiment:
    """The objects that a configuration describes. Traces and speed tables are read when first needed.

    Policies are compared fairly by construction: `jobs` and `cluster` depend on the window and the
    seed alone, so every policy gets the same jobs, the same failures and the same estimates.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        shape, reserved = config.cluster.shape, config.queue.reserve_after
        if reserved is not None and len(shape.gpu_types) > 1:
            types = len(shape.gpu_types)
            raise ConfigError(
                f"queue.reserve_after: {reserved:g} s, but the cluster has {types} GPU types: expected null"
            )
        days = config.knowledge.history_days
        if days and config.workload.source == "frozen":
            raise ConfigError(f"knowledge.history_days: {days:g}, but frozen jobs have no dates: expected null or 0")
        self.background = place_background(config.workload.background, shape)
        self.shape = shape.with_background(*background_at(self.background, 0.0, len(shape)))
        self._latest_history: tuple[tuple[str, int, int], History] | None = None

    @cached_property
    def profiles(self) -> FittedProfiles | MeasuredProfiles:
        """Profiles of the models. Programs of real jobs without measurements get a guessed profile."""
        source, programs = load_profiles(self.config.profiles.folder), self.config.ray.programs
        if isinstance(source, FittedProfiles):
            guessed = {name: programs[name].guessed_profile(name) for name in programs if name in self.guessed_models}
            served = {name: program.servers for name, program in programs.items() if program.has_servers}
            source = FittedProfiles({**source.profiles, **guessed}, served)
        return source.choosing({name: program.largest_batch_size or 0 for name, program in programs.items()})

    @cached_property
    def guessed_models(self) -> frozenset[str]:
        """Programs of real jobs without measurements, whose speed is a guess."""
        folder, programs = self.config.profiles.folder, set(self.config.ray.programs)
        return frozenset(programs if folder is None else programs - set(load_profiles(folder).models))

    def speed_ratio(self, model: str, gpu: str, other: str) -> float:
        """Return a model's throughput on one GPU of type `gpu`, relative to GPU type `other`."""
        own, its = (self.profiles.one_gpu_throughput(model, name) for name in (gpu, other))
        return own / its

    def without_guesses(self, record: RunRecord) -> RunRecord:
        """The record of real jobs, without times computed from guessed speeds."""
        jobs = record.jobs
        guessed = np.isin(np.array(jobs.models, dtype=np.str_), sorted(self.guessed_models))
        alone, requested = (np.where(guessed, np.nan, time) for time in (jobs.alone_time, jobs.requested_time))
        unknown = np.nan if guessed.any() else 1.0
        rented = replace(record.rented, late=record.rented.late * unknown, idle_cost=record.rented.idle_cost * unknown)
        return replace(record, jobs=replace(jobs, alone_time=alone, requested_time=requested), rented=rented)

    @cached_property
    def _facts(self) -> BatchCache:
        """Properties of the batch sizes that jobs may choose."""
        return BatchCache(self.profiles)

    @cached_property
    def workload(self) -> WindowedWorkload:
        """The windows of the workload, their jobs, and the jobs' speeds."""
        return WindowedWorkload(self.config, self.shape, self.profiles)

    def windows(self, split: str | None = None, required: bool = True) -> list[str]:
        """Return `WindowedWorkload.names`."""
        return self.workload.names(split, required)

    def jobs(self, window: str, seed: int) -> list[Job]:
        """Return `WindowedWorkload.jobs`."""
        return self.workload.jobs(window, seed)

    def tables(self, choices: Collection[Choice] = ()) -> SpeedTables:
        """Return `WindowedWorkload.tables`."""
        return self.workload.tables(choices)

    def cluster(self, window: str, seed: int, policy: Policy | None = None) -> SimulatedCluster:
        """Return a simulated cluster with the jobs of a window. policy: the speed tables cover its batch sizes and
        numbers of servers."""
        self.check_simulated()
        known, jobs, own_seed = self.config.knowledge, self.jobs(window, seed), window_seed(window, seed)
        tables = self.tables([what for what in CHOICES if policy is not None and chooses(policy, what)])
        rules = replace(
            getattr(policy, "knowledge_rules", known.rules),
            shared=known.rules.shared,
            ahead=isinstance(policy, LookaheadPolicy),
            shown=policy is None
            or reads_speeds(policy)
            or len(self.shape.gpu_types) > 1,  # the queue asks which is faster
        )
        noise, history = estimate_noise(known, len(jobs), own_seed), self._history(window, seed, tables)
        knowledge = replace(self.knowledge, noise=noise, rules=rules, history=history)
        return SimulatedCluster(self.shape, jobs, tables, self.config.simulator, own_seed, knowledge, self.background)

    def _history(self, window: str, seed: int, tables: SpeedTables) -> History:
        """`past`, compiled. The latest is kept, for the next policy."""
        key = window, seed, id(tables)  # the workload keeps its tables
        if self._latest_history is None or self._latest_history[0] != key:
            self._latest_history = key, compile_history([self.past(window, seed)], tables)
        return self._latest_history[1]

    def past(self, window: str, seed: int) -> tuple[FinishedJob, ...]:
        """The jobs that had finished before a window, from which lengths are learnt; none if none are."""
        known = self.config.knowledge
        learns = known.remaining in LEARNING
        return self.workload.finished_before(window, seed, known.history_days) if learns else ()

    @property
    def knowledge(self) -> Knowledge:
        """Knowledge of policies and jobs, without a window's noise."""
        known = self.config.knowledge
        performance = self._facts if known.mode == "online" else None
        return Knowledge(None, known.remaining, known.tail, performance, known.rules)

    def check_simulated(self) -> None:
        """Raise ConfigError if knowledge.mode is online but cannot be simulated for the models, or if a setting needs
        online and the mode is another."""
        online = self.config.knowledge.mode == "online"
        if not online and self.config.simulator.change_batch_above > 1:
            raise ConfigError(
                "simulator.change_batch_above: only jobs with knowledge.mode online choose their batch sizes as "
                "they go; expected 1"
            )
        if online and self.tables().has_servers:
            raise ConfigError(
                "knowledge.mode online: simulated jobs fit no speeds of parameter servers; expected models that train "
                "without them, exact or noisy, or a real cluster"
            )

    def policy(self, spec: str, *, real: bool = False) -> Policy:
        """Return the policy of a spec. Planners use this experiment's simulator; a reward-greedy policy without weights
        uses this experiment's reward weights.

        real: whether the policy schedules real jobs.
        """
        config = self.config

        def informed(policy: Policy) -> Policy:
            if isinstance(policy, Planner):
                simulator = prediction_settings(config.simulator) if real else config.simulator
                return Planner(policy.options, config.queue, simulator, config.reward)
            if isinstance(policy, RewardGreedy) and "weights" not in policy.options.model_fields_set:
                return RewardGreedy(policy.options.model_copy(update={"weights": config.reward}))
            return policy

        rents = bool(self.shape.rented_groups)
        return make_policy(str(replace(parse_spec(spec), provisioner=None)) if rents else spec, informed)

    def provisioner(self, spec: str) -> Provisioner:
        """Return the provisioner named in a policy's spec, else the config's provisioner. Raises ConfigError."""
        own = parse_spec(spec).provisioner if spec else None
        return make_provisioner(own or parse_provisioner(self.config.provision))

    def check_provision(self, spec: str = "", *, used: bool = True) -> None:
        """Raise the error of a provisioner that cannot decide here. spec: of a policy. Default: the config's one.
        used: false if it only has to exist."""
        if not self.shape.rented_groups:
            return
        provisioner, groups = self.provisioner(spec), NodeGroups(self.shape)
        if used and needs_forecast(provisioner):
            _ = self.demand.learnt() if self.config.forecast.demand is None else self.demand.forecaster
        if used and isinstance(provisioner, MadeForNodes):
            provisioner.check_nodes(groups.size, groups.boot)

    def check_renting(self) -> None:
        """Raise ConfigError if an agent could not learn how many nodes to rent."""
        config = self.config
        if not self.shape.rented_groups:
            raise ConfigError("agent.learns nodes: no nodes are rented; expected `rented` in cluster.nodes")
        if config.reward.money == 0 or not any(node.price for node in self.shape if node.rented is not None):
            raise ConfigError(
                "agent.learns nodes: rented nodes cost nothing; expected reward.money and a price of nodes above 0"
            )

    def provisioning(self, spec: str, window: str, jobs: Sequence[Job]) -> tuple[Provisioner, KnownDemand, float]:
        """Return a policy's provisioner, the demand of a window's jobs, and the local time at which the window begins:
        what `RentedNodes` needs."""
        provisioner, demand = self.provisioner(spec), self.demand.of(window, jobs)
        forecasts = self.demand.forecasts(window, demand) if needs_forecast(provisioner) else None
        return provisioner, demand.by_minute(forecasts), demand.start

    @cached_property
    def demand(self) -> WindowDemand:
        """Demand of the windows by the minute."""
        return WindowDemand(self.config, self.workload, self.shape)

    def run_policy(self, policy: Policy, window: str, seed: int, *, spec: str = "", sealed: bool = False) -> RunRecord:
        """Let a policy schedule the jobs of a window.

        spec: the policy's spec, which may name the provisioner. sealed: passed to `rlpto.core.loop.run`.
        """
        cluster = self.cluster(window, seed, policy)
        queue, reward, nodes = self.config.queue, self.config.reward, None
        with naming_line(policy.name, policy):
            if self.shape.rented_groups:
                nodes = SimulatedNodes(cluster, *self.provisioning(spec, window, cluster.jobs))
            record = run(
                *(cluster, policy, queue, reward),
                window=window,
                seed=seed,
                forecaster=self.forecasts(window),
                nodes=nodes,
                sealed=sealed,
            )
        return replace(record, switches=policy.switches()) if isinstance(policy, SwitchingPolicy) else record

    def run_cell(self, cell: Cell, *, sealed: bool = False) -> RunRecord:
        """Run one cell of an evaluation. Raises ConfigError if files of its policy have changed since it was listed."""
        if cell.files and cell.files != files_digest(cell.policy):
            raise ConfigError(f"policy {cell.policy}: its files have changed while it was evaluated; run it again")
        return self.run_policy(self.policy(cell.policy), cell.window, cell.seed, spec=cell.policy, sealed=sealed)

    @cached_property
    def _forecaster(self) -> Forecaster | None:
        """The fitted forecaster of arrivals, if there is one. Raises ConfigError for an unusable file."""
        return load_model(self.config.forecast)

    def forecasts(self, window: str) -> WindowForecasts | None:
        """Return forecasts for one run on a window; None if nothing is forecast."""
        settings, cut = self.config.forecast, self.workload.windows[window]
        if settings.mode == "off":
            return None
        source = ClassForecasts(self.workload.past(cut), settings.step, settings.horizon, self._forecaster)
        return WindowForecasts(source, settings.step, int((cut.end - cut.start) / settings.step))

    def cells(self) -> list[Cell]:
        """All runs of the evaluation: every policy on every window with every seed."""
        first = self.config.seed
        seeds = range(first, first + self.config.evaluation.seeds)
        files = {policy: files_digest(policy) for policy in self.config.policies}
        places = product(self.windows(), seeds, files)
        return [Cell(policy, window, seed, files[policy]) for window, seed, policy in places]

    def check(self) -> None:
        """Check, before anything is written, that all policies exist and all jobs can run.

        Raises ConfigError, TraceError, ProfileError, JobError or CheckpointError.
        """
        for spec in self.config.policies:
            self.policy(spec)
            self.check_provision(spec)
        self.check_provision(used=False)
        if self.config.forecast.mode == "on":
            _ = self._forecaster
        for window in self.windows():
            jobs = self.jobs(window, self.config.seed)
            check_servers_fit(jobs, JobStore.from_jobs(jobs, self.tables()), self.tables(), self.shape)
            if not jobs:
                raise JobError(f"window {window}: {NO_JOBS}")

    def outcome(self) -> dict[str, Any]:
        """Plain data that determines the results of cells, from `outcome_of`."""
        return outcome_of(self.config, self.workload.files)


@lru_cache(maxsize=1)
def prepare(config: Config) -> Experiment:
    """Return the experiment of a configuration. The latest experiment is cached, so a process prepares it once."""
    return Experiment(config)


def run_cell(config: Config, cell: Cell, *, sealed: bool = False) -> RunRecord:
    """Run one cell. With the config bound by functools.partial, this function can be sent to other processes."""
    return prepare(config).run_cell(cell, sealed=sealed)


def refuse_for_learning(knowledge: KnowledgeSettings) -> None:
    """Raise ConfigError for knowledge that the compiled clusters, on which agents learn, do not support."""
    if knowledge.remaining not in COMPILED_WORK:
        raise ConfigError(
            f"knowledge.remaining {knowledge.remaining}: agents learn on compiled clusters; expected "
            f"{' or '.join(COMPILED_WORK)}"
        )


def estimate_noise(knowledge: KnowledgeSettings, jobs: int, seed: int) -> EstimateNoise | None:
    """Draw the errors of policies' estimates for each of `jobs` jobs; None if knowledge is not noisy."""
    if knowledge.mode != "noisy":
        return None
    rng = np.random.default_rng([seed, 2])
    return EstimateNoise(
        remaining=np.exp(rng.normal(0.0, knowledge.remaining_sigma, jobs)),
        speed=np.exp(rng.normal(0.0, knowledge.speed_sigma, jobs)),
        scaling=rng.normal(0.0, knowledge.scaling_sigma, jobs),
    )
