"""Clusters whose nodes have everything but RLPTO: its code goes along, and what else is missing is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rlpto.ray_cluster.settings import ProgramSettings
from rlpto.store.program_keys import SCRIPTS
from tests.ray_cluster.joined import REPOSITORY, Joined, joined, without_rlpto
from tests.ray_cluster.test_commands import column, once, steps_of
from tests.service.served import Served, write_settings

GPUS = 2
RLPTO = (sys.executable, "-c", "from rlpto.cli.main import run; run()")
DIGITS = {"training": "rlpto.ray_cluster.programs.digits:DigitsMlp", "samples": 1437, "batch_size": 64, "pace": 0.1}
PACKAGED = {**DIGITS, "training": "tiny_extra:Extra", "pip": ["tiny-extra==1.0"]}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Joined]:
    """A cluster without RLPTO, whose pip finds one package."""
    folder = tmp_path_factory.mktemp("packages")
    with zipfile.ZipFile(folder / "tiny_extra-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_extra.py", "from rlpto.ray_cluster.programs.digits import DigitsMlp as Extra\n")
        about = "tiny_extra-1.0.dist-info/"
        wheel.writestr(f"{about}METADATA", "Metadata-Version: 2.1\nName: tiny-extra\nVersion: 1.0\n")
        wheel.writestr(f"{about}WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}RECORD", f"tiny_extra.py,,\n{about}METADATA,,\n{about}WHEEL,,\n{about}RECORD,,\n")
    python = without_rlpto(tmp_path_factory.mktemp("python") / "bare")
    with joined(GPUS, python, variables={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}) as started:
        yield started


def start(folder: Path, cluster: Joined, *more: str, epochs: float = 1) -> subprocess.Popen[str]:
    """`rlpto evaluate` with a job on all GPUs, of a program in a package. Workers see its folder, without RLPTO."""
    content = {
        "name": "shipped",
        "workload": {"source": "jobs", "jobs": [{"model": "digits", "epochs": epochs, "gpus": GPUS}]},
        "ray": {"programs": {"digits": PACKAGED}, "checkpoint_interval": 2, "retries": 1, "heartbeat_timeout": 60},
        "policies": ["fifo"],
        "evaluation": {"reference": "fifo"},
    }
    (folder / "shipped.yaml").write_text(yaml.safe_dump(content))
    return subprocess.Popen(
        [*RLPTO, "evaluate", "shipped.yaml", "--cluster=ray", "--run-dir=run", "--address", cluster.address, *more],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.cluster
def test_the_code_goes_along_and_outlives_the_scheduler(tmp_path: Path, cluster: Joined) -> None:
    run = tmp_path / "run"
    with start(tmp_path, cluster, "--set", "ray.ship_code=never") as command:
        assert "No module named 'rlpto'" in command.communicate()[1]
    with start(tmp_path, cluster, epochs=1000) as command:
        once(command, lambda: max(steps_of(run), default=0) > 10)
        command.kill()
    os.kill(min(cluster.workers()), signal.SIGKILL)  # its successor starts without the scheduler
    cluster.wait_connected(f"report().interruptions.recoveries == 1 and len(report().training_on) == {GPUS}")
    with start(tmp_path, cluster, "--fresh") as command:
        assert command.wait() == 0, command.communicate()
    assert column(run, "state") == ["finished"]


@pytest.mark.slow
@pytest.mark.cluster
def test_packages_of_scripts_are_installed(tmp_path: Path, cluster: Joined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # Ray shows workers the folder of a driver
    script = {"training": SCRIPTS, "samples": 1437, "batch_size": 64}
    programs = {"script": {"program": script}}
    service = Served(write_settings(tmp_path, 1, 1, scheduler={"address": cluster.address}, programs=programs))
    try:
        service.environment["RLPTO_TOKEN"] = service.command("user", "add", "ann", "--role", "developer").stdout.strip()
        loop = (REPOSITORY / "examples" / "elastic_loop.py").read_text()
        (tmp_path / "loop.py").write_text(loop.replace("import torch\n", "import tiny_extra\nimport torch\n", 1))
        command = ("submit", "loop.py", "--samples=1437", "--epochs=2", "--gpus=2", "--wait")
        failed = service.command(*command, "--pip=no-such-package>=2")
        assert failed.returncode == 1
        assert "no-such-package" in failed.stdout + failed.stderr
        said = service.command(*command, "--pip=tiny-extra==1.0")
        assert said.returncode == 0, said.stderr + service.log()
    finally:
        service.close()


def test_pip_takes_names_and_versions_alone() -> None:
    for right in ("einops", "einops>=0.8,<1", "ray[default, tune] == 2.*", "A.b_c~=1.0"):
        ProgramSettings.model_validate({"training": "a:B", "pip": [right]})
    for wrong in ("-r x", "../x", "a @ file:///x", "https://x/y.whl", "a --index-url=x", "a\nb", ""):
        with pytest.raises(ValueError, match=r"pip\.0"):
            ProgramSettings.model_validate({"training": "a:B", "pip": [wrong]})
