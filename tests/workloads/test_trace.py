"""Traces, and files of jobs as they were drawn."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.jobs import FinishedJob, Job
from rlpto.core.stopping import StopRule
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.errors import ConfigError, JobError, TraceError
from rlpto.workloads.files import files_by_split, read_any
from rlpto.workloads.frozen import FrozenJobs, digest_of, read_jobs, write_jobs
from rlpto.workloads.trace import (
    COLUMNS,
    Trace,
    is_trace_file,
    lacking_types,
    make_trace,
    matching_types,
    read_trace,
    write_trace,
)

ORIGIN = pd.Timestamp("2017-10-03 08:30:00")


def small_trace() -> Trace:
    return make_trace(
        {
            "name": ["late", "early", "early"],
            "submit_time": [50.0, 5.0, 5.0],
            "duration": [100.0, np.nan, 7.5],
            "gpus": [4, 1, 2],
            "user": ["ann", "bob", ""],
            "priority": [0, -1, 2],
        },
        source="test",
        origin=ORIGIN,
    )


def test_make_trace_sorts_fills_and_names_uniquely() -> None:
    trace = small_trace()
    assert tuple(trace.jobs.columns) == COLUMNS
    assert trace.texts("name") == ["early", "early#2", "late"]
    assert trace.submit_time.tolist() == [5.0, 5.0, 50.0]
    assert trace.gpus.tolist() == [1, 2, 4]
    assert trace.texts("model") == ["", "", ""]
    assert trace.integers("batch_size").tolist() == [0, 0, 0]
    again = make_trace({"name": ["a", "a", "a#2", "a"], "submit_time": [0, 1, 2, 3]}, source="test")
    assert len(set(again.texts("name"))) == 4


@given(st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 1e6) | st.just(np.nan), st.integers(1, 512)), max_size=20))
def test_any_trace_survives_the_round_trip(tmp_path_factory, rows) -> None:
    submit, duration, gpus = zip(*rows, strict=True) if rows else ((), (), ())
    names = [f"job {i}" for i in range(len(rows))]
    columns = {"name": names, "submit_time": submit, "duration": duration, "gpus": gpus}
    path = tmp_path_factory.mktemp("traces") / "sub" / "t.parquet"
    for trace in (small_trace(), make_trace(columns, source="drawn")):
        write_trace(trace, path)
        again = read_trace(path)
        pd.testing.assert_frame_equal(again.jobs, trace.jobs, check_dtype=False)
        assert (again.origin, again.source) == (trace.origin, trace.source)
    assert is_trace_file(path)
    assert [file.name for file in path.parent.iterdir()] == ["t.parquet"]


def test_slice_starts_anew_at_its_start_and_moves_the_origin() -> None:
    part = small_trace().slice(5.0, 50.0)
    assert part.texts("name") == ["early", "early#2"]
    assert part.submit_time.tolist() == [0.0, 0.0]
    assert part.origin == ORIGIN + pd.Timedelta(seconds=5)
    assert len(small_trace().slice(5.0, 50.1)) == 3
    with pytest.raises(TraceError, match="expected 0 <= start < end"):
        small_trace().slice(5.0, 5.0)


@pytest.mark.parametrize(
    ("column", "values", "reason"),
    [
        ("submit_time", [0.0, -1.0], "submit_time -1"),
        ("duration", [1.0, -2.0], "job b: duration -2.0, expected 0 to 1.26144e"),
        ("gpus", [1, 0], "job b: gpus 0, expected 1 to 1,000,000"),
        ("metric", ["", "speed"], "job b: metric speed, expected one of goodput, throughput, efficiency"),
        ("stop", ["0.1/0.1/0", "-1/0.1"], "job b: stop -1/0.1, expected gain/over or gain/over/after"),
        ("gpus", [[1], [2]], "test: .*dimension"),
    ],
)
def test_values_out_of_range_name_the_job(column, values, reason) -> None:
    columns = {"name": ["a", "b"], "submit_time": [0.0, 1.0], column: values}
    with pytest.raises(TraceError, match=reason):
        make_trace(columns, source="test")


def test_unsorted_or_incomplete_frames_are_refused() -> None:
    jobs = small_trace().jobs
    with pytest.raises(TraceError, match="ascending"):
        Trace(jobs.iloc[::-1], None, "test")
    with pytest.raises(TraceError, match="column duration missing, expected name, submit_time"):
        Trace(jobs.drop(columns="duration"), None, "test")


def test_foreign_files_are_refused_in_one_line(tmp_path) -> None:
    foreign = tmp_path / "foreign.parquet"
    pq.write_table(pa.table({"x": [1]}), foreign)
    newer = tmp_path / "newer.parquet"
    table = pa.table({"x": [1]}).replace_schema_metadata({b"rlpto.trace": b'{"schema": 99}'})
    pq.write_table(table, newer)
    for path, reason in ((foreign, "not a trace of RLPTO: write its table as csv"), (newer, "schema 99, expected 1")):
        with pytest.raises(TraceError, match=rf"{path.name}.*{reason}"):
            read_trace(path)


def test_a_file_without_jobs_is_refused(tmp_path: Path) -> None:
    write_trace(small_trace().slice(6.0, 7.0), tmp_path / "t.parquet")
    with pytest.raises(TraceError, match=r"t\.parquet: no jobs, expected at least one"):
        read_any(tmp_path / "t.parquet")


@pytest.mark.parametrize("folder", ["9" * 3000, "nowhere", "**where", "a\0b", "\ud800"])
def test_a_pattern_that_no_file_can_match_is_one_line(tmp_path: Path, folder: str) -> None:
    with pytest.raises(TraceError, match="expected at least one trace") as caught:
        files_by_split({"test": (tmp_path / folder / "*" / "x.csv",), "train": (), "validation": ()}, False)
    assert len(str(caught.value)) < 400


JOBS = [
    Job("a", 0.1 + 0.2, "ncf", epochs=3.3, data_size=1e6, requested_gpus=2, max_gpus=8, priority=2, user="ann"),
    Job("b", 7.0, "bert", epochs=1.0, data_size=5.0, batch_size=48, metric="efficiency", stop=StopRule()),
]
WINDOWS = FrozenJobs({"first": JOBS, "second": JOBS[:1]})
LIMITED = FrozenJobs({"first": [replace(JOBS[0], gpu_types=("a100", "t4")), JOBS[1]]})
PAST = [FinishedJob(job.type, job.user, job.epochs) for job in (*JOBS, *LIMITED.windows["first"])]
WITH_PAST = FrozenJobs(WINDOWS.windows, {"first": PAST[:1], "second": PAST[1:]})


def test_jobs_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_jobs(WINDOWS, tmp_path / "jobs.parquet")
    assert read_jobs(tmp_path / "jobs.parquet") == WINDOWS
    assert digest_of(WINDOWS) == digest_of(read_jobs(tmp_path / "jobs.parquet"))
    assert digest_of(WINDOWS) != digest_of(FrozenJobs({"first": JOBS, "second": [replace(JOBS[0], submit_time=0.3)]}))
    write_jobs(LIMITED, tmp_path / "limited.parquet")
    assert read_jobs(tmp_path / "limited.parquet") == LIMITED
    assert digest_of(LIMITED) != digest_of(FrozenJobs({"first": JOBS}))


def test_jobs_that_had_finished_come_back_for_their_windows(tmp_path: Path) -> None:
    write_jobs(WITH_PAST, tmp_path / "jobs.parquet")
    found = read_jobs(tmp_path / "jobs.parquet")
    assert found == WITH_PAST
    assert digest_of(found) == digest_of(WITH_PAST) != digest_of(WINDOWS)
    assert found.finished_before("first") == tuple(PAST[:1])
    assert found.finished_before("second") == tuple(PAST)
    frozen = ["workload.source=frozen", f"workload.path={tmp_path / 'jobs.parquet'}", "workload.load=null"]
    for days, known in (("null", PAST), ("0", [])):
        experiment = Experiment(load_config("quickstart", [*frozen, f"knowledge.history_days={days}"]))
        assert experiment.past("second", 0) == tuple(known)
    with pytest.raises(ConfigError, match="history_days: 7, but frozen jobs have no dates: expected null or 0"):
        Experiment(load_config("quickstart", [*frozen, "knowledge.history_days=7"]))


@pytest.mark.parametrize(
    ("jobs", "problem"),
    [
        (FrozenJobs({"first": JOBS}, {"second": PAST[:1]}), "finished jobs before window second, which has no jobs"),
        (FrozenJobs({"first": JOBS}, {"first": [PAST[0]._replace(epochs=math.nan)]}), "a finished job of model ncf"),
    ],
)
def test_impossible_finished_jobs_are_refused(tmp_path: Path, jobs: FrozenJobs, problem: str) -> None:
    write_jobs(jobs, tmp_path / "jobs.parquet")
    with pytest.raises(TraceError, match=rf"jobs\.parquet: {problem}"):
        read_jobs(tmp_path / "jobs.parquet")


def test_files_of_jobs_without_later_columns_are_read(tmp_path: Path) -> None:
    write_jobs(WINDOWS, tmp_path / "jobs.parquet")
    table = pq.read_table(tmp_path / "jobs.parquet").drop_columns(["gpu_types", "past"])
    pq.write_table(table, tmp_path / "older.parquet")
    assert read_jobs(tmp_path / "older.parquet") == WINDOWS


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


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("A100", ("a100-40gb", "A100-SXM4-80GB")),
        ("nvidia a100_sxm4_80gb", ("A100-SXM4-80GB",)),
        ("A10", ("a10",)),
        ("V100M32", ("v100",)),
        ("V100M16|P100", ("v100",)),
        ("T4|A10", ("a10", "t4")),
        ("NVIDIA GeForce RTX 2080 Ti", ("rtx2080ti",)),
        ("RTX 2080 Ti", ("rtx2080ti",)),
        ("H100", ()),
        ("MISC", ()),
        ("", ()),
        ("|", ()),
        ("-|v100", ("v100",)),
    ],
)
def test_gpu_types_are_found_by_the_parts_of_their_names(asked: str, found: tuple[str, ...]) -> None:
    gpu_types = ("a10", "a100-40gb", "A100-SXM4-80GB", "v100", "t4", "rtx2080ti")
    assert matching_types(asked, gpu_types) == found


def test_what_is_lacking_is_counted_in_one_line() -> None:
    asked = ["MISC"] * 3 + ["P100\n(old)", "T4", ""]
    trace = make_trace({"submit_time": [0.0] * 6, "gpu_type": asked}, "test")
    said = "4 of 6 jobs ask for GPU types that the cluster lacks and may use any: MISC (3), P100 (old) (1)."
    assert lacking_types([trace], ("t4", "a100")) == [said]
    assert lacking_types([trace], ("v100",)) == [], "a cluster of one type ignores what jobs ask for"
    assert trace.allowed_types({"t4": 4, "a100": 8})[0] == [(), (), (), (), ("t4",), ()]
    assert trace.allowed_types({"t4": 4, "a100": 8})[1].tolist() == [8, 8, 8, 8, 4, 8]
