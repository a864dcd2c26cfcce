"""`rlpto train --cluster ray`: fine-tune an agent on real jobs after training in simulation."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from itertools import count
from pathlib import Path

from rlpto.agents.checkpoint import Identity
from rlpto.agents.policy import run_file
from rlpto.agents.settings import LAST, AgentSettings
from rlpto.agents.trained import StartingAgent
from rlpto.agents.training import train
from rlpto.agents.training_loop import Status
from rlpto.core.cluster import Cluster
from rlpto.envs.episodes import ExternalSetup
from rlpto.evaluation.runner import Cell
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment, prepare
from rlpto.experiments.on_ray import check_programs, real_cluster, real_nodes
from rlpto.experiments.run_folder import Result, begin_run, deciding, members
from rlpto.experiments.training_runs import digest_of, provenance, training_seed
from rlpto.io.errors import ConfigError
from rlpto.io.files import digest, file_there
from rlpto.io.interrupts import Interrupted, interruptible
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.ray_cluster.scheduler.live_curves import LiveCurves
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.scheduler.session_folder import DATABASE, SESSIONS, remove_sessions, session_name

FOLDER = "ray"
"""Default folder of a run with the fine-tuned agent."""
ROLLOUTS = 10
"""Default number of rollouts, of some thousand seconds each."""


def fine_tune_run(
    config: Config,
    source: Path,
    folder: Path,
    *,
    address: str | None,
    fresh: bool,
    on_progress: Callable[[Status], None],
    on_wait: Callable[[str], None],
) -> int:
    """Continue to train the agent of the run `source` on real jobs. Checkpoints go to `folder`; if some exist already,
    training continues from them.

    address: address of an existing Ray cluster. If None, start a local cluster. on_wait: callback of `RealRun`. Returns
    the number of decisions used for training. Raises RlptoError for an invalid experiment, agent or cluster, and
    Interrupted after a clean stop on Ctrl-C.
    """
    _refuse_what_takes_episodes(config)
    if len(found := members(source)) > 1:
        raise ConfigError(f"--resume {source}: holds {len(found)} trainings; expected one of them, such as {found[0]}")
    if folder.resolve() == found[0].resolve():
        raise ConfigError(f"--run-dir {folder}: holds the agent that is fine-tuned, expected another folder")
    starting_agent = StartingAgent(run_file(found[0]))
    steps = {} if "steps" in config.agent.model_fields_set else {"steps": ROLLOUTS * config.agent.ppo.rollout}
    settings = starting_agent.settings(config.agent.model_copy(update=steps))
    starting_agent.env(config.env)
    # Listed jobs form one window, in the split test.
    windows = prepare(config).windows("test" if config.workload.source == "jobs" else "train")
    resume = file_there(folder / LAST) and not fresh
    if not resume:
        prepare(config).check()
    with real_nodes(config, address, folder, on_wait) as config:
        experiment = prepare(config)
        on_wait("importing training programs on the cluster")
        check_programs(experiment, [Cell("agent", window, config.seed) for window in windows])
        on_wait("")
        identity = _identity(experiment, settings, starting_agent)
        if fresh:
            remove_sessions(folder)
            (folder / LAST).unlink(missing_ok=True)
        if not resume:
            begin_run(folder, config)
        try:
            with closing(episodes(experiment, windows, folder)) as clusters, interruptible("step") as interrupt:

                def asked() -> bool:
                    interrupt.learning = True
                    return interrupt.asked

                outcome = train(
                    ExternalSetup(
                        lambda: next(clusters),
                        config.queue,
                        config.reward,
                        starting_agent.env(config.env),
                        starting_agent.trained.start,
                        config.simulator.interval,
                    ),
                    settings,
                    folder,
                    identity,
                    starting_agent=starting_agent,
                    resume=resume,
                    on_progress=on_progress,
                    stop=asked,
                )
        except KeyboardInterrupt:
            raise Interrupted("what was learned until the last update is kept; go on with the same command") from None
    if not outcome.finished:
        raise Interrupted(
            f"{outcome.steps} decisions are kept; go on with the same command, "
            f"or evaluate it with the policy agent:run={folder}"
        )
    return outcome.steps


def episodes(experiment: Experiment, windows: list[str], folder: Path) -> Generator[Cluster, None, None]:
    """Yield real clusters one after the other: each window in turn, then all windows again with the next seed.

    folder: holds a folder for each episode: session database, live curves and checkpoints of its jobs. Numbering
    continues after the folder's last episode. A cluster ends when the next begins, or the iterator is closed.
    """
    config, sessions = experiment.config, folder / SESSIONS
    there = [path.name.rpartition("-")[2] for path in sessions.glob("episode-*")]
    for number in count(max((int(done) + 1 for done in there if done.isdecimal()), default=0)):
        window, seed = windows[number % len(windows)], config.seed + number // len(windows)
        session = session_name(folder, f"{number:04d}")
        own, backend = sessions / f"episode-{number:04d}", RayBackend(session, notice_file=config.ray.notice_file)
        with (
            SessionDatabase(own / DATABASE) as database,
            closing(LiveCurves(own, config.reward)) as curves,
            closing(real_cluster(experiment, window, seed, backend, database, session, [curves])) as cluster,
        ):
            cluster.deciding("agent", 0.0)
            yield cluster


def _refuse_what_takes_episodes(config: Config) -> None:
    """Raise ConfigError for settings of a training that takes thousands of episodes, or many clusters."""
    agent = config.agent
    if agent.envs != 1 and "envs" in agent.model_fields_set:
        raise ConfigError(f"agent.envs: {agent.envs}, but there is one real cluster; expected 1")
    if agent.loads is not None:
        raise ConfigError("agent.loads: real jobs come as they are listed; expected null")
    if config.forecast.mode != "off":
        raise ConfigError(f"forecast.mode: {config.forecast.mode}, but nothing is forecast here; expected off")


def _identity(experiment: Experiment, settings: AgentSettings, starting_agent: StartingAgent) -> Identity:
    """Return the identity that a checkpoint must match to be continued, and the origin of its agent."""
    config = experiment.config
    agent = deciding(config.model_copy(update={"agent": settings}), Result.CHECKPOINT)["agent"]
    decisive = {
        "experiment": experiment.outcome(),
        "env": starting_agent.env(config.env).model_dump(mode="json"),
        "agent": {key: value for key, value in agent.items() if key != "steps"},
        "from": digest(starting_agent.file),
    }
    origin = {**provenance(config), "fine_tuned_from": starting_agent.archive.manifest.get("provenance")}
    return Identity(digest_of(decisive), training_seed(config), origin)
