"""Jobs that go on, end or are cancelled while the scheduler is away, and what their histories and curves then show."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rlpto.ray_cluster.messages import RECORD, Command
from rlpto.ray_cluster.scheduler.session_database import decision_records
from rlpto.store.curves import points_after, spans_of_job
from rlpto.store.events import events_of_job
from tests.service.scheduler.virtual import KilledError, VirtualService


def test_a_job_that_is_cancelled_while_the_scheduler_is_away_lets_go_of_its_gpus(service: VirtualService) -> None:
    job = service.submit(gpus=2, max_gpus=2, epochs=50.0)
    service.until(job, "running")
    service.ask("cancel", job)
    service.until(job, "cancelled")
    assert service.row(job).gpus_held == 2, "its controller has not ended yet"
    service.downtime = 10.0
    service.restart()
    service.run(lambda: not service.backend.controllers)
    service.steps(3)
    assert service.row(job).gpus_held == 0
    assert all(span.ended is not None for span in spans_of_job(service.store, job))


def test_a_job_that_ends_while_no_scheduler_is_there_has_the_end_of_its_curve(service: VirtualService) -> None:
    job = service.submit(gpus=2, max_gpus=2, epochs=5.0)
    service.until(job, "running")
    service.downtime = 100_000.0
    service.restart()
    assert service.row(job).state == "finished"
    assert points_after(service.store, job)[-1].epoch == pytest.approx(5.0)


@pytest.mark.parametrize("epochs", [20.0, 500.0])
def test_curves_have_no_holes_where_no_scheduler_was_there(service: VirtualService, epochs: float) -> None:
    """Of a job that trains on, and of one that ends meanwhile; and nothing is shown twice."""
    job = service.submit(gpus=2, max_gpus=2, epochs=epochs)
    service.until(job, "running")
    service.steps(20)
    service.downtime = 20_000.0
    service.restart()
    service.steps(20)
    points = points_after(service.store, job)
    gaps = [after.at - before.at for before, after in pairwise(points)]
    assert max(gaps) <= 1000.0
    assert min(gaps) >= 2.0
    assert all(before.epoch < after.epoch for before, after in pairwise(points))
    assert {point.gpus for point in points if point.epoch < epochs} == {2}
    assert (service.row(job).state == "finished") == (epochs == 20.0)


@pytest.mark.slow
def test_every_decision_shows_the_reward_of_the_time_since_the_one_before_it(service: VirtualService) -> None:
    for epochs in (5.0, 20.0):
        service.submit(gpus=2, max_gpus=2, epochs=epochs)
    service.steps(30)
    service.downtime = 50.0
    service.restart()
    service.run(lambda: not service.backend.controllers)
    shown = [row[0] for row in service.store.rows("SELECT reward FROM decisions ORDER BY seq")]
    passed = decision_records(service.database, service.setup.reward).reward.sum(axis=1).tolist()
    assert len(shown) >= 3
    assert shown[1:] == pytest.approx(passed[:-1])
    kept = service.store.rows("SELECT sum(gained), sum(shortfall) FROM jobs")[0]
    sums = "SELECT sum(gain_high + gain_normal + gain_low), sum(short_high + short_normal + short_low) FROM decisions"
    assert service.store.rows(sums)[0] == pytest.approx(kept), "and jobs add up to decisions"


def states_of(service: VirtualService, job: str) -> list[str]:
    """The states that the history of a job shows."""
    return [event.body["state"] for event in events_of_job(service.store, job) if "state" in event.body]


def test_a_job_that_trained_while_no_scheduler_was_there_was_not_only_queued(
    service: VirtualService, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = service.submit(gpus=2, max_gpus=2, epochs=5.0)
    sending = service.backend.command

    def killed(command: Command) -> None:
        sending(command)
        monkeypatch.undo()
        raise KilledError

    monkeypatch.setattr(service.backend, "command", killed)
    with pytest.raises(KilledError):
        service.steps(10)
    assert service.row(job).state == "queued"
    service.downtime = 100_000.0
    service.restart()
    assert states_of(service, job) == ["queued", "running", "finished"]


def test_a_job_that_has_finished_is_not_queued_again(service: VirtualService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither if the scheduler dies while it writes the end, nor if the controller is gone when it is back."""
    jobs = [service.submit(gpus=2, max_gpus=2, epochs=5.0) for _ in range(2)]
    service.run(lambda: all(service.row(job).state == "running" for job in jobs))
    writing, database = service.database.end, service.database

    def killed(*given: Any) -> None:
        writing(*given)
        monkeypatch.undo()
        raise KilledError

    monkeypatch.setattr(database, "end", killed)
    with pytest.raises(KilledError):
        service.steps(10_000)
    assert service.backend.controllers.keys() == {*jobs}, "nothing has ended that is not in the database"
    service.restart()
    assert states_of(service, jobs[0])[-2:] == ["running", "finished"]

    third = service.submit(gpus=2, max_gpus=2, epochs=5.0)
    service.until(third, "running")
    record = Path(service.loop.cluster.tracker.spec_of(third).folder) / RECORD
    record.parent.mkdir(parents=True)
    at = service.world.wall + 70.0
    left = {"job": third, "state": "finished", "progress": 5.0, "training_on": ["n0"], "time": at}
    sums = {"interruptions": {}, "kept": {}}
    kept = {"report": left, "earlier": [left | {"progress": 3.0, "time": at - 9.0}], "statistics": sums}
    record.write_text(json.dumps(kept))
    service.backend.controllers.pop(third)
    service.downtime = 500.0
    service.restart()
    service.steps(2)
    assert states_of(service, third)[-2:] == ["running", "finished"]
    assert service.row(third).ended == pytest.approx(at)
    assert [(point.epoch, point.at) for point in points_after(service.store, third)[-2:]] == [
        (3.0, pytest.approx(at - 9.0)),
        (5.0, pytest.approx(at)),
    ]
    assert (service.row(third).gpus_held, [one[0] for one in service.backend.started].count(third)) == (0, 1)
