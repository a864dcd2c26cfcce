"""The policy in force: any of the catalogue by name, switched between two decisions; fifo where one fails.

What a policy imports and compiles the first time takes minutes on a busy machine: a thread does that, and jobs are
scheduled as before meanwhile.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import Policy, StandingPolicy
from rlpto.io.errors import RlptoError
from rlpto.policies.registry import available, is_complete
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.requests import Request, add_switch, answer, is_open, switch_in_force
from rlpto.store.status import PolicyEntry, set_policies
from rlpto.store.users import note_change

FALLBACK = "fifo"
"""Decides where another policy fails."""
SCHEDULER = "scheduler"
"""Who has switched where nobody asked for it."""


def catalogue_of(extra: Mapping[str, str]) -> dict[str, tuple[str, PolicyEntry]]:
    """Specs and entries of the policies that may be switched to, by name: all that need no options, and those of the
    settings.

    extra: specs by the names that users see. Raises ConfigError if a plug-in cannot be loaded.
    """
    known = available()
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


class LivePolicy:
    """Decides as the policy in force does.

    make: a policy by its spec. catalogue: see `catalogue_of`. first: name of the policy of the very first start; later it is that
    of the last switch. wall: time [s] now. ready: whether a policy, by its spec, can be made and can decide without
    imports and compilation that would hold the scheduler; asked again until it is.

    name: of the policy in force. policy: the very object. switched: times that another one was put in force.
    """

    def __init__(
        self,
        store: Store,
        make: Callable[[str], Policy],
        catalogue: Mapping[str, tuple[str, PolicyEntry]],
        first: str,
        wall: Callable[[], float],
        seed: int = 0,
        ready: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._store, self._make, self._wall, self._seed, self._ready = store, make, wall, seed, ready
        self._specs = {name: spec for name, (spec, _) in catalogue.items()}
        self.switched = 0
        set_policies(store, [entry for _, entry in catalogue.values()])
        before = switch_in_force(store)
        self.name = first if before is None else before.policy
        try:
            self.policy = self._made(self.name)
        except RlptoError as error:
            self.policy, wanted, self.name = self._made(FALLBACK), self.name, FALLBACK
            self._note(SCHEDULER, f"{wanted} cannot be used: {error}", wall())
            return
        if before is None:
            self._note(SCHEDULER, "the first start", wall())

    def _made(self, name: str) -> Policy:
        """The policy of a name, as new. Raises RlptoError if it does not exist, or cannot be made."""
        if name not in self._specs:
            raise RlptoError(f"no policy {name!r} in the catalogue: expected one of {', '.join(sorted(self._specs))}")
        policy = self._make(self._specs[name])
        policy.reset(self._seed)
        return policy

    def can_obey(self, request: Request) -> bool:
        """Whether the policy asked for can be put in force at once, or refused. Until then that in force decides."""
        spec = self._specs.get(str(request.body.get("policy", "")))
        return spec is None or self._ready(spec)

    def obey(self, request: Request) -> bool:
        """Put another policy in force, as asked for, or say why not; True if it is in force."""
        name = str(request.body.get("policy", ""))
        present, wanted = switch_in_force(self._store), request.body.get("number")
        if wanted is not None and (present is None or present.number != wanted):
            answer(self._store, request.seq, self._wall(), f"the policy was switched before: {self.name} is in force")
            return False
        try:
            policy = self._made(name)
        except Exception as error:  # whatever a plug-in or a broken run raises is the asker's to know
            answer(self._store, request.seq, self._wall(), " ".join(str(error).split()) or type(error).__name__)
            return False
        with self._store.transaction():
            if not is_open(self._store, request.seq):
                return False  # whoever asked did not wait
            self.policy, self.name = policy, name
            self._note(request.by, str(request.body.get("reason", "")), request.at)
            answer(self._store, request.seq, self._wall())
        return True

    def fall_back(self, error: Exception) -> None:
        """The policy in force has failed: fifo decides from now on. Raises the error if that is what failed."""
        if self.name == FALLBACK:
            raise error
        failed, self.policy, self.name = self.name, self._made(FALLBACK), FALLBACK
        said = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        self._note(SCHEDULER, f"{failed} failed: {said}", self._wall())

    def _note(self, by: str, reason: str, asked: float) -> None:
        """Note that the present policy is in force from now on."""
        now = self._wall()
        with self._store.transaction():
            switch = add_switch(self._store, self.name, by, reason, asked, now)
            body = {"number": switch.number, "policy": self.name, "before": switch.before, "by": by, "reason": reason}
            add_event(self._store, "policy", now, body=body)
            note_change(self._store, by, "policy.switch", self.name, now, body)
        self.switched += 1

    def forget(self) -> None:
        """Jobs have been numbered anew: what was remembered of them is void."""
        self.policy.reset(self._seed)

    def __call__(self, state: ClusterState) -> tuple[Allocation, float]:
        """What the policy decides, and the seconds it took."""
        began = time.perf_counter()
        allocation = self.policy(state)
        return allocation, time.perf_counter() - began

    @property
    def standing(self) -> StandingPolicy | None:
        """The policy, if it can say for how long a decision stands."""
        return self.policy if isinstance(self.policy, StandingPolicy) else None


class PolicyWarmup:
    """Makes policies ready in a thread of its own, one after the other.

    make_ready: a policy by its spec, whatever that takes. failed: is told in one line what cannot be made ready; it is
    asked for no less, so that whoever asks is told why.
    """

    def __init__(self, make_ready: Callable[[str], object], failed: Callable[[str], object]) -> None:
        self._make_ready, self._failed = make_ready, failed
        self._wanted: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._begun: set[str] = set()
        self._ended: set[str] = set()
        # Compilation cannot be broken off: a process that is to end does not wait for it.
        threading.Thread(target=self._run, name="warmup", daemon=True).start()

    def __call__(self, spec: str) -> bool:
        """Whether a policy is ready, or cannot be made so. One that is not is begun with."""
        if spec not in self._begun:
            self._begun.add(spec)
            self._wanted.put(spec)
        return spec in self._ended

    def now(self, spec: str) -> None:
        """Make a policy ready at once, in the caller's thread."""
        self._begun.add(spec)
        self._make(spec)

    def _run(self) -> None:
        while True:
            self._make(self._wanted.get())

    def _make(self, spec: str) -> None:
        try:
            self._make_ready(spec)
        except Exception as error:  # whatever a broken run or plug-in raises
            self._failed(f"policy {spec} cannot be used: {' '.join(str(error).split())}")
        finally:
            self._ended.add(spec)
