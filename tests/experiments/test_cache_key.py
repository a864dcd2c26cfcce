"""What decides a result: features that are off are not mentioned, so that results made before them are found again."""

from __future__ import annotations

from typing import Any

import pytest

from rlpto.experiments.cache_key import UNUSED, Result, free_keys, outcome_of
from rlpto.experiments.config import Config

NO_FILES: dict[str, tuple[()]] = {"train": (), "validation": (), "test": ()}

ON: dict[str, dict[str, Any]] = {
    "forecast": {"forecast": {"mode": "on"}},
    "queue.classes": {"queue": {"classes": "weighted"}},
    "queue.class_weights": {"queue": {"classes": "weighted"}},
    "queue.converging": {"queue": {"converging": {"gained": 0.9}}},
    "ray": {"ray": {"arrivals": 2.0}},
    "simulator.change_batch_above": {"simulator": {"change_batch_above": 1.05}, "knowledge": {"mode": "online"}},
    "reward.shortfall": {"reward": {"shortfall": 0.5}},
    "simulator.growth": {"simulator": {"growth": "overlap"}},
    "simulator.share": {"simulator": {"share": 2}},
    "simulator.share_slowdown": {"simulator": {"share": 2}},
    "workload.metric": {"workload": {"metric": "throughput"}},
    "workload.mapping.stop": {"workload": {"mapping": {"stop": {"gain": 0.01}}}},
    "workload.background": {"workload": {"background": [{"gpus": 2, "until": 60}]}},
    "workload.jobs": {"workload": {"source": "jobs", "jobs": [{"model": "resnet18"}]}},
}


def at(settings: Any, key: str) -> bool:
    """True if a dotted key is in a tree."""
    for part in key.split("."):
        if part not in settings:
            return False
        settings = settings[part]
    return True


def test_every_feature_that_may_be_off_has_a_case_here() -> None:
    assert ON.keys() == UNUSED.keys()


@pytest.mark.parametrize("key", sorted(ON))
def test_a_feature_is_mentioned_once_it_is_on(key: str) -> None:
    off, on = (Config.model_validate(given) for given in ({}, ON[key]))
    assert not at(outcome_of(off, NO_FILES), key)
    assert at(outcome_of(on, NO_FILES), key)


@pytest.mark.parametrize("key", free_keys(Result.CELL))
def test_what_only_chooses_cells_is_never_mentioned(key: str) -> None:
    config = Config()
    assert at(config.model_dump(mode="json"), key)
    assert not at(outcome_of(config, NO_FILES), key)
