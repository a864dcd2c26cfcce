"""Parameter servers: the law in profiles and tables, surfaces of speed, and their fits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.io.errors import ProfileError
from rlpto.performance.compile import compile_tables
from rlpto.performance.parameter_server import (
    PARAMETERS,
    Form,
    Probes,
    ServerParams,
    SpeedSurface,
    fit_speed,
    speed_grid,
    spread_probes,
)
from rlpto.performance.profiles import Profile, load_file, profile_yaml
from rlpto.performance.tables import NO_TYPE, JobType, SpeedTables
from tests.builders import served_profiles

CORNERS = [(1, 1), (1, 2), (2, 1), (2, 2)]
SPREAD = [*CORNERS, (8, 8), (8, 1), (1, 8), (4, 4), (6, 2), (3, 7)]


def surface(form: Form, *parameters: float) -> SpeedSurface:
    return SpeedSurface(form, parameters)


def probes(truth: SpeedSurface, at: list[tuple[int, int]] = SPREAD) -> Probes:
    workers, servers = np.array(at).T
    return Probes(workers, servers, truth.speed(workers, servers))


def test_forms_say_what_the_papers_say() -> None:
    assert surface("async", 1, 2, 3, 4).speed(6, 2) == pytest.approx(6 / (1 + 2 * 3 + 3 * 6 + 4 * 2))
    assert surface("sync", 1, 2, 3, 4, 5).speed(6, 2) == pytest.approx(1 / (1 / 6 + 2 + 3 * 3 + 4 * 6 + 5 * 2))
    assert surface("parabola", 2, 3, 0.5, 0.25, 9).speed(4, 1) == pytest.approx(9 - 0.5 * 4 - 0.25 * 4)
    assert surface("parabola", 1, 1, 1, 1, 1).speed(5, 5) == 0, "no speed is negative"


@given(
    form=st.sampled_from(["async", "sync"]),
    values=st.lists(st.floats(0.01, 10), min_size=5, max_size=5),
    unit=st.sampled_from([1e-3, 1.0, 1e3]),
)
def test_a_fit_finds_a_surface_of_its_form_in_any_unit(form: Form, values: list[float], unit: float) -> None:
    truth = surface(form, *(unit * value for value in values[: PARAMETERS[form]]))
    fit = fit_speed(form, probes(truth))
    assert fit.determined
    assert speed_grid(fit, 10, 10) == pytest.approx(speed_grid(truth, 10, 10), rel=1e-6)


def test_the_parabola_finds_a_parabola() -> None:
    truth = surface("parabola", 3.0, 2.0, 0.1, 0.2, 5.0)
    fit = fit_speed("parabola", probes(truth, [*CORNERS, (3, 3), (4, 3), (3, 1), (5, 2)]))
    assert fit.determined
    assert speed_grid(fit, 5, 4) == pytest.approx(speed_grid(truth, 5, 4), abs=1e-4)


@pytest.mark.parametrize(("form", "determined"), [("async", True), ("sync", False), ("parabola", False)])
def test_five_parameters_on_four_points_are_called_open(form: Form, determined: bool) -> None:
    found = probes(surface("sync", 4, 1, 0.5, 0.1, 0.1), CORNERS)
    fit = fit_speed(form, found)
    assert fit.determined == determined
    if form == "sync":
        at = (found.workers, found.servers)
        assert fit.speed(*at) == pytest.approx(found.speed, rel=1e-3), "open, but in agreement with the probes"


def test_eight_spread_probes_determine_every_form() -> None:
    assert set(spread_probes(4, 10, 10)) == {(1, 1), (10, 10), (1, 10), (10, 1)}
    found = probes(surface("async", 1, 0.5, 0.1, 0.1), spread_probes(8, 10, 10))
    assert all(fit_speed(form, found).determined for form in ("async", "sync", "parabola"))


LAW = ServerParams(a=0.001, b=0.01, c=0.02, d=0.001, e=0.002, servers=2, most_servers=4)


def served(law: ServerParams = LAW) -> Profile:
    """A built-in model that trains through parameter servers."""
    return served_profiles({"served": law}).profile("served")


def tables(**choose: bool) -> SpeedTables:
    source = served_profiles({"served": LAW})
    return compile_tables(source, [JobType("served", 512), JobType("cifar10", 512)], 8, 4, **choose)


def test_a_step_takes_what_the_paper_says() -> None:
    w, p, batch = 8, 4, 512
    seconds = replace(LAW, servers=p).step_time(2, w, batch / w)
    assert seconds == pytest.approx(0.001 * batch / w + 0.01 + 0.02 * w / p + 0.001 * w + 0.002 * p)


def test_every_number_of_servers_is_a_variant_of_a_job() -> None:
    found = tables(choose_servers=True)
    assert found.servers[:2].tolist() == [2, 0]
    assert found.most_servers[:2].tolist() == [4, 0]
    job_types = found.types_at(np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64), np.array([1, 2, 3, 4]))
    assert found.servers[job_types].tolist() == [1, 2, 3, 4]
    assert job_types[1] == 0
    speed = found.rates[found.row[job_types, 0, 4], 0]
    steps = [1 / replace(LAW, servers=p).step_time(1, 4, 128) for p in (1, 2, 3, 4)]
    assert speed / speed[0] == pytest.approx(np.array(steps) / steps[0])
    assert found.types_at(job_types, np.zeros(4, dtype=np.int64)).tolist() == [0] * 4


def test_servers_and_batch_sizes_are_chosen_apart() -> None:
    found = tables(choose_servers=True, choose_batches=True)
    (job_type,) = found.types_at(np.array([0]), np.array([1024]), np.array([4])).tolist()
    assert (found.batch_size[job_type], found.servers[job_type], found.own[job_type]) == (1024, 4, 0)
    (back,) = found.types_at(np.array([job_type]), np.array([0]), np.array([4])).tolist()
    assert found.types[back] == JobType("served", 512, servers=4)
    assert set(found.servers[found.batch_choices[job_type]].tolist()) == {4}
    assert found.types_at(np.array([1]), np.array([0]), np.array([1])).tolist() == [NO_TYPE]


def test_profiles_with_servers_are_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "served.yaml"
    path.write_text(profile_yaml(served()))
    assert load_file(path) == {"served": served()}
    path.write_text(profile_yaml(served()).replace("servers: 2", "servers: 5", 1))
    with pytest.raises(ProfileError, match="servers 5 exceeds most_servers 4"):
        load_file(path)
