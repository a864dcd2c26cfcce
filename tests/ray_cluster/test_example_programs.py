"""The programs that come along: each learns, and says what it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.images import GeneratedImages
from examples.language import LanguageModel
from rlpto.io.errors import JobError
from rlpto.ray_cluster.worker.training import Trainer
from tests.ray_cluster.running import make_spec

JOBS = "examples"


@pytest.mark.parametrize(
    ("training", "options", "epochs", "chance"),
    [
        (
            "language:LanguageModel",
            {"samples": 256, "length": 16, "vocabulary": 16, "width": 32, "depth": 1},
            12,
            1 / 16,
        ),
        ("images:GeneratedImages", {"samples": 256, "size": 8, "classes": 4, "width": 8}, 4, 1 / 4),
    ],
)
def test_programs_on_generated_data_learn(
    tmp_path: Path, training: str, options: dict[str, object], epochs: int, chance: float
) -> None:
    spec = make_spec(
        tmp_path,
        training=f"{JOBS}.{training}",
        options=options,
        data_size=256,
        batch_size=32,
        epochs=float(epochs),
        float64=False,
        pace=None,
    )
    trainer = Trainer(spec)
    first = trainer.run(3)
    last = trainer.run(10_000)
    assert last.finished
    assert last.loss < first.loss
    assert last.accuracy > 1.5 * chance
    other = Trainer(spec)
    other.load(trainer.state())
    assert other.position == trainer.position


def test_sizes_that_make_no_model_are_refused() -> None:
    with pytest.raises(JobError, match="multiple of heads"):
        LanguageModel(width=30, heads=4)
    with pytest.raises(JobError, match="vocabulary at least choices"):
        LanguageModel(vocabulary=1)
    with pytest.raises(JobError, match="multiple of 8"):
        GeneratedImages(width=12)
