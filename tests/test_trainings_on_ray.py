"""Trainings whose parts are tasks on a Ray cluster of two nodes: the same bits as on one machine."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rlpto.agents.archive import CHECKPOINT
from rlpto.agents.training_loop import TrainingResult
from rlpto.core.cluster import Node
from rlpto.experiments.config import Config, resolved_yaml
from rlpto.experiments.parallel import train_all
from rlpto.experiments.ray_workers import RayWorkers
from rlpto.experiments.training_runs import begin_training, train_folder
from rlpto.experiments.window_tasks import FarPlayer
from rlpto.io.archive import read_archive
from rlpto.io.workers import LocalWorkers, Workers
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.nodes.processes import of_folder
from tests.agents.test_window_training import read_events
from tests.ray_cluster.fork_server import MORE_MODULES
from tests.ray_cluster.joined import titled
from tests.ray_cluster.test_workers import WALL
from tests.small import SMALL

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import _studies

pytestmark = pytest.mark.cluster
WRITTEN = "last.safetensors", "best.safetensors", "validation.csv", "agent.yaml"
"""Files that do not depend on the time of the training."""


SPACE = "agent.whole_windows.learning_rate: {low: 0.01, high: 0.5, log: true}\nagent.loads: [null, [0.7, 0.9]]\n"


def small(**windows: object) -> Config:
    """Four updates of sixteen windows."""
    given = {"windows": 64, "rollout": 16, "evaluate_every": 32, **windows}
    agent = {"learns": "windows", "whole_windows": given, "validation_windows": 2}
    return Config.model_validate(SMALL.model_dump() | {"agent": agent})


def train(folder: Path, config: Config, workers: RayWorkers | None = None, seeds: int = 1) -> Path:
    """Train in a new folder, with the windows of each update on the workers."""
    begin_training(config, folder, seeds, fresh=False)
    for run in sorted(folder.glob("seed-*")) or [folder]:
        assert train_folder(run, player=None if workers is None else FarPlayer(workers, config)).finished
    return folder


def assert_same(one: Path, two: Path, names: Sequence[str] = WRITTEN) -> None:
    for name in names:
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv(MORE_MODULES, "rlpto.experiments.parallel rlpto.experiments.window_tasks")
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        with LocalCluster([Node(1, cpus=1)] * 2, 0) as started:
            yield started


@pytest.fixture(scope="module")
def workers(cluster: LocalCluster) -> RayWorkers:
    found = RayWorkers(cluster, grace_s=60.0)
    found.shares_files = False  # as on other hosts
    return found


def kill_tasks(cluster: LocalCluster, times: int, over: threading.Event) -> int:
    """Kill random processes that run a task, until it is `over`. Returns how many."""
    killed = set[int]()
    while len(killed) < times and not over.wait(random.uniform(0.0, 1.0)):
        if busy := titled(of_folder(str(cluster.folder)), "ray::call_there") - killed:
            killed.add(pid := random.choice(sorted(busy)))
            os.kill(pid, signal.SIGKILL)
    return len(killed)


@pytest.mark.slow
def test_windows_are_played_on_two_nodes_to_the_same_bits(workers: RayWorkers, tmp_path: Path) -> None:
    for trainer in ("ppo", "evolution"):
        config = small(trainer=trainer)
        here = train(tmp_path / f"{trainer}-here", config)
        there = train(tmp_path / f"{trainer}-there", config, workers)
        assert_same(here, there)
        for tag in ("train/loss", "rollout/ep_rew_mean", "eval/mean_reward"):
            shown, its = (
                [(event.step, event.value) for event in read_events(run).Scalars(tag)] for run in (here, there)
            )
            assert shown == its, tag


@pytest.mark.slow
def test_seeds_are_trained_in_parts_on_two_nodes_as_each_alone(workers: RayWorkers, tmp_path: Path) -> None:
    config = small(windows=48, evaluate_every=32)
    here = train(tmp_path / "here", config, seeds=2)
    begin_training(config, tmp_path / "there", 2, fresh=False)
    runs = sorted((tmp_path / "there").glob("seed-*"))
    steps: dict[Path, list[int]] = {run: [] for run in runs}
    for run, found in train_all(runs, workers, seconds=0.0):
        assert isinstance(found, TrainingResult), found
        steps[run].append(found.steps)
    assert list(steps.values()) == [[16, 32, 48]] * 2
    for run in runs:
        assert_same(here / run.name, run)
        assert [event.step for event in read_events(run).Scalars("train/loss")] == steps[run]


@pytest.mark.slow
def test_killed_processes_change_no_digit(cluster: LocalCluster, workers: RayWorkers, tmp_path: Path) -> None:
    config, over = small(windows=480, evaluate_every=160), threading.Event()
    here = train(tmp_path / "here", config)
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_tasks, cluster, 20, over)
        try:
            there = train(tmp_path / "there", config, workers)
        finally:
            over.set()
    assert killing.result() == 20
    assert_same(here, there)


@pytest.mark.slow
def test_ctrl_c_keeps_the_last_update_of_each_seed(workers: RayWorkers, tmp_path: Path) -> None:
    config = small(windows=2400, evaluate_every=2400)  # so that no seed ends before the other has begun
    begin_training(config, tmp_path / "run", 2, fresh=False)
    runs, learning = sorted((tmp_path / "run").glob("seed-*")), Path(tempfile.gettempdir())

    def interrupt() -> None:
        wait_for(lambda: len([*learning.glob("rlpto-training-*/last.safetensors")]) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    kept = dict[Path, int]()

    def go_on() -> None:
        for run, found in train_all(runs, workers):
            assert isinstance(found, TrainingResult)
            kept[run] = found.steps

    with ThreadPoolExecutor(1) as pool:
        interrupting = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            go_on()
        interrupting.result()
    assert kept == {run: steps(run) for run in runs}
    assert max(kept.values()) < 2400
    wait_for(lambda: not [*learning.glob("rlpto-training-*")])
    go_on()
    assert_same(train(tmp_path / "here", config, seeds=2) / "seed-1", runs[1])


def wait_for(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.05)


def steps(run: Path) -> int:
    return int(read_archive(run / "last.safetensors", (CHECKPOINT,)).manifest["steps"])


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exp.yaml").write_text(resolved_yaml(small(windows=160)))
    return tmp_path


@contextmanager
def command(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-m", "rlpto", *arguments], stderr=subprocess.PIPE, text=True) as process:
        yield process


@pytest.mark.slow
def test_a_driver_that_is_interrupted_and_then_killed_resumes_to_the_same_bits(
    cluster: LocalCluster, experiment: Path
) -> None:
    there, far = experiment / "there", ("--workers", cluster.address)
    with command("train", "exp.yaml", "--run-dir", "there", *far) as first:
        wait_for(lambda: first.poll() is not None or (there / "last.safetensors").exists())
        first.send_signal(signal.SIGINT)
        assert "go on with: rlpto train --resume there" in first.communicate()[1]
    assert first.returncode == 130
    begun = steps(there)
    with command("train", "--resume", "there", *far) as second:
        wait_for(lambda: second.poll() is not None or steps(there) > begun)
        second.kill()
    with command("train", "--resume", "there", *far) as third:
        assert third.wait() == 0, third.communicate()
    with command("train", "exp.yaml", "--run-dir", "here") as local:
        assert local.wait() == 0, local.communicate()
    assert_same(experiment / "here", there)


@pytest.mark.slow
def test_a_sweep_on_two_nodes_finds_what_it_finds_here(cluster: LocalCluster, experiment: Path) -> None:
    (experiment / "space.yaml").write_text(SPACE)
    for folder, more in (("here", ()), ("there", ("--workers", cluster.address))):
        sweep = ("sweep", "exp.yaml", "--space", "space.yaml", "--trials", "3", "--jobs", "2", "--run-dir", folder)
        with command(*sweep, *more) as process:
            assert process.wait() == 0, process.communicate()
    assert_same(experiment / "here", experiment / "there", ("sweep.csv",))
    for trial in "012":
        assert_same(experiment / "here/trials" / trial, experiment / "there/trials" / trial)


@pytest.mark.slow
def test_a_study_on_two_nodes_trains_and_runs_cells_as_it_does_here(
    workers: RayWorkers, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_studies, "config_file", lambda _: experiment / "exp.yaml")
    np.testing.assert_equal(study(experiment / "there", workers), study(experiment / "here", LocalWorkers()))
    assert_same(*(experiment / name / "training/synthetic-main-0" for name in ("here", "there")))


def study(folder: Path, workers: Workers) -> list[dict[str, float]]:
    """Train an agent, and return what does not depend on wall time of its cells."""
    sizes = {"seeds": 1, "windows": 2, "training": 64, "loads": (0.9,)}
    plan = _studies.Plan(folder=folder, cells=folder / "cells", workers=workers, **sizes)
    specs = _studies.agents(plan, "synthetic")
    cells = _studies.finished(plan, plan.config("synthetic", 0.9), [*specs, "fifo"], "few")
    assert len(cells) == 4
    return [{key: figure for key, figure in one.metrics.items() if key not in WALL} for one in cells]
