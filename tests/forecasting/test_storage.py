"""Saved forecasters from strangers: a changed file is refused in one line, or forecasts numbers."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest

from rlpto.forecasting.base import Forecaster
from rlpto.forecasting.gru import GruForecaster
from rlpto.forecasting.hybrid import HybridForecaster
from rlpto.forecasting.registry import METHODS, load, make_forecaster
from rlpto.forecasting.series import ForecastError
from rlpto.forecasting.storage import FORMAT, State, write_state
from rlpto.forecasting.trees import TreesForecaster
from rlpto.io.archive import write_archive
from rlpto.io.arrays import AnyArray
from rlpto.io.errors import RlptoError

from .builders import days


@pytest.fixture(scope="module")
def states() -> dict[str, State]:
    whole = days(12)
    fitted: dict[str, Forecaster] = {
        **{name: make_forecaster(name) for name in ("naive", "smoothing", "arima_fourier")},
        "trees": TreesForecaster(horizon=2, rows=500),
        "gru": GruForecaster(horizon=2, hidden=4, updates=3),
        "hybrid": HybridForecaster(horizon=2, hidden=4, updates=3),
    }
    return {name: forecaster.fit(whole).state() for name, forecaster in fitted.items()}


def value(path: str, to: object) -> Callable[[State], None]:
    def change(state: State) -> None:
        values = state.values
        *outer, last = path.split("/")
        for name in outer:
            values = values[name]
        values[last] = to

    return change


def array(name: str, change: Callable[[AnyArray], AnyArray]) -> Callable[[State], None]:
    def changed(state: State) -> None:
        state.arrays[name] = change(state.arrays[name].copy())

    return changed


def first(to: float) -> Callable[[AnyArray], AnyArray]:
    def change(array: AnyArray) -> AnyArray:
        array.flat[0] = to
        return array

    return change


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("naive", array("history", first(np.nan)), "history: expected finite numbers"),
        ("naive", array("history", lambda a: a[:0]), "history of 0 points"),
        ("naive", value("step", float(2**60)), "step 1.15"),
        ("naive", value("settings", {"shell": "rm"}), "broken, expected a saved Naive"),
        ("smoothing", value("learnt/alpha", 0.0), "alpha 0.0: expected a number, 0.001 to 1"),
        ("arima_fourier", value("learnt/difference", 2**40), "difference 1099511627776: expected an integer, 0 to 1"),
        ("arima_fourier", array("learnt/ar", lambda _: np.array([3.0])), "expected at most 3, stable"),
        ("arima_fourier", array("learnt/coefficients", lambda _: np.zeros(99)), "coefficients of float64 (99,)"),
        ("trees", array("learnt/feature.0", first(500)), "trees: expected nodes"),
        ("trees", value("settings/horizon", 10**9), "horizon 1000000000: expected an integer, 1 to 1000"),
        ("gru", value("settings/hidden", 2**40), "hidden 1099511627776"),
        ("gru", array("learnt/memory", first(np.nan)), "memory: expected finite numbers"),
        ("hybrid", array("learnt/combined.origins", first(-(2**60))), "combined: expected counts, 0 or more"),
        ("hybrid", lambda state: state.arrays.pop("learnt/combined.losses"), "expected a saved HybridForecaster"),
        ("hybrid", value("learnt/member.arima_raw/learnt/difference", 2**40), "arima_raw: difference 1099511627776"),
    ],
)
def test_forged_values_are_refused_by_name(
    states: dict[str, State], tmp_path: Path, name: str, change: Callable[[State], None], said: str
) -> None:
    state = deepcopy(states[name])
    change(state)
    write_state(tmp_path / "forged", METHODS[name][0].split(":")[1], state)
    with pytest.raises(ForecastError) as caught:
        load(tmp_path / "forged")
    text = str(caught.value)
    assert said in text
    assert text.startswith(f"{tmp_path / 'forged'}: ")
    assert "\n" not in text
    assert isinstance(caught.value, RlptoError)


def test_foreign_manifests_and_classes_there_are_not_are_refused(states: dict[str, State], tmp_path: Path) -> None:
    for manifest, said in (
        ({"format": "rlpto forecaster 0"}, "its format is 'rlpto forecaster 0', expected rlpto forecaster 1"),
        ({"format": FORMAT, "values": []}, "its manifest lacks values, expected rlpto forecaster 1"),
    ):
        write_archive(tmp_path / "f", manifest, {}, "a test")
        with pytest.raises(ForecastError, match=said):
            load(tmp_path / "f")
    write_state(tmp_path / "old", "sarima", states["naive"])
    with pytest.raises(ForecastError, match="old: forecaster 'sarima': expected one of Naive"):
        load(tmp_path / "old")


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("")
    with pytest.raises(ForecastError, match="cannot write the forecaster there"):
        make_forecaster("naive").fit(np.ones(20), step="1h").save(tmp_path / "blocked" / "f")
    assert [path.name for path in tmp_path.iterdir()] == ["blocked"]
