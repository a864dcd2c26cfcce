"""Evolution of the start: better on what it is tried on, the same after an interruption, and never forced."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlpto.agents.settings import AgentSettings
from rlpto.agents.start_search import CHECKPOINT, evolve, evolves
from rlpto.agents.validation import reward_of_constants
from rlpto.envs.episodes import EnvSetup
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import CheckpointError
from rlpto.policies.index_weights import STEERING_FEATURES, IndexWeights
from tests.agents.helpers import make_settings, make_setup, train_small

POOR = IndexWeights(remaining=0.5, held=0.0, start=-2.0)
"""Long jobs first, no job starts before others have grown, and no regard for rescales."""


def poor_setup() -> EnvSetup:
    return replace(make_setup((1, 2, 3, 4)), start=POOR.vector())


def settings(generations: int) -> AgentSettings:
    return make_settings(evolution={"generations": generations, "population": 8, "windows": 4, "step": 1.0})


def search(setup: EnvSetup, folder: Path, generations: int, *, resume: bool = False, better: bool = True) -> EnvSetup:
    def validated(weights: FloatArray) -> float:
        return float(np.any(weights != setup.start)) if better else float(np.all(weights == setup.start))

    return evolve(setup, settings(generations), 5, folder, {"digest": "d"}, lambda _: None, validated, resume=resume)


def test_a_poor_start_gets_better(tmp_path: Path) -> None:
    setup = poor_setup()
    evolved = search(setup, tmp_path, 6)
    assert reward_of_constants(setup, evolved.start) > reward_of_constants(setup, setup.start)
    assert evolved.start[STEERING_FEATURES.index("gain")] == setup.start[STEERING_FEATURES.index("gain")]


def test_an_interrupted_search_ends_where_an_unbroken_one_does(tmp_path: Path) -> None:
    setup = poor_setup()
    whole = search(setup, tmp_path / "whole", 3)
    search(setup, tmp_path / "parts", 2)
    resumed = search(setup, tmp_path / "parts", 3, resume=True)
    np.testing.assert_array_equal(resumed.start, whole.start)


def test_constants_that_are_worse_on_other_windows_are_not_taken(tmp_path: Path) -> None:
    setup = poor_setup()
    np.testing.assert_array_equal(search(setup, tmp_path, 1, better=False).start, setup.start)


def test_another_search_is_not_gone_on_with(tmp_path: Path) -> None:
    search(poor_setup(), tmp_path, 1)
    with pytest.raises(CheckpointError, match="another configuration"):
        evolve(poor_setup(), settings(1), 5, tmp_path, {"digest": "other"}, lambda _: None, lambda _: 0.0, resume=True)


def test_only_an_agent_with_a_warm_start_evolves() -> None:
    assert evolves(settings(1))
    assert not evolves(settings(0))
    assert not evolves(settings(1).model_copy(update={"warm_start": "none"}))


def test_training_goes_on_from_what_has_evolved(tmp_path: Path) -> None:
    setup, chosen = poor_setup(), settings(2).model_copy(update={"steps": 128})
    whole = train_small(tmp_path / "whole", setup, chosen)
    search_only = tmp_path / "parts"
    train_small(search_only, setup, chosen)
    (search_only / "last.zip").unlink()  # as if left before the first checkpoint
    resumed = train_small(search_only, setup, chosen, resume=True)
    assert (search_only / CHECKPOINT).is_file()
    assert resumed.metrics == pytest.approx(whole.metrics, abs=0.0, nan_ok=True)
