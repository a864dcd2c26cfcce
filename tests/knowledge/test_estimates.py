"""Estimates of jobs: against stored fits of Pollux, and by properties."""

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.job_store import JobStore
from rlpto.knowledge.estimates import ChoiceRule, ThroughputFit, choose, efficiency_seen
from rlpto.knowledge.online_fit import fit_observed
from rlpto.knowledge.remaining import RemainingKnowledge, ending_at, parts_done
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.efficiency import BatchLimits
from rlpto.performance.profiles import builtin_profiles
from rlpto.performance.tables import JobType
from rlpto.performance.throughput import StepMeasurements, ThroughputParams

from ..builders import job, linear_tables, measured_steps, remaining_work, with_batch_sizes


@pytest.fixture(scope="module")
def cases(shared_data: Path) -> list[dict]:
    path = shared_data / "pollux" / "pollux-fit-cases.json"
    if not path.exists():
        pytest.skip(f"no stored fits at {path}")
    return json.loads(path.read_text())


def fit_of(case: dict, *, own_fit: bool) -> ThroughputFit:
    limits = BatchLimits(*(case[key] for key in ("base", "largest", "min_local", "max_local")))
    columns = ("nodes", "gpus", "local", "step_time", "sync_time")
    rows = StepMeasurements(*(np.array([row[key] for row in case["observations"]], dtype=float) for key in columns))
    fit = ThroughputFit(limits, None, 64)
    fit.params = fit_observed(rows) if own_fit else ThroughputParams(**case["fitted"])
    return fit


def test_the_same_batch_follows_from_the_same_parameters(cases: list[dict]) -> None:
    for case in cases:
        fit = fit_of(case, own_fit=False)
        for best in case["best"]:
            found = fit.candidates(best["gpus"])
            throughput = fit.throughput(best["nodes"], best["gpus"])
            scales = found.weighed / case["base"]
            chosen = choose(
                throughput, scales, np.ones_like(scales), case["grad_sqr"], case["grad_var"], ChoiceRule(), -1
            )
            assert (found.taken[chosen], found.accumulation[chosen]) == (best["local"], best["accumulation"])
            useful = efficiency_seen(case["grad_sqr"], case["grad_var"], scales[chosen], 0.0)
            assert throughput[chosen] * useful == pytest.approx(best["goodput"], rel=1e-6)


def test_nearly_the_same_goodput_follows_from_a_fit_to_the_same_steps(cases: list[dict]) -> None:
    for case in cases:
        goodput = fit_of(case, own_fit=True).score(case["grad_sqr"], case["grad_var"]).best
        for best in case["best"]:
            span = min(best["nodes"], 2) - 1
            assert goodput[span, best["gpus"] - 1] == pytest.approx(best["goodput"], rel=0.01)


def test_fits_agree_with_steps_that_were_seen() -> None:
    """But for a fit here and there whose minimiser stops in one of the objective's kinks."""
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(60):
        alpha, share, growth = rng.uniform(0.01, 0.3), rng.uniform(0.1, 1.5), rng.uniform(0.0, 0.1)
        one = alpha * share
        beta, gamma = rng.uniform(1e-4, 5e-3), rng.uniform(1.0, 3.0)
        truth = ThroughputParams(alpha, beta, 1.5 * one, growth * one, one, growth * one, gamma)
        rows = measured_steps(truth, [(1, 1), (1, 2), (1, 4), (2, 8)], (64, 256, 700))
        noise = rng.lognormal(0.0, 0.02, (2, len(rows)))
        rows = replace(rows, step_time=rows.step_time * noise[0], sync_time=rows.sync_time * noise[1])
        fit = fit_observed(rows)
        estimated = fit.step_time(rows.nodes, rows.replicas, rows.local_batch)
        errors.append(np.abs(estimated / rows.step_time - 1).mean())
        assert fit == fit_observed(rows)
    assert np.quantile(errors, 0.9) < 0.05


def test_a_step_that_only_synchronises_leaves_a_fit_finite() -> None:
    truth = ThroughputParams(0.05, 0.001, 0.15, 0.01, 0.1, 0.01, 1.5)
    rows = measured_steps(truth, [(1, 1), (1, 2), (2, 4)], (64, 256))
    rows.sync_time[2] = rows.step_time[2]
    assert np.isfinite(fit_observed(rows).step_time(rows.nodes, rows.replicas, rows.local_batch)).all()


def test_jobs_whose_batch_size_was_chosen_are_learnt_from() -> None:
    tables = with_batch_sizes(linear_tables(), {100: 0.9})
    store = JobStore.from_jobs([job(0, epochs=7.0), job(1, epochs=3.0)], tables)
    store.finish_time[0], store.progress[0], store.type_index[0] = 50.0, 7.0, 1
    assert remaining_work("learnt", store, tables)(np.array([1])).tolist() == [7.0]
    assert remaining_work("unknown", store, tables)(np.array([1])).tolist() == [1.0]
    assert remaining_work("declared", store, tables)(np.array([1])).tolist() == [3.0]
    store.progress[1] = 3.0
    assert remaining_work("unknown", store, tables)(np.array([1])).tolist() == [6.0]


@pytest.mark.parametrize(
    ("users", "done", "left"),
    [
        (("ann", "bob", "ann", "bob"), 0.0, 2.0),  # bob's own job took 2
        (("ann", "bob", "ann", "eve"), 0.0, 2.0),  # eve has finished none: the mean of all
        (("ann", "bob", "ann", "bob"), 2.5, 0.5),  # bob's were shorter than what this one has done
        (("ann", "bob", "ann", "ann"), 1.5, 1.5),
        (("", "", "", ""), 0.0, 2.0),
        (("ann", "bob", "ann", "bob"), 5.0, 10.0),  # longer than all: twice what was done
    ],
)
def test_lengths_are_learnt_from_the_user_s_own_jobs_first(users: tuple[str, ...], done: float, left: float) -> None:
    """All jobs but the last have finished, after as many epochs as their number and one."""
    store = JobStore.from_jobs([job(i, epochs=90.0, user=user) for i, user in enumerate(users)], linear_tables())
    store.finish_time[:-1], store.progress[:] = 50.0, [*range(1, len(users)), done]
    last = np.array([len(users) - 1])
    assert remaining_work("learnt", store, linear_tables())(last).tolist() == [left]


def test_what_is_declared_or_learnt_is_known_and_what_is_guessed_is_not() -> None:
    store = JobStore.from_jobs([job(0, epochs=7.0), job(1, epochs=9.0), job(2, epochs=9.0)], linear_tables())
    store.finish_time[0], store.progress[:] = 50.0, [7.0, 3.0, 8.0]
    active = np.array([1, 2])
    ways = get_args(RemainingKnowledge)
    known = {how: remaining_work(how, store, linear_tables()).known(active).tolist() for how in ways}
    learnt = [True, False]  # the second has trained for longer than any that has finished
    assert known == {
        "declared": [True, True],
        "learnt": learnt,
        "learnt_or_curve": learnt,
        "curve": [False, False],
        "unknown": [False, False],
    }


def test_possible_lengths_are_those_of_finished_jobs_and_longer_ones() -> None:
    """Jobs of 1 to 4 epochs have finished; one has trained for 1.5, and one for 2.5, so that fewer end at 2."""
    store = JobStore.from_jobs([job(i, epochs=90.0, user="ann") for i in range(6)], linear_tables())
    store.finish_time[:4], store.progress[:] = 50.0, [1.0, 2.0, 3.0, 4.0, 1.5, 2.5]
    rng, work = np.random.default_rng(0), remaining_work("learnt", store, linear_tables())
    lengths = 1.5 + work.drawn(np.array([4]), 6000, rng)
    shares = [np.mean(np.isclose(lengths, length)) for length in (2.0, 3.0, 4.0)]
    once = np.array([1 / 5, 4 / 15, 4 / 15])  # by Kaplan and Meier, with one more job that is longer than all
    np.testing.assert_allclose(shares, once * (2 - once.sum()), atol=0.02)
    assert (lengths > 4.0).mean() == pytest.approx(1 - sum(shares))
    assert remaining_work("declared", store, linear_tables()).drawn(np.array([4]), 2, rng).tolist() == [[88.5], [88.5]]


def test_a_job_of_unknown_length_trains_for_twice_as_long_in_half_of_the_futures() -> None:
    store = JobStore.from_jobs([job(0, epochs=90.0)], linear_tables())
    store.progress[0] = 6.0
    rng = np.random.default_rng(0)
    for how in ("unknown", "learnt"):  # none has finished
        work = remaining_work(how, store, linear_tables())
        assert (work.drawn(np.array([0]), 4000, rng) > 6.0).mean() == pytest.approx(0.5, abs=0.03)
        store.progress[0] = 0.0
        assert len(np.unique(work.drawn(np.array([0]), 40, rng))) > 10, "nothing is known of a job that has not trained"
        store.progress[0] = 6.0


@given(st.lists(st.floats(0.1, 9.0), max_size=8), st.lists(st.floats(0.1, 9.0), max_size=8))
def test_chances_of_lengths_leave_one_for_a_longer_job(finished: list[float], active: list[float]) -> None:
    lengths = np.sort(np.array(finished))
    chances = ending_at(lengths, np.sort(active))
    assert (chances > 0).all()
    assert 0 < 1 - chances.sum() <= 1
    np.testing.assert_allclose(ending_at(lengths, np.zeros(0)), 1 / (len(lengths) + 1))


EPOCHS = builtin_profiles()["deepspeech2"].epochs


def left_after(progress: float, how: str) -> float:
    tables = compile_tables(load_profiles(None), [JobType("deepspeech2")], 4, 4)
    store = JobStore.from_jobs([job(0, model="deepspeech2", epochs=float(EPOCHS))], tables)
    store.progress[0] = progress
    return float(remaining_work(how, store, tables)(np.array([0]))[0])


@pytest.mark.parametrize("model", sorted(builtin_profiles()))
def test_a_curve_that_says_nothing_leaves_the_rule_of_unknown_work(model: str) -> None:
    assert parts_done(model, np.array([np.nan]), np.array([1 / 3])) == pytest.approx(1 / 3)
    assert left_after(0.0, "curve") == left_after(0.0, "unknown") == 1.0


def test_a_flat_curve_means_that_little_is_left() -> None:
    """Of its own model nothing is used: other models' curves alone say how far a job is."""
    early, late = (left_after(part * EPOCHS, "curve") / (part * EPOCHS) for part in (0.1, 0.9))
    assert late < 1.0 < early
    curve, unknown = (np.log(left_after(0.9 * EPOCHS, how) / (0.1 * EPOCHS)) for how in ("curve", "unknown"))
    assert abs(curve) < abs(unknown)
