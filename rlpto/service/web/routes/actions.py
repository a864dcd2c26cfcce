"""Jobs in bulk, and what users do with jobs that are there: hold, release, submit again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Response

from rlpto.service.web.access import Caller, TheCaller, job_for
from rlpto.service.web.errors import Problem, not_found
from rlpto.service.web.routes.jobs import JobAnswer, Key, submitted, whole_answer
from rlpto.service.web.schemas import ArrayBody, JobId
from rlpto.service.web.state import Service, TheService
from rlpto.service.web.submitting import bodies_of, body_of, submission
from rlpto.store import requests
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import ACTIVE, EXPECTED, JobRow, change_job, get_job, list_jobs
from rlpto.store.users import get_user, note_change

router = APIRouter(tags=["jobs"])
OPEN = (*EXPECTED, *ACTIVE)
"""States of jobs that are not over."""
_ALL = 1_000_000


@dataclass(frozen=True)
class ManyJobs:
    """Jobs that were submitted, or will end, together."""

    jobs: list[JobRow]


@router.post("/jobs/array", status_code=201)
async def submit_array(body: ArrayBody, caller: TheCaller, service: TheService, key: Key = None) -> ManyJobs:
    """Submit up to 1,000 jobs that differ by a number: all of them, or none."""
    made = []
    for number, one in enumerate(bodies_of(body), body.first):
        made.append(submission(service, caller.user, one, key and f"{key}[{number}]"))
        await asyncio.sleep(0)  # others are answered meanwhile
    return ManyJobs(await service.commit(lambda store: [write(store)[0] for write in made]))


@router.post("/jobs/cancel", status_code=202)
async def cancel_all(
    caller: TheCaller,
    service: TheService,
    label: Annotated[str | None, Query(max_length=100, description="Those with this label, as key=value.")] = None,
) -> ManyJobs:
    """Let all of the caller's own jobs end that are not over."""
    at = service.now()

    def write(store: Store) -> list[JobRow]:
        found = list_jobs(store, owner=caller.name, states=OPEN, label=label, limit=_ALL)
        for row in found:
            if not requests.asked(store, "cancel", row.id):
                requests.ask(store, "cancel", caller.name, at, row.id)
        if found:
            note_change(store, caller.name, "jobs.cancel", caller.name, at, {"jobs": len(found), "label": label or ""})
        return found

    return ManyJobs(await service.commit(write))


@router.post("/jobs/{job}/hold")
async def hold(job: JobId, caller: TheCaller, service: TheService) -> JobAnswer:
    """Keep a waiting job from starting until it is released; asked again, nothing more happens."""
    return await _set_hold(service, caller, job, caller.name)


@router.post("/jobs/{job}/release")
async def release(job: JobId, caller: TheCaller, service: TheService) -> JobAnswer:
    """Let a job that is on hold start again; nothing happens to any other."""
    return await _set_hold(service, caller, job, "")


async def _set_hold(service: Service, caller: Caller, job: str, by: str) -> JobAnswer:
    row = job_for(service, caller, job)
    at = service.now()

    def write(store: Store) -> JobRow:
        now = get_job(store, row.id)
        if now is None:
            raise not_found("job")
        if bool(by) == bool(now.held_by) or (now.is_over and not by):
            return now  # what is over has ended once, for its own reason
        if by and (now.is_over or now.state in ("starting", "running")):
            detail = f"the job is {now.state}: expected one that waits, since a hold only keeps jobs from starting"
            raise Problem(409, "not-waiting", detail)
        reason = f"held by {by}" if by else now.waits_for
        change_job(store, row.id, at, held_by=by, reason=reason)
        requests.ask(store, "hold", caller.name, at, row.id)
        note_change(store, caller.name, "job.hold" if by else "job.release", row.id, at, {"owner": row.owner})
        add_event(
            store, "job", at, row.id, row.owner, {"state": now.state, "reason": reason or f"released by {caller.name}"}
        )
        return get_job(store, row.id) or now

    return whole_answer(service, await service.commit(write))


@router.post("/jobs/{job}/resubmit", status_code=201)
async def resubmit(job: JobId, caller: TheCaller, service: TheService, response: Response, key: Key = None) -> JobRow:
    """Submit a job that is over once more, for its owner, with all that was asked for but the jobs it came after."""
    row = job_for(service, caller, job)
    if not row.is_over:
        raise Problem(409, "not-over", f"the job is {row.state}: expected one that is over")
    owner = get_user(service.store, row.owner)
    if owner is None or owner.disabled:
        raise Problem(403, "no-owner", f"{row.owner or 'its owner'} may not submit jobs any more")
    submit = submission(service, owner, body_of(service.store, row), key)

    def write(store: Store) -> tuple[JobRow, bool]:
        found, is_new = submit(store)
        if is_new:
            detail = {"owner": row.owner, "before": row.id}
            note_change(store, caller.name, "job.resubmit", found.id, found.submitted, detail)
        return found, is_new

    return submitted(response, *await service.commit(write))
