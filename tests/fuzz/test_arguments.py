"""Broken settings, specs, answers of policies, arguments of the API and lines of the command."""

import io
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hypothesis import strategies as st

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
from rlpto.io.settings_text import all_keys
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
from tests.fuzz.harness import ARGUMENT_ERRORS, EXPECTED_ERRORS, Draw, fuzzed, put_file
from tests.fuzz.mutations import NASTY, WORDS, broken_text, broken_tree
from tests.fuzz.test_given_files import CONFIGS, COUNTS
from tests.small import SMALL
from tests.workloads.test_importers import SAMPLES

KEYS = [tuple(map(str, key)) for key in all_keys(Config)]


def _begin(config: Config) -> None:
    """What every verb does first with a configuration."""
    resolved_yaml(config)
    for spec in config.policies:
        make_policy(spec)


@fuzzed()
def test_override(draw: Draw, folder: Path) -> None:
    key = ".".join(draw(st.sampled_from(KEYS)))
    if draw(st.sampled_from([True, False, False, False])):
        key = draw(broken_text(key)).decode("utf-8", "replace")
    more = ["[" * 5000, "{a: &a [*a]}", "[1, 2", "{x: 1}", "-5", "3.5", "1e-9", "1000000"]
    value = draw(st.sampled_from(WORDS + more) | st.text(max_size=20))
    _begin(load_config(draw(st.sampled_from(CONFIGS)), [f"{key}={value}"]))


@fuzzed()
def test_key_of_a_small_experiment(draw: Draw, folder: Path) -> None:
    """One key changed; then its jobs are drawn."""
    tree = {"cluster": {"nodes": [{"count": 2, "gpus": 4}]}, "workload": {"days": 0.5, "windows": {"hours": 2}}}
    *parents, last = draw(st.sampled_from(KEYS))
    inner: Any = tree
    for parent in parents:
        inner = inner.setdefault(parent, {}) if isinstance(inner, dict) else inner[0]
    if isinstance(inner, list):
        inner = inner[0]
    inner[last] = draw(st.sampled_from([*NASTY, 2, 5, 0.5, 1e-9, 100, 10_000, [0.5], [-1], ["fifo"]]))
    config = load_config(put_file(folder, "exp.yaml", yaml.dump(tree).encode("utf-8", "replace")))
    _begin(config)
    if config.workload.source == "synthetic" and config.workload.days <= 1 and config.workload.calibration == "philly":
        experiment = Experiment(config)
        for window in experiment.windows("train", required=False)[:1]:
            experiment.jobs(window, config.seed)


SPECS = ["fifo", "las", "index:gain=2", "tiresias:thresholds=[3600, 36000],label=t", "index:weights=x.yaml", "random"]


@fuzzed()
def test_policy_spec(draw: Draw, folder: Path) -> None:
    text = ",".join(draw(st.lists(st.sampled_from(SPECS), min_size=2, max_size=2)))
    for spec in split_specs(draw(broken_text(text)).decode("utf-8", "replace"))[:50]:
        make_policy(spec)


class _Odd:
    """A policy that gives the answers it was made with."""

    name = "odd"

    def __init__(self, answers: list[object]) -> None:
        self.answers = answers

    def reset(self, seed: int) -> None:
        """Nothing is remembered."""

    def __call__(self, state: ClusterState) -> Any:
        answer = self.answers.pop(0) if self.answers else np.ones(len(state.jobs), dtype=np.int64)
        return answer(len(state.jobs)) if callable(answer) else answer


ANSWERS: list[object] = [
    *(lambda n, v=value: Allocation(np.full(n, v)) for value in (0, 1, -1, 1.5, np.nan, np.inf, 2**62, 1e30, True)),
    *(lambda n, k=kind: Allocation(np.ones(n, dtype=k)) for kind in ("uint64", "float32", "complex64", "U3", "object")),
    *(lambda n: Allocation(np.ones(n + 1)), lambda n: Allocation(np.ones((n, 1))), lambda n: Allocation([1] * n)),
    *(lambda n: Allocation(np.ones(n, np.int64), np.arange(n)[::-1]), lambda n: Allocation(np.ones(n), np.zeros(n))),
    *(lambda n: Allocation(np.ones(n), [0.5] * n), lambda n: Allocation(np.ones(n), "x"), lambda n: np.ones(n)),
    *(Allocation([[1], [2, 3]]), lambda n: Allocation(np.full(n, 2**64 - 1))),
    *(Allocation(value) for value in NASTY),
    *NASTY,
]


@cache
def _tables() -> Any:
    return compile_tables(FittedProfiles(builtin_profiles()), [JobType("cifar10"), JobType("ncf")], 8, 4)


@fuzzed()
def test_answer_of_a_policy(draw: Draw, folder: Path) -> None:
    models = draw(st.lists(st.sampled_from(["cifar10", "ncf"]), min_size=4, max_size=4))
    jobs = [Job(f"j{i}", 60.0 * i, model, 1.0, 50_000.0, 1, 1, 4) for i, model in enumerate(models)]
    cluster = SimulatedCluster((Node(4), Node(2)), jobs, _tables(), SimulatorSettings(max_hours=5.0), 0)
    policy = _Odd(draw(st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=5)))
    run(cluster, policy, QueueSettings(), RewardWeights())


@cache
def _environment() -> Any:
    env = cluster_env(SMALL, max_jobs=6, horizon=2)
    env.reset(seed=0)
    env.step(env.action_space.sample())
    return env


@fuzzed(ARGUMENT_ERRORS)
def test_environment(draw: Draw, folder: Path) -> None:
    env = _environment()
    seed = draw(st.sampled_from([3, 3, 3, 3, None, 0, 5, -1, 2**70, "x", 1.5, True]))
    env.reset(seed=seed)
    zero = np.zeros(len(ACTION_FEATURES), np.float32)
    odd = [zero * np.nan, zero + np.inf, zero[:-1], zero[None], zero + 1e30, zero.astype(str), *NASTY]
    seen, reward, *_ = env.step(draw(st.just(zero) | st.sampled_from(odd)))
    assert np.isfinite(reward), "a reward that is not finite"
    assert env.observation_space.contains(seen), "an observation outside of its space"


CONSTRUCTORS: list[tuple[Callable[..., object], dict[str, Any]]] = [
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
]


@fuzzed(ARGUMENT_ERRORS)
def test_argument(draw: Draw, folder: Path) -> None:
    call, given = draw(st.sampled_from(CONSTRUCTORS))
    wrong = draw(st.sampled_from(list(given)))
    call(**given | {wrong: draw(broken_tree(given[wrong]))})


SMALL_EXPERIMENT = b"""\
cluster: {nodes: [{count: 1, gpus: 8}]}
workload: {days: 0.5, load: 0.5, windows: {hours: 2}, mapping: {oversized: clip}}
policies: [fifo]
agent: {learns: decisions, steps: 256, envs: 4, ppo: {rollout: 16}}
"""


def _lines(folder: Path) -> list[list[object]]:
    """Lines of the command, and the files they need."""
    out, model, into = folder / "out.parquet", folder / "model.safetensors", f"--no-report --run-dir {folder / 'run'}"
    log = put_file(folder, "log.csv", SAMPLES["philly_csv"].encode())
    counts = put_file(folder, "counts.csv", COUNTS.encode())
    experiment = put_file(folder, "exp.yaml", SMALL_EXPERIMENT)
    lines = f"""\
trace import philly_csv {log} -o {out} -q
trace generate --days 0.1 --rate 1 --seed 0 -o {out}
trace describe {log} --gpus 8
trace calibrate {log} -o {folder / "like.yaml"}
policies --options
profiles show --folder {folder}
profiles fit {folder} -o {folder / "fitted"}
configs show quickstart --set seed=1
configs list {folder}
export {folder} -o {folder / "agent.safetensors"}
compare {folder} {folder}
forecast fit {counts} --every 1h --value count --method smoothing -o {model}
evaluate {experiment} --windows train --limit 1 {into}
train {experiment} --seed 0 --run-dir {folder / "run"}"""
    return [list(line.split()) for line in lines.splitlines()]


def _exit_code(line: Iterable[object]) -> object:
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            words = [str(word).replace("\0", "") for word in line]
            make_app(*words[:1])(words, standalone_mode=True)
        except SystemExit as ended:
            return ended.code
        except EXPECTED_ERRORS:
            return 2
    return 0


class _RefusedError(Exception):
    """The command ended with exit code 2."""


@fuzzed((_RefusedError,), share=0.25)
def test_verb(draw: Draw, folder: Path) -> None:
    """One argument replaced; what the verb should write is there whole or not at all."""
    line = draw(st.sampled_from(_lines(folder)))
    at = draw(st.integers(1, len(line) - 1))
    line[at] = draw(st.sampled_from([*WORDS, "inf", "1e9", folder, folder / "log.csv", "--help"]))
    code = _exit_code(line)
    assert code in (0, 2), f"exit code {code}"
    if (folder / "out.parquet").exists():
        read_trace(folder / "out.parquet")
    if code == 2:
        raise _RefusedError
