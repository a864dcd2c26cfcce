"""How the cluster stands: queue, nodes, allocations, policies, decisions, task volume."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from rlpto.service.web.access import AnOperator, Caller, TheCaller, job_for
from rlpto.service.web.answers.cluster import (
    Allocations,
    DecisionAnswer,
    Decisions,
    DrainAnswer,
    NodeAnswer,
    NodesAnswer,
    Policies,
    PolicyAnswer,
    PolicyEntry,
    QueueAnswer,
    QueueEntry,
    SpanAnswer,
    SwitchAnswer,
    Switches,
    Volume,
    VolumeAnswer,
)
from rlpto.service.web.answers.jobs import prediction_answer
from rlpto.service.web.problems import Problem
from rlpto.service.web.routes.jobs import Cursor, IfMatch, Limit, check_match, stale
from rlpto.service.web.state import Service, TheService
from rlpto.service.web.values import DrainBody, PolicyChange
from rlpto.store import audit, requests, status
from rlpto.store.curves import spans_between, spans_of_job
from rlpto.store.database import Store
from rlpto.store.jobs import get_job

router = APIRouter(tags=["cluster"])
ANSWER_TIMEOUT_S = 10.0
"""Longest wait for a scheduler that gives no sign of life to put a policy in force."""
READY_TIMEOUT_S = 180.0
"""Longest wait for one that does: it may have to compile what the policy needs."""
_LOOK_S = 0.02
_LONGEST_QUEUE = 1000
_WITHDRAWN = "withdrawn: the scheduler had not answered"
_DAY_S = 86_400.0
Time = Annotated[float | None, Query(ge=0, le=1e11, allow_inf_nan=False, description="Seconds since 1970.")]


@router.get("/queue")
async def queue(caller: TheCaller, service: TheService) -> QueueAnswer:
    """Waiting jobs in order of service, with why they wait and when they will start and finish."""
    return QueueAnswer(queue=queue_entries(service, caller))


def queue_entries(service: Service, caller: Caller, limit: int = _LONGEST_QUEUE) -> list[QueueEntry]:
    """The first jobs of the queue as a caller may see them."""
    said = status.predictions(service.store)
    entries = []
    for row in status.queue(service.store, limit):
        job = get_job(service.store, row.job)
        shown = job is not None and (caller.user.sees_all or job.owner == caller.name)
        known: dict[str, Any] = {name: getattr(job, name) if shown else None for name in ("name", "owner")}
        entries.append(
            QueueEntry(
                **known,
                job=row.job if shown else None,
                gpus=None if job is None else job.gpus,
                priority=None if job is None else job.priority,
                prediction=prediction_answer(said.get(row.job)) if shown else None,
                position=row.position,
                gpus_ahead=row.gpus_ahead,
                reason=row.reason if shown else "",
            )
        )
    return entries


@router.get("/nodes")
async def nodes(caller: TheCaller, service: TheService) -> NodesAnswer:
    """Nodes, their GPUs, and which job holds how many."""
    return NodesAnswer(nodes=node_answers(service, caller))


def node_answers(service: Service, caller: Caller) -> list[NodeAnswer]:
    """The nodes as a caller may see them."""
    found = []
    for node in status.nodes(service.store):
        held: dict[str, int] = {}
        for name, gpus in node.jobs.items():
            job = None if caller.user.sees_all else get_job(service.store, name)
            shown = caller.user.sees_all or (job is not None and job.owner == caller.name)
            held[name if shown else ""] = held.get(name if shown else "", 0) + gpus
        found.append(NodeAnswer(id=node.id, gpus=node.gpus, alive=node.alive, kind=node.kind, jobs=held))
    return found


@router.get("/allocations")
async def allocations(
    caller: TheCaller,
    service: TheService,
    since: Time = None,
    until: Time = None,
    job: Annotated[str | None, Query(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", description="Of this job alone.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
) -> Allocations:
    """Which job held which GPUs from when to when; without `since` those of the last day."""
    now = service.now()
    if job is not None:
        spans = spans_of_job(service.store, job_for(service, caller, job).id, limit)
    else:
        begin = now - _DAY_S if since is None else since
        spans = spans_between(service.store, begin, now if until is None else until, limit)
    names: dict[str, str] = {}
    for span in spans:
        if span.job not in names and (caller.user.sees_all or span.owner == caller.name):
            found = get_job(service.store, span.job)
            names[span.job] = "" if found is None else found.name
    return Allocations(
        now=now,
        spans=[
            SpanAnswer(
                job=span.job if span.job in names else None,
                name=names.get(span.job),
                node=span.node,
                gpus=span.gpus,
                started=span.started,
                ended=span.ended,
            )
            for span in spans
        ],
    )


@router.get("/policies")
async def policies(_: TheCaller, service: TheService) -> Policies:
    """Policies that may be switched to."""
    rows = status.policies(service.store)
    return Policies(policies=[PolicyEntry(name=row.name, summary=row.summary, source=row.source) for row in rows])


@router.get("/policy")
async def policy(_: TheCaller, service: TheService, response: Response) -> PolicyAnswer:
    """The policy in force."""
    found = policy_answer(service)
    response.headers["ETag"] = f'"{found.number}"'
    return found


def policy_answer(service: Service) -> PolicyAnswer:
    """The policy in force; of number 0 before the scheduler has ever started."""
    found = requests.switch_in_force(service.store)
    if found is None:
        return PolicyAnswer(policy=None, number=0, since=None, by="", reason="")
    return PolicyAnswer(
        policy=found.policy, number=found.number, since=found.in_force, by=found.by, reason=found.reason
    )


@router.put("/policy")
async def switch_policy(
    body: PolicyChange, caller: AnOperator, service: TheService, response: Response, if_match: IfMatch = None
) -> PolicyAnswer:
    """Let another policy decide; this answers once it is in force. Running processes are not touched."""
    known = {row.name for row in status.policies(service.store)}
    if not known:
        detail = "the scheduler is starting and has not told which policies there are; nothing was changed"
        raise Problem(503, "no-scheduler", detail, {"Retry-After": "5"})
    if body.policy not in known:
        raise Problem(422, "not-valid", f"no policy {body.policy}: expected one of GET /api/v1/policies")
    number = policy_answer(service).number
    check_match(if_match, number)
    at = service.now()

    def ask(store: Store) -> int:
        now = requests.switch_in_force(store)
        others = [one for one in requests.open_requests(store) if one.kind == "policy"]
        if (0 if now is None else now.number) != number or any(one.body.get("number") == number for one in others):
            raise stale()
        audit.note(store, caller.name, "policy.switch", body.policy, at, {"reason": body.reason, "number": number})
        wanted = {"policy": body.policy, "reason": body.reason, "number": number}
        return requests.ask(store, "policy", caller.name, at, body=wanted)

    await _answered(service, await service.commit(ask), number)
    found = policy_answer(service)
    response.headers["ETag"] = f'"{found.number}"'
    return found


async def _answered(service: Service, request: int, number: int) -> None:
    """Wait until the scheduler has answered. Raises Problem if it refuses, or does not answer in time."""
    asked = alive = service.now()
    while True:
        found = requests.get_request(service.store, request)
        if found is not None and found.done_at is not None:
            break
        beat = status.heartbeat(service.store)
        alive = alive if beat is None else max(alive, beat[0])
        if service.now() > min(alive + ANSWER_TIMEOUT_S, asked + READY_TIMEOUT_S) or service.notifier.closing:
            await service.commit(lambda store: requests.answer(store, request, service.now(), _WITHDRAWN))
            found = requests.get_request(service.store, request)
            if found is not None and found.problem == _WITHDRAWN:
                detail = f"the scheduler has not answered within {service.now() - asked:.0f} s; nothing was changed"
                raise Problem(503, "no-scheduler", detail, {"Retry-After": "5"})
            break
        await asyncio.sleep(_LOOK_S)
    if found is not None and found.problem:
        if policy_answer(service).number != number:
            raise stale()
        raise Problem(409, "policy-refused", found.problem)


@router.get("/policy/history")
async def policy_history(_: TheCaller, service: TheService, limit: Limit = 50, cursor: Cursor = None) -> Switches:
    """Which policy was in force when, who asked for it, and why."""
    found = requests.switches(service.store, None if cursor is None else int(cursor), limit + 1)
    page = found[:limit]
    return Switches(
        switches=[SwitchAnswer(**vars(one)) for one in page], next=str(page[-1].number) if len(found) > limit else None
    )


@router.get("/decisions")
async def decisions(
    _: TheCaller, service: TheService, since: Time = None, limit: Annotated[int, Query(ge=1, le=2000)] = 500
) -> Decisions:
    """Decisions with reward, its parts, and the agent's steering; without `since` those of the last day."""
    begin = service.now() - _DAY_S if since is None else since
    found = status.decisions(service.store, begin, limit)
    return Decisions(decisions=[DecisionAnswer(**vars(row)) for row in found])


@router.get("/volume")
async def volume(
    _: TheCaller, service: TheService, since: Time = None, limit: Annotated[int, Query(ge=1, le=2000)] = 500
) -> Volume:
    """Task volume by step, and its forecast with an 80 % interval; without `since` from a day ago on."""
    begin = service.now() - _DAY_S if since is None else since
    found = status.volume(service.store, begin, limit)
    return Volume(volume=[VolumeAnswer(**vars(row)) for row in found])


@router.get("/drain")
async def drained(_: TheCaller, service: TheService) -> DrainAnswer:
    """Whether no further job starts."""
    return DrainAnswer(on=status.is_drained(service.store))


@router.put("/drain", status_code=202)
async def drain(body: DrainBody, caller: AnOperator, service: TheService) -> DrainAnswer:
    """Let no further job start, so that the cluster empties; or let them start again."""
    at = service.now()

    def ask(store: Store) -> None:
        requests.ask(store, "drain", caller.name, at, body={"on": body.on})
        audit.note(store, caller.name, "drain", "on" if body.on else "off", at)

    await service.commit(ask)
    return DrainAnswer(on=body.on)
