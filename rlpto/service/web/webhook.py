"""Posts the end of each job to another program, such as a chat or a mail gateway, as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from fastapi.encoders import jsonable_encoder

from rlpto.service.web.state import EventNotifier, GroupCommit
from rlpto.store.database import Store, StoreError
from rlpto.store.events import Event, events_after, last_event
from rlpto.store.jobs import ENDED, get_job

FACT = "webhook"
"""Key of the fact with the number of the newest event that was delivered, or need not be."""
TIMEOUT_S = 10.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0
"""Time between two attempts, doubled each time."""
_LOOK_S = 60.0
_AGAIN = (408, 429)
_LOG = logging.getLogger("rlpto.service")


class Webhook:
    """Delivers the ends of jobs in order, each at least once, over restarts too.

    url: where to; it may hold a secret, so only its host is logged.
    """

    def __init__(self, url: str, store: Store, commit: GroupCommit, notifier: EventNotifier) -> None:
        self._url, self._store, self._commit, self._notifier = url, store, commit, notifier
        self._done = 0  # newer than what is noted by events that need no delivery
        self._host = urlsplit(url).netloc.rpartition("@")[2]

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
        """Deliver what has happened since the newest event that is noted; before there was one, nothing."""
        noted = self._store.fact(FACT)
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
        await self._commit(lambda store: store.set_fact(FACT, str(seq)))

    async def _deliver(self, event: Event) -> None:
        """Send until it is taken, or refused for good."""
        row, wait = get_job(self._store, event.job or ""), FIRST_WAIT_S
        if row is None:
            return
        reason = f": {row.reason}" if row.reason else ""
        body = {"text": f"{row.name} ({row.id}) of {row.owner} {row.state}{reason}", "job": jsonable_encoder(row)}
        headers = {"Content-Type": "application/json", "Idempotency-Key": f"{row.id}-{event.seq}"}
        asked = Request(self._url, json.dumps(body).encode(), headers, method="POST")
        while True:
            try:
                await asyncio.to_thread(_send, asked)
                return
            except HTTPError as refused:
                said = f"it answers {refused.code}"
                if 400 <= refused.code < 500 and refused.code not in _AGAIN:
                    _LOG.error("webhook at %s: %s to the end of job %s, which is left out", self._host, said, row.id)
                    return
            except (OSError, HTTPException) as away:
                said = type(away).__name__
            _LOG.warning("webhook at %s: %s; tried again in %g s", self._host, said, wait)
            await asyncio.sleep(wait)
            wait = min(2.0 * wait, LONGEST_WAIT_S)


def _send(asked: Request) -> None:
    with urlopen(asked, timeout=TIMEOUT_S) as answer:
        answer.read(1)
