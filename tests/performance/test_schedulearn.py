"""The profiles that configs/schedulearn.yaml uses, against the seconds that they were fitted to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.solo import seconds_to_finish
from rlpto.performance.tables import JobType

PROFILES = Path(__file__).parents[2] / "configs" / "schedulearn" / "mnist.yaml"


@pytest.mark.parametrize(
    ("model", "seconds"),
    [
        ("mnist_pytorch", [157, 89, 66, 54]),
        ("mnist_tf_keras", [107, 69, 52.5, 45]),
        ("mnist_tensorflow", [67, 52, 42, 37]),
        ("mnist_mxnet", [28.7, 24.3, 22.2, 21.6]),
    ],
)
def test_a_training_takes_as_long_as_was_published(model: str, seconds: list[float]) -> None:
    tables = compile_tables(load_profiles(PROFILES), [JobType(model)], 4, 4)
    taken = seconds_to_finish(tables, 0, 1.0, tables.epochs, np.arange(1, 5), 4)
    np.testing.assert_allclose(taken, seconds, rtol=0.005)
