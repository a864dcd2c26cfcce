"""Who shrinks, who pays and who gains, of records made by hand and of a small evaluation."""

from dataclasses import replace

import numpy as np
import pytest

from rlpto.core.records import AllocationChanges, RunRecord
from rlpto.evaluation.convergence import STAGES, convergence, gpus_at, gpus_by_stage
from rlpto.evaluation.plots import records_by_policy
from rlpto.evaluation.runner import FinishedCell

from .helpers import empty_record, tiny_record

DELAYS = {"resnet18": 5.0, "bert": 15.0}


def changing(window: str = "w0", steps: tuple[int, ...] = (4, 2), **jobs: object) -> RunRecord:
    """Three jobs, which all gain their accuracy from 0.1 on. The first holds steps[0] GPUs until it has 85 % of it at
    50 s and, after a pause of 10 s, steps[1]; the second 2 GPUs, the third 4 all along."""
    at = 0.1 + 0.85 * 0.8
    changes = AllocationChanges(
        time=np.array([0.0, 0.0, 50.0, 60.0, 100.0, 200.0, 200.0, 350.0]),
        job=np.array([0, 1, 0, 0, 0, 1, 2, 2]),
        gpus=np.array([steps[0], 2, 0, steps[1], 0, 0, 4, 0]),
        accuracy=np.array([0.1, 0.1, at, at, 0.9, 0.8, 0.1, 0.7]),
    )
    record = tiny_record(changes=changes, window=window)
    reached = {"reached_90": np.array([70.0, 120.0, 250.0]), "reached_99": np.array([90.0, 190.0, 340.0])}
    peak = np.array([max(steps), 2, 4])
    return replace(record, jobs=replace(record.jobs, **({"peak_gpus": peak} | reached | jobs)))


def test_gpus_by_stage_are_weighted_by_the_time_that_a_job_holds_them() -> None:
    found = gpus_by_stage(changing())
    assert len(found[0]) == len(STAGES) - 1 == 6
    on_4, on_2 = 50 * 0.05 / 0.85, 10.0
    assert found[0] == pytest.approx([4, 4, (4 * on_4 + 2 * on_2) / (on_4 + on_2), 2, 2, 2]), "80 to 85 % on 4, then 2"
    assert found[1:].tolist() == [[2.0] * 6, [4.0] * 6]
    assert [gpus_at(changing(), share).tolist() for share in (0.7, 0.99)] == [[4, 2, 4], [2, 2, 4]]


def test_time_at_full_accuracy_belongs_to_the_last_stage() -> None:
    none = np.full(3, np.nan)
    changes = AllocationChanges(
        time=np.array([0.0, 90.0, 100.0]), job=np.zeros(3, dtype=np.int64), gpus=np.array([2, 4, 0]),
        accuracy=np.array([0.1, 0.9, 0.9]),
    )  # fmt: skip
    found = gpus_by_stage(replace(changing(reached_90=none, reached_95=none, reached_99=none), changes=changes))
    on_2, on_4 = 90 * 0.01, 10.0
    assert found[0] == pytest.approx([2, 2, 2, 2, 2, (2 * on_2 + 4 * on_4) / (on_2 + on_4)])


def test_unfinished_jobs_have_no_stages_and_one_that_stops_early_not_the_last() -> None:
    found = gpus_by_stage(changing(finish_time=np.array([100.0, np.nan, 350.0])))
    assert np.isnan(found[1]).all()
    assert not np.isnan(found[0]).any()
    stopped = changing(full_accuracy=np.array([0.1 + 0.8 / 0.96, np.nan, np.nan]), reached_99=np.full(3, np.nan))
    assert np.isnan(gpus_by_stage(stopped)[0]).tolist() == [False] * 5 + [True]
    assert np.isnan(gpus_at(stopped, 0.99)[0])
    nothing_to_gain = changing(final_accuracy=np.array([0.9, 0.1, 0.7]))
    assert np.isnan(gpus_by_stage(nothing_to_gain)[1]).all()


def test_jobs_that_shrink_pay_and_others_gain() -> None:
    agent, usual = changing(), changing(steps=(4, 4))
    slower = replace(usual.jobs, finish_time=usual.jobs.finish_time / [2.0, 0.5, 1.0], reached_95=np.full(3, 400.0))
    found = convergence([agent], [replace(usual, jobs=slower)], DELAYS)
    assert found.jobs == 3
    assert found.shrink.estimate == pytest.approx(1 / 3)
    assert found.grow.estimate == 0.0
    assert [found.held[stage].estimate for stage in (0, 1, 3, 4, 5)] == pytest.approx(
        [1.0, 1.0, *[0.5 ** (1 / 3)] * 3]
    ), "geometric mean over three jobs"
    assert found.shrinking_jct.estimate == pytest.approx(2.0)
    assert found.other_jct.estimate == pytest.approx(0.5**0.5), "job b takes half as long, job c as long"
    assert found.other_to_95.estimate == pytest.approx((160 / 400 * 250 / 350) ** 0.5)
    assert found.sentence("agent", "fifo") == (
        "Under agent 33 % of the 3 jobs with several GPUs at 70 % of their accuracy hold fewer at 99 %, and 0 % more; "
        "relative to fifo, JCT is 2.00 for jobs with fewer GPUs and 0.71 for all others, whose time to 95 % is 0.53."
    )


def test_growing_jobs_are_counted_apart_and_a_policy_against_itself_has_no_ratios_in_its_sentence() -> None:
    runs = [changing(steps=(2, 4))]
    found = convergence(runs, runs, DELAYS)
    assert (found.shrink.estimate, found.grow.estimate) == (0.0, pytest.approx(1 / 3))
    assert found.other_jct.estimate == 1.0
    assert not found.shrinking_jct.samples
    assert found.sentence("a", "a").endswith("hold fewer at 99 %, and 33 % more.")
    assert "JCT is – for jobs with fewer GPUs and 1.00" in found.sentence("a", "b")  # noqa: RUF001


@pytest.mark.parametrize(
    ("steps", "delays", "counted"),
    [
        ((4, 2), {}, 3),
        ((4, 2), {"resnet18": 10.1, "bert": 15.0}, 2),
        ((4, 2), {"bert": 15.1}, 2),
        ((1, 1), DELAYS, 2),
        ((1, 4), DELAYS, 2),
        ((4, 2), {"resnet18": 11.0, "bert": 21.0}, 0),
    ],
)
def test_short_jobs_and_those_of_one_gpu_are_not_counted(steps, delays, counted) -> None:
    found = convergence([changing(steps=steps)], [changing()], delays)
    assert found.jobs == counted
    assert found.held[1].samples == bool(counted)
    if not counted:
        assert found.sentence("a", "b") == "Under a no job that ran for 10 rescale delays had several GPUs at 70 %."
        assert np.isnan(found.shrink.estimate)


def test_every_job_counts_alike_and_windows_are_what_is_sampled() -> None:
    shrinking, usual = [changing(f"w{i}") for i in range(4)], [changing(f"v{i}", (4, 4)) for i in range(4)]
    one = changing("w0", peak_gpus=np.array([4, 1, 1]))
    found = convergence([one, *usual], [one, *usual], DELAYS)
    assert found.shrink.estimate == pytest.approx(1 / 13), "one of 1 + 4 x 3 jobs"
    assert found.shrink.samples == 5
    assert 0.0 <= found.shrink.low < 1 / 13 < found.shrink.high <= 1.0
    same = convergence(shrinking, shrinking, DELAYS).shrink
    assert (same.low, same.high) == pytest.approx((1 / 3, 1 / 3))
    assert not convergence(shrinking[:1], shrinking[:1], DELAYS).shrink.bounded, "one window has no interval"


def test_runs_without_jobs() -> None:
    found = convergence([empty_record()], [empty_record()], {})
    assert found.jobs == 0
    assert "no job" in found.sentence("a", "b")


def test_figures_of_an_evaluation_agree_with_its_records(finished: list[FinishedCell]) -> None:
    records = records_by_policy(finished)
    found = convergence(records["share"], records["fifo"], {})
    held = np.concatenate([gpus_by_stage(record) for record in records["share"]])
    peak = np.concatenate([record.jobs.peak_gpus for record in records["share"]])
    relative = np.log(held / held[:, [1]])[peak > 1]
    assert [stage.estimate for stage in found.held] == pytest.approx(np.exp(np.nanmean(relative, axis=0)))
    assert ((held <= peak[:, None] + 1e-9) | np.isnan(held)).all()
    assert found.shrink.estimate > 0, "under an equal share jobs lose GPUs to those that arrive"
    assert found.shrink.estimate + found.grow.estimate <= 1.0
    assert found.other_jct.bounded
    rigid = convergence(records["fifo"], records["fifo"], {})
    assert (rigid.shrink.estimate, rigid.grow.estimate) == (0.0, 0.0)
    assert [stage.estimate for stage in rigid.held] == pytest.approx([1.0] * 6)
