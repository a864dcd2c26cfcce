"""Jobs: submit, list, show, change, cancel, and what they report."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Header, Query, Response
from starlette.responses import StreamingResponse

from rlpto.service.web.access import TheCaller, job_for
from rlpto.service.web.errors import Problem
from rlpto.service.web.schemas import LARGEST_NUMBER_OF_ROW, JobBody, JobChange, JobId, PlainName
from rlpto.service.web.state import Service, TheService
from rlpto.service.web.submitting import allowed_job, check_priority, gpus_queued, previews_for, submission
from rlpto.store import requests, status
from rlpto.store.checkpoints import open_newest
from rlpto.store.curves import Point, points_after
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import STATES, JobRow, State, change_job, get_job, list_jobs
from rlpto.store.logs import LogLine, job_folder, log_lines
from rlpto.store.scripts import ScriptRow, get_script
from rlpto.store.users import note_change

router = APIRouter(tags=["jobs"])
ASSUMES = (
    "the policy in force stays, no job is submitted or cancelled, no quota, hold or drain keeps a job back, no node "
    "fails, and speeds are as estimated; an interval also allows for jobs that are forecast to come and for errors of "
    "speeds"
)
"""Assumptions of a predicted start and finish."""
PART_BYTES = 1 << 20
"""Bytes of a checkpoint that are sent at a time."""
BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The file. ETag: its SHA-256."}
}
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[!-~]{1,128}$",
        description="Of the client's choice: a repeated submission with the same key makes no second job.",
    ),
]
Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(pattern=r"^[0-9]{1,15}$", description="`next` of the page before.")]
Since = Annotated[int, Query(ge=0, le=LARGEST_NUMBER_OF_ROW, description="What follows this number.")]


@dataclass(frozen=True)
class JobAnswer(JobRow):
    """A job with its place in the queue and its predicted start and finish. prediction_assumes: what they rest on."""

    queue: status.QueueRow | None = None
    prediction: status.PredictionRow | None = None
    prediction_assumes: str = ASSUMES


@dataclass(frozen=True)
class JobPage:
    """Jobs, newest first. next: cursor of the next page; null: this is the last one."""

    jobs: list[JobRow]
    next: str | None


@dataclass(frozen=True)
class SubmissionCheck:
    """What would be submitted. preview: by metric and number of GPUs, for the job's epochs. waiting: jobs that wait
    now. gpus_ahead: GPUs that they ask for."""

    job: JobRow
    preview: list[status.PreviewRow]
    waiting: int
    gpus_ahead: int


@dataclass(frozen=True)
class CancelAnswer:
    """The job will end, or has ended."""

    id: str
    state: State


@dataclass(frozen=True)
class LogPage:
    """Lines of a log in order. next: number of the line that follows. over: the job is over; after an empty page no
    further lines come."""

    lines: list[LogLine]
    next: int
    over: bool


@dataclass(frozen=True)
class Curves:
    """Reports of a job in order. next: value of `since` for what follows."""

    points: list[Point]
    next: int


@router.post("/jobs", status_code=201)
async def submit_job(
    body: JobBody, caller: TheCaller, service: TheService, response: Response, key: Key = None
) -> JobRow:
    """Submit a job. It is on disk when this answers."""
    return submitted(response, *await service.commit(submission(service, caller.user, body, key)))


def submitted(response: Response, row: JobRow, is_new: bool) -> JobRow:
    """The answer to a submission, with its headers."""
    response.headers["Location"] = f"/api/v1/jobs/{row.id}"
    if not is_new:
        response.headers["Idempotency-Replayed"] = "true"
    return row


@router.post("/jobs/validate")
async def validate_job(body: JobBody, caller: TheCaller, service: TheService) -> SubmissionCheck:
    """What would be submitted, and what it would take; nothing is kept."""
    job = allowed_job(service.store, service.settings, caller.user, body)
    waiting, ahead = status.queue(service.store), gpus_queued(service.store)
    return SubmissionCheck(JobRow(**vars(job)), previews_for(service.store, job), len(waiting), ahead)


@router.get("/jobs")
async def jobs(
    caller: TheCaller,
    service: TheService,
    state: Annotated[list[State] | None, Query(max_length=len(STATES), description="In any of these states.")] = None,
    owner: Annotated[PlainName | None, Query(description="Of this user; users see their own only.")] = None,
    label: Annotated[str | None, Query(max_length=100, description="With this label, as key=value.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JobPage:
    """Jobs, newest first, page by page."""
    whose = owner if caller.user.sees_all else caller.name
    if owner is not None and owner != whose:
        return JobPage([], None)
    found = list_jobs(
        service.store,
        owner=whose,
        states=list(dict.fromkeys(state or ())),
        label=label,
        before=None if cursor is None else int(cursor),
        limit=limit + 1,
    )
    page = found[:limit]
    return JobPage(page, str(page[-1].seq) if len(found) > limit else None)


@router.get("/jobs/{job}")
async def job(job: JobId, caller: TheCaller, service: TheService) -> JobAnswer:
    """A job, with its place in the queue and the prediction of its start and finish."""
    return whole_answer(service, job_for(service, caller, job))


@router.patch("/jobs/{job}")
async def change_priority(job: JobId, body: JobChange, caller: TheCaller, service: TheService) -> JobAnswer:
    """Change the priority class of a job."""
    row, at = job_for(service, caller, job), service.now()
    if body.priority == row.priority:
        return whole_answer(service, row)
    if row.is_over:
        raise Problem(409, "job-over", f"the job is {row.state}; its priority means nothing any more")
    check_priority(service.settings, caller.user, body.priority)

    def write(store: Store) -> None:
        change_job(store, row.id, at, priority=body.priority)
        requests.ask(store, "priority", caller.name, at, row.id, {"priority": body.priority})
        note_change(store, caller.name, "job.priority", row.id, at, {"priority": body.priority, "before": row.priority})
        add_event(store, "job", at, row.id, row.owner, {"state": row.state, "priority": body.priority})

    await service.commit(write)
    return whole_answer(service, replace(row, priority=body.priority, changed=at))


@router.post("/jobs/{job}/cancel", status_code=202)
async def cancel_job(job: JobId, caller: TheCaller, service: TheService) -> CancelAnswer:
    """Let a job end; asked again, nothing more happens. What it has reported stays."""
    row = job_for(service, caller, job)
    at = service.now()

    def write(store: Store) -> None:
        now = get_job(store, row.id)
        if now is None or now.is_over or requests.asked(store, "cancel", row.id):
            return
        requests.ask(store, "cancel", caller.name, at, row.id)
        note_change(store, caller.name, "job.cancel", row.id, at, {"owner": row.owner})

    await service.commit(write)
    now = get_job(service.store, row.id) or row
    return CancelAnswer(now.id, now.state)


@router.get("/jobs/{job}/logs")
async def logs(
    job: JobId,
    caller: TheCaller,
    service: TheService,
    start: Annotated[
        int, Query(alias="from", ge=-10_000, le=LARGEST_NUMBER_OF_ROW, description="First number; -10: the last ten.")
    ] = -200,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> LogPage:
    """What its workers have printed, those of rank 1 and more with their number before each line."""
    row = job_for(service, caller, job)
    found = await asyncio.to_thread(log_lines, service.settings.folder, row.id, start, limit)
    next_line = found[-1].n + 1 if found else max(start, 1)
    return LogPage(found, next_line, row.is_over)


@router.get("/jobs/{job}/curves")
async def curves(
    job: JobId,
    caller: TheCaller,
    service: TheService,
    since: Since = 0,
    limit: Annotated[int, Query(ge=1, le=2000)] = 2000,
) -> Curves:
    """Loss, accuracy, GPUs, goodput and noise scale over time."""
    row = job_for(service, caller, job)
    found = points_after(service.store, row.id, since, limit)
    return Curves(found, found[-1].seq if found else since)


@router.get("/jobs/{job}/checkpoint", response_class=StreamingResponse, responses=BYTES)
async def checkpoint(job: JobId, caller: TheCaller, service: TheService) -> StreamingResponse:
    """The newest checkpoint, a file for `torch.load(..., weights_only=True)`: model, optimizer, scheduler, position."""
    row = job_for(service, caller, job)
    found = await asyncio.to_thread(open_newest, job_folder(service.settings.folder, row.id))
    if found is None:
        raise Problem(404, "no-checkpoint", f"job {row.id} has no checkpoint: it has not trained, or too short a time")
    kept, file = found
    headers = {
        "Content-Disposition": f'attachment; filename="{row.id}-step-{kept.step}.pt"',
        "Content-Length": str(os.fstat(file.fileno()).st_size),
        "ETag": f'"{kept.sha256}"',
    }
    return StreamingResponse(_parts(file), media_type="application/octet-stream", headers=headers)


def _parts(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while part := file.read(PART_BYTES):
            yield part


@router.get("/jobs/{job}/script")
async def script(job: JobId, caller: TheCaller, service: TheService) -> ScriptRow:
    """The script that a job trains by."""
    row = job_for(service, caller, job)
    found = None if row.script is None else get_script(service.store, row.script)
    if found is None:
        raise Problem(404, "no-script", f"job {row.id} trains by no script")
    return found


def whole_answer(service: Service, row: JobRow) -> JobAnswer:
    """A job with its place and prediction."""
    return JobAnswer(
        **vars(row), queue=status.queue_row(service.store, row.id), prediction=prediction_of(service.store, row)
    )


def prediction_of(store: Store, row: JobRow) -> status.PredictionRow | None:
    """When a job will start and finish; None for one on hold, too: holds are not simulated."""
    return None if row.held_by else status.prediction(store, row.id)
