"""Ray's own client submits to the service, as to a Ray cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from rlpto.store.code_files import unpack
from rlpto.store.jobs import change_job, get_job, list_jobs
from rlpto.store.logs import OutputLog, job_folder
from rlpto.store.scripts import get_script
from tests.service.web.helpers import Api, WebProcess, web_process

COMMAND = "python train.py --lr 0.1"
SOURCE = "from rlpto import elastic  # {}"


@pytest.fixture(scope="module")
def web(shared_api: Api) -> Iterator[WebProcess]:
    """A server over the store of `shared_api`."""
    with web_process(shared_api.settings) as found:
        yield found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a script and a module."""
    for name in ("train.py", "model/layers.py", ".gitignore"):
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(SOURCE.format(name))
    return tmp_path / "mine"


def client_of(shared_api: Api, web: WebProcess, user: str) -> JobSubmissionClient:
    return JobSubmissionClient(web.address, headers={"Authorization": f"Bearer {shared_api.tokens[user]}"})


def test_a_job_from_submission_to_stop(shared_api: Api, web: WebProcess, project: Path) -> None:
    client = client_of(shared_api, web, "dev")
    asked = {"samples": "100", "epochs": "2.5", "max_gpus": "4"}
    environment = {"working_dir": str(project), "pip": ["einops>=0.8"]}
    job = client.submit_job(entrypoint=COMMAND, runtime_env=environment, metadata=asked, entrypoint_num_gpus=2)
    row = get_job(shared_api.store, job)
    assert (row.owner, row.gpus, row.max_gpus, row.epochs, row.samples) == ("dev", 2, 4, 2.5, 100)
    assert (list(row.arguments), list(row.pip)) == (["--lr", "0.1"], ["einops>=0.8"])
    script = get_script(shared_api.store, row.script or "")
    assert (script.name, script.source) == ("train.py", SOURCE.format("train.py"))
    assert unpack(script.files) == {"model/layers.py": SOURCE.format("model/layers.py").encode()}

    assert client.get_job_status(job) == JobStatus.PENDING
    assert client.get_job_info(job).entrypoint == COMMAND
    OutputLog(job_folder(shared_api.settings.folder, job)).write("hello")
    assert client.get_job_logs(job) == "hello\n"
    assert client.stop_job(job)
    change_job(shared_api.store, job, 2.0, state="cancelled")
    assert client.get_job_status(job) == JobStatus.STOPPED
    assert not client.stop_job(job)
    assert [one.submission_id for one in client.list_jobs()] == [job]
    assert client_of(shared_api, web, "bob").list_jobs() == []

    named = {"entrypoint": COMMAND, "runtime_env": environment, "metadata": asked, "submission_id": "mine"}
    assert client.submit_job(**named) == client.submit_job(**named) != job


@pytest.mark.slow
def test_the_command_of_ray(shared_api: Api, web: WebProcess, project: Path) -> None:
    command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", "job"]
    headers = json.dumps({"Authorization": f"Bearer {shared_api.tokens['dev']}"})
    environment = os.environ | {"RAY_JOB_HEADERS": headers, "RAY_ADDRESS": web.address}
    asked = ["--metadata-json", '{"samples": "100", "gpus": "2"}', "--working-dir", str(project)]
    done = subprocess.run(
        [*command, "submit", "--no-wait", *asked, "--", *COMMAND.split()],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    job = list_jobs(shared_api.store)[0]
    assert job.gpus == 2
    assert f"'{job.id}' submitted" in done.stdout


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"entrypoint": "bash train.sh"}, "expected python FILE.py"),
        ({"entrypoint": "python 'train.py"}, "expected python FILE.py"),
        ({"entrypoint": "python other.py"}, "expected a file of the working_dir"),
        ({"entrypoint": "python model/layers.py"}, "not of a folder in it"),
        ({"entrypoint": "python latin.py"}, "latin.py: expected a script in UTF-8"),
        ({"metadata": {}}, "metadata.samples"),
        ({"metadata": {"samples": "many"}}, "samples: .* a valid integer"),
        ({"metadata": {"samples": "1", "gpu": "1"}}, "metadata.gpu: expected one of"),
        ({"runtime_env": {}}, "expected the folder of the script"),
        (
            {"runtime_env": {"pip": {"packages": ["a"], "pip_install_options": ["-i x"]}}},
            "pip.pip_install_options: exp",
        ),
        ({"runtime_env": {"pip": {"packages": ["a"], "pip_check": True}}}, "pip.pip_check: expected packages alone"),
        ({"runtime_env": {"pip": {"packages": ["a"], "pip_version": "==24"}}}, "pip.pip_version: expected packages"),
        ({"runtime_env": {"env_vars": {"A": "1"}}}, "expected working_dir and pip alone"),
        ({"entrypoint_num_cpus": 1}, "entrypoint_num_cpus"),
        ({"entrypoint_num_gpus": 9}, "8 GPUs at most"),
    ],
)
def test_what_cannot_be_done_is_refused(
    shared_api: Api, web: WebProcess, project: Path, change: dict[str, object], said: str
) -> None:
    asked = {"entrypoint": COMMAND, "runtime_env": {"working_dir": str(project)}, "metadata": {"samples": "1"}}
    (project / "latin.py").write_bytes("# -*- coding: latin-1 -*-\nname = 'é'".encode("latin-1"))
    before = list_jobs(shared_api.store)
    with pytest.raises(RuntimeError, match=said):
        client_of(shared_api, web, "dev").submit_job(**{**asked, **change})  # type: ignore[arg-type]
    assert list_jobs(shared_api.store) == before


def test_only_developers_upload_code(shared_api: Api, web: WebProcess, project: Path) -> None:
    with pytest.raises(AuthenticationError, match="only the role developer"):
        client_of(shared_api, web, "ann").submit_job(entrypoint=COMMAND, runtime_env={"working_dir": str(project)})
