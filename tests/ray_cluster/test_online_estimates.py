"""Estimates of jobs by their own reports alone."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.jobs import Job
from rlpto.experiments import on_ray
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.on_ray import real_cluster
from rlpto.experiments.session_loop import session_rules
from rlpto.knowledge.known import UNSEEN_HOURS
from rlpto.knowledge.remaining import RemainingKnowledge
from rlpto.performance.accuracy import AccuracyCurve
from rlpto.performance.compile import compile_tables
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.profiles import builtin_profiles
from rlpto.performance.tables import SpeedTables
from rlpto.policies.registry import make_policy
from rlpto.ray_cluster.messages import JobReport, JobSpec, Measured
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.job_knowledge import PolicyKnowledge
from rlpto.ray_cluster.scheduler.online_estimates import ENOUGH_STEPS, OnlineEstimates
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.ray_cluster.settings import ProgramSettings
from rlpto.store.program_keys import GuessSettings
from tests.builders import Scripted, linear_tables
from tests.builders import job as make_job
from tests.ray_cluster.fakes import FakeBackend, FakeController, FakeTime
from tests.ray_cluster.sessions import make_cluster, play, specs

SAMPLES, BATCH, MOST, PER_NODE = 1000.0, 50, 8, 2
PROGRAM = ProgramSettings(training="some.module:Program", samples=1000, epochs=20, batch_size=BATCH, pace=0.1)
REAL = PROGRAM.model_copy(update={"pace": None})
"""Steps take as long as they take, and the settings say nothing of that."""


def estimates(
    program: ProgramSettings = PROGRAM,
    count: int = 1,
    metric: str = "goodput",
    gpu_types: Mapping[str, int] = MappingProxyType({"gpu": PER_NODE}),
    **more: Any,
) -> OnlineEstimates:
    """more: as of `OnlineEstimates`."""
    jobs = [replace(make_job(i, 0.0, 20.0, max_gpus=MOST), model="m", metric=metric) for i in range(count)]
    made = [JobSpec(job.name, job.name, "s", program.training, "f", BATCH, job.epochs, 1000) for job in jobs]
    return OnlineEstimates(jobs, made, {"m": program}, profiles(jobs[0]), gpu_types, **more)


def profiles(job: Job) -> SpeedTables:
    """Tables of a job's profile, of which the number of samples counts."""
    return replace(linear_tables(0.1, MOST), types=(job.type,), samples=np.array([SAMPLES]))


def packed(found: OnlineEstimates, job: int = 0) -> np.ndarray:
    """Epochs per second with 1, 2, ... GPUs on few nodes, in the first epoch."""
    return found.tables.rates[found.tables.packed_rows(PER_NODE)[found.type_of[job], 1:], 0]


def after(found: OnlineEstimates, job: int = 0, **report: object) -> OnlineEstimates:
    found.take_report(job, replace(JobReport("job"), **report))  # type: ignore[arg-type]
    while found.learn():
        pass
    return found


def sizes(*speeds: tuple[int, int, float]) -> tuple[Measured, ...]:
    return tuple(Measured(*size, 100) for size in speeds)


def on_few(workers: int, speed: float) -> tuple[int, int, float]:
    """A size on as few nodes as possible."""
    return workers, -(-workers // PER_NODE), speed


class TestSpeed:
    @pytest.mark.parametrize("few", [(), (Measured(1, 1, 7.0, ENOUGH_STEPS - 1),)], ids=["none", "a handful"])
    def test_before_enough_steps_are_measured_its_guess_counts_and_it_scales_perfectly(
        self, few: tuple[Measured, ...]
    ) -> None:
        alone = BATCH / 0.1 / SAMPLES
        assert packed(after(estimates(), throughput=few)) == pytest.approx(alone * np.arange(1, MOST + 1), rel=0.01)

    @given(workers=st.integers(1, MOST), speed=st.floats(1.0, 1e5))
    def test_a_job_that_was_seen_at_one_size_scales_as_others_do_or_perfectly(self, workers: int, speed: float) -> None:
        """With a prior, and by Pollux's rules."""
        seen, perfect = sizes(on_few(workers, speed)), speed / workers * np.arange(1, MOST + 1)
        pollux = after(estimates(method="pollux"), throughput=seen)
        assert packed(pollux) * SAMPLES == pytest.approx(perfect, rel=0.01)
        shown = packed(after(estimates(REAL), throughput=seen)) * SAMPLES
        assert shown[workers - 1] == pytest.approx(speed)
        assert (shown[workers:] < perfect[workers:]).all()
        assert (shown[: workers - 1] > perfect[: workers - 1]).all()
        paced = after(estimates(), throughput=sizes((1, 1, speed)))
        assert packed(paced)[3] * SAMPLES > 3 * speed, "a paced program's steps are stretched by its samples"

    @pytest.mark.parametrize("slow", [1, 2, 4])
    def test_a_pause_while_one_size_was_measured_hardly_changes_estimates_of_others(self, slow: int) -> None:
        """A step of 0.02 s for any number of workers, and 0.08 s of samples; at one size ten times as long."""

        def estimated(longer: float) -> float:
            speed = {workers: BATCH / (0.02 + 0.08 / workers) for workers in (1, 2, 3, 4, 6)}
            speed[slow] /= longer
            found = after(estimates(REAL), throughput=sizes(*(on_few(*one) for one in speed.items())))
            return float(packed(found)[7]) * SAMPLES

        assert estimated(10.0) == pytest.approx(estimated(1.0), rel=0.2)
        assert estimated(1.0) == pytest.approx(BATCH / 0.03, rel=0.15)

    def test_estimates_say_how_sure_they_are(self) -> None:
        found = estimates(REAL)
        sigma = []
        for seen in ((), ((1, 1, 500.0),), ((1, 1, 500.0), (2, 1, 900.0), (4, 2, 1200.0))):
            tables = after(found, throughput=sizes(*seen)).tables
            assert tables.sizes_seen is not None
            assert tables.speed_sigma is not None
            assert tables.sizes_seen[found.type_of[0]] == len(seen)
            sigma.append(tables.speed_sigma[found.type_of[0], 1, MOST])
        assert sigma[0] > sigma[1] > sigma[2] > 0

    def test_sizes_that_were_seen_have_the_speed_that_was_measured(self) -> None:
        """Workers that are spread do not show how fast packed ones are. Without a single worker fewer scale well."""
        seen = sizes((1, 1, 500.0), (2, 2, 600.0), (2, 1, 950.0), (4, 2, 1200.0))
        speed = packed(after(estimates(), throughput=seen)) * SAMPLES
        assert speed[[0, 1, 3]] == pytest.approx([500.0, 950.0, 1200.0])
        speed = packed(after(estimates(), throughput=sizes((2, 1, 1000.0), (4, 2, 1500.0)))) * SAMPLES
        assert speed[0] == pytest.approx(550.0, rel=0.1)

    def test_noise_says_what_a_larger_batch_is_worth(self) -> None:
        program = PROGRAM.model_copy(update={"batch_rule": "per_worker"})
        seen = sizes((1, 1, 500.0), (4, 2, 1800.0))
        for noise in (10.0, 1e6):
            for metric in ("goodput", "throughput"):
                found = after(estimates(program, metric=metric), throughput=seen, noise_scale=noise)
                useful = (noise + BATCH) / (noise + 4 * BATCH)
                assert packed(found)[3] * SAMPLES == pytest.approx(1800.0 * useful)
                rows = found.tables.packed_rows(PER_NODE)[0, [1, 4]]
                shown = found.tables.shown_rates[rows, 0] * SAMPLES
                assert shown == pytest.approx([500.0, 1800.0 * (useful if metric == "goodput" else 1.0)])

    def test_only_notable_news_is_worth_a_fit_and_one_at_a_time(self) -> None:
        found = estimates(count=2)
        for job in (0, 1):
            found.take_report(job, JobReport("job", throughput=sizes((1, 1, 300.0))))
        assert [found.learn() for _ in range(3)] == [True, True, False]
        found.take_report(0, JobReport("job", throughput=sizes((1, 1, 304.0))))
        assert not found.learn()
        found.take_report(0, JobReport("job", throughput=sizes((1, 1, 400.0))))
        assert found.learn()
        assert packed(found, 1)[0] == pytest.approx(0.3), "other jobs are other jobs"


GPU_TYPES = {"slow": 2, "fast": 4}
SLOW = ("slow", 1, 1, 500.0), ("slow", 2, 1, 900.0), ("slow", 4, 2, 1200.0)


class TestGpuTypes:
    def learned(self, *speeds: tuple[str, int, int, float]) -> OnlineEstimates:
        """One GPU of `fast` is said to be three times as fast as one of `slow`."""
        three = {("m", "fast", "slow"): 3.0, ("m", "slow", "fast"): 1 / 3}
        found = estimates(gpu_types=GPU_TYPES, ratio=lambda *asked: three[asked])
        seen = tuple(Measured(workers, nodes, speed, 100, gpu=gpu) for gpu, workers, nodes, speed in speeds)
        return after(found, throughput=seen)

    def speeds(self, found: OnlineEstimates, gpu: str) -> np.ndarray:
        """Samples per second with 1, 2, ... GPUs of a kind, on as few of its nodes as possible."""
        tables = found.tables
        variant = tables.by_gpu_type[0, tables.gpu_types.index(gpu)]
        nodes = -(-np.arange(1, MOST + 1) // GPU_TYPES[gpu])
        rows = tables.row[variant, np.minimum(nodes, tables.row.shape[1]) - 1, np.arange(1, MOST + 1)]
        return tables.rates[rows, 0] * SAMPLES

    def test_a_kind_that_a_job_has_not_trained_on_is_projected(self) -> None:
        untrained = estimates(gpu_types=GPU_TYPES)
        assert self.speeds(untrained, "slow") == pytest.approx(self.speeds(untrained, "fast"))
        found = self.learned(*SLOW)
        assert self.speeds(found, "slow")[[0, 1, 3]] == pytest.approx([500.0, 900.0, 1200.0])
        assert self.speeds(found, "fast")[[0, 1]] == pytest.approx([1500.0, 2700.0])
        found = self.learned(("fast", 1, 1, 900.0), ("fast", 2, 1, 1700.0), ("fast", 4, 1, 3300.0))
        assert self.speeds(found, "fast")[3] == pytest.approx(3300.0)
        assert self.speeds(found, "slow")[1] == pytest.approx(1700.0 / 3)
        assert self.speeds(found, "slow")[3] < 3300.0 / 3, "there, on two nodes"

    def test_every_kind_has_a_fit_of_its_own(self) -> None:
        before, after = self.learned(*SLOW), self.learned(*SLOW, ("fast", 1, 1, 4000.0))
        assert self.speeds(after, "fast") == pytest.approx(4000.0 * np.arange(1, MOST + 1), rel=0.2)
        assert self.speeds(after, "fast")[0] == pytest.approx(4000.0)
        assert self.speeds(after, "slow") == pytest.approx(self.speeds(before, "slow"))

    def test_the_first_kind_stays_what_others_are_projected_from(self) -> None:
        found = estimates(gpu_types={**GPU_TYPES, "new": 2}, ratio=lambda *asked: 10.0 if asked[2] == "slow" else 99.0)
        after(found, throughput=(Measured(1, 1, 100.0, 20, gpu="slow"),))
        after(found, throughput=(Measured(1, 1, 100.0, 20, gpu="slow"), Measured(1, 1, 700.0, 900, gpu="fast")))
        rows = found.tables.row[found.tables.by_gpu_type[0], 0, 1]
        speed = dict(zip(found.tables.gpu_types, found.tables.rates[rows, 0] * SAMPLES, strict=True))
        assert speed == pytest.approx({"slow": 100.0, "fast": 700.0, "new": 1000.0})

    def test_a_job_that_may_not_use_a_type_has_no_speed_there(self) -> None:
        jobs = [replace(make_job(i, 0.0, 20.0, max_gpus=MOST), model="m") for i in range(3)]
        jobs[1] = replace(jobs[1], gpu_types=("slow",))
        tables = compile_tables(
            FittedProfiles({"m": builtin_profiles()["cifar10"]}), [job.type for job in jobs], MOST, 4
        )
        made = [JobSpec(job.name, job.name, "s", PROGRAM.training, "f", BATCH, job.epochs, 1000) for job in jobs]
        found = OnlineEstimates(jobs, made, {"m": PROGRAM}, tables, GPU_TYPES, pooled=True)
        most = found.tables.floor_size[found.tables.by_gpu_type[found.type_of], MOST]
        assert found.tables.gpu_types == ("slow", "fast")
        assert [found.tables.types[number].gpu_types for number in found.type_of.tolist()] == [(), ("slow",), ()]
        assert (most > 0).tolist() == [[True, True], [True, False], [True, True]]

    def test_where_there_is_one_kind_its_name_does_not_matter(self) -> None:
        found = after(estimates(), throughput=(Measured(1, 1, 700.0, 50, gpu="h100"),))
        assert packed(found)[0] * SAMPLES == pytest.approx(700.0)


class TestUnseen:
    def test_programs_whose_steps_nothing_is_said_of_are_shown_as_they_are_asked_to_be(self) -> None:
        """All that wait are of one type, and all know of it once one of them has trained."""
        found = estimates(REAL, count=300, pooled=True)
        assert found.unseen.tolist() == list(range(300))
        for rate in (0.02, 0.01):
            found.show_unseen(np.full(300, rate))
            assert len(found.tables.types) == 1
            assert packed(found, 7) == pytest.approx(np.full(MOST, rate))
        after(found, 7, throughput=sizes((1, 1, 1000.0)))
        assert packed(found, 7)[0] == pytest.approx(1.0)
        assert 7 not in found.unseen
        assert packed(found, 8)[0] == pytest.approx(1.0)
        assert not len(found.unseen)

    @pytest.mark.parametrize("said", [{"pace": 0.1}, {"guess": GuessSettings(step_seconds=0.1)}])
    def test_the_step_time_of_the_settings_counts(self, said: dict[str, object]) -> None:
        assert not len(estimates(REAL.model_copy(update=said)).unseen)


def test_jobs_that_wait_or_come_later_know_what_like_ones_have_seen() -> None:
    found = after(estimates(count=500, pooled=True), 3, throughput=sizes((1, 1, 1000.0)))
    assert len(found.tables.types) == 1
    assert [packed(found, job)[0] for job in (3, 0, 499)] == pytest.approx([1.0] * 3)
    after(found, 7, throughput=sizes((1, 1, 2000.0)), noise_scale=300.0)
    assert len(found.tables.types) == 1
    assert [packed(found, job)[0] for job in (3, 0)] == pytest.approx([2.0] * 2)
    new = replace(make_job(500, 0.0, 20.0, max_gpus=MOST), model="m")
    spec = JobSpec("later", "later", "s", PROGRAM.training, "f", BATCH, new.epochs, 1000)
    found.append([new], [spec], profiles(new))
    assert packed(found, 500)[0] == pytest.approx(2.0)
    found.keep(np.array([1, 500]))
    assert [packed(found, job)[0] for job in (0, 1)] == pytest.approx([2.0] * 2)


def test_the_end_of_an_accuracy_curve_is_known_early_and_better_later() -> None:
    truth = AccuracyCurve("accuracy", 0.1, 0.9, 4.0, 1.0)
    found = {}
    for epochs in (3, 6, 12):
        points = tuple((float(epoch), float(truth(epoch))) for epoch in range(1, epochs + 1))
        found[epochs] = after(estimates(), accuracy_curve=points).tables.accuracy[0]
    assert found[3].tolist() == estimates().tables.accuracy[0].tolist(), "a few epochs show no curve"
    assert found[6][20] == pytest.approx(truth(20), abs=0.05)
    assert found[12][20] == pytest.approx(truth(20), abs=0.01)


@dataclass
class Reporting(FakeBackend):
    """Controllers that also report their speed: 0.1 epochs/s a worker of 100 samples each."""

    seen: dict[str, dict[int, Measured]] = field(default_factory=lambda: defaultdict(dict))

    def report(self, controller: FakeController) -> JobReport:
        speeds, count = self.seen[controller.spec.id], len(controller.training_on)
        if count:
            speeds[count] = Measured(count, 1, 10.0 * count, 50)
        return replace(super().report(controller), throughput=tuple(speeds.values()))


def give(cluster: RayCluster, *gpus: int) -> None:
    """Once that number of jobs are there, give them these GPUs, and let them train."""
    while len(cluster.state().jobs) < len(gpus):
        cluster.advance()
    cluster.apply(cluster.state(), Allocation(np.array(gpus)))
    for _ in range(5):
        cluster.advance()


def test_policies_know_what_jobs_report_and_nothing_of_the_profile(database: SessionDatabase) -> None:
    jobs: list[Job] = [make_job(0, 0.0, 20.0, max_gpus=4), make_job(1, 30.0, 20.0, max_gpus=4)]
    program, made = PROGRAM.model_copy(update={"pace": 2.0}), specs(jobs)
    tables = linear_tables(7.0, 8)  # far from the 0.1 epochs/s of these jobs
    knowledge = PolicyKnowledge(estimates=OnlineEstimates(jobs, made, {jobs[0].model: program}, tables, {"gpu": 4}))
    backend = Reporting(FakeTime(), {"n": 4})
    cluster = make_cluster(backend, jobs, database, tables=tables, given=made, knowledge=knowledge)
    policy, seen = make_policy("optimus"), list[tuple[np.ndarray, np.ndarray]]()

    def look(state: ClusterState) -> Allocation:
        again = state.jobs.reordered(np.arange(len(state.jobs)), state.jobs.effective_priority)
        seen.append((again.speed.copy(), again.remaining_time(again.requested_gpus)))
        return policy(state)

    play(cluster, Scripted(look))
    (first, _), (last, left) = seen[0], seen[-1]
    guess = made[0].batch_size / 2.0 / jobs[0].data_size
    assert first[0, 1] == pytest.approx(guess), "before anything is known: the guess of the settings"
    assert last[0, 4] == pytest.approx(0.4 * 100.0 / jobs[0].data_size, rel=0.05)
    assert math.isfinite(left[0])
    assert cluster.columns.finished.all()


def test_policies_see_whose_remaining_work_is_learnt(database: SessionDatabase) -> None:
    jobs = [make_job(0, 0.0, 2.0, max_gpus=4), make_job(1, 0.0, 20.0, max_gpus=4), make_job(2, 0.0, 2.0, gpus=4)]
    backend, knowledge = Reporting(FakeTime(), {"n": 8}), PolicyKnowledge(remaining="learnt")
    cluster = make_cluster(backend, jobs, database, tables=linear_tables(0.1, 8), knowledge=knowledge)
    policy, seen = make_policy("fifo"), list[dict[int, bool]]()

    def look(state: ClusterState) -> Allocation:
        seen.append(dict(zip(state.jobs.index.tolist(), state.jobs.remaining_known.tolist(), strict=True)))
        return policy(state)

    play(cluster, Scripted(look))
    assert not any(seen[0].values())
    assert any(known.get(1) for known in seen), "one that has finished had trained for longer"
    assert not seen[-1][1], "and then this one has trained for longer than any"


@pytest.mark.parametrize(("remaining", "hours"), [("declared", UNSEEN_HOURS), ("unknown", 0.001)])
def test_a_real_job_that_nothing_is_known_of_looks_short(
    database: SessionDatabase, remaining: RemainingKnowledge, hours: float
) -> None:
    """All of them, with few epochs or many, on little data or much."""
    jobs: list[Job] = [make_job(i, 0.0, 20.0 + 500 * i, max_gpus=4, data_size=1000.0 + 9000 * i) for i in range(2)]
    backend, made = Reporting(FakeTime(), {"n": 4}), specs(jobs)
    learned = OnlineEstimates(jobs, made, {jobs[0].model: REAL}, linear_tables(7.0, 8), {"gpu": 4})
    knowledge = PolicyKnowledge(None, learned, remaining, 2.0, hours)
    cluster = make_cluster(backend, jobs, database, tables=linear_tables(7.0, 8), given=made, knowledge=knowledge)
    while not len(cluster.state().jobs):
        cluster.advance()
    shown = cluster.state().jobs
    np.testing.assert_allclose(shown.remaining / shown.speed[:, 1] / 3600, hours)
    assert shown.sizes_seen.tolist() == [0.0, 0.0]
    give(cluster, 1, 0)
    shown = cluster.state().jobs
    assert shown.sizes_seen.tolist() == [1.0, 0.0]
    assert shown.speed_sigma[1] > shown.speed_sigma[0] > 0
    assert shown.remaining[1] / shown.speed[1, 1] / 3600 == pytest.approx(hours)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """The time of sessions that `real_cluster` makes."""
    made = FakeTime()
    monkeypatch.setattr(on_ray, "session_rules", lambda config: session_rules(config, made.clock))
    return made


def smoke(*wanted: str) -> Experiment:
    return Experiment(load_config(Path(__file__).parents[2] / "configs" / "ray_smoke.yaml", wanted))


@pytest.mark.parametrize(("fits", "known"), [("own", 1), ("shared", 2)])
def test_real_jobs_of_a_program_share_what_they_observe_if_that_is_wanted(
    database: SessionDatabase, time: FakeTime, fits: str, known: int
) -> None:
    entry = {"model": "digits_mlp", "count": 2, "epochs": 2000, "gpus": 1}
    experiment = smoke(f"knowledge.fits={fits}", "knowledge.mode=online", f"workload.jobs={json.dumps([entry])}")
    cluster = real_cluster(experiment, "jobs", 0, Reporting(time, {"n": 4}), database, "session")
    give(cluster, 1, 0)
    assert (cluster.state().jobs.sizes_seen > 0).sum() == known


def test_ctrl_c_while_controllers_are_taken_over_ends_them_unless_they_are_to_be_kept(
    database: SessionDatabase, time: FakeTime
) -> None:
    experiment, backend = smoke(), Reporting(time, {"n": 4})
    cluster = real_cluster(experiment, "jobs", 0, backend, database, "session")
    while not len(cluster.state().jobs):
        cluster.advance()
    cluster.apply(cluster.state(), Allocation(np.ones(len(cluster.state().jobs), dtype=np.int64)))
    cluster.advance()
    cluster.close(keep=True)

    def interrupt(_: RayCluster) -> None:
        raise KeyboardInterrupt

    for keep in (True, False):
        assert backend.controllers
        with pytest.raises(KeyboardInterrupt):
            real_cluster(experiment, "jobs", 0, backend, database, "session", [interrupt], keep)
    assert not backend.controllers
