"""A cluster and a job for the parts of the Ray benchmark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from _common import ROOT

from rlpto.ray_cluster.measuring.commanded_job import CommandedJob
from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.nodes.local import LocalCluster

DIGITS = "rlpto.ray_cluster.programs.digits"
SAMPLES, BATCH = 1437, 64


@contextmanager
def cluster(nodes: int = 4, gpus: int = 2) -> Iterator[LocalCluster]:
    """A local cluster; what the machine did beside it is said by its load."""
    with LocalCluster([gpus] * nodes) as started:
        yield started


def experiment(name: str, nodes: int, gpus: int, jobs: dict[str, Any], program: dict[str, Any], **ray: Any) -> str:
    """An experiment file, in JSON, which is YAML too: listed jobs that train the digits' small network.

    jobs, program, ray: further keys of its one entry under workload.jobs, of ray.programs and of ray.
    """
    trained = {"training": f"{DIGITS}:DigitsMlp", "samples": SAMPLES, "batch_size": BATCH}
    content = {
        "name": name,
        "cluster": {"nodes": [{"count": nodes, "gpus": gpus}]},
        "workload": {"source": "jobs", "jobs": [{"model": "digits", "gpus": 1, "max_gpus": 1} | jobs]},
        "simulator": {"interval": 10},
        "ray": {"programs": {"digits": trained | program}, "tensorboard": False} | ray,
        "policies": ["equal_share"],
        "evaluation": {"reference": "equal_share"},
    }
    return json.dumps(content)


@contextmanager
def job(**values: Any) -> Iterator[CommandedJob]:
    """A job in a folder of its own, stopped at the end."""
    with tempfile.TemporaryDirectory() as folder:
        given: dict[str, Any] = {
            "id": "job",
            "name": "job",
            "session": f"benchmark-{os.getpid()}",
            "training": f"{DIGITS}:DigitsCnn",
            "folder": folder,
            "batch_size": BATCH,
            "epochs": 1e6,
            "data_size": SAMPLES,
        }
        running = CommandedJob(JobSpec(**given | values))
        try:
            yield running
        finally:
            running.stop()


def send(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def rlpto(*arguments: str) -> None:
    """Run the command in a process of its own, as Ray runs once in a process."""
    subprocess.run([sys.executable, "-m", "rlpto.cli.main", *arguments], check=True, cwd=ROOT)


def load() -> str:
    """What else runs on this machine, as far as its load tells."""
    return f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
