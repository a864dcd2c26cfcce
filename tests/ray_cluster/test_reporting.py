"""How much work a controller hands out at once."""

from __future__ import annotations

import pytest

from rlpto.ray_cluster.job.reporting import LONG_STEP_S, MAX_CHUNKS_IN_FLIGHT, Size, TrainingStatistics
from rlpto.ray_cluster.worker.sampling import Position
from rlpto.ray_cluster.worker.training import Chunk


@pytest.mark.parametrize(
    ("step_seconds", "asynchronous", "chunks"),
    [
        (LONG_STEP_S / 2, False, MAX_CHUNKS_IN_FLIGHT),
        (LONG_STEP_S, False, 1),
        (LONG_STEP_S, True, MAX_CHUNKS_IN_FLIGHT),
    ],
    ids=["short", "long", "asynchronous"],
)
def test_long_steps_are_handed_out_one_at_a_time_unless_workers_are_not_to_wait(
    step_seconds: float, asynchronous: bool, chunks: int
) -> None:
    statistics = TrainingStatistics()
    statistics.step_seconds = step_seconds
    assert statistics.chunks_ahead(asynchronous) == chunks


def chunk(number: int, batch_size: int, chosen: bool) -> Chunk:
    """Ten steps that end at second `number`."""
    return Chunk(
        position=Position(step=10 * number, progress=10.0 * number),
        steps=10,
        samples=10 * batch_size,
        batch_size=batch_size,
        chosen=chosen,
        loss=1.0,
        noise_scale=100.0,
        accuracy=0.5,
        evaluated_at=1.0,
        finished=False,
        first=number - 1.0,
        ended=float(number),
    )


def test_speeds_by_size_are_those_at_the_jobs_own_batch_sizes() -> None:
    """They are what fits and online estimates rest on."""
    statistics = TrainingStatistics()
    statistics.grouped(Size(1, 1), rescaled=False, faulty_since=None)
    for number in range(1, 4):
        statistics.add([chunk(number, 8, chosen=False)])
    assert (statistics.batch_size, statistics.samples_per_second) == (8, 80.0)
    for number in range(4, 7):
        statistics.add([chunk(number, 32, chosen=True)])
    assert (statistics.batch_size, statistics.samples_per_second) == (32, 320.0)
    (measured,) = statistics.throughput()
    assert (measured.samples_per_second, measured.count) == (80.0, 20)


def test_speeds_on_kinds_of_gpu_are_kept_apart_and_outlive_the_controller() -> None:
    statistics = TrainingStatistics()
    for at, gpu in enumerate(("t4", "a100")):
        statistics.grouped(Size(1, 1, gpu=gpu), rescaled=False, faulty_since=None)
        for number in range(1, 4):
            statistics.add([chunk(10 * at + number, 8 * (1 + at), chosen=False)])
    again = TrainingStatistics()
    again.restore(statistics.lasting())
    found = {size.gpu: size.samples_per_second for size in again.throughput()}
    assert found == {"t4": 80.0, "a100": 160.0}
    before_kinds = statistics.lasting() | {"speeds": [[1, 1, 0, 100.0, 2.0, 20]]}
    again.restore(before_kinds)
    assert [(size.gpu, size.samples_per_second) for size in again.throughput()] == [("gpu", 50.0)]
