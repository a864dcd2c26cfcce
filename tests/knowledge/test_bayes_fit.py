"""Fits with a prior from other models: estimates of sizes that were seen, and of other sizes."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.knowledge.bayes_fit import MOST_ROWS, fit_with_prior
from rlpto.knowledge.estimates import ThroughputFit
from rlpto.knowledge.evidence import Step
from rlpto.knowledge.job_estimates import NoiseSlopes
from rlpto.knowledge.prior import law_at, prior_without, reference_batch
from rlpto.performance.profiles import builtin_profiles
from rlpto.performance.throughput import StepMeasurements, ThroughputParams

from ..builders import measured_steps

PROFILES = builtin_profiles()
MODELS = sorted(PROFILES)
ONE_NODE = [(1, 1), (1, 2), (1, 4)]
SEVERAL = [*ONE_NODE, (2, 8), (4, 16)]


@pytest.mark.parametrize("model", MODELS)
def test_fits_agree_with_sizes_that_were_seen(model: str) -> None:
    law, reference = PROFILES[model].throughput, reference_batch(PROFILES[model].batch)
    rows = measured_steps(law, SEVERAL, (reference, 2 * reference))
    fit = fit_with_prior(rows, prior_without(model), reference)
    estimated = law_at(fit.point, reference).step_time(rows.nodes, rows.replicas, rows.local_batch)
    assert np.abs(np.log(estimated / rows.step_time)).max() < 0.1
    again = fit_with_prior(rows, prior_without(model), reference)
    assert np.array_equal(fit.point, again.point)


@pytest.mark.parametrize("model", MODELS)
def test_one_gpu_says_little_about_many(model: str) -> None:
    """Speeds grow from what was seen, less than perfectly; they become surer with every size."""
    profile, sigma = PROFILES[model], {}
    local = int(reference_batch(profile.batch))
    for sizes in (ONE_NODE[:1], ONE_NODE, SEVERAL):
        fit = ThroughputFit(profile.batch, None, 64, prior=prior_without(model))
        rows = measured_steps(profile.throughput, sizes, (local,))
        for (nodes, gpus), step, sync in zip(sizes, rows.step_time, rows.sync_time, strict=True):
            fit.observe(Step(nodes, gpus, local, float(step), float(sync)))
        fit.fit()
        shown = fit.score(1.0, 0.0)
        assert fit.sizes == len(sizes)
        sigma[len(sizes)] = shown.sigma[1, [0, 3, 15, 63]]
        assert (shown.best[0, 1:8] < np.arange(2, 9) * shown.best[0, 0] * 1.001).all()
    assert sigma[1][2] > 3 * sigma[1][0]
    assert sigma[5][2] < 0.8 * sigma[1][2]
    assert sigma[5][0] < 0.1


@pytest.mark.parametrize("odd", range(3))
@pytest.mark.parametrize("model", MODELS)
def test_one_step_far_off_the_others_counts_little(model: str, odd: int) -> None:
    """It took ten times as long, since its job paused. Of several GPUs only whole steps are known, as of real jobs."""
    profile = PROFILES[model]
    reference = reference_batch(profile.batch)
    rows = measured_steps(profile.throughput, [(1, 1), (1, 2), (1, 4), (2, 8), (4, 16)], (reference,))
    rows = replace(rows, sync_time=np.where(rows.replicas > 1, np.nan, 0.0))
    slow = np.where(np.arange(len(rows)) == odd, 10.0, 1.0)
    fine, off = (
        law_at(fit_with_prior(given, prior_without(model), reference).point, reference)
        for given in (rows, replace(rows, step_time=slow * rows.step_time))
    )
    np.testing.assert_allclose(off.step_time(8, 32, reference), fine.step_time(8, 32, reference), rtol=0.3)


@given(seed=st.integers(0, 1000))
def test_many_like_steps_are_worth_their_mean(seed: int) -> None:
    """Sixty observations, as pooled, give about what twenty of them do."""
    rng, law = np.random.default_rng(seed), ThroughputParams(0.05, 0.001, 0.03, 0.002, 0.01, 0.0005, 1.5)
    rows = measured_steps(law, SEVERAL, tuple(np.geomspace(64, 256, 2 * MOST_ROWS // len(SEVERAL))))
    few = rng.permutation(len(rows))[:20]
    fits = [
        fit_with_prior(StepMeasurements(*(column[part] for column in vars(rows).values())), prior_without(""), 128.0)
        for part in (slice(None), few)
    ]
    all_rows, some = (law_at(fit.point, 128.0).step_time(2, 8, 128) for fit in fits)
    assert abs(np.log(all_rows / some)) < 0.1


def test_the_slope_of_the_noise_is_learnt_from_batches_of_one_epoch() -> None:
    rng = np.random.default_rng(0)
    slopes = NoiseSlopes(0.2, learn=True)
    for job in range(200):  # the noise grows with the epochs, as batches do: that alone is no slope
        epoch = job % 20
        slopes.learn(0, job, epoch, 1.0, 2.0**epoch, 2.0 ** (epoch / 4))
    assert slopes.of(0) == pytest.approx(0.2)
    for job in range(200, 600):
        scale = 2.0 ** rng.uniform(0, 5)
        slopes.learn(0, job, job % 20, 1.0, 2.0 ** (job % 20) * scale**0.6, scale)
    assert slopes.of(0) == pytest.approx(0.6, abs=0.15)
    assert slopes.of(1) == 0.2
