"""Jobs on hold, and nodes that are announced to go, in virtual time."""

from __future__ import annotations

from rlpto.store.jobs import change_job
from rlpto.store.requests import answer
from rlpto.store.status import nodes, queue
from tests.service.scheduler.virtual import VirtualService


def test_jobs_leave_a_node_that_is_announced_to_go(service: VirtualService) -> None:
    job = service.submit(gpus=2, max_gpus=2, epochs=5.0)
    service.until(job, "running")
    (node,) = (node.id for node in nodes(service.store) if node.jobs)
    asked = service.ask("leave", node=node, seconds=300.0)
    wrong = service.ask("leave", node="gone", seconds=300.0)
    at = service.now()
    service.run(lambda: any(one.jobs == {job: 2} for one in nodes(service.store) if one.id != node))
    service.until(job, "finished")
    assert (service.problem(asked), service.problem(wrong)) == ("", "there is no such node")
    assert service.backend.drained == [(node, 300.0), ("gone", 300.0)]
    going = next(one for one in nodes(service.store) if one.id == node)
    assert (going.alive, going.leaves) == (False, at + 300.0)


def test_a_node_stays_where_the_request_that_it_goes_was_withdrawn(service: VirtualService) -> None:
    service.submit()
    number = service.ask("leave", node="n0", seconds=300.0)
    service.run(lambda: bool(service.loop.source.leaving))
    answer(service.store, number, service.now(), "withdrawn: the scheduler had not answered")
    service.run(lambda: not service.loop.source.leaving)
    assert service.backend.drained == []


def test_nodes_that_go_while_no_scheduler_is_there_are_not_up_any_more(service: VirtualService) -> None:
    job = service.submit(gpus=2, max_gpus=2, epochs=5.0)
    service.until(job, "running")
    for node in ("n0", "n1"):
        service.backend.kill_node(node)
    service.backend.gpus["n2"] = 2
    service.restart()
    assert {node.id: (node.gpus, node.alive, node.jobs) for node in nodes(service.store)} == {
        "n0": (2, False, {}), "n1": (2, False, {}), "n2": (2, True, {}),
    }  # fmt: skip
    service.until(job, "finished")


def hold(service: VirtualService, job: str, by: str) -> None:
    """What the web process does."""
    change_job(service.store, job, service.now(), held_by=by)
    service.ask("hold", job)


def test_a_held_job_starts_once_it_is_released(service: VirtualService) -> None:
    early, late = service.submit(), service.submit(gpus=4, max_gpus=4)
    hold(service, early, "ann")
    service.until(late, "running")
    waiting = service.submit()
    service.until(waiting, "queued")
    hold(service, waiting, "op")
    service.until(late, "finished")
    service.steps(30)
    assert [service.row(job).state for job in (early, waiting)] == ["submitted", "queued"]
    assert [(row.job, row.reason) for row in queue(service.store)] == [(waiting, "held by op")]
    assert len(service.switches()) == 1, "the policy is not to blame"
    service.restart()
    for job in (early, waiting):
        hold(service, job, "")
        service.until(job, "finished")


def test_a_hold_that_comes_too_late_is_none(service: VirtualService) -> None:
    job = service.submit()
    service.until(job, "queued")
    hold(service, job, "ann")
    service.database.change(1.0, job, 1, 0.0, ("n0",))
    assert (service.row(job).state, service.row(job).held_by) == ("starting", "")
