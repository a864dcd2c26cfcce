"""Remaining work by the curve: how much a job's accuracy has flattened says how far it is."""

import numpy as np
import pytest

from rlpto.core.job_store import JobStore
from rlpto.core.jobs import Job
from rlpto.knowledge.remaining import parts_done
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.profiles import builtin_profiles
from rlpto.performance.tables import JobType

from ..builders import remaining_work

MODELS = sorted(builtin_profiles())
EPOCHS = builtin_profiles()["deepspeech2"].epochs


def left_after(progress: float, how: str, epochs: float = EPOCHS) -> float:
    tables = compile_tables(load_profiles(None), [JobType("deepspeech2")], 4, 4)
    store = JobStore.from_jobs([Job("one", 0.0, "deepspeech2", epochs, float(tables.samples[0]), max_gpus=4)], tables)
    store.progress[0] = progress
    return float(remaining_work(how, store, tables)(np.array([0]))[0])


@pytest.mark.parametrize("model", MODELS)
def test_a_curve_that_says_nothing_leaves_the_rule_of_unknown_work(model: str) -> None:
    assert parts_done(model, np.array([np.nan]), 1 / 3) == pytest.approx(1 / 3)
    assert left_after(0.0, "curve") == left_after(0.0, "unknown") == 1.0


def test_a_flat_curve_means_that_little_is_left() -> None:
    """Of its own model nothing is used: other models' curves alone say how far a job is."""
    early, late = (left_after(part * EPOCHS, "curve") / (part * EPOCHS) for part in (0.1, 0.9))
    assert late < 1.0 < early
    assert abs(np.log(left_after(0.9 * EPOCHS, "curve") / (0.1 * EPOCHS))) < abs(
        np.log(left_after(0.9 * EPOCHS, "unknown") / (0.1 * EPOCHS))
    )
