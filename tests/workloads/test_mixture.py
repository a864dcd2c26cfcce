"""Classes of jobs at recorded times, and `configs/llm.yaml`, which is made of them."""

from pathlib import Path

import numpy as np
import pytest

from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment
from rlpto.io.errors import JobError, ProfileError
from rlpto.io.yaml_file import read_yaml

LLM = Path(__file__).parents[2] / "configs/llm.yaml"


def llm(**workload: object) -> Config:
    """`configs/llm.yaml` with a few weeks only, and `workload` changed."""
    data = read_yaml(LLM, "a config").data
    data["workload"] |= {"days": 42, "windows": {"hours": 168, "train": 0.5, "validation": 0, "test": 0.5}} | workload
    return Config.model_validate(data)


@pytest.mark.slow
def test_the_mixture_of_llm_is_as_its_sources_say() -> None:
    experiment = Experiment(llm(days=280, windows={"hours": 168}))
    traces = [experiment.workload.trace(window) for window in experiment.windows("train")]
    assert len(traces) == 28
    duration = np.concatenate([trace.duration for trace in traces])
    gpus = np.concatenate([trace.gpus for trace in traces])
    purpose = np.concatenate([trace.texts("user") for trace in traces])
    work = np.minimum(duration, 432_000) * gpus
    share = {name: float(work[purpose == name].sum() / work.sum()) for name in set(purpose)}
    count = {name: float(np.mean(purpose == name)) for name in set(purpose)}
    assert 0.009 < count["pre-training"] < 0.032
    assert 0.695 < share["pre-training"] < 0.94
    stated = {"pre-training": 0.83, "fine-tuning": 0.12, "evaluation": 0.01, "debugging": 0.04}  # docs/workloads.md
    assert share == pytest.approx(stated, abs=0.006)
    assert max(count, key=lambda name: count[name]) == "evaluation"
    assert share["evaluation"] < 0.02
    assert np.median(duration) < 10 * 60
    assert np.mean(duration > 86_400) < 0.05


@pytest.mark.slow
def test_jobs_of_a_class_are_as_it_says_and_the_same_every_time() -> None:
    one = {"name": "tests", "share": 1, "minutes": [10, 40], "priority": "high", "models": {"mpt-7b": {8: 3, 128: 1}}}
    experiment = Experiment(llm(mixture=[one]))
    window = experiment.windows("test")[0]
    trace = experiment.workload.trace(window)
    again = Experiment(llm(mixture=[one])).workload.trace(window)
    assert np.array_equal(trace.duration, again.duration)
    assert set(trace.gpus.tolist()) == {8, 128}
    assert np.mean(trace.gpus == 8) == pytest.approx(0.75, abs=0.05)
    assert np.quantile(trace.duration / 60, [0.5, 0.9]) == pytest.approx([10, 40], rel=0.2)
    jobs = experiment.jobs(window, 0)
    assert {(job.user, job.model, job.priority) for job in jobs} == {("tests", "mpt-7b", 0)}
    assert len({job.data_size for job in jobs if job.requested_gpus == 8}) == 1  # their length shows in their epochs


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"minutes": [9, 3]}, "a median above 0"),
        ({"models": {"mpt-7b": {0: 1}}}, "GPUs of 1 or more"),
        ({"share": 0}, "greater than 0"),
    ],
)
def test_a_wrong_mixture_is_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        llm(mixture=[{"name": "a", "share": 1, "minutes": [3, 9], "models": {"mpt-7b": {8: 1}}} | wrong])
    with pytest.raises(ValueError, match=r"mapping\.mode named"):
        llm(mapping={"mode": "duration"})


def test_a_size_at_which_a_model_does_not_run_is_named() -> None:
    wrong = {"name": "a", "share": 1, "minutes": [3, 9], "models": {"mpt-70b": {8: 1}}}
    experiment = Experiment(llm(mixture=[wrong], load=0.01))
    with pytest.raises(JobError, match=r"model mpt-70b does not run on 8 GPUs; expected one of 32, 64, 128"):
        experiment.jobs(experiment.windows("test")[0], 0)
    wrong["models"] = {"mpt-8b": {8: 1}}
    with pytest.raises(ProfileError, match="mpt-8b"):
        Experiment(llm(mixture=[wrong], load=0.01)).tables()
