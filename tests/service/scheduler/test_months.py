"""24 days of a service in virtual time, with users, operators and restarts drawn at random."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlpto.store.curves import spans_of_job
from rlpto.store.database import Store
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

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.jobs: list[str] = []
        self.cancelled: set[str] = set()
        self.switched: list[str] = []
        self.kills = 0

    def act(self, kind: str, given_: tuple[Any, ...], service: VirtualService) -> None:
        """Do one of the things that `months` draws."""
        if kind == "submit":
            gpus, most, hours, owner = given_
            self.jobs.append(service.submit(owner, hours, gpus=gpus, max_gpus=most))
        elif kind == "policy":
            self.switched.append(given_[0])
            service.ask("policy", policy=given_[0], reason="")
        elif kind == "kill":
            self.kill(service, *given_)
        elif self.jobs:
            job = self.jobs[int(given_[0] * len(self.jobs))]
            if kind == "cancel":
                self.cancelled.add(job)
                service.ask("cancel", job)
            else:
                service.ask("priority", job, priority=given_[1])

    def kill(self, service: VirtualService, left: int) -> None:
        """The scheduler is killed after this number of further writes or ends of transactions, before the next one."""
        self.kills += 1

        def counted(store: Store, call: Callable[..., Any], *given_: Any) -> Any:
            nonlocal left
            if store is not service.store:
                left -= 1
                if left < 0:
                    self.monkeypatch.undo()
                    raise KilledError
            return call(store, *given_)

        for name in ("_run", "_commit"):
            self.monkeypatch.setattr(Store, name, partialmethod(counted, getattr(Store, name)))


Drawn = list[tuple[float, str, tuple[Any, ...]]]
SHARE = st.floats(0.0, 1.0, exclude_max=True)
GIVEN: dict[str, st.SearchStrategy[tuple[Any, ...]]] = {
    "submit": st.integers(1, 4).flatmap(
        lambda gpus: st.tuples(
            st.just(gpus), st.integers(gpus, 4), st.floats(0.5, 40.0), st.sampled_from(["ann", "bob"])
        )
    ),
    "cancel": st.tuples(SHARE),
    "priority": st.tuples(SHARE, st.sampled_from(["high", "low"])),
    "policy": st.tuples(st.sampled_from(POLICIES)),
    "kill": st.tuples(st.integers(0, 40)),
}


@st.composite
def months(draw: st.DrawFn) -> Drawn:
    """What happens when, in seconds since the start: day after day, a few things each."""
    acts: Drawn = []
    for day in range(DAYS):
        for _ in range(draw(st.integers(0, 2))):
            at = DAY * (day + draw(SHARE))
            kind = draw(st.sampled_from(["submit"] * 5 + ["cancel", "priority", "policy", "kill", "kill"]))
            acts.append((at, kind, draw(GIVEN[kind])))
    return sorted(acts, key=lambda act: act[0])


@pytest.mark.slow
def test_no_gpu_is_given_twice_and_no_job_is_lost(request: pytest.FixtureRequest) -> None:
    examples = request.config.getoption("--soak") or EXAMPLES
    often = settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    often(given(months())(live_through))()


def live_through(drawn: Drawn) -> None:
    """Serve users for 24 days, and until all is over. Raises AssertionError if the database is wrong then."""
    monkeypatch = pytest.MonkeyPatch()
    users = Users(monkeypatch)
    folder = tempfile.TemporaryDirectory(prefix="months-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    with folder as path, monkeypatch.context():
        service = VirtualService(Path(path), config(LOOK_S), rate=1 / 3600, poll=LOOK_S)
        service.loop.retention.in_memory = 3
        acts: list[Act] = [(service.began + at, partial(users.act, kind, given_)) for at, kind, given_ in drawn]
        service.backend.acts = acts
        try:
            service.run(lambda: service.now() >= service.began + DAYS * DAY and not acts)
            monkeypatch.undo()
            service.run(lambda: all(service.row(job).is_over for job in users.jobs) and not service.backend.controllers)
            service.steps(3)
            check(service, users)
        finally:
            monkeypatch.undo()
            service.close()


def check(service: VirtualService, users: Users) -> None:
    """The database says what happened. (That no node ever had more workers than GPUs the backend itself asserts.)"""
    backend = service.backend
    begun = [job for job, resumed in backend.started if not resumed]
    assert len(begun) == len(set(begun)), "every job is started anew once"
    assert set(begun) <= set(users.jobs)
    for job in users.jobs:
        row = service.row(job)
        trained = backend.saved.get(job, 0.0)
        if row.state == "finished":
            assert trained >= row.epochs - 1e-9
            assert row.progress == pytest.approx(row.epochs)
            assert row.submitted <= row.started <= row.ended  # type: ignore[operator]
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
    cluster, most = service.loop.cluster, 4 + service.loop.retention.in_memory
    assert max(len(cluster.ids), len(service.database.jobs())) <= most, "ended jobs are forgotten"
    assert cluster.tracker.reports.keys() <= set(cluster.ids)
