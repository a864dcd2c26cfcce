"""What decides a result: sections without effect do not."""

from __future__ import annotations

from typing import Any

import pytest

from rlpto.experiments.cache_key import UNUSED_SECTIONS, Result, free_keys, outcome_of
from rlpto.experiments.config import Config

NO_FILES: dict[str, tuple[()]] = {"train": (), "validation": (), "test": ()}

ON: dict[str, dict[str, Any]] = {"forecast": {"forecast": {"mode": "on"}}, "ray": {"ray": {"arrivals": 2.0}}}


def at(settings: Any, key: str) -> bool:
    """True if a dotted key is in a tree."""
    for part in key.split("."):
        if part not in settings:
            return False
        settings = settings[part]
    return True


def test_every_section_that_may_have_no_effect_has_a_case_here() -> None:
    assert ON.keys() == UNUSED_SECTIONS.keys()


@pytest.mark.parametrize("key", sorted(ON))
def test_a_section_decides_once_it_has_an_effect(key: str) -> None:
    off, on = (Config.model_validate(given) for given in ({}, ON[key]))
    assert not at(outcome_of(off, NO_FILES), key)
    assert at(outcome_of(on, NO_FILES), key)


@pytest.mark.parametrize("key", free_keys(Result.CELL))
def test_what_only_chooses_cells_is_never_mentioned(key: str) -> None:
    config = Config()
    assert at(config.model_dump(mode="json"), key)
    assert not at(outcome_of(config, NO_FILES), key)
