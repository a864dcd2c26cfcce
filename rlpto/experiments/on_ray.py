"""Evaluation on a real Ray cluster: the same policies and tables as in simulation, but the jobs really train."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rlpto.core.cluster import ClusterShape
from rlpto.core.jobs import Job
from rlpto.core.loop import DecisionLoop, job_records, run
from rlpto.core.policy import Policy
from rlpto.core.queues import Queue
from rlpto.core.records import NodeRecords, RunRecord
from rlpto.core.renting import RentedSettings
from rlpto.evaluation.fidelity import Fidelity, simulated_against_real, write_fidelity
from rlpto.evaluation.runner import Cell, FinishedCell
from rlpto.experiments.config import ClusterSettings, Config, NodeGroup
from rlpto.experiments.evaluate import labelled, run_cells
from rlpto.experiments.experiment import Experiment, estimate_noise, prepare
from rlpto.experiments.nodes_on_ray import nodes_of_cell, rental_of, with_cost
from rlpto.experiments.session_loop import (
    SCHEDULER,
    SessionLoop,
    SwitchablePolicy,
    session_predictor,
    session_rules,
)
from rlpto.experiments.workload import CHOICES, window_seed
from rlpto.io.errors import ClusterError, ConfigError
from rlpto.performance.tables import ANY_GPU
from rlpto.planning.predictor import THREAD_SHARE, Predictor, predict, prediction_settings
from rlpto.planning.snapshot import take_snapshot
from rlpto.policies.spec import policy_label
from rlpto.policies.switching import switching
from rlpto.ray_cluster.messages import raised_in
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.connection import Connection, check_training, only_scheduler
from rlpto.ray_cluster.scheduler.job_knowledge import PolicyKnowledge
from rlpto.ray_cluster.scheduler.live_curves import LiveCurves
from rlpto.ray_cluster.scheduler.online_estimates import OnlineEstimates, compile_fits
from rlpto.ray_cluster.scheduler.placement import place
from rlpto.ray_cluster.scheduler.renting import LocalRental
from rlpto.ray_cluster.scheduler.session_database import (
    SessionDatabase,
    decision_records,
    policy_switches,
    say_on_stderr,
)
from rlpto.ray_cluster.scheduler.session_folder import DATABASE, SESSIONS, read_table, remove_sessions, session_name
from rlpto.ray_cluster.settings import job_specs
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.store.database import looking

FIRST_NODE_S = 10.0
"""Seconds to wait for the first node with GPUs, which may not have joined the cluster yet."""
REAL, SIMULATED = "real", "simulated"
"""Folders of the two evaluations inside a run that compares them."""


@dataclass(frozen=True)
class RealRun:
    """Options of running cells on a Ray cluster.

    address: address of an existing cluster. Default: start a local cluster with the configured nodes and logical GPUs,
    and end it afterwards. keep: let jobs run on after Ctrl-C; the same command takes them over again. progress: show a
    bar. say: prints a line, in red (`style`) for failed jobs and a full disk. on_wait: called with the reason for each
    wait before the first job starts, and then with the empty text.
    """

    say: Callable[..., object]
    on_wait: Callable[[str], None]
    address: str | None = None
    fresh: bool = False
    keep: bool = False
    progress: bool = True


def run_real_cells(config: Config, folder: Path, how: RealRun) -> tuple[Config, list[FinishedCell]]:
    """Run the missing cells on a Ray cluster, one after the other; return the configuration with the nodes found.

    Raises ClusterError, ConfigError, JobError, CheckpointError, ... for errors in cluster, configuration or jobs, and
    Interrupted after Ctrl-C.
    """
    if how.keep and how.address is None:
        raise ConfigError("--keep: a local cluster ends with the command, expected --address as well")
    if how.address is None:
        prepare(config).check()  # report errors before nodes are started
    with real_nodes(config, how.address, folder, how.on_wait, rents=True) as config:
        experiment = prepare(config)
        cells = experiment.cells()
        experiment.check()
        how.on_wait("importing training programs on the cluster")
        check_programs(experiment, cells)
        if how.fresh:
            remove_sessions(folder)
        how.on_wait("compiling what policies need")
        compile_ahead(experiment, dict.fromkeys([*(cell.policy for cell in cells), *restored_policies(folder, cells)]))
        how.on_wait("")
        how.say(f"live curves: tensorboard --logdir {folder / SESSIONS}", style="dim")
        run_real = RealCells(config, folder, how.keep, lambda line: how.say(line, style="red"))
        finished = run_cells(config, folder, run_real, fresh=how.fresh, progress=how.progress)
    for failure in failures(folder, cells):
        how.say(failure, style="red")
    return config, finished


@contextmanager
def real_nodes(
    config: Config,
    address: str | None,
    folder: Path,
    on_wait: Callable[[str], None],
    on_lost: Callable[[], None] = lambda: None,
    rents: bool = False,
) -> Iterator[Config]:
    """Hold a Ray cluster as its only scheduler; yield the configuration with the nodes found there and the nodes that
    may come on demand.

    address, on_wait: options of `RealRun`. folder: run folder, shown to other schedulers. on_lost: passed to
    `Connection`. rents: if True, a provisioner decides on nodes that are rented or come on demand, and those are not
    up yet. Raises ClusterError if there is no cluster, it has no GPUs, or another scheduler is at work on it.
    """
    if config.workload.background:
        raise ConfigError("workload.background: simulated only, expected none on Ray: other jobs can hold its GPUs")
    with ExitStack() as stack:
        if address is None:
            if any(group.spot for group in config.cluster.nodes):
                raise ConfigError("cluster.nodes: spot nodes are simulated only, expected none with `spot` on Ray")
            if config.ray.autoscale is not None:
                raise ConfigError("ray.autoscale: a local cluster has no autoscaler, expected null, or an address")
            if not rents and config.cluster.shape.rented_groups:
                raise ConfigError("cluster.nodes: rented nodes are for `evaluate` alone, expected none with `rented`")
            own = [node for node in config.cluster.shape if node.rented is None]
            stack.enter_context(LocalCluster(own, on_progress=on_wait))
        else:
            on_wait("connecting to the Ray cluster")
            connection = stack.enter_context(Connection(address, config.ray.ship_code, on_lost))
            if not connection.protected:
                on_wait(f"warning: {connection.address} asks for no token: who reaches it can run code there")
        stack.enter_context(only_scheduler(folder))
        if address is None and not own:
            yield config
            return
        scale, wait = config.ray.autoscale, FIRST_NODE_S
        if scale is not None:
            stack.callback(RayBackend("").request, 0)
            RayBackend("").request(1)
            wait = config.ray.without_gpus
        until, found = time.monotonic() + wait, RayBackend("").nodes()
        while not found and time.monotonic() < until:
            time.sleep(FIRST_NODE_S / 50)
            found = RayBackend("").nodes()
        sizes = [(node.gpus, node.cpus, node.gpu) for node in found]
        if not sizes:
            raise ClusterError("no node of the Ray cluster has GPUs: expected at least one (`ray start --num-gpus`)")
        if address is not None:
            if len({gpu for _, _, gpu in sizes}) == 1:  # a single GPU type needs no name
                sizes = [(gpus, cpus, ANY_GPU) for gpus, cpus, _ in sizes]
            alike = sorted(Counter(sizes).items(), reverse=True)
            if scale is not None and (missing := scale.most_gpus - sum(gpus for gpus, _, _ in sizes)) > 0:
                (most, cpus, gpu), _ = alike[0]  # more nodes of the largest size may come
                alike += [((most, cpus, gpu), missing // most), ((missing % most, cpus, gpu), 1)]
            groups = tuple(
                NodeGroup(count=n, gpus=gpus, cpus=cpus, gpu=gpu) for (gpus, cpus, gpu), n in alike if n and gpus
            )
            if scale is not None and rents:
                groups = on_demand(groups, config.cluster.nodes)
            config = config.model_copy(update={"cluster": ClusterSettings(nodes=groups)})
        yield config


def on_demand(found: tuple[NodeGroup, ...], described: Sequence[NodeGroup]) -> tuple[NodeGroup, ...]:
    """Return the nodes of an autoscaled cluster: nodes of the largest size come and go, the others are permanent.
    described: node groups of the configuration; the first rented group sets boot time and price."""
    first, size = found[0], (found[0].gpus, found[0].cpus, found[0].gpu)
    most = sum(group.count for group in found if (group.gpus, group.cpus, group.gpu) == size)
    same = next((group for group in described if group.rented), first)
    rented = (same.rented or RentedSettings(most=1)).model_copy(update={"least": 0, "most": most})
    others = tuple(group for group in found if (group.gpus, group.cpus, group.gpu) != size)
    return (first.model_copy(update={"count": 0, "rented": rented, "price": same.price}), *others)


def check_programs(experiment: Experiment, cells: Sequence[Cell]) -> None:
    """Check, before any job starts, that workers can import the training classes of all jobs."""
    runs = dict.fromkeys((cell.window, cell.seed) for cell in cells)
    check_training(
        [
            spec
            for window, seed in runs
            for spec in job_specs(experiment.jobs(window, seed), experiment.config.ray, "check", Path(), seed)
        ]
    )


def compile_ahead(experiment: Experiment, policies: Iterable[str]) -> None:
    """Compile the code of policies, predictions and fits before the session, by running each once on simulated jobs.

    Without a compilation cache this takes tens of seconds, during which jobs would wait for a decision.
    """
    config, tables = experiment.config, experiment.tables(CHOICES)
    ahead = prediction_settings(config.simulator)
    shape = ClusterShape(replace(node, rented=None, up=True) for node in experiment.shape)
    job_type = tables.types[0]
    gpus = max(int(tables.floor_size_anywhere[0].max()), 1) if tables.floor_size.size else 1
    first = Job("0", 0.0, job_type.model, 1.0, float(tables.samples[0]), gpus, max_gpus=gpus)
    jobs = [replace(first, name=name, batch_size=job_type.batch_size, metric=job_type.metric) for name in "01"]
    for name in policies:
        policy = experiment.policy(name, real=True)
        policy.reset(config.seed)
        loop = DecisionLoop(SimulatedCluster(shape, jobs, tables, config.simulator), config.queue)
        state = loop.state()
        snapshot = take_snapshot(loop.cluster, state)
        with suppress(Exception):  # a policy that cannot look ahead can still decide, and `cluster status` says why
            predict(snapshot, policy, config.queue, ahead)
            run(SimulatedCluster(shape, jobs, tables, config.simulator), policy, config.queue, config.reward)
        loop.decide(policy)
        Queue(config.queue).stands_until(state)  # sessions call it only for a decision that stays valid for a while
    compile_fits(config.knowledge.fit)
    nodes = {"first": 2, "second": 2}
    place(nodes, {"shrinks": ("first", "second")}, {"shrinks": 1, "grows": 2})


def restored_policies(folder: Path, cells: Sequence[Cell]) -> list[str]:
    """Specs of the policies that users last switched to in the sessions left by earlier commands."""
    found = []
    for cell in cells:
        if (path := session_folder(folder, cell) / DATABASE).exists():
            with looking(path) as base:
                # Switches by the scheduler are recorded by label, not by spec.
                asked = "SELECT policy FROM switches WHERE by != ? ORDER BY number DESC LIMIT 1"
                found += base.execute(asked, (SCHEDULER,)).fetchall()
    return [policy for (policy,) in found]


@dataclass(frozen=True)
class RealCells:
    """Runs cells on the Ray cluster to which this process is connected. keep: option of `RealRun`. warn: called with a
    line when the disk is full."""

    config: Config
    folder: Path
    keep: bool = False
    warn: Callable[[str], object] = say_on_stderr

    def __call__(self, cell: Cell) -> RunRecord:
        """Run a cell, or continue it."""
        experiment, own = prepare(self.config), session_folder(self.folder, cell)
        session = session_of(self.folder, cell)
        # Predict in a thread: for a cell that takes minutes, another process would start too late.
        thread = ThreadPoolExecutor(1, "predictions")
        with (
            SessionDatabase(own / DATABASE, self.warn) as database,
            closing(session_predictor(self.config, database, executor=thread, share=THREAD_SHARE)) as predictor,
            closing(LiveCurves(own, self.config.reward, self.warn)) as curves,
        ):
            backend = RayBackend(session, notice_file=self.config.ray.notice_file)
            keep, observers = False, (curves, lambda _: predictor.publish())
            place = (cell.window, cell.seed, backend, database, session, observers)
            with rental_of(experiment, backend, window_seed(cell.window, cell.seed)) as rental:
                cluster = real_cluster(experiment, *place, keep=self.keep)
                try:
                    record = run_session(experiment, cell, cluster, predictor, rental)
                except KeyboardInterrupt:
                    keep = self.keep
                    raise
                finally:
                    cluster.close(keep)
        return experiment.without_guesses(record)


def real_cluster(
    experiment: Experiment,
    window: str,
    seed: int,
    backend: RayBackend,
    database: SessionDatabase,
    session: str,
    observers: Iterable[Callable[[RayCluster], None]] = (),
    keep: bool = False,
) -> RayCluster:
    """Return a `RayCluster` with the jobs of a window, in their present state if the session has begun before.

    database: database of the session; files of jobs lie in the same folder. keep: if True, existing controllers keep
    training when Ctrl-C comes meanwhile.
    """
    config, known, own_seed = experiment.config, experiment.config.knowledge, window_seed(window, seed)
    jobs = experiment.jobs(window, seed)
    specs = job_specs(jobs, config.ray, session, database.path.parent / "jobs", own_seed)
    tables = experiment.tables(CHOICES)
    online = None
    if known.mode == "online":
        gpu_types = experiment.shape.node_sizes
        programs, method, pooled = config.ray.programs, known.fit, known.fits == "shared"
        ratio = experiment.speed_ratio
        online = OnlineEstimates(jobs, specs, programs, tables, gpu_types, ratio, method=method, pooled=pooled)
    noise, rents = estimate_noise(known, len(jobs), own_seed), bool(experiment.shape.rented_groups)
    try:
        return RayCluster(
            backend,
            jobs,
            specs,
            tables,
            database,
            session_rules(config),
            observers,
            PolicyKnowledge(
                noise, online, known.remaining, known.tail, known.unseen_hours, experiment.past(window, seed)
            ),
            possible=experiment.shape if rents and config.ray.autoscale is None else (),
        )
    except KeyboardInterrupt:  # the caller has no cluster to close yet
        if not keep:
            backend.find()
            backend.end_all()
        raise


def run_session(
    experiment: Experiment,
    cell: Cell,
    cluster: RayCluster,
    predictor: Predictor | None,
    rental: LocalRental | None = None,
) -> RunRecord:
    """Let the policy of a cell schedule the jobs of a real cluster. The record includes the decisions of earlier
    schedulers of the session. rental: rented nodes of a local cluster."""
    config, database = experiment.config, cluster.database

    def make(spec: str) -> Policy:
        return experiment.policy(spec, real=True)

    policy = SwitchablePolicy(database, make, switching(make(cell.policy)), cluster.deciding)
    policy.reset(cell.seed)
    nodes = nodes_of_cell(experiment, cluster, rental, cell.policy, cell.window, cell.seed)
    decisions = DecisionLoop(cluster, config.queue, experiment.forecasts(cell.window))
    loop = SessionLoop(cluster, policy, decisions, predictor, nodes)
    while not cluster.done:
        loop.step()
    end, rented = cluster.time, NodeRecords() if nodes is None else nodes.records()
    return RunRecord(
        policy=policy.plan.name,
        window=cell.window,
        seed=cell.seed,
        capacity=cluster.shape.capacity,
        jobs=job_records(cluster),
        decisions=with_cost(decision_records(database, config.reward), rented, config.reward.money),
        changes=cluster.changes(),
        wall_seconds=end,
        end=end,
        switches=policy_switches(database),
        rented=rented,
    )


def session_of(folder: Path, cell: Cell) -> str:
    """Name of a cell's session, unique to the cell and the run folder."""
    return session_name(folder, cell.key[:8])


def session_folder(folder: Path, cell: Cell) -> Path:
    """Folder of a cell's session database, checkpoints, tables and curves: POLICY-WINDOW-SEED, with a part of the
    cell's key if another cell could have the same name."""
    name = re.sub(r"[^\w.-]+", "-", f"{policy_label(cell.policy)}-{cell.window}-{cell.seed}")[:60]
    plain = re.fullmatch(r"\w{1,25}", cell.policy) and re.fullmatch(r"[\w.-]{1,25}", cell.window)
    return folder / SESSIONS / (name if plain else f"{name}-{cell.key[:8]}")


def failures(folder: Path, cells: Sequence[Cell]) -> Iterator[str]:
    """Yield a line for each failed job, with the reason."""
    for cell in cells:
        columns, rows = read_table(session_folder(folder, cell) / DATABASE, "jobs")
        for job in (dict(zip(columns, row, strict=True)) for row in rows):
            if job["state"] == "failed":
                yield f"failed: {job['name']} under {cell}: {raised_in(job['failure'])}"


def evaluate_both(
    config: Config, folder: Path, options: RealRun, show: Callable[[str, Config, list[FinishedCell], Path], object]
) -> Fidelity:
    """Run every cell for real and simulated, and write a comparison as CSV.

    The real cluster runs first, because the simulated one gets the nodes found there. The policies have the same
    knowledge on both. show: called after each run with its name, configuration, cells and folder. Raises ConfigError
    if programs are not measured, because simulating guessed speeds would prove nothing.
    """
    if guessed := sorted(prepare(config).guessed_models):
        raise ConfigError(
            f"--cluster both: no profile of {', '.join(guessed)}; measure them with `rlpto profile CONFIG -o FILE`, "
            "and give --profiles FILE"
        )
    config, real = run_real_cells(config, folder / REAL, options)
    show(REAL, config, real, folder / REAL)
    simulated = run_cells(config, folder / SIMULATED, fresh=options.fresh, progress=options.progress)
    show(SIMULATED, config, simulated, folder / SIMULATED)
    found = simulated_against_real(labelled(simulated), labelled(real))
    write_fidelity(found, folder)
    return found
