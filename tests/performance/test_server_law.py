"""Training through parameter servers: Optimus's law, and tables with variants of numbers of servers."""

from __future__ import annotations

import numpy as np
import pytest

from rlpto.io.errors import ProfileError
from rlpto.performance.compile import compile_tables
from rlpto.performance.parameter_server import ServerParams
from rlpto.performance.profiles import Profile, load_profile, profile_yaml
from rlpto.performance.tables import NO_TYPE, JobType, SpeedTables
from tests.builders import served_profiles

LAW = ServerParams(a=0.001, b=0.01, c=0.02, d=0.001, e=0.002, servers=2, most_servers=4)


def served(law: ServerParams = LAW) -> Profile:
    """A built-in model that trains through parameter servers."""
    return served_profiles({"served": law}).profile("served")


def tables(**choose: bool) -> SpeedTables:
    source = served_profiles({"served": LAW})
    return compile_tables(source, [JobType("served", 512), JobType("cifar10", 512)], 8, 4, **choose)


def test_a_step_takes_what_the_paper_says() -> None:
    w, p, batch = 8, 4, 512
    seconds = LAW.with_servers(p).step_time(2, w, batch / w)
    assert seconds == pytest.approx(0.001 * batch / w + 0.01 + 0.02 * w / p + 0.001 * w + 0.002 * p)


def test_asynchronous_batches_per_second_are_the_papers() -> None:
    w, p, local = 6, 3, 64
    samples = w * local / LAW.with_servers(p).step_time(1, w, local)
    a = 0.001 * local + 0.01
    assert samples / local == pytest.approx(w / (a + 0.02 * w / p + 0.001 * w + 0.002 * p))


def test_every_number_of_servers_is_a_variant_of_a_job() -> None:
    found = tables(choose_servers=True)
    assert found.servers[:2].tolist() == [2, 0]
    assert found.most_servers[:2].tolist() == [4, 0]
    kinds = found.types_at(np.zeros(4, dtype=np.int64), np.zeros(4, dtype=np.int64), np.array([1, 2, 3, 4]))
    assert found.servers[kinds].tolist() == [1, 2, 3, 4]
    assert kinds[1] == 0
    speed = found.rates[found.row[kinds, 0, 4], 0]
    steps = [1 / LAW.with_servers(p).step_time(1, 4, 128) for p in (1, 2, 3, 4)]
    assert speed / speed[0] == pytest.approx(np.array(steps) / steps[0])
    assert found.types_at(kinds, np.zeros(4, dtype=np.int64)).tolist() == [0] * 4
    assert found.server_choices[kinds[3]].tolist() == kinds[[0, 1, 2, 3]].tolist()


def test_servers_and_batch_sizes_are_chosen_apart() -> None:
    found = tables(choose_servers=True, choose_batches=True)
    (kind,) = found.types_at(np.array([0]), np.array([1024]), np.array([4])).tolist()
    assert (found.batch_size[kind], found.servers[kind], found.own[kind]) == (1024, 4, 0)
    (back,) = found.types_at(np.array([kind]), np.array([0]), np.array([4])).tolist()
    assert found.types[back] == JobType("served", 512, servers=4)
    assert set(found.servers[found.batch_choices[kind]].tolist()) == {4}
    assert found.types_at(np.array([1]), np.array([0]), np.array([1])).tolist() == [NO_TYPE]


def test_without_a_scheduler_that_chooses_there_is_one_variant() -> None:
    assert len(tables().types) == 2
    assert tables().variants.tolist() == [[0], [1]]


def test_a_profile_comes_back_from_yaml(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("profiles") / "served.yaml"
    path.write_text(profile_yaml(served()))
    assert load_profile(path) == served()


def test_more_servers_than_there_may_be_are_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("profiles") / "served.yaml"
    path.write_text(profile_yaml(served()).replace("servers: 2", "servers: 5", 1))
    with pytest.raises(ProfileError, match="servers 5 exceeds most_servers 4"):
        load_profile(path)
