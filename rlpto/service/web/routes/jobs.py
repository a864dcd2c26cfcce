"""Jobs: submit, list, show, change, hold, cancel and repeat them, one or many at once, and their reports."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Header, Query, Response
from starlette.responses import StreamingResponse

from rlpto.service.web.access import Caller, TheCaller, TheJob
from rlpto.service.web.errors import Problem, not_found
from rlpto.service.web.schemas import LARGEST_ROW, ArrayBody, Cursor, JobBody, JobChange, LabelFilter, Limit, PlainName
from rlpto.service.web.state import Service, TheService
from rlpto.service.web.submitting import (
    allowed_job,
    allowed_priority,
    bodies_of,
    body_of,
    check_priority,
    check_script_early,
    previews_for,
    submission,
)
from rlpto.store import requests, status
from rlpto.store.checkpoints import open_newest
from rlpto.store.curves import Point, points_after
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import ACTIVE, EXPECTED, STATES, JobRow, State, change_job, get_job, list_jobs
from rlpto.store.logs import LogLine, job_folder, log_lines
from rlpto.store.scripts import ScriptRow, get_script
from rlpto.store.users import get_user, note_change

router = APIRouter(tags=["jobs"])
ASSUMES = (
    "the policy in force stays, no job is cancelled, only jobs that are forecast are submitted, no quota, hold or "
    "drain keeps a job back, no node fails, and speeds are as estimated; an interval also allows for errors of speeds"
)
"""Assumptions of a predicted start and finish."""
PART_BYTES = 1 << 20
"""Bytes of a checkpoint sent at a time."""
BYTES: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {}}, "description": "The file. ETag: its SHA-256."}
}
_ONCE = "Of the client's choice: a repeated submission with the same key makes no second job."
Key = Annotated[str | None, Header(alias="Idempotency-Key", pattern=r"^[!-~]{1,128}$", description=_ONCE)]
_ALL = 1_000_000


@dataclass(frozen=True)
class JobAnswer(JobRow):
    """A job with its queue position and its predicted start and finish. prediction_assumes: assumptions of the
    prediction."""

    queue: status.QueueRow | None = None
    prediction: status.PredictionRow | None = None
    prediction_assumes: str = ASSUMES


@dataclass(frozen=True)
class JobPage:
    """Jobs, newest first. next: cursor of the next page, null on the last one."""

    jobs: list[JobRow]
    next: str | None


@dataclass(frozen=True)
class ManyJobs:
    """Jobs that were submitted or cancelled together."""

    jobs: list[JobRow]


@dataclass(frozen=True)
class SubmissionCheck:
    """The job that would be submitted. preview: predictions by metric and number of GPUs, for the job's epochs; empty
    if the program's speed is unknown. waiting: number of waiting jobs. gpus_ahead: GPUs that they ask for."""

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
    """Lines of a log in order. next: number of the next line. over: whether the job has ended; then no lines come after
    an empty page."""

    lines: list[LogLine]
    next: int
    over: bool


@dataclass(frozen=True)
class Curves:
    """Reports of a job in order. next: value of `since` for later reports."""

    points: list[Point]
    next: int


@router.post("/jobs", status_code=201)
async def submit_job(
    body: JobBody, caller: TheCaller, service: TheService, response: Response, key: Key = None
) -> JobRow:
    """Submit a job. It is on disk when this answers."""
    await check_script_early(caller.user, body)
    return _submitted(response, *await service.commit(submission(service, caller.user, body, key)))


def _submitted(response: Response, row: JobRow, is_new: bool) -> JobRow:
    """The answer to a submission, with its headers."""
    response.headers["Location"] = f"/api/v1/jobs/{row.id}"
    if not is_new:
        response.headers["Idempotency-Replayed"] = "true"
    return row


@router.post("/jobs/validate")
async def validate_job(body: JobBody, caller: TheCaller, service: TheService) -> SubmissionCheck:
    """The job that would be submitted, with its predicted duration; nothing is stored."""
    await check_script_early(caller.user, body)
    store = service.store
    job = allowed_job(store, service.settings, caller.user, body)
    ahead = store.rows("SELECT coalesce(sum(gpus), 0) FROM jobs WHERE state = 'queued'")[0][0]
    return SubmissionCheck(job, previews_for(store, job), len(status.queue(store)), ahead)


@router.post("/jobs/array", status_code=201)
async def submit_array(body: ArrayBody, caller: TheCaller, service: TheService, key: Key = None) -> ManyJobs:
    """Submit up to 1,000 jobs that differ by a number, all or none."""
    made = []
    await check_script_early(caller.user, body.job)
    for number, one in enumerate(bodies_of(body), body.first):
        made.append(submission(service, caller.user, one, key and f"{key}[{number}]"))
        await asyncio.sleep(0)  # other requests are answered meanwhile
    return ManyJobs(await service.commit(lambda store: [write(store)[0] for write in made]))


@router.post("/jobs/{job}/resubmit", status_code=201)
async def resubmit(row: TheJob, caller: TheCaller, service: TheService, response: Response, key: Key = None) -> JobRow:
    """Submit an ended job again, for its owner, with the same values, but without jobs that had to finish first and
    without a priority class above the owner's highest."""
    if not row.is_over:
        raise Problem(409, "not-over", f"the job is {row.state}: expected one that is over")
    owner = get_user(service.store, row.owner)
    if owner is None or owner.disabled:
        raise Problem(403, "no-owner", f"{row.owner or 'its owner'} may not submit jobs any more")
    body = body_of(service.store, row)
    body = body.model_copy(update={"priority": allowed_priority(service.settings, owner, body.priority)})
    await check_script_early(owner, body)
    submit = submission(service, owner, body, key)

    def write(store: Store) -> tuple[JobRow, bool]:
        found, is_new = submit(store)
        if is_new:
            detail = {"owner": row.owner, "before": row.id}
            note_change(store, caller.name, "job.resubmit", found.id, found.submitted, detail)
        return found, is_new

    return _submitted(response, *await service.commit(write))


@router.get("/jobs")
async def jobs(
    caller: TheCaller,
    service: TheService,
    state: Annotated[list[State] | None, Query(max_length=len(STATES), description="In any of these states.")] = None,
    owner: Annotated[PlainName | None, Query(description="Of this user; users see their own only.")] = None,
    label: LabelFilter = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> JobPage:
    """Jobs, newest first, page by page."""
    if owner is not None and not caller.may_see(owner):
        return JobPage([], None)
    states, before = list(dict.fromkeys(state or ())), None if cursor is None else int(cursor)
    whose = caller.whose or owner
    found = list_jobs(service.store, owner=whose, states=states, label=label, before=before, limit=limit + 1)
    return JobPage(found[:limit], str(found[limit - 1].seq) if len(found) > limit else None)


@router.get("/jobs/{job}")
async def job(row: TheJob, service: TheService) -> JobAnswer:
    """A job, with its queue position and its predicted start and finish."""
    return whole_answer(service, row)


def whole_answer(service: Service, row: JobRow) -> JobAnswer:
    """A job with its queue position and prediction. A held job has no prediction, because holds are not simulated."""
    prediction = None if row.held_by else status.prediction(service.store, row.id)
    return JobAnswer(**vars(row), queue=status.queue_row(service.store, row.id), prediction=prediction)


@router.patch("/jobs/{job}")
async def change_priority(row: TheJob, body: JobChange, caller: TheCaller, service: TheService) -> JobAnswer:
    """Change the priority class of a job."""
    at = service.now()
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


@router.post("/jobs/{job}/hold")
async def hold(row: TheJob, caller: TheCaller, service: TheService) -> JobAnswer:
    """Keep a waiting job from starting until it is released. Repeating this has no effect."""
    return await _set_hold(service, caller, row, caller.name)


@router.post("/jobs/{job}/release")
async def release(row: TheJob, caller: TheCaller, service: TheService) -> JobAnswer:
    """Let a held job start again. No effect on other jobs."""
    return await _set_hold(service, caller, row, "")


async def _set_hold(service: Service, caller: Caller, row: JobRow, by: str) -> JobAnswer:
    at = service.now()

    def write(store: Store) -> JobRow:
        if (now := get_job(store, row.id)) is None:
            raise not_found("job")  # forgotten meanwhile
        if bool(by) == bool(now.held_by) or (now.is_over and not by):
            return now  # an ended job keeps its reason
        if by and (now.is_over or now.state in ("starting", "running")):
            detail = f"the job is {now.state}: expected one that waits, since a hold only keeps jobs from starting"
            raise Problem(409, "not-waiting", detail)
        reason = f"held by {by}" if by else now.waits_for
        change_job(store, row.id, at, held_by=by, reason=reason)
        requests.ask(store, "hold", caller.name, at, row.id)
        note_change(store, caller.name, "job.hold" if by else "job.release", row.id, at, {"owner": row.owner})
        said = {"state": now.state, "reason": reason or f"released by {caller.name}"}
        add_event(store, "job", at, row.id, row.owner, said)
        return replace(now, held_by=by, reason=reason, changed=at)

    return whole_answer(service, await service.commit(write))


@router.post("/jobs/{job}/cancel", status_code=202)
async def cancel_job(row: TheJob, caller: TheCaller, service: TheService) -> CancelAnswer:
    """Cancel a job. Repeating this has no effect. Its reports stay."""
    at = service.now()

    def write(store: Store) -> JobRow:
        if (now := get_job(store, row.id)) is None:
            raise not_found("job")  # forgotten meanwhile
        if not now.is_over and not requests.asked(store, "cancel", row.id):
            requests.ask(store, "cancel", caller.name, at, row.id)
            note_change(store, caller.name, "job.cancel", row.id, at, {"owner": row.owner})
        return now

    now = await service.commit(write)
    return CancelAnswer(now.id, now.state)


@router.post("/jobs/cancel", status_code=202)
async def cancel_all(caller: TheCaller, service: TheService, label: LabelFilter = None) -> ManyJobs:
    """Cancel all of the caller's own jobs that have not ended."""
    at = service.now()

    def write(store: Store) -> list[JobRow]:
        found = list_jobs(store, owner=caller.name, states=(*EXPECTED, *ACTIVE), label=label, limit=_ALL)
        for row in found:
            if not requests.asked(store, "cancel", row.id):
                requests.ask(store, "cancel", caller.name, at, row.id)
        if found:
            note_change(store, caller.name, "jobs.cancel", caller.name, at, {"jobs": len(found), "label": label or ""})
        return found

    return ManyJobs(await service.commit(write))


@router.get("/jobs/{job}/logs")
async def logs(
    row: TheJob,
    service: TheService,
    start: Annotated[
        int, Query(alias="from", ge=-10_000, le=LARGEST_ROW, description="First number; -10: the last ten.")
    ] = -200,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> LogPage:
    """Printed lines of a job's workers; lines of rank 1 and above start with the rank."""
    found = await asyncio.to_thread(log_lines, service.settings.folder, row.id, start, limit)
    return LogPage(found, found[-1].n + 1 if found else max(start, 1), row.is_over)


@router.get("/jobs/{job}/curves")
async def curves(
    row: TheJob,
    service: TheService,
    since: Annotated[int, Query(ge=0, le=LARGEST_ROW, description="What follows this number.")] = 0,
    limit: Annotated[int, Query(ge=1, le=2000)] = 2000,
) -> Curves:
    """Loss, accuracy, GPUs, goodput and noise scale over time."""
    found = points_after(service.store, row.id, since, limit)
    return Curves(found, found[-1].seq if found else since)


@router.get("/jobs/{job}/checkpoint", response_class=StreamingResponse, responses=BYTES)
async def checkpoint(row: TheJob, service: TheService) -> StreamingResponse:
    """The newest checkpoint, a file for `torch.load(..., weights_only=True)`: model, optimizer, scheduler, position."""
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
async def script(row: TheJob, service: TheService) -> ScriptRow:
    """The script of a job."""
    found = None if row.script is None else get_script(service.store, row.script)
    if found is None:
        raise Problem(404, "no-script", f"job {row.id} trains by no script")
    return found
