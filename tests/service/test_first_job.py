"""Schedulearn's acceptance behaviour S5: the first job of a new user, with the settings that come along."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from rlpto.ray_cluster.programs.digits import DigitsCnn
from tests.service.served import REPOSITORY, Served


@pytest.mark.slow
@pytest.mark.cluster
def test_s5_the_first_job_takes_three_commands(tmp_path: Path) -> None:
    """The first of them installs the package, the second is `rlpto serve`."""
    example = yaml.safe_load((REPOSITORY / "configs" / "service.yaml").read_text())
    settings = {**example, "folder": str(tmp_path / "run")}  # the port of the example is not used: --port
    (tmp_path / "service.yaml").write_text(yaml.safe_dump(settings))
    service = Served(tmp_path / "service.yaml")
    try:
        done = service.command("submit", "-p", "digits_cnn", "--gpus", "2", "--epochs", "2", "--wait")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "finished" in done.stdout
        job = next(service.client.jobs())
        assert job["accuracy"] > 0.7
        fetched = service.command("job", "fetch", job["id"], "-o", str(tmp_path / "mine"))
        assert fetched.returncode == 0, fetched.stderr
        state = torch.load(tmp_path / "mine" / "checkpoint.pt", weights_only=True)
        network = DigitsCnn().model()
        network.load_state_dict(state["model"])
        assert "accuracy" in (tmp_path / "mine" / "curves.csv").read_text()
        wide = submit_a_program_that_is_added(service, tmp_path, example["programs"]["digits_mlp"])
        check_a_script_of_ones_own(service, tmp_path)
        assert service.over(wide)[0].state == "finished"
        assert [row["checked"] for row in service.client.programs() if row["name"] == "wide"] == ["usable"]
    finally:
        service.close()


def submit_a_program_that_is_added(service: Served, folder: Path, like: dict[str, Any]) -> str:
    """The scheduler knows it from then on, and imports its class. Returns the id of a job of it."""
    (folder / "wide.yaml").write_text(yaml.safe_dump({**like, "program": {**like["program"], "samples": 700}}))
    done = service.command("program", "set", "wide", str(folder / "wide.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr
    return service.submit(1.0, program="wide")


def check_a_script_of_ones_own(service: Served, folder: Path) -> None:
    """As docs/elastic.md says: a developer submits the example, here in two files, and fetches what it has trained."""
    service.environment["RLPTO_TOKEN"] = service.command("user", "add", "dev", "--role", "developer").stdout.strip()
    (folder / "project").mkdir()
    train, other = folder / "project" / "train.py", folder / "project" / "example.py"
    other.write_text((REPOSITORY / "examples" / "elastic_loop.py").read_text())
    train.write_text("print('hello')\nimport example  # a module that goes along\n")
    example = ["submit", str(train), "--files", str(other), "--samples", "1437", "--epochs", "3"]
    done = service.command(*example, "--gpus", "2", "--seed", "3", "--wait", "--", "--learning-rate", "0.2")
    assert done.returncode == 0, done.stdout + done.stderr
    job = next(service.client.jobs(limit=1))
    assert job["accuracy"] > 0.7
    assert service.command("job", "fetch", job["id"], "-o", str(folder / "script")).returncode == 0
    assert (folder / "script" / "script.py").read_text() == train.read_text()
    log = (folder / "script" / "log.txt").read_text()
    assert " hello\n" in log
    assert " [worker 1] hello\n" in log
    assert (folder / "script" / "files" / "example.py").read_text() == other.read_text()
    state = torch.load(folder / "script" / "checkpoint.pt", weights_only=True)
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    network.load_state_dict(state["model"])
