"""24 days of a service in virtual time, with users, operators and restarts drawn at random."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlpto.store.curves import spans_of_job
from rlpto.store.database import Store, Values
from rlpto.store.jobs import ENDED, NewJob, get_job, insert_job
from rlpto.store.requests import ask
from tests.service.scheduler.virtual import Act, KilledError, VirtualService, config

DAY = 86_400.0
DAYS = 24
EXAMPLES = 20
"""Runs that are drawn; `--soak 200` makes 200."""
LOOK_S = 6 * 3600.0
"""Between two looks at the cluster where nothing happens."""
POLICIES = ("fifo", "elastic_fifo", "round_robin", "equal_share", "las", "tiresias")


class Users:
    """What users and operators do, and what they know of it."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.cancelled: set[str] = set()
        self.switched: list[str] = []
        self.kills = 0

    def submit(self, gpus: int, most: int, hours: float, owner: str) -> Callable[[VirtualService], None]:
        def act(service: VirtualService) -> None:
            job = NewJob(owner, "a job", "tiny", hours, gpus=gpus, max_gpus=max(gpus, most))
            self.jobs.append(insert_job(service.store, job, service.now()).id)

        return act

    def cancel(self, pick: float) -> Callable[[VirtualService], None]:
        def act(service: VirtualService) -> None:
            if self.jobs:
                job = self.jobs[int(pick * len(self.jobs))]
                self.cancelled.add(job)
                ask(service.store, "cancel", "ann", service.now(), job)

        return act

    def reclass(self, pick: float, priority: str) -> Callable[[VirtualService], None]:
        def act(service: VirtualService) -> None:
            if self.jobs:
                job = self.jobs[int(pick * len(self.jobs))]
                ask(service.store, "priority", "ann", service.now(), job, {"priority": priority})

        return act

    def switch(self, policy: str) -> Callable[[VirtualService], None]:
        def act(service: VirtualService) -> None:
            self.switched.append(policy)
            ask(service.store, "policy", "op", service.now(), body={"policy": policy, "reason": ""})

        return act

    def kill(self, writes: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[VirtualService], None]:
        """The scheduler is killed after a number of further writes or ends of transactions, before the next one."""

        def act(service: VirtualService) -> None:
            left = writes
            run, commit = Store._run, Store._commit

            def killed(store: Store) -> None:
                nonlocal left
                if store is service.store:
                    return
                left -= 1
                if left < 0:
                    monkeypatch.undo()
                    raise KilledError

            def killed_run(store: Store, statement: str, rows: Sequence[Values]) -> object:
                killed(store)
                return run(store, statement, rows)

            def killed_commit(store: Store) -> None:
                killed(store)
                commit(store)

            monkeypatch.setattr(Store, "_run", killed_run)
            monkeypatch.setattr(Store, "_commit", killed_commit)
            self.kills += 1

        return act


@st.composite
def months(draw: st.DrawFn) -> list[tuple[float, str, tuple[object, ...]]]:
    """What happens when, in seconds since the start: day after day, a few things each."""
    acts: list[tuple[float, str, tuple[object, ...]]] = []
    for day in range(DAYS):
        for _ in range(draw(st.integers(0, 2))):
            at = DAY * (day + draw(st.floats(0.0, 1.0, exclude_max=True)))
            kind = draw(st.sampled_from(["submit"] * 5 + ["cancel", "reclass", "switch", "kill", "kill"]))
            if kind == "submit":
                gpus = draw(st.integers(1, 4))
                given_: tuple[object, ...] = (gpus, draw(st.integers(gpus, 4)), draw(st.floats(0.5, 40.0)), draw(
                    st.sampled_from(["ann", "bob"])))  # fmt: skip
            elif kind == "cancel":
                given_ = (draw(st.floats(0.0, 1.0, exclude_max=True)),)
            elif kind == "reclass":
                given_ = (draw(st.floats(0.0, 1.0, exclude_max=True)), draw(st.sampled_from(["high", "low"])))
            elif kind == "switch":
                given_ = (draw(st.sampled_from(POLICIES)),)
            else:
                given_ = (draw(st.integers(0, 40)),)
            acts.append((at, kind, given_))
    return sorted(acts, key=lambda act: act[0])


Drawn = list[tuple[float, str, tuple[object, ...]]]


def test_no_gpu_is_given_twice_and_no_job_is_lost(request: pytest.FixtureRequest) -> None:
    examples = request.config.getoption("--soak") or EXAMPLES
    often = settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    often(given(months())(live_through))()


def live_through(drawn: Drawn) -> None:
    """Serve users for 24 days, and until all is over. Raises AssertionError if the database is wrong then."""
    monkeypatch, users = pytest.MonkeyPatch(), Users()
    folder = tempfile.TemporaryDirectory(prefix="months-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    with folder as path, monkeypatch.context():
        service = VirtualService(Path(path), config(LOOK_S, LOOK_S), rate=1 / 3600)
        service.parts.retention.in_memory = 3
        acts: list[Act] = []
        for at, kind, given_ in drawn:
            more = (monkeypatch,) if kind == "kill" else ()
            acts.append((service.began + at, getattr(users, kind)(*given_, *more)))
        service.backend.acts = acts
        try:
            service.run(lambda: service.now() >= service.began + DAYS * DAY and not acts)
            monkeypatch.undo()
            service.run(lambda: all_over(service, users))
            for _ in range(3):
                service.loop.step()
            check(service, users)
        finally:
            monkeypatch.undo()
            service.close()


def all_over(service: VirtualService, users: Users) -> bool:
    rows = [get_job(service.store, job) for job in users.jobs]
    return all(row is not None and row.is_over for row in rows) and not service.backend.controllers


def check(service: VirtualService, users: Users) -> None:
    """The database says what happened. (That no node ever had more workers than GPUs the backend itself asserts.)"""
    backend = service.backend
    begun = [job for job, resumed in backend.started if not resumed]
    assert len(begun) == len(set(begun)), "every job is started anew once"
    assert set(begun) <= set(users.jobs)
    for job in users.jobs:
        row = get_job(service.store, job)
        assert row is not None
        assert row.state in ENDED
        trained = backend.saved.get(job, 0.0)
        if row.state == "finished":
            assert trained >= row.epochs - 1e-9
            assert row.progress == pytest.approx(row.epochs)
            assert row.started is not None
            assert row.ended is not None
            assert row.submitted <= row.started <= row.ended
        else:
            assert row.state == "cancelled"
            assert job in users.cancelled
        assert row.gpus_held == 0
        spans = spans_of_job(service.store, job)
        assert all(span.ended is not None for span in spans)
        if not users.kills:
            told = sum(span.gpus * ((span.ended or 0.0) - span.started) for span in spans)
            assert told == pytest.approx(backend.held[job], abs=1.0 + 0.01 * row.rescales)
            assert row.state != "finished" or row.gpu_seconds == pytest.approx(
                backend.held[job], abs=1.0 + 0.01 * row.rescales
            )
    assert service.store.rows("SELECT 1 FROM requests WHERE done_at IS NULL") == []
    in_force = [one.policy for one in reversed(service.switches())]
    assert in_force == ["fifo", *users.switched], "every switch is in the database once"
    assert len(service.parts.cluster.ids) <= 4 + service.parts.retention.in_memory
