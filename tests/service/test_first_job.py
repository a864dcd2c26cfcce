"""Schedulearn's acceptance behaviour S5: the first job of a new user, with the settings that come along."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from rlpto.ray_cluster.programs.digits import DigitsCnn
from tests.service.served import REPOSITORY, Served


@pytest.mark.cluster
def test_s5_the_first_job_takes_three_commands(tmp_path: Path) -> None:
    """The first of them installs the package, the second is `rlpto serve`."""
    example = yaml.safe_load((REPOSITORY / "configs" / "service.yaml").read_text())
    settings = {**example, "folder": str(tmp_path / "run"), "web": {"port": 0}}
    (tmp_path / "service.yaml").write_text(yaml.safe_dump(settings))
    service = Served(tmp_path / "service.yaml")
    try:
        done = service.command("submit", "-p", "digits_cnn", "--gpus", "2", "--epochs", "5", "--wait")
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
    finally:
        service.close()
