from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlpto.core.job_store import JobStore
from rlpto.core.jobs import Job
from rlpto.core.stopping import StopRule
from rlpto.io.errors import ConfigError, JobError
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.efficiency import BatchLimits
from rlpto.performance.profiles import ModelLimits
from rlpto.performance.solo import seconds_to_finish
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.workloads.listed import ListedJob, listed_jobs, listed_trace
from rlpto.workloads.mapping import job_types, map_jobs
from rlpto.workloads.mapping_settings import MappingSettings
from rlpto.workloads.trace import Trace, make_trace

GPUS_PER_NODE = 4
SIX = ("bert", "cifar10", "deepspeech2", "imagenet", "ncf", "yolov3")


def tables_of(types: Iterable[JobType], max_gpus: int = 64) -> SpeedTables:
    return compile_tables(load_profiles(None), tuple(types), max_gpus, GPUS_PER_NODE)


TABLES = tables_of(map(JobType, SIX))
BASE = {"bert": 12, "cifar10": 128, "deepspeech2": 20, "imagenet": 200, "ncf": 256, "yolov3": 8}


def recorded(durations: list[float], gpus: list[int], **more: list[object]) -> Trace:
    columns = {"name": [f"j{i}" for i in range(len(gpus))], "submit_time": [60.0 * i for i in range(len(gpus))]}
    return make_trace({**columns, "duration": durations, "gpus": gpus, **more}, source="test")


def seconds_alone(store: JobStore, job: int, gpus: int) -> float:
    """Time to run all epochs on packed GPUs, as a cluster without delays would."""
    scale, epochs = store.scale[job], store.epochs[job]
    return float(seconds_to_finish(TABLES, store.type_index[job], scale, epochs, gpus, GPUS_PER_NODE))


@given(
    rows=st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 64)), min_size=1, max_size=20), seed=st.integers(0, 100)
)
def test_duration_mode_takes_the_recorded_time_on_the_requested_gpus(rows, seed) -> None:
    durations, gpus = map(list, zip(*rows, strict=True))
    jobs = map_jobs(recorded(durations, gpus), TABLES, MappingSettings(), seed, 64, GPUS_PER_NODE)
    store = JobStore.from_jobs(jobs, TABLES)
    for i, (duration, count) in enumerate(rows):
        assert jobs[i].requested_gpus == count
        assert seconds_alone(store, i, count) == pytest.approx(np.clip(duration, 60, 86_400))


def test_jobs_of_unknown_duration_are_left_out() -> None:
    jobs = map_jobs(recorded([1, 59.9, 60, 90_000, np.nan], [1] * 5), TABLES, MappingSettings(), 0, 64, 4)
    assert [job.name for job in jobs] == ["j0", "j1", "j2", "j3"]


def test_models_are_drawn_by_weight_and_seed() -> None:
    trace = recorded([1000.0] * 4000, [2] * 4000)
    jobs = map_jobs(trace, TABLES, MappingSettings(models={"bert": 3, "ncf": 1, "yolov3": 0}), 7, 64, 4)
    share = np.mean([job.model == "bert" for job in jobs])
    assert {job.model for job in jobs} == {"bert", "ncf"}
    assert share == pytest.approx(0.75, abs=0.03)
    assert jobs == map_jobs(trace, TABLES, MappingSettings(models={"bert": 3, "ncf": 1, "yolov3": 0}), 7, 64, 4)
    uniform = [job.model for job in map_jobs(trace, TABLES, MappingSettings(), 7, 64, 4)]
    counts = np.array([uniform.count(model) for model in SIX])
    assert np.all(np.abs(counts / 4000 - 1 / 6) < 0.03)


def test_models_that_gain_nothing_from_many_gpus_are_not_given_many() -> None:
    trace = recorded([1000.0] * 600, [1] * 300 + [8] * 300)
    models = [job.model for job in map_jobs(trace, TABLES, MappingSettings(), 0, 64, 4)]
    assert "ncf" in models[:300]
    assert "ncf" not in models[300:]
    only = MappingSettings(models={"ncf": 1})
    assert {job.model for job in map_jobs(trace, TABLES, only, 0, 64, 4)} == {"ncf"}
    limited = map_jobs(trace, TABLES, MappingSettings(), 0, 64, 4, lambda one: 1 if one.model == "bert" else None)
    assert "bert" not in {job.model for job in limited[300:]}
    assert all(job.max_gpus == 1 for job in limited if job.model == "bert")


def test_jobs_stop_early_by_their_own_rule_or_that_of_all() -> None:
    trace = recorded([60.0, 60.0], [1, 1], stop=["", "0.01/0.1/0.5"])
    own = StopRule(gain=0.01, over=0.1, after=0.5)
    assert [job.stop for job in map_jobs(trace, TABLES, MappingSettings(), 0, 64, 4)] == [None, own]
    everyone = MappingSettings.model_validate({"stop": {"gain": 0.002}})
    assert [job.stop for job in map_jobs(trace, TABLES, everyone, 0, 64, 4)] == [StopRule(gain=0.002), own]


def test_category_mode_takes_whole_models_by_gpu_time() -> None:
    hour = 3600.0
    durations = [0.5 * hour, 0.5 * hour, hour, 4.9 * hour, 5.1 * hour, 24 * hour, 24 * hour]
    jobs = map_jobs(
        recorded(durations, [1, 1, 2, 2, 2, 4, 8]), TABLES, MappingSettings(mode="category"), 3, 64, GPUS_PER_NODE
    )
    classes = [("cifar10", "ncf")] * 2 + [("bert", "deepspeech2")] * 2 + [("yolov3",)] * 2 + [("imagenet",)]
    for job, models in zip(jobs, classes, strict=True):
        assert job.model in models
        t = TABLES.type_index(JobType(job.model))
        assert (job.epochs, job.data_size) == (TABLES.epochs[t], TABLES.samples[t])


def test_a_clipped_job_keeps_the_category_of_its_gpu_time() -> None:
    settings = MappingSettings(mode="category", oversized="clip")
    jobs = map_jobs(recorded([3600.0] * 8, [64] * 8), TABLES, settings, 3, 8, GPUS_PER_NODE)
    assert {job.model for job in jobs} == {"yolov3"}  # 64 GPU-hours, on 8 GPUs for 8 hours


def test_given_mode_keeps_model_batch_and_work() -> None:
    trace = recorded([np.nan] * 3, [6, 1, 12], model=["cifar10", "ncf", "cifar10"], batch_size=[2048, 32768, 0])
    given_mode = MappingSettings(mode="given")
    types = job_types(trace, given_mode)
    assert types == (JobType("cifar10"), JobType("cifar10", 2048), JobType("ncf", 32768))
    most = {"cifar10": 32, "ncf": 1}
    tables = tables_of(types)
    jobs = map_jobs(trace, tables, given_mode, 0, 64, 4, lambda one: most[one.model])
    assert [(job.model, job.batch_size) for job in jobs] == [("cifar10", 2048), ("ncf", 32768), ("cifar10", None)]
    assert [(job.min_gpus, job.requested_gpus, job.max_gpus) for job in jobs] == [(1, 6, 32), (1, 1, 1), (1, 12, 32)]
    assert [job.data_size for job in jobs] == tables.samples[[1, 2, 0]].tolist()
    assert [job.epochs for job in jobs] == tables.epochs[[1, 2, 0]].tolist()
    adaptive = MappingSettings(mode="given", adaptive_batch=True)
    assert job_types(trace, adaptive) == (JobType("cifar10"), JobType("ncf"))


def test_given_mode_names_what_is_missing() -> None:
    given_mode = MappingSettings(mode="given")
    with pytest.raises(JobError, match="job j0: the trace names no model"):
        map_jobs(recorded([1.0], [1]), TABLES, given_mode, 0, 64, 4)
    wrong = recorded([1.0], [1], model=["cifar"], batch_size=[0])
    with pytest.raises(ConfigError, match=r"model 'cifar' has no profile, .*; did you mean cifar10\?"):
        map_jobs(wrong, TABLES, given_mode, 0, 64, 4)
    batch = recorded([1.0], [1], model=["cifar10"], batch_size=[7])
    with pytest.raises(ConfigError, match="model cifar10: no speed table for batch size 7"):
        map_jobs(batch, TABLES, given_mode, 0, 64, 4)


def test_elastic_limits() -> None:
    trace = recorded([100.0] * 4, [1, 8, 20, 48])
    jobs = map_jobs(trace, TABLES, MappingSettings(), 0, 64, 4)
    assert [(job.min_gpus, job.max_gpus) for job in jobs] == [(1, 4), (1, 32), (1, 64), (1, 64)]
    jobs = map_jobs(trace, TABLES, MappingSettings(max_gpus=16, max_gpus_factor=2), 0, 64, 4)
    assert [job.max_gpus for job in jobs] == [2, 16, 20, 48]
    jobs = map_jobs(trace, TABLES, MappingSettings(rigid=True), 0, 64, 4)
    assert [(job.min_gpus, job.max_gpus) for job in jobs] == [(1, 1), (8, 8), (20, 20), (48, 48)]


@pytest.mark.parametrize("users", [None, "recorded"])
def test_a_share_of_the_jobs_is_rigid_and_nothing_else_changes(users: Literal["recorded"] | None) -> None:
    trace = recorded([100.0] * 40, [1 + i % 8 for i in range(40)], user=[f"u{i % 10}" for i in range(40)])
    elastic, half = (map_jobs(trace, TABLES, MappingSettings(rigid=share, users=users), 0, 64, 4) for share in (0, 0.5))
    rigid = [job.min_gpus == job.max_gpus == job.requested_gpus for job in half]
    assert sum(rigid) == 20
    for fixed, before, after in zip(rigid, elastic, half, strict=True):
        least, most = (before.requested_gpus,) * 2 if fixed else (before.min_gpus, before.max_gpus)
        assert after == replace(before, min_gpus=least, max_gpus=most)
    if users is not None:
        assert len({(job.user, fixed) for job, fixed in zip(half, rigid, strict=True)}) == 10


def test_a_share_of_rigid_jobs_is_at_most_one() -> None:
    with pytest.raises(ValidationError):
        MappingSettings(rigid=1.5)


def test_jobs_larger_than_the_cluster() -> None:
    trace = recorded([1000.0, 1000.0], [4, 32])
    with pytest.raises(JobError, match="job j1: wants 32 GPUs, expected at most the 16 the cluster has"):
        map_jobs(trace, TABLES, MappingSettings(), 0, 16, GPUS_PER_NODE)
    with pytest.raises(JobError, match="at most the 8 the speed tables cover"):
        map_jobs(trace, tables_of(TABLES.types, max_gpus=8), MappingSettings(), 0, 16, GPUS_PER_NODE)
    skipped = map_jobs(trace, TABLES, MappingSettings(oversized="skip"), 0, 16, GPUS_PER_NODE)
    assert [job.name for job in skipped] == ["j0"]
    clipped = map_jobs(trace, TABLES, MappingSettings(oversized="clip"), 0, 16, GPUS_PER_NODE)
    assert [job.requested_gpus for job in clipped] == [4, 16]
    store = JobStore.from_jobs(clipped, TABLES)
    assert seconds_alone(store, 1, 16) == pytest.approx(2000.0)


def test_priorities_are_recorded_or_drawn() -> None:
    trace = recorded([100.0] * 5000, [1] * 5000, priority=[2] + [-1] * 4999)
    jobs = map_jobs(trace, TABLES, MappingSettings(), 1, 64, 4)
    assert jobs[0].priority == 2
    shares = np.bincount([job.priority for job in jobs]) / 5000
    np.testing.assert_allclose(shares, [0.2, 0.5, 0.3], atol=0.03)


def test_job_types_name_what_the_tables_must_hold() -> None:
    trace = recorded([1.0], [1])
    assert [job_type.model for job_type in job_types(trace, MappingSettings())] == list(SIX)
    assert job_types(trace, MappingSettings(), available=("b", "a")) == (JobType("a"), JobType("b"))
    assert job_types(trace, MappingSettings(models={"ncf": 1})) == (JobType("ncf"),)
    assert [job_type.model for job_type in job_types(trace, MappingSettings(mode="category"))] == list(SIX)
    with pytest.raises(ConfigError, match=r"model 'nfc' has no profile, .* did you mean ncf\?"):
        map_jobs(trace, TABLES, MappingSettings(models={"nfc": 1}), 0, 64, 4)


def test_jobs_of_a_user_are_alike_and_nothing_but_their_epochs_says_how_long_they_take() -> None:
    rng = np.random.default_rng(0)
    durations = np.exp(rng.normal(np.log(1000.0), 1.0, 400)).clip(60, 86_400)
    trace = recorded(durations.tolist(), rng.choice([1, 4, 8], 400).tolist(), user=[f"u{i % 7}" for i in range(400)])
    chosen = MappingSettings(users="recorded", models={m: 1 for m in SIX if m != "ncf"})  # of any size
    jobs = map_jobs(trace, TABLES, chosen, 3, 64, GPUS_PER_NODE)
    assert all(len({job.model for job in jobs if job.user == f"u{i}"}) == 1 for i in range(7))
    assert len({(job.model, job.requested_gpus, round(job.data_size, 6)) for job in jobs}) <= 7 * 3
    store = JobStore.from_jobs(jobs, TABLES)
    for i, duration in enumerate(durations):
        assert seconds_alone(store, i, jobs[i].requested_gpus) == pytest.approx(duration)
    assert jobs == map_jobs(trace, TABLES, chosen, 3, 64, GPUS_PER_NODE)


def test_users_that_a_trace_names_are_needed_or_made_up() -> None:
    trace = recorded([100.0, 5000.0], [1, 1], user=["ann", ""])
    with pytest.raises(JobError, match=r"job j1: the trace names no user, expected one \(mapping.users: clustered"):
        map_jobs(trace, TABLES, MappingSettings(users="recorded"), 0, 64, 4)
    assert all(job.user for job in map_jobs(trace, TABLES, MappingSettings(users="clustered"), 0, 64, 4))
    unknown = recorded([np.nan], [1])
    assert map_jobs(unknown, TABLES, MappingSettings(users="clustered"), 0, 64, 4) == []


def facts(model: str) -> ModelLimits:  # noqa: ARG001
    return ModelLimits(1000.0, 7, BatchLimits(32, 64, 1, 64), 3.0)


class TestListed:
    def test_what_is_not_said_is_that_of_the_model_and_jobs_are_sorted_by_their_submission(self) -> None:
        (job,) = listed_jobs([ListedJob(model="m", gpus=2)], facts, 4)
        assert (job.name, job.epochs, job.data_size, job.priority, job.max_gpus) == ("m-0", 7.0, 1000.0, 1, 2)
        jobs = listed_jobs([ListedJob(model="m", name="a", count=3, every=10, submit=5)], facts, 4)
        assert [(job.name, job.submit_time) for job in jobs] == [("a", 5.0), ("a-1", 15.0), ("a-2", 25.0)]
        jobs = listed_jobs([ListedJob(model="m", submit=9), ListedJob(model="m", submit=3, priority="high")], facts, 4)
        trace = listed_trace(jobs)
        assert trace.submit_time.tolist() == [3.0, 9.0]
        assert trace.priority.tolist() == [0, 1]

    def test_a_metric_and_a_rule_to_stop_are_the_jobs_own_or_the_usual_ones(self) -> None:
        entries = [ListedJob(model="m"), ListedJob(model="m", metric="efficiency", submit=1, stop=StopRule(after=0.5))]
        jobs = listed_jobs(entries, facts, 4, "throughput")
        assert [job.stop for job in jobs] == [None, StopRule(gain=0.001, over=0.05, after=0.5)]
        assert listed_trace(jobs).texts("stop") == ["", "0.001/0.05/0.5"]
        assert [job.metric for job in jobs] == listed_trace(jobs).texts("metric") == ["throughput", "efficiency"]
        assert listed_jobs(entries, facts, 4)[0].metric == "goodput"
        with pytest.raises(ValidationError, match="'goodput', 'throughput' or 'efficiency'"):
            ListedJob.model_validate({"model": "m", "metric": "speed"})

    def test_what_makes_no_sense_is_refused(self) -> None:
        with pytest.raises(JobError, match="two jobs are called a, expected a name of its own"):
            listed_jobs([ListedJob(model="m", name="a"), ListedJob(model="m", name="a")], facts, 4)
        with pytest.raises(JobError, match="job m-0 wants 8 GPUs, but the cluster has 4 in all"):
            listed_jobs([ListedJob(model="m", gpus=8)], facts, 4)
        with pytest.raises(ValidationError, match="min_gpus <= gpus <= max_gpus"):
            ListedJob(model="m", gpus=2, max_gpus=1)


SIZES = {"cifar10": [128, 512, 2048], "bert": [12, 96]}


class TestFixedBatch:
    HALF = MappingSettings(fixed_batch=0.5, models={"cifar10": 1, "bert": 1})
    TRACE = recorded([600.0 * (1 + i % 7) for i in range(200)], [1 + i % 8 for i in range(200)])
    TYPES = job_types(TRACE, HALF, batch_sizes=SIZES.__getitem__)
    OWN = tables_of(TYPES)

    def jobs(self, settings: MappingSettings, trace: Trace = TRACE, seed: int = 3) -> list[Job]:
        return map_jobs(trace, self.OWN, settings, seed, 64, GPUS_PER_NODE)

    def test_types_are_listed_with_those_that_adapt(self) -> None:
        fixed = {JobType(model, size) for model, sizes in SIZES.items() for size in sizes}
        assert set(self.TYPES) == {JobType("cifar10"), JobType("bert"), *fixed}
        without = self.HALF.model_copy(update={"fixed_batch": 0.0})
        assert job_types(self.TRACE, without, batch_sizes=SIZES.__getitem__) == (
            JobType("bert"),
            JobType("cifar10"),
        )

    def test_a_share_keeps_its_batch_size_and_nothing_else_changes(self) -> None:
        usual = self.jobs(self.HALF.model_copy(update={"fixed_batch": 0.0}))
        half, all_of_them = self.jobs(self.HALF), self.jobs(self.HALF.model_copy(update={"fixed_batch": 1.0}))
        assert sum(job.batch_size is not None for job in half) == 100
        assert all(job.batch_size is not None for job in all_of_them)
        assert half == self.jobs(self.HALF)
        assert half != self.jobs(self.HALF, seed=4)
        for before, after in zip(usual, half, strict=True):
            assert after.batch_size is not None or after == before
            assert (after.model, after.submit_time, after.requested_gpus) == (
                before.model,
                before.submit_time,
                before.requested_gpus,
            )

    def test_it_is_the_fastest_on_the_requested_gpus_which_take_the_recorded_time(self) -> None:
        jobs = self.jobs(self.HALF)
        store = JobStore.from_jobs(jobs, self.OWN)
        for i, job in enumerate(jobs):
            at = store.type_index[i], store.scale[i], store.epochs[i], job.requested_gpus
            assert seconds_to_finish(self.OWN, *at, GPUS_PER_NODE) == pytest.approx(self.TRACE.duration[i])
        chosen = {(job.model, job.requested_gpus): job.batch_size for job in jobs if job.batch_size}
        assert chosen["cifar10", 1] == 128
        assert chosen["cifar10", 8] == 2048
        assert chosen["bert", 1] == 12
        assert chosen["bert", 8] == 96

    def test_of_batches_that_cannot_be_spread_over_the_gpus_none_is_taken(self) -> None:
        trace, only = recorded([600.0], [8]), MappingSettings(fixed_batch=1, models={"bert": 1})
        (job,) = map_jobs(trace, self.OWN, only, 0, 64, 4, lambda one: 4 if one.batch_size == 96 else None)
        assert job.batch_size == 12
        (job,) = map_jobs(trace, self.OWN, only, 0, 64, 4, lambda _: 4)
        assert job.batch_size == 96, "where none can be spread, the fastest"

    @given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.floats(0, 1), st.integers(0, 99))
    def test_all_jobs_of_a_user_are_alike_and_no_more_than_the_share(self, users, share, seed) -> None:
        trace = recorded([600.0] * len(users), [1] * len(users), user=[f"u{user}" for user in users])
        settings = self.HALF.model_copy(update={"fixed_batch": share, "users": "recorded"})
        fixed = [job.batch_size is not None for job in self.jobs(settings, trace, seed)]
        assert len(set(zip(users, fixed, strict=True))) == len(set(users))
        assert sum(fixed) <= share * len(users) + 0.5
        assert share < 1 or all(fixed)

    def test_whole_models_by_category_keep_their_work(self) -> None:
        settings = MappingSettings(mode="category", fixed_batch=1)
        trace = recorded([1800.0, 1800.0], [1, 4])
        types = job_types(trace, settings, batch_sizes=lambda model: [BASE[model]])
        tables = tables_of(types)
        for job in map_jobs(trace, tables, settings, 0, 64, 4):
            own = tables.type_index(JobType(job.model))
            assert job.batch_size == BASE[job.model]
            assert (job.epochs, job.data_size) == (tables.epochs[own], tables.samples[own])

    @pytest.mark.parametrize("mode", ["given", "named"])
    def test_modes_that_take_batch_sizes_from_the_trace_refuse_it(self, mode) -> None:
        with pytest.raises(
            ValidationError, match=f"fixed_batch: mode {mode} takes batch sizes from the trace, expected 0"
        ):
            MappingSettings(mode=mode, fixed_batch=0.1)

    def test_tables_without_fixed_types_are_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"mapping fixed_batch: no speed table of .* for a fixed batch size"):
            map_jobs(self.TRACE, TABLES, MappingSettings(fixed_batch=0.5), 0, 64, 4)
