"""Writes of many requests in one transaction: all writes that wait during a disk sync share the next one."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rlpto.store.database import Store

T = TypeVar("T")
_Write = tuple[Callable[[Store], Any], "asyncio.Future[Any]"]
MOST_TOGETHER = 256
"""Most writes of one transaction: the scheduler waits for at most this number."""
PAUSE_BETWEEN_COMMITS_S = 0.003
"""Time in which the scheduler may begin a transaction of its own; more requests come together meanwhile."""


class GroupCommit:
    """The only thread that writes to the database, durably. One per event loop."""

    def __init__(self, path: Path) -> None:
        self._waiting: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(path,), name="group-commit", daemon=True)
        self._thread.start()

    async def __call__(self, write: Callable[[Store], T]) -> T:
        """Run `write` in a transaction, maybe together with others; its result, once that is on disk.

        An exception of `write` is raised here, and none of its changes are kept.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.put((write, future))
        return await future

    def close(self) -> None:
        """End the thread after the writes that still wait."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self, path: Path) -> None:
        store = None
        while (first := self._waiting.get()) is not None:
            together, goes_on = [first], True
            while len(together) < MOST_TOGETHER and goes_on:
                try:
                    another = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if another is None:
                    goes_on = False
                else:
                    together.append(another)
            try:
                store = store or Store(path)
                results = _write_all(store, [write for write, _ in together])
            except Exception as error:  # such as a full disk: every caller is answered, and the next ones try again
                results = [error] * len(together)
            self._loop.call_soon_threadsafe(_answer_all, [future for _, future in together], results)
            time.sleep(PAUSE_BETWEEN_COMMITS_S)
            if not goes_on:
                break
        if store is not None:
            store.close()


def _write_all(store: Store, writes: list[Callable[[Store], Any]]) -> list[Any]:
    """Results of all writes, in one transaction; of those that raise: the exception."""
    results: list[Any] = []
    with store.transaction():
        for write in writes:
            try:
                with store.savepoint():
                    results.append(write(store))
            except Exception as error:  # it concerns one request only
                results.append(error)
    return results


def _answer_all(futures: list[asyncio.Future[Any]], results: list[Any]) -> None:
    for future, result in zip(futures, results, strict=True):
        if future.done():
            continue  # the caller has gone
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
