"""Files of jobs as they were drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rlpto.core.jobs import Job
from rlpto.core.stopping import StopRule
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.errors import ConfigError, JobError, TraceError
from rlpto.workloads.frozen import digest_of, read_jobs, write_jobs

JOBS = [
    Job("a", 0.1 + 0.2, "ncf", epochs=3.3, data_size=1e6, requested_gpus=2, max_gpus=8, priority=2, user="ann"),
    Job("b", 7.0, "bert", epochs=1.0, data_size=5.0, batch_size=48, metric="efficiency", stop=StopRule()),
]
WINDOWS = {"first": JOBS, "second": JOBS[:1]}


def test_jobs_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_jobs(WINDOWS, tmp_path / "jobs.parquet")
    assert read_jobs(tmp_path / "jobs.parquet") == WINDOWS
    assert digest_of(WINDOWS) == digest_of(read_jobs(tmp_path / "jobs.parquet"))
    assert digest_of(WINDOWS) != digest_of({**WINDOWS, "second": [replace(JOBS[0], submit_time=0.3)]})


def test_what_is_no_such_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "jobs.parquet"
    with pytest.raises(TraceError, match="no such file"):
        read_jobs(path)
    path.write_bytes(b"PAR1 but no more")
    with pytest.raises(TraceError, match="expected a parquet file of frozen jobs"):
        read_jobs(path)
    write_jobs({}, path)
    with pytest.raises(TraceError, match="no jobs"):
        read_jobs(path)


def test_an_experiment_takes_its_windows_from_the_file(tmp_path: Path) -> None:
    write_jobs(WINDOWS, tmp_path / "jobs.parquet")
    frozen = ["workload.source=frozen", f"workload.path={tmp_path / 'jobs.parquet'}", "workload.load=null"]
    experiment = Experiment(load_config("quickstart", frozen))
    assert experiment.windows() == ["first", "second"]
    assert experiment.jobs("first", 0) == experiment.jobs("first", 1) == JOBS
    record = experiment.run_policy(experiment.policy("fifo"), "first", 0)
    assert record.jobs.finish_time.shape == (2,)
    with pytest.raises(ConfigError, match="no train windows"):
        experiment.windows("train")
    with pytest.raises(ConfigError, match="taken as they are"):
        load_config("quickstart", frozen[:2])
    small = Experiment(load_config("quickstart", [*frozen, "cluster.nodes=[{count: 1, gpus: 4}]"]))
    with pytest.raises(JobError, match="job a of window first may hold 8 GPUs, but the cluster has 4"):
        small.jobs("first", 0)
