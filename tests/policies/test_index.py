"""The index: its features, its weights and the file of them, and how it steers."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlpto.core.cluster import ClusterState
from rlpto.io.errors import CheckpointError
from rlpto.io.paths import example_config, example_names
from rlpto.policies.index import Index
from rlpto.policies.index_weights import (
    FORMAT,
    INDEX_FEATURES,
    OFF,
    WEIGHT_NAMES,
    IndexWeights,
    load_index_weights,
    save_index_weights,
)
from rlpto.policies.registry import make_policy

from ..builders import give, job, make_cluster, make_tables
from .builders import J, make_state, power

ZERO = dict.fromkeys(INDEX_FEATURES, 0.0)
LONG_FIRST = [J(work=1e6, highest=8), J(work=10, highest=8)]
HIGH_FIRST = [J(work=1e6, highest=8, priority=0), J(work=10, highest=8, priority=2)]


def of_two(work: float) -> list[J]:
    """Two jobs; the second holds all GPUs."""
    return [J(work=work, speed=power(0.9, 8)), J(work=work, speed=power(0.9, 8), held=8)]


CASES: dict[str, tuple[list[J], int, dict[str, float], list[int]]] = {
    "stickiness alone": ([J(highest=8), J(highest=8, held=3), J(highest=8, held=5)], 8, {"held": 1.0}, [0, 3, 5]),
    "no stickiness": (of_two(100), 8, {"gain": 1.0}, [4, 4]),
    "short jobs are let go": (of_two(360), 8, {"gain": 1.0, "held_remaining": 0.5}, [8, 0]),
    "long ones are not": (of_two(360_000), 8, {"gain": 1.0, "held_remaining": 0.5}, [0, 8]),
    "short first": (LONG_FIRST, 8, {"remaining": -0.25}, [0, 8]),
    "long first": (LONG_FIRST, 8, {"remaining": 0.25}, [8, 0]),
    "all start": (
        [J(work=10.0**i, speed=power(0.5, 8)) for i in range(4)], 4,
        {"gain": 1.0, "remaining": -1.0, "start": 10.0}, [1, 1, 1, 1],
    ),
    "the short ones start": (
        [J(work=10.0**i, speed=power(0.5, 8)) for i in range(4)], 2,
        {"gain": 1.0, "remaining": -1.0, "start": 10.0}, [1, 1, 0, 0],
    ),
    "no weight puts a lower class first": (HIGH_FIRST, 1, {"remaining": -2.0, "priority": -5.0}, [1, 0]),
    "nor holding GPUs": (
        [J(work=1e6, highest=8, priority=1), J(work=10, highest=8, priority=2, held=8)], 8,
        {"remaining": -2.0, "priority": -5.0, "held": 4.0}, [1, 7],
    ),
    "attained service": ([J(attained=1e6), J()], 1, {"attained": -1.0}, [0, 1]),
    "size squared": ([J(work=3600.0), J(work=36.0)], 1, {"remaining_squared": -1.0}, [1, 0]),
    "long first under load": (LONG_FIRST, 1, {"load_remaining": 1.0}, [1, 0]),
    "age": ([J(), J(submitted=3600.0)], 1, {"age": -1.0}, [0, 1]),
    "fixed jobs start whole": ([J(lowest=3, requested=3, highest=3)] * 2, 5, {"gain": 1.0}, [3, 0]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_decision_by_hand(case: str) -> None:
    jobs, capacity, weights, expected = CASES[case]
    state = make_state(jobs, capacity, time=7200.0)
    assert Index(index_weights=IndexWeights(**(ZERO | weights)).array())(state).gpus.tolist() == expected


def test_slope_gives_gpus_of_a_converged_job_to_one_that_has_yet_to_learn() -> None:
    """Alike in all else, since work that is left is not looked at here."""

    def given_to(progress: list[float], gpus: int, **weights: float) -> list[int]:
        """GPUs of jobs of one type that have done these of four epochs."""
        curve = np.array([0.1, 0.7, 0.85, 0.89, 0.9])
        tables = make_tables([[[[0.01 * k**0.7] * 4 for k in range(1, 9)]]], accuracy=curve)
        cluster = make_cluster([job(i, epochs=4.0, max_gpus=8) for i in range(2)], tables, [gpus])
        cluster.store.progress[:] = progress
        weighted = IndexWeights(**(ZERO | {"gain": 1.0} | weights)).array()
        return Index(index_weights=weighted)(cluster.state()).gpus.tolist()

    assert given_to([0.0, 3.5], 8) == [4, 4]
    early, late = given_to([0.0, 3.5], 8, slope=1.0)
    assert early >= 6
    assert late == 8 - early
    assert given_to([3.5, 0.0], 1, slope_start=1.0) == [0, 1]


def converging(progress: float, held: int = 0, *, exponent: float = 0.5, delay: float = 0.0) -> ClusterState:
    """A job of class normal alone on 16 GPUs, which has done `progress` of four epochs and gains evenly in all.

    Its speed is a power of its GPUs, as with a batch that stays as it is.
    """
    tables = make_tables(
        [[[[1e-4 * k**exponent] * 4 for k in range(1, 17)]]], [delay], accuracy=np.linspace(0.1, 0.9, 5)
    )
    cluster = make_cluster([job(0, epochs=4.0, max_gpus=16, priority=1)], tables, [16])
    cluster.store.progress[:] = progress
    if held:
        give(cluster, [held])
    return cluster.state()


class TestWorthOfAnHour:
    """The optimum of a reward of time 1, shortfall 8 and GPU-hours at `price`."""

    WEIGHTS = ZERO | {"gain": 1.0}

    def gpus(self, state: ClusterState, price: float, **weights: float) -> int:
        vector = IndexWeights(**self.WEIGHTS).array()
        for name, value in {"price": np.log(price), **weights}.items():
            vector[WEIGHT_NAMES.index(name)] = value
        return int(Index(index_weights=vector)(state).gpus[0])

    @given(st.floats(0.0, 3.99), st.floats(0.05, 20.0), st.sampled_from([0.3, 0.5, 0.8]))
    @settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
    def test_a_job_alone_gets_what_costs_least(self, progress: float, price: float, exponent: float) -> None:
        missing = 1 - progress / 4
        gpus = np.arange(1, 17)
        cost = (1 + 8 * 2 * missing + price * gpus) / gpus**exponent
        found = self.gpus(converging(progress, exponent=exponent), price, worth=8.0)
        assert cost[found - 1] == pytest.approx(cost.min(), rel=1e-9)

    def test_it_shrinks_as_the_model_converges_and_without_worth_it_does_not(self) -> None:
        stages = [converging(progress, held=16) for progress in (0.0, 2.0, 3.9)]
        found = [self.gpus(state, 1.5, worth=8.0) for state in stages]
        assert found[0] > found[1] > found[2]
        assert len({self.gpus(state, 1.5) for state in stages}) == 1

    def test_a_running_job_keeps_its_gpus_where_shrinking_saves_less_than_its_rescale(self) -> None:
        state = converging(3.0, held=12, delay=600.0)
        assert self.gpus(state, 1.5, worth=8.0) < 12
        assert self.gpus(state, 1.5, worth=8.0, keep=100.0) == 12
        late = converging(3.99, held=12, delay=600.0)
        assert self.gpus(late, 1.5, worth=8.0, keep=1.0) == 12, "what is left is too short to save anything"
        assert self.gpus(late, 1.5, worth=8.0) < 12

    def test_contended_gpus_go_to_the_job_that_misses_more(self) -> None:
        tables = make_tables([[[[1e-4 * k**0.7] * 4 for k in range(1, 9)]]], accuracy=np.linspace(0.1, 0.9, 5))
        cluster = make_cluster([job(i, epochs=4.0, max_gpus=8) for i in range(2)], tables, [8])
        cluster.store.progress[:] = [0.0, 3.9]
        vector = IndexWeights(**self.WEIGHTS).array()
        vector[[WEIGHT_NAMES.index("worth"), WEIGHT_NAMES.index("worth_growth")]] = 8.0, 1.0
        early, late = Index(index_weights=vector)(cluster.state()).gpus
        assert early > late


class TestFile:
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.tuples(*[st.sampled_from([0.0, -20.0, 1.0, 3.25]) | st.floats(-1000, 1000)] * len(OFF)))
    def test_what_is_saved_is_what_is_loaded(self, tmp_path: Path, numbers: tuple[float, ...]) -> None:
        save_index_weights(np.array(numbers), tmp_path / "deep" / "w.yaml")
        np.testing.assert_array_equal(load_index_weights(tmp_path / "deep" / "w.yaml"), numbers)
        assert [file.name for file in (tmp_path / "deep").iterdir()] == ["w.yaml"], "no temporary file is left"

    def test_a_file_may_leave_out_what_is_off(self, tmp_path: Path) -> None:
        path = tmp_path / "index.yaml"
        path.write_text(f"format: {FORMAT}\nweights: {{gain: 1, remaining: -0.25}}\n")
        assert dict(zip(WEIGHT_NAMES, load_index_weights(path), strict=True)) == OFF | {"gain": 1.0, "remaining": -0.25}
        assert list(make_policy(f"index:weights={path}")(make_state(LONG_FIRST, 8)).gpus) == [0, 8]

    @pytest.mark.parametrize("name", example_names("tuned"))
    def test_every_tuned_file_is_one(self, name: str) -> None:
        path = example_config(name)
        assert np.isfinite(load_index_weights(path)).all()

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (f"format: {FORMAT}\nweights: {{}}\nmore: 1\n", "w.yaml:3: unknown key more"),
            ({"pric": 1.0}, "weights.pric: unknown weight, did you mean price?"),
            ({"held": 1e4}, "w.yaml:3: weights.held: expected a number from -1000 to 1000, got 10000.0"),
        ],
    )
    def test_a_broken_file_is_refused_in_one_line(self, tmp_path: Path, text: object, said: str) -> None:
        path = tmp_path / "w.yaml"
        path.write_text(text if isinstance(text, str) else yaml.safe_dump({"format": FORMAT, "weights": text}))
        with pytest.raises(CheckpointError) as error:
            load_index_weights(path)
        assert str(error.value).startswith(str(path))
        assert said in str(error.value)
        assert "\n" not in str(error.value)
