from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.forecasting.features import describe, layout_of
from rlpto.forecasting.series import TimeSeries


def series(points: int, step: float, seed: int = 0) -> TimeSeries:
    return TimeSeries(np.random.default_rng(seed).poisson(5, points).astype(float), step)


@given(st.integers(1, 400), st.sampled_from([600.0, 3600.0, 86400.0]), st.integers(1, 30))
@settings(max_examples=30)
def test_an_origin_alone_has_the_features_it_has_among_many(origin: int, step: float, horizon: int) -> None:
    whole, layout = series(400, step), layout_of(series(400, step), 12)
    among = describe(layout, whole, np.arange(1, 401), horizon)
    alone = describe(layout, whole.head(origin), np.array([origin]), horizon)
    for name, values in vars(alone).items():
        np.testing.assert_allclose(values[0], getattr(among, name)[origin - 1], atol=1e-9, err_msg=name)


def test_daily_lag_is_the_value_of_the_same_hour_yesterday() -> None:
    whole = TimeSeries(np.arange(200.0), 3600.0)
    seen = describe(layout_of(whole, 12), whole, np.array([100]), 30)
    lags = np.expm1(seen.targets[0, :, 2] + seen.level[0])
    # Steps 1 to 24 see yesterday; from step 25 on only the day before that is known.
    np.testing.assert_allclose(lags, np.r_[np.arange(76.0, 100.0), np.arange(76.0, 82.0)])


@pytest.mark.parametrize("points", [1, 2, 5])
def test_short_pasts_give_finite_features(points: int) -> None:
    whole = series(points, 600.0)
    seen = describe(layout_of(whole, 12), whole, np.array([points]), 12)
    assert all(np.isfinite(values).all() for values in vars(seen).values())
