"""Where independent tasks run: one after the other in this process, or in several processes of this machine.

`rlpto.experiments.ray_workers` runs them on the hosts of a Ray cluster.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from typing import Protocol, TypeVar

from rlpto.io.errors import ConfigError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Workers(Protocol):
    """A place where independent tasks run. shares_files: whether tasks see the files of this machine."""

    shares_files: bool

    @property
    def slots(self) -> int:
        """Number of tasks that run at the same time, at present."""

    @property
    def place(self) -> str:
        """Where tasks run, for a progress bar; empty if it goes without saying."""

    def run(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        on_begin: Callable[[Item], None] = lambda _: None,
    ) -> Iterator[tuple[int, Result]]:
        """Call `function`, which must be picklable, with every item. Yields the position of each item and the result,
        in order of completion. Exceptions of the function pass through.

        items: a list may grow while results are taken. on_begin: is called with each item whose task begins here and
        now.
        """


class LocalWorkers:
    """This process if `processes` is 1, else that many processes of this machine."""

    shares_files = True
    place = ""

    def __init__(self, processes: int = 1) -> None:
        self.slots = processes

    def run(
        self,
        function: Callable[[Item], Result],
        items: Sequence[Item],
        on_begin: Callable[[Item], None] = lambda _: None,
    ) -> Iterator[tuple[int, Result]]:
        """See `Workers.run`. Raises ConfigError if a process dies."""
        if self.slots == 1 or len(items) < 2:
            for position, item in enumerate(items):
                on_begin(item)
                yield position, function(item)
            return
        # Spawned, not forked: a fork of a process with threads (numba, the progress bar) may deadlock.
        # Ctrl-C ends a worker at once and silently: the caller keeps what is finished.
        die = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        pool = ProcessPoolExecutor(min(self.slots, len(items)), get_context("spawn"), initializer=die)
        pending: dict[Future[Result], int] = {}
        begun = 0
        try:
            while pending or begun < len(items):
                pending |= {pool.submit(function, items[at]): at for at in range(begun, len(items))}
                begun = len(items)
                for future in wait(pending, return_when=FIRST_COMPLETED).done:
                    yield pending.pop(future), future.result()
        except BrokenProcessPool as error:
            raise ConfigError(
                "a worker process died, perhaps for want of memory; what is finished is kept: run the same command "
                f"again with fewer than {self.slots} jobs"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
