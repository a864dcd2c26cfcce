from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rlpto.io.errors import ProfileError
from rlpto.performance.measurements import read_measurements, smallest_rotation


def test_reads_limits_and_progress(measured_folder: Path) -> None:
    toy = read_measurements(measured_folder / "toy")
    assert (toy.name, toy.base_batch, toy.largest_batch, toy.min_local, toy.max_local) == ("toy", 8, 64, 2, 16)
    assert toy.epochs == 4
    # The smallest over the runs: the first one's.
    assert toy.progress.tolist() == [0, 100, 200, 300, 400]


def test_means_of_placements_stand_for_their_size(measured_folder: Path) -> None:
    steps = read_measurements(measured_folder / "toy").steps
    at = np.flatnonzero((steps.nodes == 2) & (steps.replicas == 4) & (steps.local_batch == 2))
    # Placements 22 (0.2 s) and 13 (0.3 s).
    np.testing.assert_allclose(steps.step_time[at], [0.25])
    assert len(steps) == 8 * 3 + 4 * 3


def test_yolov3_never_computes_more_than_8_at_once(measured_folder: Path) -> None:
    (measured_folder / "toy").rename(measured_folder / "yolov3")
    assert read_measurements(measured_folder / "yolov3").max_local == 8


def test_smallest_rotation_keeps_the_order_round() -> None:
    assert smallest_rotation((4, 1, 3, 2)) == (1, 3, 2, 4)


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("placements.csv", "step_time", "seconds", r"placements.csv: column step_time is missing"),
        ("placements.csv", "1,4,0.14", "1,4,fast", r"placements.csv, line 3: step_time 'fast.*, expected a number"),
        ("placements.csv", "\n1,4,", "\n1,1e400,", r"placements.csv, line 3: local_bsz '1e400', expected a number"),
        (
            "placements.csv",
            "\n1,4,",
            "\n1,1e300,",
            r"placements.csv, line 3: local_bsz '1e300', expected samples",
        ),
        ("placements.csv", "\n1,4,", "\n1,0,", r"placements.csv, line 3: local_bsz '0', expected samples, 1 to"),
        ("placements.csv", "\n44,", "\n4x,", r"placements.csv: placement '4x', expected digits"),
        ("scalability.csv", "8,8,2", "8,nan,2", r"scalability.csv, line 2: num_replicas 'nan', expected a number"),
        ("validation-16.csv", "metric", "loss", r"validation-16.csv: column metric is missing"),
    ],
)
def test_broken_files_are_named(measured_folder: Path, file: str, old: str, new: str, message: str) -> None:
    path = measured_folder / "toy" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ProfileError, match=message):
        read_measurements(measured_folder / "toy")


def test_missing_files_are_named(measured_folder: Path) -> None:
    (measured_folder / "toy" / "scalability.csv").unlink()
    with pytest.raises(ProfileError, match=r"scalability.csv: cannot read the file"):
        read_measurements(measured_folder / "toy")
    for path in (measured_folder / "toy").glob("validation-*.csv"):
        path.unlink()
    with pytest.raises(ProfileError, match=r"toy: no validation-<batch size>.csv"):
        read_measurements(measured_folder / "toy")


def test_empty_files_are_named(measured_folder: Path) -> None:
    (measured_folder / "toy" / "scalability.csv").write_text("")
    with pytest.raises(ProfileError, match=r"scalability.csv: the file is empty"):
        read_measurements(measured_folder / "toy")
