"""Ray's own way of submitting jobs: `ray job submit --address http://SERVICE` puts a script into the queue. Requests
and answers follow clients of Ray 2.60 (`ray.job_submission`). Not part of this service's own API."""

from __future__ import annotations

import asyncio
import re
import shlex
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.exceptions import RequestValidationError
from pydantic import Field, JsonValue, ValidationError

from rlpto.io.errors import ConfigError
from rlpto.service.web.access import TheCaller, TheJob
from rlpto.service.web.errors import not_found, not_valid
from rlpto.service.web.routes.jobs import cancel_job
from rlpto.service.web.schemas import Body, JobBody
from rlpto.service.web.state import Service, TheService
from rlpto.service.web.submitting import check_developer, check_script_early, submission
from rlpto.store.code_files import packed, unpack, unzip
from rlpto.store.jobs import JobRow, list_jobs
from rlpto.store.logs import log_lines
from rlpto.store.scripts import PackageRow, get_package, get_script, keep_package

router = APIRouter(prefix="/api", include_in_schema=False)
STATUS = {
    "running": "RUNNING",
    "finished": "SUCCEEDED",
    "failed": "FAILED",
    "rejected": "FAILED",
    "cancelled": "STOPPED",
}
"""Ray's names of states; jobs in any other state are PENDING."""
SCRIPT_PROGRAM = "script"
_ASKED = sorted({*JobBody.model_fields, "samples"} - {"after", "labels", "options", "script"})
"""Job fields that can be set by metadata, which are texts."""
_MOST_JOBS, _MOST_LINES = 200, 10_000
PACKAGE = r"^_ray_pkg_[A-Za-z0-9_]{1,80}\.zip$"
PackageName = Annotated[str, Path(pattern=PACKAGE)]


class RaySubmission(Body):
    """The supported part of a request by `ray job submit`."""

    entrypoint: str = Field(max_length=10_000)
    submission_id: str | None = Field(None, pattern=r"^[!-~]{1,128}$")
    runtime_env: dict[str, JsonValue] = Field(default_factory=dict)
    metadata: dict[str, str] = Field(default_factory=dict)
    entrypoint_num_gpus: float | None = Field(None, ge=0)


@router.get("/version")
async def ray_version(_: TheCaller) -> dict[str, str]:
    """Versions, which clients request first."""
    return {"version": "4", "ray_version": version("ray"), "ray_commit": ""}


@router.get("/packages/gcs/{name}")
async def has_package(name: PackageName, caller: TheCaller, service: TheService) -> dict[str, str]:
    """Whether the caller has uploaded a folder; 404 if not."""
    if get_package(service.store, caller.name, name) is None:
        raise not_found("package")
    return {"name": name}


@router.put("/packages/gcs/{name}")
async def upload(name: PackageName, request: Request, caller: TheCaller, service: TheService) -> dict[str, str]:
    """Store a folder for a later submission."""
    check_developer(caller.user)
    try:
        archive = await request.body()
        files = await asyncio.to_thread(lambda: packed(unzip(archive)))
    except (ConfigError, ValueError) as wrong:
        raise not_valid(f"working_dir: {wrong}") from None
    row = PackageRow(caller.name, name, files, service.now())
    await service.commit(lambda store: keep_package(store, row))
    return {"name": name}


@router.post("/jobs/")
async def submit_job(body: RaySubmission, caller: TheCaller, service: TheService) -> dict[str, str]:
    """Submit a script of an uploaded folder. A repeated `submission_id` makes no second job; the answer has the job's
    id."""
    check_developer(caller.user)
    asked = await asyncio.to_thread(_job_body, body, _package(service, caller.name, body))
    await check_script_early(caller.user, asked)
    row, _ = await service.commit(submission(service, caller.user, asked, body.submission_id))
    return {"job_id": row.id, "submission_id": row.id}


@router.get("/jobs/")
async def jobs(caller: TheCaller, service: TheService) -> list[dict[str, Any]]:
    """The newest jobs."""
    return [_details(service, row) for row in list_jobs(service.store, owner=caller.whose, limit=_MOST_JOBS)]


@router.get("/jobs/{job}")
async def job_details(row: TheJob, service: TheService) -> dict[str, Any]:
    """A job."""
    return _details(service, row)


@router.get("/jobs/{job}/logs")
async def job_logs(row: TheJob, service: TheService) -> dict[str, str]:
    """The newest lines of a job's log."""
    lines = await asyncio.to_thread(log_lines, service.settings.folder, row.id, -_MOST_LINES, _MOST_LINES)
    return {"logs": "".join(f"{line.text}\n" for line in lines)}


@router.post("/jobs/{job}/stop")
async def stop_job(row: TheJob, caller: TheCaller, service: TheService) -> dict[str, bool]:
    """Cancel a job."""
    await cancel_job(row, caller, service)
    return {"stopped": not row.is_over}


def _details(service: Service, row: JobRow) -> dict[str, Any]:
    """A job in the form that Ray's clients read."""
    script = None if row.script is None else get_script(service.store, row.script)
    command = ["python", script.name, *row.arguments] if script else [row.program]
    return {
        "type": "SUBMISSION",
        "submission_id": row.id,
        "status": STATUS.get(row.state, "PENDING"),
        "entrypoint": shlex.join(command),
        "message": f"{row.state}: {row.reason}" if row.reason else row.state,
        "start_time": None if row.started is None else int(row.started * 1000),
        "end_time": None if row.ended is None else int(row.ended * 1000),
        "metadata": {"name": row.name, "program": row.program, "gpus": str(row.gpus), "epochs": f"{row.epochs:g}"},
    }


def _package(service: Service, owner: str, body: RaySubmission) -> PackageRow | None:
    name = str(body.runtime_env.get("working_dir", "")).removeprefix("gcs://")
    return get_package(service.store, owner, name) if re.fullmatch(PACKAGE, name) else None


def _job_body(body: RaySubmission, package: PackageRow | None) -> JobBody:
    """Convert to a job submission. Raises Problem."""
    if wrong := sorted(body.metadata.keys() - _ASKED):
        raise not_valid(f"metadata.{wrong[0]}: expected one of {', '.join(_ASKED)}")
    gpus = {"gpus": body.entrypoint_num_gpus} if body.entrypoint_num_gpus else {}
    asked: dict[str, Any] = {"program": SCRIPT_PROGRAM, **gpus, **body.metadata}
    asked["script"] = _script(body, package, asked.pop("samples", None))
    try:
        return JobBody.model_validate(asked, strict=False)  # metadata are texts
    except ValidationError as wrong_value:
        raise RequestValidationError(wrong_value.errors()) from None


def _script(body: RaySubmission, package: PackageRow | None, samples: object) -> dict[str, Any]:
    """The script named by the entrypoint, with the other files of its folder. Raises Problem."""
    try:
        python, name, *arguments = shlex.split(body.entrypoint)
    except ValueError:
        python, name, arguments = "", "", []
    if python not in ("python", "python3") or not name.endswith(".py"):
        raise not_valid(f"entrypoint: expected python FILE.py [ARGUMENT...], got {body.entrypoint[:80]!r}")
    others = [key for key in body.runtime_env if key not in ("working_dir", "pip") and not key.startswith("_")]
    if others:
        raise not_valid(
            f"runtime_env.{others[0]}: expected working_dir and pip alone: jobs share the rest of the nodes"
        )
    pip = body.runtime_env.get("pip", [])  # Ray's client turns a list into a mapping
    if isinstance(pip, dict):
        if wrong := sorted(key for key in pip if key != "packages" and (key, pip[key]) != ("pip_check", False)):
            said = "expected packages alone, which workers get in addition to those of their nodes"
            raise not_valid(f"runtime_env.pip.{wrong[0][:80]}: {said}")
        pip = pip.get("packages", [])
    if package is None:
        where = str(body.runtime_env.get("working_dir", ""))
        raise not_valid(f"runtime_env.working_dir: expected the folder of the script, got {where[:80]!r}")
    files = unpack(package.files) if package.files else {}
    name = name.removeprefix("./")
    source = None if "/" in name else files.pop(name, None)
    if source is None:
        raise not_valid(f"entrypoint: expected a file of the working_dir, not of a folder in it, got {name[:80]!r}")
    if samples is None:
        raise not_valid("metadata.samples: expected the samples of an epoch, `data_size` of the script's session")
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise not_valid(f"entrypoint: {name[:80]}: expected a script in UTF-8") from None
    script = {"name": name, "source": text, "arguments": arguments, "samples": samples}
    return {**script, "files": packed(files), "pip": pip}
