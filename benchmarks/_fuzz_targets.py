"""What is fuzzed: every kind of file, config keys and overrides, specs, policies' answers, arguments of the API, verbs.

A target takes a generator and an empty folder, breaks one input and uses it as a user would. It may end well or with
one of the errors that are documented; anything else is a finding.
"""

from __future__ import annotations

import io
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import yaml
from _fuzz_mutations import (
    NASTY,
    WORDS,
    broken_archive,
    broken_bytes,
    broken_text,
    broken_tree,
    pick,
    plain_json,
)
from gymnasium.error import Error as GymnasiumError
from numpy.random import Generator

from rlpto.agents.archive import read_archive, write_archive
from rlpto.agents.network import JobSetPolicy
from rlpto.agents.settings import AgentSettings
from rlpto.agents.trained import AGENT, action_space, agent_manifest, load_agent, observation_space, weight_arrays
from rlpto.cli.forecast_series import Counted, What, read_series
from rlpto.cli.main import make_app
from rlpto.cluster import Allocation, ClusterState, Node
from rlpto.config import Config, load_config, resolved_yaml
from rlpto.environments import cluster_env
from rlpto.envs.settings import EnvSettings
from rlpto.errors import RlptoError
from rlpto.evaluation.metrics import measure
from rlpto.evaluation.runner import Cell, evaluate, load_cells
from rlpto.evaluation.storage import load_record, save_record
from rlpto.evaluation.tuning import read_costs
from rlpto.experiment import Experiment
from rlpto.forecasting.errors import ForecastError
from rlpto.forecasting.registry import METHODS, make_method
from rlpto.forecasting.registry import load as load_forecaster
from rlpto.jobs import Job
from rlpto.performance.compile import compile_tables
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.measurements import read_measurements
from rlpto.performance.profiles import Profile, builtin_profiles, load_file, profile_yaml
from rlpto.performance.tables import JobType
from rlpto.policies.index_weights import IndexWeights, load_index_weights, save_index_weights
from rlpto.policies.registry import make_policy
from rlpto.policies.spec import split_specs
from rlpto.policies.steering import STEERING_FEATURES
from rlpto.policies.steering_file import load_steering_weights, save_steering_weights
from rlpto.queues import QueueSettings
from rlpto.ray_cluster.messages import JobSpec, Plan
from rlpto.ray_cluster.nodes.background import noted_cluster
from rlpto.ray_cluster.scheduler.gpu_claims import Command
from rlpto.ray_cluster.scheduler.run_tables import decision_records, policy_switches, write_tables
from rlpto.ray_cluster.scheduler.schema import Decision
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase, read_table
from rlpto.rewards import RewardWeights
from rlpto.runs.folder import begin_run, read_run_config, refuse_foreign
from rlpto.runs.sweep import read_space
from rlpto.scheduler import run
from rlpto.settings import Settings
from rlpto.settings_text import described_yaml
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings
from rlpto.workloads.calibration import load_calibration
from rlpto.workloads.describe import tables
from rlpto.workloads.files import read_any
from rlpto.workloads.importers.registry import detect_format, import_trace
from rlpto.workloads.listed import listed_job
from rlpto.workloads.sources import FollowedFile
from rlpto.workloads.synthetic import generate
from rlpto.workloads.trace import make_trace, read_trace, write_trace
from rlpto.workloads.volume import task_volume
from tests.evaluation.helpers import tiny_record
from tests.workloads.test_importers import SAMPLES

ROOT = Path(__file__).resolve().parents[1]
EXPECTED_ERRORS = (RlptoError, ForecastError)
"""What bad files and settings may raise."""
ARGUMENT_ERRORS = (*EXPECTED_ERRORS, ValueError, TypeError, GymnasiumError)
"""What bad arguments of the Python API may raise."""

Target = Callable[[Generator, Path], object]
TARGETS: list[tuple[float, Target, tuple[type[BaseException], ...]]] = []
"""How often each is drawn, and the errors it may end with."""


def target(weight: float, allowed: tuple[type[BaseException], ...] = EXPECTED_ERRORS) -> Callable[[Target], Target]:
    def add(function: Target) -> Target:
        TARGETS.append((weight, function, allowed))
        return function

    return add


def broken_file(
    weight: float, name: str, broken: Callable[[Generator], bytes]
) -> Callable[[Callable[[Path], object]], Target]:
    """A target that hands a file called `name`, with content as `broken` makes it, to the function it decorates."""

    def add(use: Callable[[Path], object]) -> Target:
        def read(rng: Generator, folder: Path) -> object:
            return use(_file(folder, name, broken(rng)))

        read.__name__ = use.__name__
        return target(weight)(read)

    return add


def _file(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def _broken_yaml(rng: Generator, text: str) -> bytes:
    """A YAML text broken as text, or with one of its values replaced."""
    if rng.random() < 0.4:
        return broken_text(rng, text)
    return yaml.dump(broken_tree(rng, yaml.safe_load(text)), allow_unicode=True).encode("utf-8", "replace")


def _broken_json(rng: Generator, content: bytes) -> bytes:
    return broken_bytes(rng, content) if rng.random() < 0.3 else plain_json(broken_tree(rng, json.loads(content)))


@cache
def _configs() -> tuple[str, ...]:
    return tuple(path.read_text(encoding="utf-8") for path in sorted((ROOT / "configs").glob("*.yaml")))


@broken_file(3, "exp.yaml", lambda rng: _broken_yaml(rng, pick(rng, _configs())))
def config_file(path: Path) -> None:
    config = load_config(path)
    resolved = _file(path.parent, "resolved.yaml", resolved_yaml(config).encode())
    assert load_config(resolved) == config, "a resolved configuration reads back otherwise"


def _keys(model: type[Settings]) -> list[tuple[str, ...]]:
    from rlpto.settings_text import all_keys

    return [tuple(map(str, key)) for key in all_keys(model)]


KEYS = _keys(Config)


@target(2)
def override(rng: Generator, folder: Path) -> None:
    key = ".".join(pick(rng, KEYS))
    if rng.random() < 0.2:
        key = broken_text(rng, key).decode("utf-8", "replace")
    value = pick(rng, (*WORDS, "[" * 5000, "{a: &a [*a]}", "[1, 2", "{x: 1}", "-5", "3.5", "1e-9", "1000000"))
    path = _file(folder, "exp.yaml", pick(rng, _configs()).encode())
    config = load_config(path, [f"{key}={value}"])
    _begun(config)


@target(2)
def key_of_small(rng: Generator, folder: Path) -> None:
    """One key of a small experiment changed, whose jobs are then drawn."""
    tree = {
        "cluster": {"nodes": [{"count": 2, "gpus": 4}]},
        "workload": {"days": 0.5, "windows": {"hours": 2}},
    }
    *parents, last = pick(rng, KEYS)
    inner: Any = tree
    for parent in parents:
        inner = inner.setdefault(parent, {}) if isinstance(inner, dict) else inner[0]
    if isinstance(inner, list):
        inner = inner[0]
    inner[last] = pick(rng, (*NASTY, 2, 5, 0.5, 1e-9, 100, 10_000, [0.5], [-1], ["fifo"]))
    path = _file(folder, "exp.yaml", yaml.dump(tree).encode("utf-8", "replace"))
    config = load_config(path)
    _begun(config)
    if config.workload.source == "synthetic" and config.workload.days <= 1 and config.workload.calibration == "philly":
        experiment = Experiment(config)
        for window in experiment.windows("train", required=False)[:1]:
            experiment.jobs(window, config.seed)


def _begun(config: Config) -> None:
    """What every verb does first with a configuration."""
    resolved_yaml(config)
    for spec in config.policies:
        make_policy(spec)


@target(2)
def weights_file(rng: Generator, folder: Path) -> None:
    path = folder / "weights.yaml"
    if rng.random() < 0.5:
        save_index_weights(IndexWeights(), path)
    else:
        save_steering_weights(np.zeros(len(STEERING_FEATURES)), path)
    path.write_bytes(_broken_yaml(rng, path.read_text()))
    assert np.isfinite(load_steering_weights(path)).all()
    load_index_weights(path)


@cache
def _calibration() -> str:
    return described_yaml(load_calibration("philly"))


@broken_file(0.5, "like.yaml", lambda rng: _broken_yaml(rng, _calibration()))
def calibration_file(path: Path) -> None:
    generate(load_calibration(path), 0.1, 0)


@cache
def _profiles() -> Mapping[str, Profile]:
    return builtin_profiles()


@cache
def _profile() -> str:
    return profile_yaml(_profiles()["cifar10"])


@broken_file(2, "profiles.yaml", lambda rng: _broken_yaml(rng, _profile()))
def profile_file(path: Path) -> None:
    profiles = load_file(path)
    for name in profiles:
        compile_tables(FittedProfiles(profiles), [JobType(name)], 8, 4)


MEASURED = {
    "placements.csv": "placement,local_bsz,step_time,sync_time\n"
    + "".join(
        f"{place},{size},{0.1 * size},{0.01 * len(str(place))}\n" for place in (1, 2, 11, 22) for size in (8, 16)
    ),
    "scalability.csv": "num_nodes,num_replicas,local_bsz,step_time,sync_time\n4,16,8,1.0,0.2\n4,16,16,1.5,0.3\n",
    **{
        f"validation-{batch}.csv": "progress,iteration,metric,grad_sqr,grad_var\n"
        + "".join(f"{10 * i},{10 * i},{0.1 * i},1.0,2.0\n" for i in range(1, 5))
        for batch in (8, 32)
    },
}


@target(2)
def measurements(rng: Generator, folder: Path) -> None:
    broken = pick(rng, list(MEASURED))
    for name, text in MEASURED.items():
        _file(folder, name, broken_text(rng, text) if name == broken else text.encode())
    read_measurements(folder)


@target(5)
def trace_text(rng: Generator, folder: Path) -> None:
    name = pick(rng, list(SAMPLES))
    path = _file(folder, "trace.log", broken_text(rng, SAMPLES[name]))
    trace = import_trace(name if rng.random() < 0.8 else detect_format(path), path, bool(rng.integers(2))).trace
    _used(trace, folder)


def _used(trace: Any, folder: Path) -> None:
    """Everything that a trace is used for at once."""
    tables(trace, 8)
    task_volume(trace, 600.0, "gpus")
    write_trace(trace, folder / "out.parquet")
    assert len(read_trace(folder / "out.parquet")) == len(trace), "a trace reads back otherwise"


@cache
def _parquet() -> bytes:
    columns = {"name": ["a", "b"], "submit_time": [0.0, 5.0], "duration": [1.0, np.nan], "gpus": [1, 2]}
    path = Path("fuzz.parquet")
    write_trace(make_trace(columns, "fuzz"), path)
    return path.read_bytes()


@broken_file(2, "trace.parquet", lambda rng: broken_bytes(rng, _parquet()))
def trace_parquet(path: Path) -> None:
    _used(read_any(path), path.parent)


FOLLOWED = """\
{"model": "cifar10", "submit": 0, "gpus": 2}
{"name": "second", "model": "ncf", "submit": 60.5, "epochs": 3, "priority": "high", "max_gpus": 4}
{"closed": true}
"""


@broken_file(2, "jobs.jsonl", lambda rng: _broken_lines(rng, FOLLOWED))
def followed_file(path: Path) -> None:
    facts = FittedProfiles(_profiles()).facts
    source = FollowedFile(path, lambda entry, number: listed_job(entry, number, facts, 8))
    source.poll()
    source.poll()


def _broken_lines(rng: Generator, text: str) -> bytes:
    """JSON lines broken as text, or with a value of one of them replaced."""
    if rng.random() < 0.4:
        return broken_text(rng, text)
    lines = text.encode().splitlines(keepends=True)
    at = int(rng.integers(len(lines)))
    lines[at] = plain_json(broken_tree(rng, json.loads(lines[at]))) + b"\n"
    return b"".join(lines)


@cache
def _agent() -> bytes:
    setup = _environment().setup
    network = JobSetPolicy(observation_space(setup.settings), action_space(), lambda _: 0.0, width=8)
    settings = AgentSettings.model_validate({"network": {"width": 8}})
    path = Path("agent.zip")
    write_archive(path, {"format": AGENT, **agent_manifest(setup, settings)}, weight_arrays(network), "an agent")
    return path.read_bytes()


@broken_file(2, "agent.zip", lambda rng: broken_archive(rng, _agent(), "manifest.json"))
def agent_file(path: Path) -> None:
    read_archive(path, (AGENT,))
    load_agent(path)


@cache
def _forecasters() -> tuple[bytes, ...]:
    rng = np.random.default_rng(0)
    counts = rng.poisson(5.0, 400).astype(float)
    found = []
    for method in [name for name in ("smoothing", "season_24h", "arima_log", "arima_fourier") if name in METHODS]:
        path = Path("forecaster.npz")
        make_method(method).fit(counts, step=3600.0).save(path)
        found.append(path.read_bytes())
    return tuple(found)


@broken_file(2, "model.npz", lambda rng: broken_archive(rng, pick(rng, _forecasters()), None))
def forecaster_file(path: Path) -> None:
    forecaster = load_forecaster(path)
    told = forecaster.update([3.0, 4.0]).predict(6, (0.1, 0.9))
    assert np.isfinite(told.point).all(), "a forecast that is not finite"


COUNTS = "time,count\n" + "".join(f"2020-04-01 {hour:02d}:00:00,{hour}\n" for hour in range(24))


@broken_file(2, "counts.csv", lambda rng: broken_text(rng, COUNTS))
def counts_file(path: Path) -> None:
    read_series(path, Counted("1h", What.jobs, None, None, None, "time", "count"))


@cache
def _record() -> bytes:
    path = Path("record.npz")
    save_record(tiny_record(), path)
    return path.read_bytes()


@broken_file(2, "record.npz", lambda rng: broken_archive(rng, _record(), None))
def record_file(path: Path) -> None:
    measure(load_record(path))


@target(1)
def run_folder(rng: Generator, folder: Path) -> None:
    """A finished run of which one file is broken, compared, and gone on with."""
    config = Config()
    begin_run(folder, config)
    cells = [Cell("tiny", "w0", 0)]
    evaluate(cells, lambda _: tiny_record(), folder, False, config={})
    victim = pick(rng, sorted(path for path in folder.rglob("*") if path.is_file()))
    content = victim.read_bytes()
    if victim.suffix == ".json":
        victim.write_bytes(_broken_json(rng, content))
    elif victim.suffix == ".yaml":
        victim.write_bytes(_broken_yaml(rng, content.decode()))
    else:
        victim.write_bytes(broken_archive(rng, content, None))
    refuse_foreign(folder, config)
    read_run_config(folder)
    for finished in load_cells(folder):
        finished.record()
    evaluate(cells, lambda _: tiny_record(), folder, False, config={})


TUNING = {"format": "rlpto tuning 1", "fingerprint": "f", "costs": [[1.0, 2.0, 3.0, 4.0]], "best": {}}
SPACE = "agent.ppo.learning_rate: {low: 1.0e-5, high: 1.0e-3, log: true}\nagent.network.width: [16, 32]\n"


@broken_file(1, "tuning.json", lambda rng: _broken_json(rng, plain_json(TUNING)))
def tuning_file(path: Path) -> None:
    read_costs(path, "f", 4)


@broken_file(1, "space.yaml", lambda rng: _broken_yaml(rng, SPACE))
def space_file(path: Path) -> None:
    read_space(path)


STARTED = {"address": "127.0.0.1:1", "folder": "x", "gpus": [2, 2], "cpus": 4, "durable": False}


@broken_file(1, "cluster.json", lambda rng: _broken_json(rng, plain_json(STARTED)))
def started_cluster_file(path: Path) -> None:
    with mock.patch.dict(os.environ, RLPTO_STATE=str(path)):
        noted_cluster()


@cache
def _session() -> bytes:
    """The database of a session of two jobs that has taken a decision."""
    path = Path("session.sqlite")
    specs = [JobSpec(f"job-{i}", f"j{i}", "s", "a.b:C", "folder", 8, 1.0, 100) for i in range(2)]
    with SessionDatabase(path) as database:
        database.enter_jobs([(spec, 60.0 * i) for i, spec in enumerate(specs)])
        for key in ("began", "beat"):
            database.set_fact(key, "5.0")
        database.node("n1", 0, 4, True, 0.0)
        database.decision(Decision(1.0, "fifo", 0.01, 4, 2, 2, 1, {"job-0": 0}, {"job-0": 2}, {"job-0": 8}))
        database.followed((0.1, 0.2, 0.3), 60.0, 120.0, 5.0)
        database.plan([Command("job-0", database.next_generation(), Plan(("n1", "n1")))], 1.0)
        database.change(1.0, "job-0", 2, 0.5, ("n1", "n1"))
        database.event(2.0, "rescale", "job-0", "n1", 3.0, "2")
    content = path.read_bytes()
    path.unlink()
    return content


@target(2)
def session_file(rng: Generator, folder: Path) -> None:
    """A session database broken as bytes, or in one of its values, opened by a scheduler and by who looks."""
    path = _file(folder, "state.sqlite", _session())
    if rng.random() < 0.5:
        path.write_bytes(broken_bytes(rng, _session()))
    else:
        with closing(sqlite3.connect(path, isolation_level=None)) as base:
            base.execute("PRAGMA ignore_check_constraints = 1")
            table = pick(rng, ("facts", "jobs", "allocations", "decisions", "events", "changes", "nodes"))
            column = pick(rng, [row[1] for row in base.execute(f"PRAGMA table_info({table})")])
            value = pick(rng, [value for value in NASTY if isinstance(value, str | int | float | None)])
            with suppress(sqlite3.Error, OverflowError):  # values that SQLite itself keeps out
                base.execute(f"UPDATE {table} SET {column} = ?", (value,))
    read_table(path, "jobs")
    with SessionDatabase(path, lambda _: None) as database:
        write_tables(database, folder)
        decision_records(database, RewardWeights())
        policy_switches(database)
        database.newest_commands()


SPECS = ("fifo", "las", "index:gain=2", "tiresias:thresholds=[3600, 36000],label=t", "index:weights=x.yaml", "random")


@target(2)
def policy_spec(rng: Generator, folder: Path) -> None:  # noqa: ARG001
    text = broken_text(rng, ",".join(pick(rng, SPECS) for _ in range(2))).decode("utf-8", "replace")
    for spec in split_specs(text)[:50]:
        make_policy(spec)
    make_policy({"name": "index", pick(rng, ("gain", "weights", "x", 3)): pick(rng, NASTY)})


class _Odd:
    """A policy that answers with whatever it was given."""

    name = "odd"

    def __init__(self, answers: list[object]) -> None:
        self.answers = answers

    def reset(self, seed: int) -> None:
        """Nothing is remembered."""

    def __call__(self, state: ClusterState) -> Any:
        answer = self.answers.pop(0) if self.answers else np.ones(len(state.jobs), dtype=np.int64)
        return answer(len(state.jobs)) if callable(answer) else answer


ANSWERS: tuple[object, ...] = (
    *(lambda n, v=value: Allocation(np.full(n, v)) for value in (0, 1, -1, 1.5, np.nan, np.inf, 2**62, 1e30, True)),
    *(lambda n, k=kind: Allocation(np.ones(n, dtype=k)) for kind in ("uint64", "float32", "complex64", "U3", "object")),
    *(lambda n: Allocation(np.ones(n + 1)), lambda n: Allocation(np.ones((n, 1))), lambda n: Allocation([1] * n)),
    *(lambda n: Allocation(np.ones(n, np.int64), np.arange(n)[::-1]), lambda n: Allocation(np.ones(n), np.zeros(n))),
    *(lambda n: Allocation(np.ones(n), [0.5] * n), lambda n: Allocation(np.ones(n), "x"), lambda n: np.ones(n)),
    *(Allocation([[1], [2, 3]]), lambda n: Allocation(np.full(n, 2**64 - 1))),
    *(Allocation(value) for value in NASTY),
    *NASTY,
)


@cache
def _tables() -> Any:
    return compile_tables(FittedProfiles(builtin_profiles()), [JobType("cifar10"), JobType("ncf")], 8, 4)


@target(2)
def policy_answer(rng: Generator, folder: Path) -> None:  # noqa: ARG001
    jobs = [Job(f"j{i}", 60.0 * i, pick(rng, ("cifar10", "ncf")), 1.0, 50_000.0, 1, 1, 4) for i in range(4)]
    cluster = SimulatedCluster((Node(4), Node(2)), jobs, _tables(), SimulatorSettings(max_hours=5.0), 0)
    answers = [pick(rng, ANSWERS) for _ in range(int(rng.integers(1, 6)))]
    run(cluster, _Odd(answers), QueueSettings(shrink_lower=bool(rng.integers(2))), RewardWeights())


@cache
def _environment() -> Any:
    return cluster_env(None, max_jobs=6, horizon=2)


@target(1, ARGUMENT_ERRORS)
def environment(rng: Generator, folder: Path) -> None:  # noqa: ARG001
    env = _environment()
    options = {"workload": 0, "warm_up": 0.0, "length": 600.0}
    if rng.random() < 0.7:
        options = broken_tree(rng, options)
    seed = pick(rng, (None, 0, 5, -1, 2**70, "x", 1.5, True)) if rng.random() < 0.3 else 3
    env.reset(seed=seed, options=options)
    action = np.zeros(len(STEERING_FEATURES), np.float32)
    if rng.random() < 0.8:
        action = pick(
            rng,
            (*NASTY, action * np.nan, action + np.inf, action[:-1], action[None], action + 1e30, action.astype(str)),
        )
    seen, reward, *_ = env.step(action)
    assert np.isfinite(reward), "a reward that is not finite"
    assert env.observation_space.contains(seen), "an observation outside of its space"


CONSTRUCTORS: tuple[tuple[Callable[..., object], dict[str, Any]], ...] = (
    (Job, {"name": "j", "submit_time": 0.0, "model": "m", "epochs": 1.0, "data_size": 10.0, "requested_gpus": 1}),
    (Node, {"gpus": 4, "cpus": 0}),
    (IndexWeights, {"gain": 1.0, "remaining": 0.0}),
    (RewardWeights, {"accuracy": 1.0, "classes": (1.0, 1.0, 1.0)}),
    (QueueSettings, {"aging_normal": 60.0}),
    (SimulatorSettings, {"interval": 60.0, "failures": {"mtbf_hours": 1.0}}),
    (EnvSettings, {"max_jobs": 4, "episode": {"min_hours": 1.0}}),
    (AgentSettings, {"steps": 100, "loads": [0.5], "ppo": {"rollout": 4}}),
    (make_trace, {"columns": {"name": ["a"], "submit_time": [0.0], "gpus": [1]}, "source": "fuzz", "origin": None}),
    (cluster_env, {"config": "nothing.yaml", "split": "train", "seeds": [0], "render_mode": "x"}),
)


@target(2, ARGUMENT_ERRORS)
def arguments(rng: Generator, folder: Path) -> None:  # noqa: ARG001
    call, given = pick(rng, CONSTRUCTORS)
    wrong = pick(rng, list(given))
    call(**given | {wrong: broken_tree(rng, given[wrong])})


@cache
def _app() -> Any:
    return make_app()


SMALL_EXPERIMENT = b"""\
cluster: {nodes: [{count: 1, gpus: 8}]}
workload: {days: 0.5, load: 0.5, windows: {hours: 2}, mapping: {oversized: clip}}
policies: [fifo]
"""


def _lines(folder: Path) -> list[tuple[object, ...]]:
    """Lines of the command, and the files they need."""
    out, model, run = folder / "out.parquet", folder / "model.npz", ("--no-report", "--run-dir", folder / "run")
    log = _file(folder, "log.csv", SAMPLES["philly_csv"].encode())
    counts = _file(folder, "counts.csv", COUNTS.encode())
    jobs = _file(folder, "jobs.jsonl", FOLLOWED.encode())
    experiment = _file(folder, "exp.yaml", SMALL_EXPERIMENT)
    return [
        ("trace", "import", "philly_csv", log, "-o", out, "-q"),
        ("trace", "generate", "--days", "0.1", "--rate", "1", "--seed", "0", "-o", out),
        ("trace", "describe", log, "--gpus", "8"),
        ("trace", "calibrate", log, "-o", folder / "like.yaml"),
        ("policies", "--options"),
        ("profiles", "show", "--folder", folder),
        ("profiles", "fit", folder, "-o", folder / "fitted"),
        ("configs", "show", "quickstart", "--set", "seed=1"),
        ("configs", "list", folder),
        ("export", folder, "-o", folder / "agent.zip"),
        ("compare", folder, folder),
        ("forecast", "fit", counts, "--every", "1h", "--value", "count", "--method", "smoothing", "-o", model),
        ("evaluate", experiment, "--windows", "train", "--limit", "1", *run),
        ("evaluate", experiment, "--follow", jobs, *run),
        ("train", experiment, "--seed", "x", "--run-dir", folder / "run"),
    ]


def _ended(line: Iterable[object]) -> object:
    """Exit code of a line of the command."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            _app()([str(word).replace("\0", "") for word in line], standalone_mode=True)
        except SystemExit as ended:
            return ended.code
        except EXPECTED_ERRORS:
            return 2
    return 0


def _compile_verbs() -> None:
    """Run all lines as they are, so that what they need is compiled."""
    folder = Path("verbs")
    folder.mkdir(exist_ok=True)
    for line in _lines(folder):
        _ended(line)


@target(0.5)
def verb(rng: Generator, folder: Path) -> None:
    """A verb of the command line with one argument replaced; what it should write is there whole or not at all."""
    line = list(pick(rng, _lines(folder)))
    line[int(rng.integers(1, len(line)))] = pick(rng, (*WORDS, "inf", "1e9", folder, folder / "log.csv", "--help"))
    code = _ended(line)
    assert code in (0, 2), f"exit code {code}"
    if (folder / "out.parquet").exists():
        read_trace(folder / "out.parquet")
