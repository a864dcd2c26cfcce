"""What is fuzzed: every kind of file, config keys and overrides, specs, policies' answers, arguments of the API, verbs.

A target takes a generator and an empty folder, breaks one input and uses it as a user would. It may end well or with
one of the errors that are documented; anything else is a finding.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

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
from rlpto.agents.brain import AGENT, action_space, brain_manifest, load_brain, observation_space, weight_arrays
from rlpto.agents.network import JobSetPolicy
from rlpto.agents.settings import AgentSettings
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
from rlpto.performance.profiles import builtin_profiles, load_file, profile_yaml
from rlpto.performance.tables import JobType
from rlpto.policies.index_weights import IndexWeights, load_index_weights, save_index_weights
from rlpto.policies.registry import make_policy
from rlpto.policies.spec import split_specs
from rlpto.policies.steering import STEERING_FEATURES
from rlpto.policies.steering_file import load_steering_weights, save_steering_weights
from rlpto.queues import QueueSettings
from rlpto.rewards import RewardWeights
from rlpto.runs.folder import begin_run, read_run_config, refuse_foreign
from rlpto.runs.sweep import read_space
from rlpto.scheduler import run
from rlpto.settings import Settings
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings
from rlpto.workloads.calibration import calibration_yaml, load_calibration
from rlpto.workloads.describe import describe, tables
from rlpto.workloads.files import read_any
from rlpto.workloads.importers.registry import detect_format, import_trace
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


def config_file(rng: Generator, folder: Path) -> None:
    config = load_config(_file(folder, "exp.yaml", _broken_yaml(rng, pick(rng, _configs()))))
    resolved = _file(folder, "resolved.yaml", resolved_yaml(config).encode())
    assert load_config(resolved) == config, "a resolved configuration reads back otherwise"


def _keys(model: type[Settings]) -> list[tuple[str, ...]]:
    from rlpto.config import _all_keys

    return [tuple(map(str, key)) for key in _all_keys(model)]


KEYS = _keys(Config)


def override(rng: Generator, folder: Path) -> None:
    key = ".".join(pick(rng, KEYS))
    if rng.random() < 0.2:
        key = broken_text(rng, key).decode("utf-8", "replace")
    value = pick(rng, (*WORDS, "[" * 5000, "{a: &a [*a]}", "[1, 2", "{x: 1}", "-5", "3.5", "1e-9", "1000000"))
    path = _file(folder, "exp.yaml", pick(rng, _configs()).encode())
    config = load_config(path, [f"{key}={value}"])
    _begun(config)


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
    return calibration_yaml(load_calibration("philly"))


def calibration_file(rng: Generator, folder: Path) -> None:
    calibration = load_calibration(_file(folder, "like.yaml", _broken_yaml(rng, _calibration())))
    generate(calibration, 0.1, 0)


@cache
def _profile() -> str:
    return profile_yaml(builtin_profiles()["cifar10"])


def profile_file(rng: Generator, folder: Path) -> None:
    profiles = load_file(_file(folder, "profiles.yaml", _broken_yaml(rng, _profile())))
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


def measurements(rng: Generator, folder: Path) -> None:
    broken = pick(rng, list(MEASURED))
    for name, text in MEASURED.items():
        _file(folder, name, broken_text(rng, text) if name == broken else text.encode())
    read_measurements(folder)


def trace_text(rng: Generator, folder: Path) -> None:
    name = pick(rng, list(SAMPLES))
    path = _file(folder, "trace.log", broken_text(rng, SAMPLES[name]))
    trace = import_trace(name if rng.random() < 0.8 else detect_format(path), path, bool(rng.integers(2))).trace
    _used(trace, folder)


def _used(trace: Any, folder: Path) -> None:
    """Everything that a trace is used for at once."""
    tables(describe(trace, 8))
    task_volume(trace, 600.0, "gpus")
    write_trace(trace, folder / "out.parquet")
    assert len(read_trace(folder / "out.parquet")) == len(trace), "a trace reads back otherwise"


@cache
def _parquet() -> bytes:
    columns = {"name": ["a", "b"], "submit_time": [0.0, 5.0], "duration": [1.0, np.nan], "gpus": [1, 2]}
    path = Path("fuzz.parquet")
    write_trace(make_trace(columns, "fuzz"), path)
    return path.read_bytes()


def trace_parquet(rng: Generator, folder: Path) -> None:
    _used(read_any(_file(folder, "trace.parquet", broken_bytes(rng, _parquet()))), folder)


@cache
def _agent() -> bytes:
    setup = _environment().setup
    network = JobSetPolicy(observation_space(setup.settings), action_space(), lambda _: 0.0, width=8)
    settings = AgentSettings.model_validate({"network": {"width": 8}})
    path = Path("agent.zip")
    write_archive(path, {"format": AGENT, **brain_manifest(setup, settings)}, weight_arrays(network), "an agent")
    return path.read_bytes()


def agent_file(rng: Generator, folder: Path) -> None:
    path = _file(folder, "agent.zip", broken_archive(rng, _agent(), "manifest.json"))
    read_archive(path, (AGENT,))
    load_brain(path)


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


def forecaster_file(rng: Generator, folder: Path) -> None:
    path = _file(folder, "model.npz", broken_archive(rng, pick(rng, _forecasters()), None))
    forecaster = load_forecaster(path)
    told = forecaster.update([3.0, 4.0]).predict(6, (0.1, 0.9))
    assert np.isfinite(told.point).all(), "a forecast that is not finite"


def counts_file(rng: Generator, folder: Path) -> None:
    rows = "".join(f"2020-04-01 {hour:02d}:00:00,{hour}\n" for hour in range(24))
    path = _file(folder, "counts.csv", broken_text(rng, f"time,count\n{rows}"))
    read_series(path, Counted("1h", What.jobs, None, None, None, "time", "count"))


@cache
def _record() -> bytes:
    path = Path("record.npz")
    save_record(tiny_record(), path)
    return path.read_bytes()


def record_file(rng: Generator, folder: Path) -> None:
    measure(load_record(_file(folder, "record.npz", broken_archive(rng, _record(), None))))


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


def tuning_file(rng: Generator, folder: Path) -> None:
    content = {"format": "rlpto tuning 1", "fingerprint": "f", "costs": [[1.0, 2.0, 3.0, 4.0]], "best": {}}
    read_costs(_file(folder, "tuning.json", _broken_json(rng, plain_json(content))), "f", 4)


def space_file(rng: Generator, folder: Path) -> None:
    text = "agent.ppo.learning_rate: {low: 1.0e-5, high: 1.0e-3, log: true}\nagent.network.width: [16, 32]\n"
    read_space(_file(folder, "space.yaml", _broken_yaml(rng, text)))


SPECS = ("fifo", "las", "index:gain=2", "tiresias:thresholds=[3600, 36000],label=t", "index:weights=x.yaml", "random")


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


def policy_answer(rng: Generator, folder: Path) -> None:  # noqa: ARG001
    jobs = [Job(f"j{i}", 60.0 * i, pick(rng, ("cifar10", "ncf")), 1.0, 50_000.0, 1, 1, 4) for i in range(4)]
    cluster = SimulatedCluster((Node(4), Node(2)), jobs, _tables(), SimulatorSettings(max_hours=5.0), 0)
    answers = [pick(rng, ANSWERS) for _ in range(int(rng.integers(1, 6)))]
    run(cluster, _Odd(answers), QueueSettings(shrink_lower=bool(rng.integers(2))), RewardWeights())


@cache
def _environment() -> Any:
    return cluster_env(None, max_jobs=6, horizon=2)


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


def arguments(rng: Generator, folder: Path) -> None:  # noqa: ARG001
    call, given = pick(rng, CONSTRUCTORS)
    wrong = pick(rng, list(given))
    call(**given | {wrong: broken_tree(rng, given[wrong])})


@cache
def _app() -> Any:
    return make_app()


def verb(rng: Generator, folder: Path) -> None:
    """A verb of the command line with one argument replaced; what it should write is there whole or not at all."""
    out = folder / "out.parquet"
    log = _file(folder, "log.csv", SAMPLES["philly_csv"].encode())
    line = list(
        pick(
            rng,
            (
                ("trace", "import", "philly_csv", log, "-o", out, "-q"),
                ("trace", "generate", "--days", "0.1", "--rate", "1", "--seed", "0", "-o", out),
                ("trace", "describe", log, "--gpus", "8"),
                ("trace", "calibrate", log, "-o", folder / "like.yaml"),
                ("policies", "--options"),
                ("configs", "show", "quickstart"),
                ("export", folder, "-o", folder / "agent.zip"),
                ("compare", folder, folder),
            ),
        )
    )
    line[int(rng.integers(1, len(line)))] = pick(rng, (*WORDS, "inf", "1e9", folder, log, "--help"))
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            _app()([str(word).replace("\0", "") for word in line], standalone_mode=True)
            code: object = 0
        except SystemExit as ended:
            code = ended.code
    assert code in (0, 2), f"exit code {code}"
    if out.exists():
        read_trace(out)


TARGETS: tuple[tuple[float, Target, tuple[type[BaseException], ...]], ...] = (
    (3.0, config_file, EXPECTED_ERRORS),
    (2.0, override, EXPECTED_ERRORS),
    (2.0, key_of_small, EXPECTED_ERRORS),
    (2.0, weights_file, EXPECTED_ERRORS),
    (0.5, calibration_file, EXPECTED_ERRORS),
    (2.0, profile_file, EXPECTED_ERRORS),
    (2.0, measurements, EXPECTED_ERRORS),
    (5.0, trace_text, EXPECTED_ERRORS),
    (2.0, trace_parquet, EXPECTED_ERRORS),
    (2.0, agent_file, EXPECTED_ERRORS),
    (2.0, forecaster_file, EXPECTED_ERRORS),
    (2.0, counts_file, EXPECTED_ERRORS),
    (2.0, record_file, EXPECTED_ERRORS),
    (1.0, run_folder, EXPECTED_ERRORS),
    (1.0, tuning_file, EXPECTED_ERRORS),
    (1.0, space_file, EXPECTED_ERRORS),
    (2.0, policy_spec, EXPECTED_ERRORS),
    (2.0, policy_answer, EXPECTED_ERRORS),
    (1.0, environment, ARGUMENT_ERRORS),
    (2.0, arguments, ARGUMENT_ERRORS),
    (0.5, verb, EXPECTED_ERRORS),
)
"""How often each is drawn, and the errors it may end with."""
