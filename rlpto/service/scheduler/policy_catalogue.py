"""Policies that a service may switch to, and their preparation.

The first import and compilation of a policy takes minutes on a busy machine. A thread does it while jobs are scheduled
as before.
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
"""Policy that decides if another one fails."""


def catalogue_of(extra: Mapping[str, str]) -> dict[str, tuple[str, PolicyEntry]]:
    """Specs and entries of the policies that may be switched to, by name: all policies without required options, and
    the settings' policies.

    extra: specs by name shown to users. Plug-ins that cannot be loaded are left out, and named on stderr.
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
    """Spec of a policy in the catalogue. Raises RlptoError for any other name."""
    if name not in catalogue:
        raise RlptoError(f"no policy {name!r} in the catalogue: expected one of {', '.join(sorted(catalogue))}")
    return catalogue[name][0]


class PolicyWarmup:
    """Makes policies ready in a thread of its own, one after the other.

    make_ready: makes a policy from its spec, which may take minutes. failed: called with a line about a policy that
    cannot be made ready. Such a policy counts as ready, and a user who requests it gets the reason.
    """

    def __init__(self, make_ready: Callable[[str], object], failed: Callable[[str], object]) -> None:
        self._make_ready, self._failed = make_ready, failed
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        # Compilation cannot be interrupted, and the process must not wait for it at its end.
        threading.Thread(target=self._run, name="warmup", daemon=True).start()

    def __call__(self, spec: str) -> bool:
        """Whether a policy is ready, or cannot be made ready. If neither, its preparation starts."""
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
