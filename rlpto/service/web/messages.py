"""Messages about ended jobs, as JSON for another program, such as a chat."""

from __future__ import annotations

import asyncio
import json
import logging
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from fastapi.encoders import jsonable_encoder

from rlpto.service.web.state import EventNotifier, GroupCommit
from rlpto.store.database import Store, StoreError
from rlpto.store.events import Event, events_after, last_event
from rlpto.store.jobs import ENDED, JobRow, get_job

TIMEOUT_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0
"""Time between two attempts, doubled each time."""
_LOOK_S = 60.0
_AGAIN = (408, 429)
_DELIVERED = "webhook"
"""Database key of the number of the newest event that was delivered, or needs no delivery."""
_LOG = logging.getLogger("rlpto.service")


def forget_messages(store: Store) -> None:
    """Forget what was delivered, so that a webhook which is set later gets only ends after that."""
    store.write("DELETE FROM facts WHERE key = ?", (_DELIVERED,))


class _NoRedirects(HTTPRedirectHandler):
    """Answers 301 to 303 to a POST would be followed by a GET without the message, and count as its delivery."""

    def redirect_request(self, *_: object) -> None:
        """Follow no redirect: it is raised as HTTPError."""


class EndMessages:
    """Posts the ends of jobs to an address in order, each at least once, even across restarts.

    The address may hold a secret, so only its host is logged.
    """

    def __init__(self, url: str, store: Store, commit: GroupCommit, notifier: EventNotifier) -> None:
        self._url, self._store, self._commit, self._notifier = url, store, commit, notifier
        self._done = 0  # may be newer than the recorded number, by events that need no delivery

    async def run(self) -> None:
        """Deliver until the service closes."""
        while not self._notifier.closing:
            try:
                await self._catch_up()
            except StoreError as busy:
                _LOG.error("webhook: %s", busy)
                await asyncio.sleep(FIRST_WAIT_S)
                continue
            await self._notifier.wait(_LOOK_S)

    async def _catch_up(self) -> None:
        """Deliver events since the newest recorded one. On the very first run, only record the newest event."""
        noted = self._store.fact(_DELIVERED)
        if noted is None:
            await self._note(last_event(self._store))
            return
        done = max(self._done, int(noted))
        while events := events_after(self._store, done):
            for event in events:
                if event.kind == "job" and event.body.get("state") in ENDED:
                    await self._deliver(event)
                    await self._note(event.seq)
                done = self._done = event.seq

    async def _note(self, seq: int) -> None:
        await self._commit(lambda store: store.set_fact(_DELIVERED, str(seq)))

    async def _deliver(self, event: Event) -> None:
        """Send until the message is accepted, or refused for good."""
        wait, place = FIRST_WAIT_S, urlsplit(self._url).netloc.rpartition("@")[2]
        row = get_job(self._store, event.job or "")
        if row is None:
            return
        while True:
            try:
                await asyncio.to_thread(self._send, row, f"{row.id}-{event.seq}")
                return
            except (OSError, HTTPException, ValueError) as error:  # ValueError: a name that no host can have
                code = error.code if isinstance(error, HTTPError) else None
                said = f"webhook at {place}: {type(error).__name__ if code is None else f'it answers {code}'}"
                if code is not None and 300 <= code < 400:
                    said += " (expected the address that it redirects to)"
                if code is not None and 300 <= code < 500 and code not in _AGAIN:
                    _LOG.error("%s to the end of job %s, which is left out", said, event.job)
                    return
            _LOG.warning("%s; tried again in %g s", said, wait)
            await asyncio.sleep(wait)
            wait = min(2.0 * wait, LONGEST_WAIT_S)

    def _send(self, row: JobRow, key: str) -> None:
        """Post the end of a job. key: idempotency key of all attempts. Raises OSError, HTTPException or ValueError on
        failure."""
        body = json.dumps({"text": _text(row), "job": jsonable_encoder(row)}).encode()
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        request = Request(self._url, body, headers, method="POST")
        with build_opener(_NoRedirects).open(request, timeout=TIMEOUT_S) as answer:
            answer.read(1)


def _text(row: JobRow) -> str:
    reason = f": {row.reason}" if row.reason else ""
    return f"{row.name} ({row.id}) of {row.owner} {row.state}{reason}"
