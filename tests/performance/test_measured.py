"""Measured profiles: files, and speed tables interpolated from them."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from rlpto.io.errors import ProfileError
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.efficiency import BatchLimits
from rlpto.performance.fit import fit_folder
from rlpto.performance.measured import MeasuredModel, MeasuredProfiles
from rlpto.performance.measurements import read_measurements
from rlpto.performance.profiles import builtin_profiles
from rlpto.performance.tables import JobType, SpeedTables, placement_key


def test_reads_limits_and_progress(measured_folder: Path) -> None:
    toy = read_measurements(measured_folder / "toy")
    assert (toy.name, toy.limits) == ("toy", BatchLimits(8, 64, 2, 16))
    assert toy.epochs == 4
    # The smallest over the runs: the first one's.
    assert toy.progress.tolist() == [0, 100, 200, 300, 400]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("placements.csv", "step_time", "seconds", r"placements.csv: column step_time is missing"),
        ("placements.csv", "1,4,0.14", "1,4,fast", r"line 3: step_time 'fast.*, expected seconds above 0"),
        ("placements.csv", "\n1,4,", "\n1,0,", r"placements.csv, line 3: local_bsz '0', expected samples, 1 to"),
        ("placements.csv", "1,4,0.14", "1,4,-0.1", r"line 3: step_time '-0.1', expected seconds above 0"),
        ("placements.csv", "0.14,0.0", "0.14,-1", r"line 3: sync_time '-1', expected seconds, 0 or more"),
        ("placements.csv", "0.14,0.0", "0.14,1", r"line 3: sync_time '1', expected no more than step_time, 0.14"),
        ("scalability.csv", "\n8,8,2,", "\n0,8,2,", r"line 2: num_nodes '0', expected a whole number"),
        ("scalability.csv", "\n8,8,2,", "\n8,8.5,2,", r"line 2: num_replicas '8.5', expected a whole"),
        ("scalability.csv", "\n8,8,2,", "\n9,8,2,", r"line 2: num_nodes '9', expected no more than num_replicas, 8"),
        ("validation-8.csv", "\n100,", "\n-100,", r"line 2: progress '-100', expected a number above 0"),
        ("validation-8.csv", "\n200,", "\n90,", r"line 3: progress '90', expected more than in the line before"),
        (
            "validation-8.csv",
            "100,100,0.2,1.0",
            "100,100,0.2,-1",
            r"line 2: grad_sqr '-1', expected a number, 0 or more",
        ),
        ("placements.csv", "\n44,", "\n4x,", r"placements.csv, line 26: placement '4x', expected digits"),
        ("placements.csv", "1,4,0.14", "\n1,4,fast", r"line 4: step_time 'fast'"),  # after a blank line
    ],
)
def test_broken_files_are_named(measured_folder: Path, file: str, old: str, new: str, message: str) -> None:
    path = measured_folder / "toy" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ProfileError, match=message):
        read_measurements(measured_folder / "toy")


def test_a_least_local_batch_above_the_least_batch_is_refused(measured_folder: Path) -> None:
    (measured_folder / "toy" / "validation-8.csv").rename(measured_folder / "toy" / "validation-1.csv")
    refused = r"placements.csv: the least local_bsz is 2, expected 1 or less, because validation-1.csv"
    with pytest.raises(ProfileError, match=refused):
        read_measurements(measured_folder / "toy")


def test_an_epoch_without_gradients_is_refused_by_the_fit(measured_folder: Path, tmp_path: Path) -> None:
    for path in (measured_folder / "toy").glob("validation-*.csv"):
        lines = path.read_text().splitlines()
        lines[2] = ",".join([*lines[2].split(",")[:3], "0", "0"])
        path.write_text("\n".join(lines))
    refused = r"toy: grad_sqr or grad_var is 0 in line 3 of every validation file, expected numbers above 0"
    with pytest.raises(ProfileError, match=refused):
        fit_folder(measured_folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_fit_names_the_artifact_only_as_the_source_of_its_models(measured_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(measured_folder / "toy", measured_folder / "bert")
    bert, toy = (load_profiles(path).profile(path.stem) for path in fit_folder(measured_folder, tmp_path / "out"))
    assert "Pollux" in bert.source
    assert toy.source == "Own fit to the measurements in the folder toy"


def test_missing_files_are_named(measured_folder: Path) -> None:
    (measured_folder / "toy" / "scalability.csv").unlink()
    with pytest.raises(ProfileError, match=r"scalability.csv: cannot read the file"):
        read_measurements(measured_folder / "toy")
    for path in (measured_folder / "toy").glob("validation-*.csv"):
        path.unlink()
    with pytest.raises(ProfileError, match=r"toy: no validation-<batch size>.csv"):
        read_measurements(measured_folder / "toy")


def rate_of(tables: SpeedTables, type_index: int, placement: tuple[int, ...]) -> np.ndarray:
    """Epochs per second by epoch on a placement, looked up as the kernels do."""
    key = placement_key(type_index, placement)
    at = int(np.searchsorted(tables.exact_keys, key))
    if at < len(tables.exact_keys) and tables.exact_keys[at] == key:
        return tables.rates[tables.exact_rows[at]]
    spans = tables.row.shape[1]
    return tables.rates[tables.row[type_index, min(len(placement), spans) - 1, sum(placement)]]


def test_rates_worked_out_by_hand(measured_folder: Path) -> None:
    tables = compile_tables(MeasuredProfiles(measured_folder), [JobType("toy", 24)], 16, 4)
    # 24 samples on 2 GPUs: 12 each. Step .1 + .12 + .02 + .02 s. Statistics at 24: a sixth of the way from 16 to 64.
    sqr, step = 2 + 1 / 6, 0.26
    progress = np.array([0, 100, 200, 300, 400])
    for epoch in range(4):
        var = (epoch + 1) * (3 + 1 / 6)
        gain = (var + sqr) / (var / 3 + sqr)
        expected = gain / step / (progress[epoch + 1] - progress[epoch])
        assert rate_of(tables, 0, (2,))[epoch] == pytest.approx(expected, rel=1e-12)
        assert rate_of(tables, 0, (1, 1))[epoch] == pytest.approx(expected * 0.26 / 0.28, rel=1e-12)


def test_sizes_beyond_the_measured_ones_take_the_nearest(measured_folder: Path) -> None:
    model = MeasuredModel(read_measurements(measured_folder / "toy"))
    local = np.array([4])
    eight_on_a_node = model.size_steps(np.array([1]), np.array([8]), local)
    four_on_a_node = model.size_steps(np.array([1]), np.array([4]), local)
    assert eight_on_a_node.step == pytest.approx(four_on_a_node.step)
    assert np.isfinite(model.size_steps(np.array([40]), np.array([300]), local).step).all()
    tables = compile_tables(MeasuredProfiles(measured_folder), [JobType("toy", 64), JobType("toy")], 200, 8)
    assert np.all(tables.rates[1:] > 0)
    assert np.isfinite(tables.rates).all()


def test_sizes_below_every_measured_placement_take_the_nearest_too(measured_folder: Path) -> None:
    path, profiles = measured_folder / "toy" / "placements.csv", MeasuredProfiles(measured_folder)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if line.partition(",")[0] not in ("1", "2", "11")))
    tables = compile_tables(profiles, [JobType("toy", 16), JobType("toy")], 2, 4)
    assert np.all(tables.rates[1:] > 0)
    assert len(tables.exact_keys) == 0
    with pytest.raises(ProfileError, match=r"toy: no steps of placement 1 on GPU type 'gpu'"):
        profiles.one_gpu_throughput("toy", "gpu")


def test_steps_on_one_node_alone_are_refused(measured_folder: Path) -> None:
    toy = measured_folder / "toy"
    head, *lines = (toy / "placements.csv").read_text().splitlines()
    (toy / "placements.csv").write_text("\n".join([head, *(line for line in lines if line[1] == ",")]))
    (toy / "scalability.csv").write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n1,4,8,0.3,0.1\n")
    with pytest.raises(ProfileError, match=r"toy: the steps .* lie in one plane, expected steps on one node and"):
        compile_tables(MeasuredProfiles(measured_folder), [JobType("toy")], 4, 4)


def test_more_types_than_keys_of_placements_are_refused(measured_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = MeasuredProfiles(measured_folder)
    part = profiles.type_tables(JobType("toy"), 4, 4)
    monkeypatch.setattr(profiles, "type_tables", lambda *_: part)
    with pytest.raises(ProfileError, match=r"923 combinations of model, .*, expected at most 922"):
        compile_tables(profiles, [JobType("toy", batch) for batch in range(8, 931)], 4, 4)


def test_the_rescale_delay_is_the_built_in_one_where_there_is_one(measured_folder: Path) -> None:
    (measured_folder / "toy").rename(measured_folder / "bert")
    assert MeasuredProfiles(measured_folder).facts("bert").rescale_delay == builtin_profiles()["bert"].rescale_delay
    (measured_folder / "bert").rename(measured_folder / "toy")
    assert MeasuredProfiles(measured_folder).facts("toy").rescale_delay == 30
