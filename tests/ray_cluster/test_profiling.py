"""Measuring programs: where, what for, and what a profile makes of it."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.io.errors import JobError, ProfileError
from rlpto.performance.fitted import choices_by_size
from rlpto.performance.profiles import load_file, profiles_yaml
from rlpto.performance.tables import JobType
from rlpto.ray_cluster import measuring
from rlpto.ray_cluster.controllers import find_controllers
from rlpto.ray_cluster.measuring import (
    Change,
    CommandedJob,
    ProgramMeasurements,
    by_epoch,
    fit_program,
    measure_program,
    placements,
    stages,
    start_delay,
    visits,
)
from rlpto.ray_cluster.messages import JobReport, Measured
from rlpto.ray_cluster.nodes.local import LocalCluster
from rlpto.ray_cluster.settings import GUESSED_NOISE_SCALE, ProgramSettings
from tests.ray_cluster.running import make_spec

PROGRAM = ProgramSettings(training="some.module:Program", samples=1000, epochs=4, batch_size=120)


@given(st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_no_placement_takes_more_of_a_node_than_it_has(gpus: list[int]) -> None:
    nodes = {f"n{i}": count for i, count in enumerate(gpus)}
    found = placements(nodes)
    assert len(found[0]) == 1
    assert len(set(found)) == len(found)
    assert max(map(len, found)) == sum(gpus)
    for place in found:
        assert all(place.count(node) <= nodes[node] for node in place)
    assert [len(place) for place in found] == sorted(map(len, found))


def test_sizes_are_powers_of_two_and_what_lies_between_and_those_that_fit_on_one_node_are_on_two_as_well() -> None:
    assert [len(place) for place in placements({"a": 8})] == [1, 2, 3, 4, 6, 8]
    assert [len(place) for place in placements({"a": 7})] == [1, 2, 3, 4, 6, 7]
    assert placements({"a": 2, "b": 2}) == [("a",), ("a", "a"), ("a", "b"), ("a", "a", "b"), ("a", "a", "b", "b")]
    assert visits({"a": 2, "b": 2})[-3:] == [("a",), (), ("a", "b")]


class Slow(CommandedJob):
    """A job with two workers in virtual time. step: seconds of a step. lost: when one is lost [s], after which the
    other trains on."""

    def __init__(self, step: float, lost: float = math.inf) -> None:
        self.spec, self.nodes = make_spec(Path("nowhere")), ("a", "a")
        self.now, self._step, self._lost = 0.0, step, lost

    def report(self) -> JobReport:
        both, done = int(min(self.now, self._lost) / self._step), int(self.now / self._step)
        return JobReport("job", step=done, throughput=(Measured(2, 1, 1.0, both), Measured(1, 1, 1.0, done - both)))

    def sleep(self, _: float) -> None:
        self.now += 1.0


def test_a_measurement_takes_as_long_as_it_needs_while_there_are_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    for job, least, expected in ((Slow(2.0), 1000.0, 1000.0), (Slow(50.0), 10.0, 1000.0), (Slow(0.5), 10.0, 10.0)):
        monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda job=job: job.now, sleep=job.sleep))
        job.train(least, 20)
        assert job.now == pytest.approx(expected, abs=2.0)
    job = Slow(2.0, lost=500.0)
    monkeypatch.setattr(measuring, "time", SimpleNamespace(monotonic=lambda: job.now, sleep=job.sleep))
    with pytest.raises(JobError, match="has made no progress within 300 s"):
        job.train(1000.0, 20)


def seconds(workers: int) -> float:
    """Of a step: 0.4 s divided by its workers, and 0.01 s more if there are several."""
    return 0.4 / workers + (0.01 if workers > 1 else 0.0)


def test_a_profile_tells_what_was_measured(tmp_path: Path) -> None:
    sizes = (1, 1), (2, 1), (2, 2), (3, 2), (4, 2), (6, 3), (8, 4)
    changes = (
        Change("start", 1, 1, 4.0),
        Change("grow", 2, 1, 3.0, 0.05),
        Change("move", 2, 1, 90.0, 0.05),
        Change("shrink", 1, 0, 0.1, 0.02),
        Change("restart", 2, 2, 5.0),
    )
    speeds = tuple(Measured(*size, 120 / seconds(size[0]), 100) for size in sizes)
    accuracy, noise = ((1.0, 0.6), (2.5, 0.8), (4.0, 0.9)), ((0.5, 100.0), (4.0, 400.0))
    profile = fit_program("mine", PROGRAM, ProgramMeasurements(speeds, changes, 0.1, accuracy, noise, True), "here")
    assert profile.rescale_delay == 4.0
    assert profile.errors.throughput_p90 < 0.03
    assert profile.accuracy.untrained == 0.1
    assert profile.accuracy(4.0) == pytest.approx(0.9, abs=0.05)
    assert profile.noise(0) < profile.noise(3)
    rates = choices_by_size(profile, JobType(profile.name), 8).progress / profile.samples
    for workers, nodes in ((1, 1), (2, 1), (2, 2), (4, 2), (8, 4)):
        assert rates[min(nodes, 2) - 1, workers - 1] == pytest.approx(120 / seconds(workers) / 1000, rel=0.04)
    path = tmp_path / "here.yaml"
    path.write_text(profiles_yaml([profile]))
    assert load_file(path) == {"mine": profile}


def test_a_batch_for_each_worker_grows_with_them() -> None:
    program = PROGRAM.model_copy(update={"batch_rule": "per_worker"})
    sizes = tuple(Measured(k, 1, 120 * k / (0.2 + (0.02 if k > 1 else 0.0)), 50) for k in (1, 2, 4))
    measured = ProgramMeasurements(sizes, (Change("start", 1, 1, 2.0),), 0.1, ((1.0, 0.5), (2.0, 0.7)), (), False)
    profile = fit_program("mine", program, measured, "here")
    assert profile.batch.largest == 480
    assert 480 / profile.throughput.step_time(1, 4, 120) == pytest.approx(480 / 0.22, rel=0.05)
    assert float(profile.noise(0)) == pytest.approx(GUESSED_NOISE_SCALE)
    assert profile.source.endswith("trained for 2.0 of its epochs only")


def test_what_was_not_measured_is_an_error() -> None:
    assert by_epoch("mine", ((1.0, 0.5), (3.0, 0.7), (3.6, 0.9))).tolist() == pytest.approx([0.5, 0.6, 0.7])
    for points, epochs in (((0.4, 0.5),), "0.40"), ((), "0.00"):
        with pytest.raises(ProfileError, match=f"mine: trained for {epochs} epochs in the time given, expected at"):
            by_epoch("mine", points)
    with pytest.raises(ProfileError, match="no start of a worker was measured"):
        start_delay((Change("shrink", 1, 0, 0.1),))
    lacking = ProgramMeasurements((Measured(2, 1, 100.0, 9),), (), 0.1, ((1.0, 0.5),), (), True)
    with pytest.raises(ProfileError, match="the speed of one worker was not measured"):
        fit_program("mine", PROGRAM, lacking, "here")


@pytest.mark.slow
def test_a_real_program_is_measured_and_leaves_no_controller(ray_cluster: LocalCluster, tmp_path: Path) -> None:
    a, b, *_ = ray_cluster.node_ids
    spec = make_spec(tmp_path, session="measured", epochs=3.0, pace=0.05, float64=False)
    announced: list[str] = []
    measured = measure_program(spec, {a: 1, b: 1}, 1.0, 60.0, announced.append)
    assert len(announced) == stages({a: 1, b: 1})
    assert [(size.workers, size.nodes) for size in measured.sizes] == [(1, 1), (2, 2)]
    for size in measured.sizes:  # never faster than the pace; how much slower, this machine decides
        assert size.samples_per_second <= 1.02 * 16 * size.workers / 0.05
    kinds = [change.kind for change in measured.changes]
    assert kinds == ["start", "start", "grow", "shrink", "restart"]
    assert all(change.seconds > 0 for change in measured.changes)
    assert [math.isnan(change.pause) for change in measured.changes] == [True, True, False, False, True]
    assert measured.changes[2].pause != measured.changes[3].pause  # each has its own
    assert measured.complete
    assert measured.accuracy[-1][0] == 3.0
    assert 0 <= measured.untrained <= 1
    profile = fit_program("tiny", PROGRAM.model_copy(update={"batch_size": 16}), measured, "here")
    assert np.all(choices_by_size(profile, JobType(profile.name), 2).progress > 0)
    assert find_controllers("measured") == {}
