from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from rlpto.config import ClusterSettings, Config, NodeGroup, load_config
from rlpto.errors import JobError
from rlpto.experiment import Experiment, prepare, run_cell
from rlpto.workloads.load import offered_load

CONFIGS = Path(__file__).parents[1] / "configs"


def synthetic(**changes: object) -> Config:
    """Two days of synthetic jobs on 16 GPUs; `changes` to the workload."""
    workload = {
        "days": 2,
        "load": 0.5,
        "windows": {"hours": 6, "train": 0.5, "validation": 0, "test": 0.5},
        "mapping": {"oversized": "skip"},
        **changes,
    }
    return Config.model_validate({"cluster": {"nodes": [{"count": 4, "gpus": 4}]}, "workload": workload})


def test_the_same_window_and_seed_give_the_same_jobs_and_others_do_not() -> None:
    experiment = Experiment(synthetic())
    first, second = experiment.windows("test")[:2]
    assert experiment.jobs(first, 0) == experiment.jobs(first, 0) == Experiment(synthetic()).jobs(first, 0)
    assert experiment.jobs(first, 0) != experiment.jobs(first, 1)
    assert [job.name for job in experiment.jobs(first, 0)] == [job.name for job in experiment.jobs(first, 1)]
    assert not {job.name for job in experiment.jobs(first, 0)} & {job.name for job in experiment.jobs(second, 0)}


def test_every_policy_schedules_the_same_jobs() -> None:
    experiment = Experiment(synthetic())
    window = experiment.windows("test")[0]
    records = [experiment.run_policy(experiment.policy(name), window, 0).jobs for name in ("fifo", "optimus")]
    assert records[0].names == records[1].names
    for column in ("submit_time", "epochs", "data_size", "requested_gpus", "priority", "alone_time"):
        np.testing.assert_array_equal(getattr(records[0], column), getattr(records[1], column))


def test_windows_of_different_splits_never_overlap() -> None:
    experiment = Experiment(synthetic())
    windows = [cut.window for cut in experiment.window_traces.values()]
    assert all(before.end <= after.start for before, after in itertools.pairwise(windows))
    assert {window.split for window in windows} == {"train", "test"}


@pytest.mark.parametrize("load", [0.2, 1.5])
def test_the_load_is_as_wanted(load: float) -> None:
    config = synthetic(load=load, windows={"hours": 48, "train": 0, "validation": 0, "test": 1})
    trace = Experiment(config).window_traces["test-000"].trace
    assert trace.gpus.max() <= 16
    assert offered_load(trace.gpus, trace.duration, 16, 2 * 86_400.0) == pytest.approx(load, rel=0.05)


def test_noise_changes_what_policies_know_and_nothing_else() -> None:
    config = synthetic()
    noisy = config.model_copy(update={"knowledge": config.knowledge.model_copy(update={"mode": "noisy"})})
    window = Experiment(config).windows("test")[0]
    truth, told = (Experiment(c).cluster(window, 0) for c in (config, noisy))
    assert truth.jobs == told.jobs
    everything = np.arange(len(truth.jobs))
    exact, guessed = truth.table_of(everything), told.table_of(everything)
    error = np.log(guessed.remaining / exact.remaining)
    assert np.all(error != 0)
    assert 0.1 < error.std() < 0.6
    np.testing.assert_array_equal(exact.epochs, guessed.epochs)


def test_a_job_that_does_not_fit_the_cluster_is_named() -> None:
    config = synthetic(mapping={"oversized": "error"}, load=None)
    experiment = Experiment(config.model_copy(update={"cluster": ClusterSettings(nodes=(NodeGroup(count=1, gpus=2),))}))
    with pytest.raises(JobError, match=r"job philly-\d+: wants \d+ GPUs, expected at most the 2 the cluster has"):
        experiment.check()


def test_what_decides_a_cell_is_in_its_outcome_and_nothing_else(tmp_path: Path) -> None:
    config = synthetic()
    outcome = Experiment(config).outcome()
    free = {"name": "other", "policies": ("las",), "evaluation": config.evaluation.model_copy(update={"seeds": 9})}
    assert Experiment(config.model_copy(update=free)).outcome() == outcome
    assert Experiment(config.model_copy(update={"seed": 1})).outcome() != outcome
    workload = tmp_path / "w.csv"
    files = config.model_copy(
        update={"workload": config.workload.model_copy(update={"source": "files", "path": (workload,)})}
    )
    workload.write_text("one")
    before = Experiment(files).outcome()
    workload.write_text("two")
    assert Experiment(files).outcome() != before


def test_files_are_windows_in_natural_order(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        (tmp_path / f"w-{number}.csv").write_text(
            f"name,time,application,num_replicas,batch_size\njob-{number},5,cifar10,1,128\n"
        )
    config = Config.model_validate(
        {"workload": {"source": "files", "path": str(tmp_path / "w-*.csv"), "mapping": {"mode": "given"}}}
    )
    experiment = Experiment(config)
    assert experiment.windows() == ["w-1", "w-9", "w-10"]
    assert [job.name for job in experiment.jobs("w-9", 0)] == ["job-9"]


def test_the_reward_greedy_policy_maximises_the_reward_of_the_experiment() -> None:
    config = Config.model_validate({"reward": {"resources": 0.5}})
    policy = Experiment(config).policy("reward_greedy:horizon=900")
    assert policy.name == "reward_greedy:horizon=900"
    assert policy.options.weights == config.reward  # type: ignore[attr-defined]
    assert policy.options.horizon == 900  # type: ignore[attr-defined]


# Published by the authors of Pollux (OSDI 2021 artifact): average JCT in seconds.
@pytest.mark.parametrize(("policy", "published"), [("tiresias", 2473.7), ("optimus", 4087.1)])
def test_the_pollux_benchmark_gives_the_published_figures(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch, policy: str, published: float
) -> None:
    monkeypatch.setenv("RLPTO_DATA", str(shared_data))
    config = load_config(CONFIGS / "pollux.yaml", [f"policies=[{policy}]", f"evaluation.reference={policy}"])
    cell = next(cell for cell in prepare(config).cells() if cell.window == "workload-1")
    jobs = run_cell(config, cell).jobs
    assert np.mean(jobs.finish_time - jobs.submit_time) == pytest.approx(published, rel=1e-3)
