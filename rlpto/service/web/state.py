"""What the web process holds while it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from rlpto.service.settings import ServiceSettings
from rlpto.service.web.group_commit import GroupCommit
from rlpto.service.web.limits import Limits
from rlpto.service.web.metrics import Metrics
from rlpto.store.database import Store
from rlpto.store.events import last_event

LOOK_INTERVAL_S = 0.1
"""Time between two looks for new events."""


class EventNotifier:
    """Rings when there are new events, so that streams need not look themselves."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rung = asyncio.Event()
        self.last = last_event(store)
        self.closing = False

    async def look(self) -> None:
        """Look for new events for ever."""
        while not self.closing:
            last = last_event(self._store)
            if last != self.last:
                self.last = last
                self._ring()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def close(self) -> None:
        """Let all streams end."""
        self.closing = True
        self._ring()

    async def wait(self, seconds: float) -> bool:
        """Wait until there may be new events; False: so long there were none."""
        try:
            return await asyncio.wait_for(self._rung.wait(), seconds)
        except TimeoutError:
            return False

    def _ring(self) -> None:
        self._rung.set()
        self._rung = asyncio.Event()


@dataclass(frozen=True)
class Service:
    """Everything that answers a request.

    store: for reading, by the thread of the event loop. commit: for writing. now: seconds since 1970.
    """

    settings: ServiceSettings
    store: Store
    commit: GroupCommit
    notifier: EventNotifier
    limits: Limits
    metrics: Metrics
    now: Callable[[], float] = time.time


async def service_of(request: Request) -> Service:
    """The service that answers a request."""
    return cast(Service, request.app.state.service)


TheService = Annotated[Service, Depends(service_of)]
