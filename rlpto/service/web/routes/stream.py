"""The stream of events for browsers and clients. It can be resumed after an interruption."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from rlpto.service.web.access import Caller, TheCaller, job_for
from rlpto.service.web.errors import Problem
from rlpto.service.web.schemas import JOB_ID
from rlpto.service.web.state import Service, TheService
from rlpto.store.events import Event, events_after, first_event, last_event
from rlpto.store.jobs import get_job
from rlpto.store.users import user_of_token_id

router = APIRouter(tags=["events"])
COMMENT_INTERVAL_S = 15.0
"""Interval between keep-alives of a stream without events."""
CHECK_INTERVAL_S = 2.0
"""Interval between checks of the reader's rights in a stream without events."""
_REFUSED = "the token has ended, or its user may not read this any more"
_AT_ONCE = 500
_RESUME = "Resume after this event. Default: from now on; with `job` or `once`, from the first stored event."
_EVENT_SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "Number of the event, for Last-Event-ID."},
        "event": {"type": "string", "description": "Kind; gap: older events are gone; end: the stream is over."},
        "data": {"type": "string", "description": "JSON with seq, at, kind, job and body."},
    },
}


@router.get(
    "/events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": _EVENT_SCHEMA}}, "description": "Events."}},
)
async def events(
    caller: TheCaller,
    service: TheService,
    job: Annotated[str | None, Query(pattern=JOB_ID, description="Only events of this job, until it is over.")] = None,
    last: Annotated[str | None, Header(alias="Last-Event-ID", pattern=r"^[0-9]{1,15}$", description=_RESUME)] = None,
    once: Annotated[bool, Query(description="End after the events stored so far.")] = False,
) -> StreamingResponse:
    """Server-sent events. A stream that ends properly closes with `end`, with a `reason` if the caller may no longer
    read it. After any other end, clients should reconnect."""
    if job is not None:
        await job_for(job, caller, service)
    limits = service.limits
    if limits.streams[caller.name] >= limits.most_streams:
        detail = f"{caller.name} has {limits.most_streams} streams open; close one first"
        raise Problem(429, "too-many-streams", detail, {"Retry-After": "5"})
    start = int(last) if last is not None else 0 if job is not None or once else last_event(service.store)
    return _Stream(_lines(service, caller, start, job, once), limits.streams, caller.name)


class _Stream(StreamingResponse):
    """A response that counts as an open stream of its user until it ends, for whatever reason."""

    def __init__(self, lines: AsyncIterator[str], streams: Counter[str], user: str) -> None:
        super().__init__(lines, headers={"X-Accel-Buffering": "no"}, media_type="text/event-stream")
        self._streams, self._user = streams, user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole stream."""
        self._streams[self._user] += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams[self._user] -= 1


async def _lines(service: Service, caller: Caller, start: int, job: str | None, once: bool) -> AsyncIterator[str]:
    """Yield the stream's text piece by piece. It ends with a `reason` once the caller may no longer read it: the token
    has expired or was revoked, the user is disabled, or the role has changed and the job belongs to another user."""
    at, silent = start, 0.0
    yield "retry: 1000\n\n"
    if at and at + 1 < first_event(service.store):
        yield 'event: gap\ndata: {"detail": "older events are gone; read the state again"}\n\n'
    while True:
        row = None if job is None else get_job(service.store, job)
        is_over = job is not None and (row is None or row.is_over)
        found = events_after(service.store, at, _AT_ONCE)
        # Checked after reading the events: otherwise an event added after the rights ended could still be sent.
        known = user_of_token_id(service.store, caller.token.id, service.now())
        now = None if known is None else Caller(*known)
        if now is None or (row is not None and not now.may_see(row.owner)):
            yield _end(False, reason=_REFUSED)
            return
        text = "".join(_text(event) for event in found if now.may_see(event.owner) and job in (None, event.job))
        at = found[-1].seq if found else at
        if text:
            yield text
        if len(found) == _AT_ONCE:
            await asyncio.sleep(0)  # answer other requests: there may be many events of which this caller sees none
            continue
        if once or is_over or service.notifier.closing:
            yield _end(is_over)
            return
        silent = 0.0 if text or silent >= COMMENT_INTERVAL_S else silent
        if service.notifier.last <= at and not await service.notifier.wait(CHECK_INTERVAL_S):
            silent += CHECK_INTERVAL_S
            if silent >= COMMENT_INTERVAL_S:
                yield ":\n\n"


def _end(over: bool, **more: str) -> str:
    return f"event: end\ndata: {json.dumps({'over': over, **more})}\n\n"


def _text(event: Event) -> str:
    shown = {"seq": event.seq, "at": event.at, "kind": event.kind, "job": event.job, "body": event.body}
    return f"id: {event.seq}\nevent: {event.kind}\ndata: {json.dumps(shown)}\n\n"
