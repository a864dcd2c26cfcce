"""The program that comes along as an example: it learns, and says what it lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from examples.language import LanguageModel
from rlpto.io.errors import JobError
from rlpto.ray_cluster.worker.training import Trainer
from tests.ray_cluster.running import make_spec

SIZES = {"samples": 256, "length": 16, "vocabulary": 16, "width": 32, "depth": 1}


def test_a_language_model_on_generated_text_learns(tmp_path: Path) -> None:
    own: dict[str, Any] = {"training": "examples.language:LanguageModel", "options": SIZES, "data_size": 256}
    spec = make_spec(tmp_path, **own, batch_size=32, epochs=6.0, float64=False, pace=None)
    trainer = Trainer(spec)
    first = trainer.run(3)
    last = trainer.run(10_000)
    assert last.finished
    assert last.loss < first.loss
    assert last.accuracy > 1.5 / SIZES["vocabulary"]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"width": 30, "heads": 4}, "multiple of heads"), ({"vocabulary": 1}, "vocabulary at least choices")],
)
def test_sizes_that_make_no_model_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(JobError, match=message):
        LanguageModel(**options)
