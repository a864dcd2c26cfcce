from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rlpto.io.errors import ConfigError
from rlpto.workloads.windows import SPLITS, WindowSettings, select, split_windows

DAY = 86_400.0


@given(
    span=st.floats(1e4, 2e6),
    hours=st.floats(0.1, 48),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)).filter(lambda s: sum(s) > 0.01),
    limit=st.none() | st.integers(1, 5),
    seed=st.integers(0, 3),
)
def test_windows_never_overlap_and_never_cross_a_boundary(span, hours, shares, limit, seed) -> None:
    train, validation, test = (share / sum(shares) for share in shares)
    cut = WindowSettings(hours=hours, train=train, validation=validation, test=test, limit=limit, seed=seed)
    try:
        splits = split_windows(span, cut)
    except ConfigError:
        assert max(train, validation, test) * span < hours * 3600 + 1e-3
        return
    in_time = [window for split in SPLITS for window in splits[split]]
    for before, after in pairwise(in_time):
        assert before.end <= after.start
    bounds = dict(zip(SPLITS, ((0, train), (train, train + validation), (train + validation, 1)), strict=True))
    for window in in_time:
        low, high = bounds[window.split]
        assert low * span - 1e-3 <= window.start < window.end <= min(high * span, span) + 1e-3
        whole = max(train, validation, test) == 1.0 and span < hours * 3600
        assert window.end - window.start == pytest.approx(span if whole else hours * 3600, abs=1e-3)
    if limit:
        assert all(len(windows) <= limit for windows in splits.values())
    assert len({window.name for window in in_time}) == len(in_time)


def test_shares_and_leftovers() -> None:
    splits = split_windows(10 * DAY, WindowSettings(hours=8))
    assert [len(splits[split]) for split in SPLITS] == [21, 3, 6]
    assert splits["test"][0].start == pytest.approx(8 * DAY)
    assert split_windows(10 * DAY, WindowSettings(hours=23))["validation"][0].end == pytest.approx(7 * DAY + 23 * 3600)


def test_selection_is_spread_and_repeatable() -> None:
    windows = split_windows(100 * DAY, WindowSettings(hours=8))["train"]
    chosen = select(windows, 7, seed=1)
    assert chosen == select(windows, 7, seed=1)
    assert chosen != select(windows, 7, seed=2)
    stretch = 70 * DAY / 7
    assert [int(window.start // stretch) for window in chosen] == list(range(7))
    assert select(windows, 1000, seed=1) == windows


def test_a_short_trace_that_is_all_for_testing_is_one_window() -> None:
    cut = WindowSettings(hours=8, train=0, validation=0, test=1)
    assert [(window.start, window.end) for window in split_windows(7200.0, cut)["test"]] == [(0.0, 7200.0)]


def test_a_trace_that_is_too_short_and_wrong_shares() -> None:
    with pytest.raises(ConfigError, match=r"windows of 8 h do not fit a trace of 2 h .* smaller windows.hours"):
        split_windows(7200.0, WindowSettings())
    with pytest.raises(ValidationError, match=r"sum to 1.2, expected at most 1"):
        WindowSettings(train=0.9)
