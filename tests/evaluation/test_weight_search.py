from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from rlpto.evaluation.weight_search import Parameter, SearchSettings, SearchState, fingerprint, minimise
from rlpto.io.errors import CheckpointError, ConfigError

PARAMETERS = [Parameter("a", 1.0, -3.0, 5.0), Parameter("b", 0.5, 0.0, 1.0)]
SETTINGS = SearchSettings(generations=12, population=6, seed=4)
FINGERPRINT = fingerprint(PARAMETERS, SETTINGS, {})


def bowl(point: Mapping[str, float], _: int = 0) -> float:
    """Lowest at a = -1, b = 0.2."""
    return (point["a"] + 1.0) ** 2 / 64 + (point["b"] - 0.2) ** 2


def test_finds_the_lowest_point_within_the_ranges(tmp_path: Path) -> None:
    seen: list[Mapping[str, float]] = []

    def objective(point: Mapping[str, float], _: int) -> float:
        seen.append(point)
        return bowl(point)

    settings = SearchSettings(generations=40, population=6, seed=1)
    found = minimise(objective, PARAMETERS, settings, tmp_path / "c.json", {})
    assert found.best == pytest.approx({"a": -1.0, "b": 0.2}, abs=0.05)
    assert found.best_cost == min(bowl(point) for point in seen)
    assert all(-3 <= point["a"] <= 5 and 0 <= point["b"] <= 1 for point in seen)


def test_starts_from_the_start_and_never_ends_worse(tmp_path: Path) -> None:
    parameters = [Parameter("a", -1.0, -3.0, 5.0), Parameter("b", 0.2, 0.0, 1.0)]
    found = minimise(bowl, parameters, SearchSettings(generations=1, population=4), tmp_path / "c.json", {})
    assert found.best == {"a": -1.0, "b": 0.2}


def test_an_interrupted_search_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    whole = minimise(bowl, PARAMETERS, SETTINGS, tmp_path / "whole.json", {})

    calls = 0

    def failing(point: Mapping[str, float], _: int) -> float:
        nonlocal calls
        calls += 1
        if calls == 27:  # in the middle of the fifth generation
            raise KeyboardInterrupt
        return bowl(point)

    path = tmp_path / "part.json"
    with pytest.raises(KeyboardInterrupt):
        minimise(failing, PARAMETERS, SETTINGS, path, {})
    assert len(json.loads(path.read_text())["costs"]) == 4

    evaluated: list[Mapping[str, float]] = []

    def rest(point: Mapping[str, float], _: int) -> float:
        evaluated.append(point)
        return bowl(point)

    resumed = minimise(rest, PARAMETERS, SETTINGS, path, {}, resume=True)
    assert resumed == whole
    assert len(evaluated) == (12 - 4) * 6


def test_more_generations_go_on_from_a_finished_search(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    minimise(bowl, PARAMETERS, SearchSettings(generations=2, population=6, seed=4), path, {})
    seen: list[tuple[int, int]] = []

    def note(state: SearchState, tried: int) -> None:
        seen.append((len(state.costs), tried))

    minimise(bowl, PARAMETERS, SETTINGS, path, {}, resume=True, on_progress=note)
    assert seen[:2] == [(2, 12), (2, 13)]
    assert [tried for done, tried in seen if tried == 6 * done] == list(range(12, 73, 6))


def test_leaves_the_global_random_state_alone(tmp_path: Path) -> None:
    before = np.random.get_state()[1].copy()
    minimise(bowl, PARAMETERS, SearchSettings(generations=2, population=4), tmp_path / "c.json", {})
    assert np.array_equal(before, np.random.get_state()[1])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x80\x04\x95", "not a text in UTF-8, expected a checkpoint"),
        (b'{"model": "of something else"}', "not a tuning checkpoint"),
        (b'{"format": "rlpto tuning 1", "fingerprint": "other", "costs": []}', "another configuration"),
        (b'{"format": "rlpto tuning 1", "fingerprint": "FP", "costs": [[1, 2, 3, "x", 5, 6]]}', "broken"),
        (b'{"format": "rlpto tuning 1", "fingerprint": "FP", "costs": [[1, 2, 3, NaN, 5, 6]]}', "NaN is no JSON"),
    ],
)
def test_refuses_an_unreadable_or_foreign_checkpoint(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(content.replace(b"FP", FINGERPRINT.encode()))
    with pytest.raises(CheckpointError, match=reason) as caught:
        minimise(bowl, PARAMETERS, SETTINGS, path, {}, resume=True)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content.replace(b"FP", FINGERPRINT.encode())


def test_an_objective_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a finite cost"):
        minimise(lambda *_: float("nan"), PARAMETERS, SETTINGS, tmp_path / "c.json", {})
    assert not (tmp_path / "c.json").exists()


def test_a_start_outside_its_range_is_an_error() -> None:
    with pytest.raises(ConfigError, match="a: expected low <= start <= high"):
        Parameter("a", 2.0, 0.0, 1.0)
