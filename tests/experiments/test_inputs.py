"""Configurations that travel with their files: after the folder of origin is gone, they run to the same digits."""

import io
import os
import pickle
import shutil
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlpto.evaluation.metrics import measure
from rlpto.experiments import inputs
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.experiments.inputs import OWN, UNPACKED, Inputs
from rlpto.io.errors import ClusterError
from rlpto.io.paths import EXAMPLES, PROFILES
from tests.plugins import SHOCKWAVE, install, policies_of
from tests.ray_cluster.experiments import write_project

WALL = {"latency_p50", "latency_p99", "wall_seconds"}


def test_all_files_go_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "origin"
    monkeypatch.chdir(write_project(folder))
    shutil.copytree(PROFILES / "llm", folder / "mine")
    changes = ["policies=[fifo, ../origin/own.py:Own, 'index:weights=mine.yaml>600:las', planner]"]
    config = load_config(Path("exp.yaml"), changes)
    before = Experiment(config)
    figures = [measure(before.run_cell(cell)) for cell in before.cells()]
    sent = pickle.dumps(Inputs.of(config))
    others = pickle.dumps(Inputs.of(load_config(Path("exp.yaml"), ["profiles.folder=mine", "provision=average"])))
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(folder)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    got = pickle.loads(sent)
    after = Experiment(got.here)
    assert [str(spec) for spec in got.policies] == list(config.policies)
    for cell, wanted in zip(after.cells(), figures, strict=True):
        found = measure(after.run_cell(cell))
        np.testing.assert_equal({**found, **dict.fromkeys(WALL)}, {**wanted, **dict.fromkeys(WALL)})
    its = pickle.loads(others).here.profiles.folder
    assert {path.name for path in its.iterdir()} == {path.name for path in (PROFILES / "llm").iterdir()}
    assert len(list(tmp_path.glob("rlpto-inputs-*/*"))) == 2, "each is unpacked once"


def test_all_files_of_a_pattern_go_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_project(tmp_path / "origin"))
    for copy in ("deeper/still/k.parquet", ".hidden.parquet"):
        Path(copy).parent.mkdir(exist_ok=True)
        shutil.copyfile("j.parquet", copy)
    sent = Inputs.of(load_config(Path("exp.yaml"), ["workload.path='**/*.parquet'"]))
    with zipfile.ZipFile(io.BytesIO(sent.files)) as archive:
        names = {Path(name).name for name in archive.namelist()}
    assert names == {"j.parquet", "k.parquet", ".hidden.parquet"}


def test_files_of_rlpto_stay_and_have_the_place_of_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sent = Inputs.of(load_config(EXAMPLES / "quickstart.yaml", ["policies=['index:weights=tuned/quickstart.yaml']"]))
    monkeypatch.setattr(inputs, "OWN", (tmp_path, OWN[1]))
    assert sent.here.policies == (f"index:weights={tmp_path}/tuned/quickstart.yaml",)
    assert not list(sent.folder.iterdir())


def test_a_host_without_the_same_plug_in_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_project(tmp_path / "origin"))
    install(policies_of(SHOCKWAVE), SHOCKWAVE, tmp_path / "site", monkeypatch)
    sent = Inputs.of(load_config(Path("exp.yaml"), ["policies=[fifo>60:themis]"]))
    assert sent.here.policies == ("fifo>60:themis",)
    with pytest.raises(ClusterError, match="lacks the plug-in of policy themis"):
        _ = replace(sent, plugins={**sent.plugins, "policy themis": "another"}).here


def test_a_link_in_place_of_the_folder_for_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, shared = tmp_path / "mine", tmp_path / "tmp"
    (mine / "old").mkdir(parents=True)
    os.utime(mine / "old", (0, 0))
    shared.mkdir()
    (shared / f"{UNPACKED}-{os.getuid()}").symlink_to(mine)
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    with pytest.raises(ClusterError, match="expected a folder of this user, and no link"):
        _ = Inputs.of(load_config("quickstart")).folder
    assert [path.name for path in mine.iterdir()] == ["old"], "nothing was written or removed there"
