"""Speed surfaces of parameter-server training, and their fits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.io.errors import ProfileError
from rlpto.performance.parameter_server import (
    AsyncSurface,
    Form,
    Parabola,
    Probes,
    SpeedSurface,
    SyncSurface,
    best_configuration,
    corner_probes,
    fit_speed,
    observed,
    speed_grid,
    spread_probes,
)

CORNERS = [(1, 1), (1, 2), (2, 1), (2, 2)]
SPREAD = [*CORNERS, (8, 8), (8, 1), (1, 8), (4, 4), (6, 2), (3, 7)]


def probes(surface: SpeedSurface, at: list[tuple[int, int]] = SPREAD, noise: float = 0.0, seed: int = 0) -> Probes:
    workers, servers = np.array(at).T
    factor = np.exp(noise * np.random.default_rng(seed).standard_normal(len(at)))
    return Probes(workers, servers, surface.speed(workers, servers) * factor)


def test_forms_say_what_the_papers_say() -> None:
    assert AsyncSurface(1, 2, 3, 4).speed(6, 2) == pytest.approx(6 / (1 + 2 * 3 + 3 * 6 + 4 * 2))
    assert SyncSurface(1, 2, 3, 4, 5, 64).speed(6, 2) == pytest.approx(1 / (64 / 6 + 2 + 3 * 3 + 4 * 6 + 5 * 2))
    assert Parabola(2, 3, 0.5, 0.25, 9).speed(4, 1) == pytest.approx(9 - 0.5 * 4 - 0.25 * 4)
    assert Parabola(1, 1, 1, 1, 1).speed(5, 5) == 0, "no speed is negative"


@pytest.mark.parametrize("surface", [AsyncSurface(1, 1, 1, 1), SyncSurface(1, 1, 1, 1, 1), Parabola(1, 1, 1, 1, 9)])
def test_nothing_runs_without_workers_or_servers(surface: SpeedSurface) -> None:
    grid = speed_grid(surface, 3, 2)
    assert grid.shape == (4, 3)
    assert np.all(grid[0] == 0)
    assert np.all(grid[:, 0] == 0)
    assert np.all(grid[1:, 1:] > 0)


@settings(max_examples=50, deadline=None)
@given(
    form=st.sampled_from(["async", "sync"]),
    values=st.lists(st.floats(0.01, 10), min_size=5, max_size=5),
    unit=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_a_fit_finds_a_surface_of_its_form_in_any_unit(form: Form, values: list[float], unit: float) -> None:
    a, b, c, d, e = (unit * value for value in values)
    truth = AsyncSurface(a, b, c, d) if form == "async" else SyncSurface(a, b, c, d, e)
    fit = fit_speed(form, probes(truth))
    assert fit.determined
    assert fit.points == len(SPREAD)
    assert speed_grid(fit.surface, 10, 10) == pytest.approx(speed_grid(truth, 10, 10), rel=1e-6)


def test_the_synchronous_fit_knows_its_batch_size() -> None:
    truth = SyncSurface(0.01, 0.2, 0.1, 0.05, 0.02, batch_size=256)
    fit = fit_speed("sync", probes(truth), batch_size=256)
    assert isinstance(fit.surface, SyncSurface)
    assert fit.surface.a == pytest.approx(0.01)
    assert fit.surface.batch_size == 256


def test_the_parabola_finds_a_parabola() -> None:
    truth = Parabola(3.0, 2.0, 0.1, 0.2, 5.0)
    fit = fit_speed("parabola", probes(truth, [*CORNERS, (3, 3), (4, 3), (3, 1), (5, 2)]))
    assert fit.determined
    assert speed_grid(fit.surface, 5, 4) == pytest.approx(speed_grid(truth, 5, 4), abs=1e-4)


@pytest.mark.parametrize(("form", "determined"), [("async", True), ("sync", False), ("parabola", False)])
def test_five_parameters_on_four_points_are_called_open(form: Form, determined: bool) -> None:
    found = probes(SyncSurface(4, 1, 0.5, 0.1, 0.1), CORNERS)
    fit = fit_speed(form, found)
    assert (fit.points, fit.determined) == (4, determined)
    if form == "sync":
        at = (found.workers, found.servers)
        assert fit.surface.speed(*at) == pytest.approx(found.speed, rel=1e-3), "open, but in agreement with the probes"


def test_repeated_probes_are_one_point() -> None:
    assert fit_speed("async", probes(AsyncSurface(1, 1, 1, 1), CORNERS * 3)).points == 4
    assert not fit_speed("async", probes(AsyncSurface(1, 1, 1, 1), [(1, 1)] * 8)).determined


@pytest.mark.parametrize("form", ["async", "sync", "parabola"])
def test_tuning_runs_change_nothing(form: Form) -> None:
    clean = probes(AsyncSurface(1, 0.5, 0.1, 0.1))
    mixed = Probes(
        np.append(clean.workers, [1, 9]),
        np.append(clean.servers, [1, 9]),
        np.append(clean.speed, [77.0, 0.0]),
        np.array([False] * len(clean) + [True, True]),
    )
    assert fit_speed(form, mixed) == fit_speed(form, clean)
    assert np.array_equal(observed(np.zeros((10, 10)), mixed), observed(np.zeros((10, 10)), clean))


def test_observations_stand_in_place_of_predictions() -> None:
    seen = Probes(np.array([1, 1, 2, 9]), np.array([1, 1, 2, 1]), np.array([2.0, 4.0, 5.0, 6.0]))
    grid = observed(np.ones((3, 3)), seen)
    assert (grid[1, 1], grid[2, 2], grid[1, 2]) == (3.0, 5.0, 1.0)


def test_the_best_configuration_is_within_limits_and_small() -> None:
    grid = speed_grid(SyncSurface(10, 1, 1, 0.1, 0.1), 8, 8)
    w, p = best_configuration(grid)
    assert grid[w, p] == grid.max()
    assert sum(best_configuration(grid, most=3)) == 3
    assert best_configuration(np.ones((5, 5))) == (1, 1)
    assert best_configuration(np.array([[0, 0, 0], [0, 1, 2], [0, 2, 1.0]])) == (2, 1), "a worker before a server"
    with pytest.raises(ValueError, match="no worker and server within 1"):
        best_configuration(grid, most=1)


def test_coachs_probes_are_the_four_smallest() -> None:
    assert corner_probes(9, 9) == CORNERS
    assert corner_probes(9, 1, min_workers=3) == [(3, 1), (4, 1)]
    assert corner_probes(1, 1) == [(1, 1)]


@given(count=st.integers(1, 12), lowest=st.integers(1, 4), more=st.integers(0, 9), servers=st.integers(1, 9))
def test_spread_probes_are_different_and_within_limits(count: int, lowest: int, more: int, servers: int) -> None:
    chosen = spread_probes(count, lowest + more, servers, lowest)
    assert chosen[0] == (lowest, 1)
    assert len(set(chosen)) == len(chosen) == min(count, (more + 1) * servers)
    assert all(lowest <= w <= lowest + more and 1 <= p <= servers for w, p in chosen)


def test_eight_spread_probes_determine_every_form() -> None:
    assert set(spread_probes(4, 10, 10)) == {(1, 1), (10, 10), (1, 10), (10, 1)}
    found = probes(AsyncSurface(1, 0.5, 0.1, 0.1), spread_probes(8, 10, 10))
    assert all(fit_speed(form, found).determined for form in ("async", "sync", "parabola"))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Probes(np.array([1]), np.array([1]), np.array([1.0]), np.array([True])), "tuning runs do not count"),
        (Probes(np.array([1]), np.array([1]), np.array([0.0])), "positive"),
        (Probes(np.array([1]), np.array([1]), np.array([np.nan])), "positive"),
        (Probes(np.array([0]), np.array([1]), np.array([1.0])), "at least 1 worker"),
    ],
)
def test_impossible_probes_are_refused(bad: Probes, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        fit_speed("sync", bad)
