"""State of the running web process: settings, the database for reading and writing, new events, limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request

from rlpto.service.settings import ServiceSettings
from rlpto.service.web.group_commit import GroupCommit
from rlpto.service.web.metrics import ServiceMetrics
from rlpto.service.web.middleware import RateLimits
from rlpto.store.database import Store
from rlpto.store.events import last_event

LOOK_INTERVAL_S = 0.1
"""Time between two looks for new events."""


class EventNotifier:
    """Wakes streams when there are new events, so that they need not poll themselves."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._new = asyncio.Event()
        self.last = last_event(store)
        self.closing = False

    async def look(self) -> None:
        """Poll for new events until closed."""
        while not self.closing:
            last = last_event(self._store)
            if last != self.last:
                self.last = last
                self._wake()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def close(self) -> None:
        """Let all streams end."""
        self.closing = True
        self._wake()

    async def wait(self, seconds: float) -> bool:
        """Wait until there may be new events; False: there were none in this time."""
        try:
            return await asyncio.wait_for(self._new.wait(), seconds)
        except TimeoutError:
            return False

    def _wake(self) -> None:
        self._new.set()
        self._new = asyncio.Event()


@dataclass(frozen=True)
class Service:
    """The shared objects that routes need.

    store: for reading, by the thread of the event loop. commit: for writing. now: seconds since 1970.
    """

    settings: ServiceSettings
    store: Store
    commit: GroupCommit
    notifier: EventNotifier
    limits: RateLimits
    metrics: ServiceMetrics
    now: Callable[[], float] = time.time


async def service_of(request: Request) -> Service:
    """The service that answers a request."""
    return cast(Service, request.app.state.service)


TheService = Annotated[Service, Depends(service_of)]
