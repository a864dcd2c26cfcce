"""State of the cluster: queue, nodes, allocations, policies, decisions, task volume."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Response

from rlpto.service.web.access import AnOperator, Caller, TheCaller, job_for
from rlpto.service.web.errors import Problem
from rlpto.service.web.routes.jobs import ASSUMES
from rlpto.service.web.schemas import DrainBody, LabelKey, LeaveBody, NameInPath, PolicyChange
from rlpto.service.web.state import Service, TheService
from rlpto.store import requests, status
from rlpto.store.curves import Span, Usage, spans_between, spans_of_job, usage
from rlpto.store.database import Store
from rlpto.store.jobs import get_job
from rlpto.store.users import note_change

router = APIRouter(tags=["cluster"])
ANSWER_TIMEOUT_S = 10.0
"""Longest wait for an answer if the scheduler has sent no recent heartbeat."""
READY_TIMEOUT_S = 180.0
"""Longest wait for a live scheduler, which may have to compile code for the policy."""
_LOOK_S = 0.02
_LONGEST_QUEUE = 1000
_WITHDRAWN = "withdrawn: the scheduler had not answered"
_DAY_S = 86_400.0
_MOST_NAMES = 10
IfMatch = Annotated[str | None, Header(alias="If-Match", max_length=100, description="The ETag that was read.")]
Time = Annotated[float | None, Query(ge=0, le=1e11, allow_inf_nan=False, description="Seconds since 1970.")]


@dataclass(frozen=True)
class QueueEntry(status.QueueRow):
    """A waiting job. Of another user's job only place and GPUs are shown: the id is empty, name and owner are null."""

    name: str | None
    owner: str | None
    gpus: int | None
    priority: str | None
    prediction: status.PredictionRow | None


@dataclass(frozen=True)
class QueueAnswer:
    """Waiting jobs in order of service. prediction_assumes: what predicted starts and finishes rest on."""

    queue: list[QueueEntry]
    prediction_assumes: str = ASSUMES


@dataclass(frozen=True)
class UsageAnswer:
    """GPU-hours by user or value of a label, largest first, from `since` [s since 1970] on, or since the oldest
    allocation that is kept."""

    usage: list[Usage]
    since: float


@dataclass(frozen=True)
class Allocations:
    """Which job held which GPUs when, newest first; job and owner are empty for another user's.

    names: of jobs. hosts: names of the machines of nodes.
    """

    now: float
    spans: list[Span]
    names: Mapping[str, str]
    hosts: Mapping[str, str]


@dataclass(frozen=True)
class PolicyAnswer:
    """The policy in force; null: the scheduler has not started yet. number: of the last switch, the ETag.

    preparing: policy that was asked for and is being imported and compiled, which may take minutes, since
    preparing_since [s]; null: none.
    """

    policy: str | None
    number: int
    since: float | None
    by: str
    reason: str
    preparing: str | None = None
    preparing_since: float | None = None


@router.get("/queue")
async def queue(caller: TheCaller, service: TheService) -> QueueAnswer:
    """Waiting jobs in order of service, with why they wait and when they will start and finish."""
    return QueueAnswer(queue_entries(service, caller))


def queue_entries(service: Service, caller: Caller, limit: int = _LONGEST_QUEUE) -> list[QueueEntry]:
    """The first jobs of the queue as a caller may see them."""
    predicted = status.predictions(service.store)
    entries = []
    for row in status.queue(service.store, limit):
        job = get_job(service.store, row.job)
        shown = job is not None and caller.may_see(job.owner)
        entries.append(
            QueueEntry(
                job=row.job if shown else "",
                position=row.position,
                gpus_ahead=row.gpus_ahead,
                reason=row.reason if shown else "",
                name=job.name if job is not None and shown else None,
                owner=job.owner if job is not None and shown else None,
                gpus=None if job is None else job.gpus,
                priority=None if job is None else job.priority,
                prediction=predicted.get(row.job) if job is not None and shown and not job.held_by else None,
            )
        )
    return entries


@router.get("/usage")
async def gpu_hours(
    caller: TheCaller,
    service: TheService,
    days: Annotated[float, Query(gt=0, le=3650, description="The last this number of days.")] = 30.0,
    by: Annotated[LabelKey | None, Query(description="By values of this label; by user if not given.")] = None,
) -> UsageAnswer:
    """GPU-hours that jobs have held; of a user's own jobs, of all jobs for operators."""
    now = service.now()
    since, owner = now - days * _DAY_S, None if caller.user.sees_all else caller.name
    return UsageAnswer(usage(service.store, since, now, by, owner), since)


@router.get("/nodes")
async def nodes(caller: TheCaller, service: TheService) -> dict[Literal["nodes"], list[status.NodeRow]]:
    """Nodes, their GPUs, and which job holds how many; GPUs of other users' jobs are together under an empty id."""
    return {"nodes": visible_nodes(service, caller)}


def visible_nodes(service: Service, caller: Caller) -> list[status.NodeRow]:
    """The nodes as a caller may see them."""
    found = []
    for node in status.nodes(service.store):
        held: dict[str, int] = {}
        for name, gpus in node.jobs.items():
            job = None if caller.user.sees_all else get_job(service.store, name)
            shown = name if caller.user.sees_all or (job is not None and caller.may_see(job.owner)) else ""
            held[shown] = held.get(shown, 0) + gpus
        found.append(replace(node, jobs=held))
    return found


@router.post("/nodes/{name}/drain")
async def drain_node(name: NameInPath, body: LeaveBody, caller: AnOperator, service: TheService) -> status.NodeRow:
    """Announce that a node, by its id or how that begins, goes in some seconds: jobs leave it now, and lose no step."""
    known = [node.id for node in status.nodes(service.store) if node.alive]
    found = [node for node in known if node.startswith(name)]
    if len(found) != 1:
        listed = ", ".join(node[:12] for node in known[:_MOST_NAMES]) or "none, since no node is up"
        raise Problem(
            404, "no-such-node", f"{len(found)} nodes that are up begin with {name}: expected one of {listed}"
        )
    at = service.now()

    def ask(store: Store) -> int:
        note_change(store, caller.name, "node.drain", found[0], at, {"seconds": body.seconds})
        return requests.ask(store, "leave", caller.name, at, body={"node": found[0], "seconds": body.seconds})

    if problem := await _answered(service, await service.commit(ask)):
        raise Problem(409, "drain-refused", problem)
    return next(node for node in visible_nodes(service, caller) if node.id == found[0])


@router.get("/allocations")
async def allocations(
    caller: TheCaller,
    service: TheService,
    since: Time = None,
    job: Annotated[str | None, Query(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$", description="Of this job alone.")] = None,
) -> Allocations:
    """The newest 10,000 allocations: which job held which GPUs from when to when; without `since` of the last day."""
    now = service.now()
    if job is not None:
        spans = spans_of_job(service.store, job_for(service, caller, job).id)
    else:
        spans = spans_between(service.store, now - _DAY_S if since is None else since, now)
    names: dict[str, str] = {}
    for span in spans:
        if span.job not in names and caller.may_see(span.owner):
            found = get_job(service.store, span.job)
            names[span.job] = "" if found is None else found.name
    visible = [span if span.job in names else replace(span, job="", owner="") for span in spans]
    hosts = {node.id: node.host for node in status.nodes(service.store) if node.host}
    return Allocations(now, visible, names, hosts)


@router.get("/policies")
async def policies(_: TheCaller, service: TheService) -> dict[Literal["policies"], list[status.PolicyEntry]]:
    """Policies that may be switched to."""
    return {"policies": status.policies(service.store)}


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
        return PolicyAnswer(None, 0, None, "", "")
    asked = next((one for one in requests.open_requests(service.store) if one.kind == "policy"), None)
    preparing = (None, None) if asked is None else (str(asked.body["policy"]), asked.at)
    return PolicyAnswer(found.policy, found.number, found.in_force, found.by, found.reason, *preparing)


@router.put("/policy")
async def switch_policy(
    body: PolicyChange, caller: AnOperator, service: TheService, response: Response, if_match: IfMatch = None
) -> PolicyAnswer:
    """Let another policy decide; this answers once it is in force. Running processes are not touched."""
    known = {row.name for row in status.policies(service.store)}
    if not known:
        detail = "the scheduler is starting and has not listed its policies yet; nothing was changed"
        raise Problem(503, "no-scheduler", detail, {"Retry-After": "5"})
    if body.policy not in known:
        raise Problem(422, "not-valid", f"no policy {body.policy}: expected one of GET /api/v1/policies")
    number = policy_answer(service).number
    _check_match(if_match, number)
    at = service.now()

    def ask(store: Store) -> int:
        now = requests.switch_in_force(store)
        others = [one for one in requests.open_requests(store) if one.kind == "policy"]
        if (0 if now is None else now.number) != number or any(one.body.get("number") == number for one in others):
            raise _stale()
        note_change(store, caller.name, "policy.switch", body.policy, at, {"reason": body.reason, "number": number})
        wanted = {"policy": body.policy, "reason": body.reason, "number": number}
        return requests.ask(store, "policy", caller.name, at, body=wanted)

    if problem := await _answered(service, await service.commit(ask)):
        raise _stale() if policy_answer(service).number != number else Problem(409, "policy-refused", problem)
    found = policy_answer(service)
    response.headers["ETag"] = f'"{found.number}"'
    return found


def _check_match(given: str | None, version: int) -> None:
    """Raise Problem 428 without If-Match, 412 if it is not of this version."""
    if given is None:
        raise Problem(428, "if-match-needed", "expected If-Match with the ETag that was read, so that nothing is lost")
    tags = [tag.strip().removeprefix("W/") for tag in given.split(",")]
    if f'"{version}"' not in tags:
        raise _stale()


def _stale() -> Problem:
    """The version in If-Match is out of date: another request changed it first."""
    return Problem(412, "stale", "it has been changed since that ETag was read; read it again")


async def _answered(service: Service, request: int) -> str:
    """Wait until the scheduler has answered: what it has against it. Raises Problem where no answer comes in time."""
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
    return "" if found is None or found.problem is None else found.problem


@router.get("/decisions")
async def decisions(
    _: TheCaller, service: TheService, since: Time = None, limit: Annotated[int, Query(ge=1, le=2000)] = 500
) -> dict[Literal["decisions"], list[status.DecisionRow]]:
    """Decisions with reward, its parts, and the agent's steering; without `since` those of the last day."""
    begin = service.now() - _DAY_S if since is None else since
    return {"decisions": status.decisions(service.store, begin, limit)}


@router.get("/volume")
async def volume(
    _: TheCaller, service: TheService, since: Time = None, limit: Annotated[int, Query(ge=1, le=2000)] = 500
) -> dict[Literal["volume"], list[status.VolumeRow]]:
    """Task volume by step, and its forecast with an 80 % interval; without `since` from a day ago on."""
    begin = service.now() - _DAY_S if since is None else since
    return {"volume": status.volume(service.store, begin, limit)}


@router.put("/drain", status_code=202)
async def drain(body: DrainBody, caller: AnOperator, service: TheService) -> dict[Literal["on"], bool]:
    """Stop starting jobs, so that the cluster empties, or allow starts again."""
    at = service.now()

    def ask(store: Store) -> None:
        requests.ask(store, "drain", caller.name, at, body={"on": body.on})
        note_change(store, caller.name, "drain", "on" if body.on else "off", at)

    await service.commit(ask)
    return {"on": body.on}
