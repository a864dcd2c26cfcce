"""Batch scripts for Slurm: what is asked for, and a cluster inside a real job where Slurm is at hand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlpto.ray_cluster.nodes.slurm import batch_script


def slurm_is_up() -> bool:
    """True if Slurm has nodes that take jobs."""
    if shutil.which("sbatch") is None:
        return False
    found = subprocess.run(["sinfo", "--noheader", "--format=%a %D"], capture_output=True, text=True, timeout=60)
    return found.returncode == 0 and found.stdout.startswith("up")


def test_the_script_asks_for_nodes_and_passes_the_command_as_given(tmp_path: Path) -> None:
    text = batch_script(["echo", "it's $HOME"], 4, 8, 1.5, more=["--partition=gpu"])
    for option in ("--nodes=4", "--gpus-per-node=8", "--time=90", "--partition=gpu"):
        assert f"#SBATCH {option}\n" in text
    assert "--gpus-per-node" not in batch_script(["true"], 1, 2, 1.0, logical=True)
    (tmp_path / "job").write_text(text)
    assert subprocess.run(["bash", "-n", tmp_path / "job"]).returncode == 0
    last = text.rstrip().splitlines()[-1]
    assert subprocess.run(["bash", "-c", last], capture_output=True, text=True).stdout == "it's $HOME\n"


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.skipif(not slurm_is_up(), reason="Slurm is not at hand: sinfo finds no nodes")
def test_a_command_finds_the_cluster_of_its_job(tmp_path: Path) -> None:
    tools = Path(sys.executable).parent
    command = [str(tools / "rlpto"), "cluster", "status", "--address", "auto"]
    script = tmp_path / "job.sbatch"
    script.write_text(batch_script(command, 1, 3, 0.1, logical=True))
    done = subprocess.run(
        ["sbatch", "--wait", "--output=out.txt", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    said = (tmp_path / "out.txt").read_text()
    assert done.returncode == 0, said
    assert re.search(r" 3 +0 ", said)  # GPUs, and those held
