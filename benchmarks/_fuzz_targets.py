"""Fuzzed: config keys and overrides, specs, policies' answers, arguments of the API, verbs. Has all targets."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import _fuzz_written  # noqa: F401  adds its targets
import numpy as np
import yaml
from _fuzz_inputs import COUNTS, FOLLOWED, configs
from _fuzz_mutations import (
    NASTY,
    WORDS,
    broken_text,
    broken_tree,
    pick,
)
from _fuzz_registry import (
    ARGUMENT_ERRORS,
    EXPECTED_ERRORS,
    PREPARED,
    TARGETS,
    prepared,
    put_file,
    small_environment,
    target,
)
from numpy.random import Generator

from rlpto.agents.settings import AgentSettings
from rlpto.cli.main import make_app
from rlpto.core.cluster import Allocation, ClusterState, Node
from rlpto.core.jobs import Job
from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.settings import EnvSettings
from rlpto.experiments.config import Config, load_config, resolved_yaml
from rlpto.experiments.environments import cluster_env
from rlpto.experiments.experiment import Experiment
from rlpto.io.settings import Settings
from rlpto.performance.compile import compile_tables
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.profiles import builtin_profiles
from rlpto.performance.tables import JobType
from rlpto.policies.index_weights import IndexWeights
from rlpto.policies.registry import make_policy
from rlpto.policies.spec import split_specs
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings
from rlpto.workloads.trace import make_trace, read_trace
from tests.workloads.test_importers import SAMPLES

__all__ = ["PREPARED", "TARGETS"]


def _keys(model: type[Settings]) -> list[tuple[str, ...]]:
    from rlpto.io.settings_text import all_keys

    return [tuple(map(str, key)) for key in all_keys(model)]


KEYS = _keys(Config)


@target(2)
def override(rng: Generator, folder: Path) -> None:
    key = ".".join(pick(rng, KEYS))
    if rng.random() < 0.2:
        key = broken_text(rng, key).decode("utf-8", "replace")
    value = pick(rng, (*WORDS, "[" * 5000, "{a: &a [*a]}", "[1, 2", "{x: 1}", "-5", "3.5", "1e-9", "1000000"))
    path = put_file(folder, "exp.yaml", pick(rng, configs()).encode())
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
    path = put_file(folder, "exp.yaml", yaml.dump(tree).encode("utf-8", "replace"))
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


@prepared
def _tables() -> Any:
    return compile_tables(FittedProfiles(builtin_profiles()), [JobType("cifar10"), JobType("ncf")], 8, 4)


@target(2)
def policy_answer(rng: Generator, folder: Path) -> None:  # noqa: ARG001
    jobs = [Job(f"j{i}", 60.0 * i, pick(rng, ("cifar10", "ncf")), 1.0, 50_000.0, 1, 1, 4) for i in range(4)]
    cluster = SimulatedCluster((Node(4), Node(2)), jobs, _tables(), SimulatorSettings(max_hours=5.0), 0)
    answers = [pick(rng, ANSWERS) for _ in range(int(rng.integers(1, 6)))]
    run(cluster, _Odd(answers), QueueSettings(shrink_lower=bool(rng.integers(2))), RewardWeights())


@target(1, ARGUMENT_ERRORS)
def environment(rng: Generator, folder: Path) -> None:  # noqa: ARG001
    env = small_environment()
    options = {"workload": 0, "warm_up": 0.0, "length": 600.0}
    if rng.random() < 0.7:
        options = broken_tree(rng, options)
    seed = pick(rng, (None, 0, 5, -1, 2**70, "x", 1.5, True)) if rng.random() < 0.3 else 3
    env.reset(seed=seed, options=options)
    action = np.zeros(len(ACTION_FEATURES), np.float32)
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
agent: {steps: 256, envs: 4, ppo: {rollout: 16}, evolution: {generations: 1}}
"""


def _lines(folder: Path) -> list[tuple[object, ...]]:
    """Lines of the command, and the files they need."""
    out, model, run = folder / "out.parquet", folder / "model.npz", ("--no-report", "--run-dir", folder / "run")
    log = put_file(folder, "log.csv", SAMPLES["philly_csv"].encode())
    counts = put_file(folder, "counts.csv", COUNTS.encode())
    jobs = put_file(folder, "jobs.jsonl", FOLLOWED.encode())
    experiment = put_file(folder, "exp.yaml", SMALL_EXPERIMENT)
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
        ("train", experiment, "--seed", "0", "--run-dir", folder / "run"),
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


@prepared
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
