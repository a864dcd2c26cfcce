"""The programs that come along: each learns, and says what it lacks."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlpto.io.errors import JobError
from rlpto.ray_cluster.programs.images import Cifar10, GeneratedImages, Mnist
from rlpto.ray_cluster.programs.language import LanguageModel, markov_chain
from rlpto.ray_cluster.worker.training import Trainer
from tests.ray_cluster.running import make_spec

JOBS = "rlpto.ray_cluster.programs"


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


def test_generated_data_are_those_of_their_seed() -> None:
    assert torch.equal(markov_chain(3, 9, 5, 2, seed=1), markov_chain(3, 9, 5, 2, seed=1))
    assert not torch.equal(markov_chain(3, 9, 5, 2, seed=1), markov_chain(3, 9, 5, 2, seed=2))
    rows = torch.arange(4)
    same = [GeneratedImages(samples=8, size=4).batch(rows)[0] for _ in range(2)]
    assert torch.equal(*same)


def test_files_of_torchvision_are_read_and_never_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mnist(root: str, train: bool, download: bool) -> Any:
        assert (root, download) == (str(tmp_path), False)
        count = 32 if train else 8
        return SimpleNamespace(data=torch.arange(count * 64).reshape(count, 8, 8) % 251, targets=[0, 1] * (count // 2))

    def cifar(*_: object, **__: object) -> Any:
        raise RuntimeError("Dataset not found or corrupted.")

    datasets = SimpleNamespace(MNIST=mnist, CIFAR10=cifar)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(datasets=datasets))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", datasets)
    program = Mnist(str(tmp_path), width=8)
    assert program.data_size == 32
    images, labels = program.batch(torch.arange(32))
    assert images.shape == (32, 1, 8, 8)
    assert len(labels) == 32
    assert program.model()(images).shape == (32, 2)
    with pytest.raises(JobError, match="no CIFAR10 there"):
        Cifar10(str(tmp_path))
    with pytest.raises(JobError, match="no such folder"):
        Cifar10(str(tmp_path / "none"))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(JobError, match="needs torchvision"):
        Mnist(str(tmp_path))


def test_sizes_that_make_no_model_are_refused() -> None:
    with pytest.raises(JobError, match="multiple of heads"):
        LanguageModel(width=30, heads=4)
    with pytest.raises(JobError, match="vocabulary at least choices"):
        LanguageModel(vocabulary=1)
    with pytest.raises(JobError, match="multiple of 8"):
        GeneratedImages(width=12)
