"""Policies that a service may switch to, and how they are made ready.

What a policy imports and compiles the first time takes minutes on a busy machine: a thread does that, and jobs are
scheduled as before meanwhile.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from rlpto.io.errors import RlptoError
from rlpto.policies.registry import available, is_complete
from rlpto.store.status import PolicyEntry

FALLBACK = "fifo"
"""Decides where another policy fails."""


def catalogue_of(extra: Mapping[str, str]) -> dict[str, tuple[str, PolicyEntry]]:
    """Specs and entries of the policies that may be switched to, by name: all that need no options, and those of the
    settings.

    extra: specs by the names that users see. Plug-ins that cannot be loaded are left out, and named on stderr.
    """
    known = available(lambda problem: print(f"left out: {problem}", file=sys.stderr, flush=True))
    found = {
        name: (name, PolicyEntry(name, own.summary, own.source))
        for name, own in known.items()
        if is_complete(own) and not hasattr(own, "POSITIONAL")
    }
    for name, spec in extra.items():
        kind = known.get(spec.partition(":")[0])
        entry = PolicyEntry(name, spec, "") if kind is None else PolicyEntry(name, kind.summary, kind.source)
        found[name] = (spec, entry)
    return found


def spec_of(catalogue: Mapping[str, tuple[str, PolicyEntry]], name: str) -> str:
    """Spec of a policy of the catalogue. Raises RlptoError for any other name."""
    if name not in catalogue:
        raise RlptoError(f"no policy {name!r} in the catalogue: expected one of {', '.join(sorted(catalogue))}")
    return catalogue[name][0]


class PolicyWarmup:
    """Makes policies ready in a thread of its own, one after the other.

    make_ready: makes a policy, by its spec; it may take minutes. failed: notified in one line of a policy
    that cannot be made ready; it counts as ready, so that the user who asks for it gets the reason.
    """

    def __init__(self, make_ready: Callable[[str], object], failed: Callable[[str], object]) -> None:
        self._make_ready, self._failed = make_ready, failed
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        # Compilation cannot be interrupted: a process that ends does not wait for it.
        threading.Thread(target=self._run, name="warmup", daemon=True).start()

    def __call__(self, spec: str) -> bool:
        """Whether a policy is ready, or cannot be made so. One that is not is begun with."""
        if spec not in self._begun:
            self._begun.add(spec)
            self._wanted.put(spec)
        return spec in self._ended

    def _run(self) -> None:
        while True:
            spec = self._wanted.get()
            try:
                self._make_ready(spec)
            except BaseException as error:  # a broken run or plug-in may raise anything, SystemExit too
                with suppress(OSError):  # the disk of the log may be full
                    self._failed(f"policy {spec} cannot be used: {' '.join(str(error).split())}")
            finally:
                self._ended.add(spec)
