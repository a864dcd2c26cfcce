"""Jobs that train alone: their duration, and what a training costs."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.io.errors import ConfigError
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.metrics import METRIC_NAMES, STOCK_BAND, UtilityBand
from rlpto.performance.size_table import SizeTable
from rlpto.performance.solo import chosen_gpus, parse_gpus, predict_training, seconds_to_finish
from rlpto.performance.tables import JobType, SpeedTables

TABLES = compile_tables(load_profiles(None), [JobType("bert"), JobType("cifar10")], 16, 4)


def in_steps(tables: SpeedTables, type_index: int, epochs: float, gpus: int) -> float:
    """Seconds, one epoch after the other."""
    row = tables.row[type_index, 0 if gpus <= 4 else 1, gpus]
    seconds, epoch = 0.0, 0
    while epochs > 0:
        part = min(epochs, 1.0)
        seconds += part / tables.rates[row, min(epoch, tables.rates.shape[1] - 1)]
        epochs -= part
        epoch += 1
    return seconds


@given(type_index=st.integers(0, 1), epochs=st.floats(0.01, 130.0), gpus=st.integers(1, 16), scale=st.floats(0.1, 10.0))
def test_time_is_the_sum_over_epochs(type_index: int, epochs: float, gpus: int, scale: float) -> None:
    seconds = seconds_to_finish(TABLES, type_index, scale, epochs, gpus, 4)
    assert seconds == pytest.approx(in_steps(TABLES, type_index, epochs, gpus) / scale)


def test_a_packed_placement_measured_by_itself_is_used(measured_folder: Path) -> None:
    tables = compile_tables(load_profiles(measured_folder), [JobType("toy", 16), JobType("toy", 64)], 8, 3)
    # On nodes of 3, 4 GPUs are packed as 3 and 1, which is half as slow again as the mean of its size would say.
    for i in range(2):
        by_size = tables.elapsed[tables.row[i, 1, 4], 4]
        assert seconds_to_finish(tables, i, 1.0, 4.0, 4, 3) == pytest.approx(by_size * 1.5 / 1.25)


def test_without_gpus_work_takes_for_ever_and_no_work_no_time() -> None:
    seconds = seconds_to_finish(TABLES, np.array([0, 0]), np.ones(2), np.array([1.0, 0.0]), 0, 4)
    assert seconds.tolist() == [np.inf, 0.0]


shares = st.floats(0.01, 1.0)
bands = st.tuples(shares, shares).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: UtilityBand(*sorted(pair)))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("1..4", [1, 2, 3, 4]), ("8", [8]), ("1, 2,4..6", [1, 2, 4, 5, 6]), ("4,1..4", [1, 2, 3, 4]), ("7..7", [7])],
)
def test_numbers_of_gpus(text: str, numbers: list[int]) -> None:
    assert parse_gpus(text) == numbers


@pytest.mark.parametrize("text", ["", "0", "4..1", "1...4", "1..", "-1", "1.5", "1..5000", "x", "1..2,,3", "9" * 500])
def test_other_texts_are_refused_in_one_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected numbers from 1 to 4,096 and ascending ranges of them") as refused:
        parse_gpus(text)
    assert len(str(refused.value)) < 250


def test_a_prediction_is_what_the_profile_says() -> None:
    found = predict_training(load_profiles(None), "cifar10", [1, 4, 16], METRIC_NAMES)
    assert [(row.metric, row.gpus) for row in found] == [(name, gpus) for name in METRIC_NAMES for gpus in (1, 4, 16)]
    by = {(row.metric, row.gpus): row for row in found}
    for row in found:
        assert row.gpu_hours == pytest.approx(row.gpus * row.hours)
        assert by[row.metric, 1].utility == 1.0
        assert row.hours >= by["goodput", row.gpus].hours * (1 - 1e-12)
    assert by["goodput", 16].utility == pytest.approx(by["goodput", 1].hours / by["goodput", 16].hours / 16)
    assert by["efficiency", 4].hours == by["goodput", 4].hours
    assert [row.gpus for row in found if row.chosen and row.metric == "goodput"] == [16]
    assert [row.gpus for row in found if row.chosen and row.metric == "efficiency"] == [4]
    assert by["throughput", 16].utility > by["goodput", 16].utility, "samples/s scale better than goodput"


def test_only_sizes_on_which_a_model_runs_are_predicted() -> None:
    profiles = load_profiles("llm")
    assert isinstance(profiles, FittedProfiles)
    law = profiles.profile("mpt-70b").throughput
    assert isinstance(law, SizeTable)
    few, more = law.sizes[:2]
    found = predict_training(profiles, "mpt-70b", [few - 1, few, few + 1, more], ["goodput"])
    assert [row.gpus for row in found] == [few, more]
    refused = rf"mpt-70b runs on none of these numbers of GPUs, expected more than {few - 1}$"
    with pytest.raises(ConfigError, match=refused):
        predict_training(profiles, "mpt-70b", range(1, few), ["goodput"])
    with pytest.raises(ConfigError, match=rf"expected {few}$"):
        predict_training(profiles, "mpt-70b", [1, few + 1], ["goodput"])


@given(st.lists(st.floats(0.01, 1.2), min_size=1, max_size=12), bands, bands)
def test_higher_thresholds_never_choose_more_gpus(found: list[float], one: UtilityBand, other: UtilityBand) -> None:
    utility, gpus = np.array(found), range(1, len(found) + 1)
    higher = UtilityBand(max(one.min_util, other.min_util), max(one.max_util, other.max_util))
    assert chosen_gpus(utility, gpus, higher) <= min(chosen_gpus(utility, gpus, band) for band in (one, other))


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12).map(lambda found: sorted(found, reverse=True)))
def test_the_bounds_are_kept_where_falling_utility_allows_it(found: list[float]) -> None:
    utility, gpus = np.array(found), range(1, len(found) + 1)
    chosen = utility[chosen_gpus(utility, gpus, STOCK_BAND) - 1]
    if any(map(STOCK_BAND.holds, found)):
        assert STOCK_BAND.holds(float(chosen))


PROFILES = Path(__file__).parents[2] / "configs" / "schedulearn" / "mnist.yaml"


@pytest.mark.parametrize(
    ("model", "seconds"),
    [
        ("mnist_pytorch", [157, 89, 66, 54]),
        ("mnist_tf_keras", [107, 69, 52.5, 45]),
        ("mnist_tensorflow", [67, 52, 42, 37]),
        ("mnist_mxnet", [28.7, 24.3, 22.2, 21.6]),
    ],
)
def test_a_training_takes_as_long_as_was_published(model: str, seconds: list[float]) -> None:
    tables = compile_tables(load_profiles(PROFILES), [JobType(model)], 4, 4)
    taken = seconds_to_finish(tables, 0, 1.0, tables.epochs, np.arange(1, 5), 4)
    np.testing.assert_allclose(taken, seconds, rtol=0.005)
