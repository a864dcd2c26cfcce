from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agents.archive import Archive, read_archive
from agents.brain import CHECKPOINT
from tests.agents.helpers import make_settings, make_setup, train_small


def last(folder: Path) -> Archive:
    return read_archive(folder / "last.zip", (CHECKPOINT,))


def stop_after(checks: int) -> Callable[[], bool]:
    """Asks to stop the so-many-th time it is looked at."""
    left = [checks]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    return stop


@pytest.mark.parametrize(
    ("action", "smooth_noise"), [("index", False), ("index", True), ("levels", False), ("increment", False)]
)
def test_a_resumed_training_is_bit_for_bit_one_that_was_never_stopped(
    tmp_path: Path, action: str, smooth_noise: bool
) -> None:
    setup = make_setup(action=action)
    settings = make_settings(ppo={"smooth_noise": smooth_noise})
    whole = train_small(tmp_path / "whole", setup, settings)
    assert whole.finished
    for checks in (2, 1):
        stopped = train_small(tmp_path / "parts", setup, settings, stop=stop_after(checks), resume=checks == 1)
        assert not stopped.finished
    resumed = train_small(tmp_path / "parts", setup, settings, resume=True)
    assert resumed.metrics == pytest.approx(whole.metrics, abs=0.0, nan_ok=True)
    one, other = last(tmp_path / "whole"), last(tmp_path / "parts")
    assert one.manifest["random"] == other.manifest["random"]
    assert one.manifest["history"] == other.manifest["history"]
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        assert array.tobytes() == other.arrays[name].tobytes(), name
