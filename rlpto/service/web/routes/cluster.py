"""State of the cluster: queue, nodes, allocations, policies, decisions, task volume; and health of the service."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query, Response

from rlpto.service.web.access import AnOperator, Caller, TheCaller, job_for
from rlpto.service.web.errors import Problem, not_valid
from rlpto.service.web.routes.jobs import ASSUMES
from rlpto.service.web.schemas import JOB_ID, DrainBody, LabelKey, LeaveBody, NameInPath, PolicyChange
from rlpto.service.web.state import Service, TheService
from rlpto.store import requests, status
from rlpto.store.curves import Span, Usage, spans_between, spans_of_job, usage
from rlpto.store.database import Store
from rlpto.store.jobs import EXPECTED, State, get_job, list_jobs
from rlpto.store.users import note_change

router = APIRouter(tags=["cluster"])
ANSWER_TIMEOUT_S = 10.0
"""Longest wait for an answer if the scheduler has sent no recent heartbeat."""
READY_TIMEOUT_S = 180.0
"""Longest wait for a live scheduler, which may have to compile code for the policy."""
SILENCE_S = 15.0
"""A scheduler without a heartbeat for this long counts as gone."""
_LOOK_S = 0.02
_LONGEST_QUEUE = 1000
_WITHDRAWN = "withdrawn: the scheduler had not answered"
_DAY_S = 86_400.0
_MOST_NAMES = 10
_UNPLACED: Mapping[State, str] = {
    "submitted": "the scheduler has not looked at it yet",
    "queued": "it is about to start",
}
"""Default reasons why jobs without a queue position wait, by state."""
IfMatch = Annotated[str | None, Header(alias="If-Match", max_length=100, description="The ETag that was read.")]
Time = Annotated[float | None, Query(ge=0, le=1e11, allow_inf_nan=False, description="Seconds since 1970.")]


@dataclass(frozen=True)
class QueueEntry(status.QueueRow):
    """A waiting job. position: 0 if it has none yet, because its program is being checked or it is about to start. For
    another user's job only position and GPUs are shown: the id is empty, name and owner are null."""

    name: str | None
    owner: str | None
    gpus: int | None
    priority: str | None
    prediction: status.PredictionRow | None


@dataclass(frozen=True)
class QueueAnswer:
    """Waiting jobs in order of service. prediction_assumes: assumptions of predicted starts and finishes."""

    queue: list[QueueEntry]
    prediction_assumes: str = ASSUMES


@dataclass(frozen=True)
class UsageAnswer:
    """GPU-hours by user or value of a label, largest first, since a time [s since 1970], as far as records are kept."""

    usage: list[Usage]
    since: float


@dataclass(frozen=True)
class NodesAnswer:
    """The nodes. provisioning: number of wanted nodes and the reason, null without a provisioner."""

    nodes: list[status.NodeRow]
    provisioning: status.ProvisioningStatus | None


@dataclass(frozen=True)
class Allocations:
    """GPUs held by jobs over time, newest first; job and owner are empty for another user's jobs. names: names of jobs.
    hosts: machine names of nodes."""

    now: float
    spans: list[Span]
    names: Mapping[str, str]
    hosts: Mapping[str, str]


@dataclass(frozen=True)
class PolicyAnswer:
    """The policy in force, null before the scheduler's first start. number: number of the last switch, the ETag.
    preparing: policy being imported and compiled since preparing_since [s], which may take minutes; null if there is
    none."""

    policy: str | None
    number: int
    since: float | None
    by: str
    reason: str
    preparing: str | None = None
    preparing_since: float | None = None


@router.get("/queue")
async def queue(caller: TheCaller, service: TheService) -> QueueAnswer:
    """Waiting jobs in order of service, with reasons for waiting and predicted starts and finishes."""
    return QueueAnswer(queue_entries(service, caller))


def queue_entries(service: Service, caller: Caller, limit: int = _LONGEST_QUEUE) -> list[QueueEntry]:
    """Return the first waiting jobs as a caller may see them: jobs with a position, then the caller's others."""
    predicted = status.predictions(service.store)
    placed = status.queue(service.store, limit)
    known = {row.job for row in placed}
    new = list_jobs(service.store, owner=caller.whose, states=(*EXPECTED, "queued"), limit=limit)[::-1]
    unplaced = [
        status.QueueRow(job.id, 0, 0, job.reason or _UNPLACED.get(job.state, "")) for job in new if job.id not in known
    ]
    entries = []
    for row in [*placed, *unplaced][:limit]:
        job = get_job(service.store, row.job)
        if job is None:
            continue
        if caller.may_see(job.owner):
            said = None if job.held_by else predicted.get(job.id)
            own = (job.name, job.owner, job.gpus, job.priority, said)
            entries.append(QueueEntry(row.job, row.position, row.gpus_ahead, row.reason, *own))
        else:
            entries.append(QueueEntry("", row.position, row.gpus_ahead, "", None, None, job.gpus, job.priority, None))
    return entries


@router.get("/usage")
async def gpu_hours(
    caller: TheCaller,
    service: TheService,
    days: Annotated[float, Query(gt=0, le=3650, description="The last this number of days.")] = 30.0,
    by: Annotated[LabelKey | None, Query(description="By values of this label; by user if not given.")] = None,
) -> UsageAnswer:
    """GPU-hours held by jobs: of a user's own jobs, or of all jobs for operators."""
    now = service.now()
    since = now - days * _DAY_S
    return UsageAnswer(usage(service.store, since, now, by, caller.whose), since)


@router.get("/nodes")
async def nodes(caller: TheCaller, service: TheService) -> NodesAnswer:
    """Nodes, their GPUs, and the GPUs held by each job; other users' jobs are combined under an empty id."""
    return NodesAnswer(visible_nodes(service, caller), status.provisioning(service.store))


def visible_nodes(service: Service, caller: Caller) -> list[status.NodeRow]:
    """The nodes as a caller may see them."""
    found = []
    for node in status.nodes(service.store):
        held: dict[str, int] = {}
        for name, gpus in node.jobs.items():
            job = None if caller.whose is None else get_job(service.store, name)
            shown = name if caller.whose is None or (job is not None and caller.may_see(job.owner)) else ""
            held[shown] = held.get(shown, 0) + gpus
        found.append(replace(node, jobs=held))
    return found


@router.post("/nodes/{name}/drain")
async def drain_node(name: NameInPath, body: LeaveBody, caller: AnOperator, service: TheService) -> status.NodeRow:
    """Announce that a node, given by its id or the beginning of it, leaves in some seconds. Jobs leave it now, and lose
    no step."""
    known = [node.id for node in status.nodes(service.store) if node.alive]
    found = [node for node in known if node.startswith(name)]
    if len(found) != 1:
        listed = ", ".join(node[:12] for node in known[:_MOST_NAMES]) or "none, since no node is up"
        said = f"{len(found)} nodes that are up begin with {name}: expected one of {listed}"
        raise Problem(404, "no-such-node", said)
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
    job: Annotated[str | None, Query(pattern=JOB_ID, description="Of this job alone.")] = None,
) -> Allocations:
    """The newest 10,000 allocations, that is, GPUs held by each job and when. Default for `since`: one day ago."""
    now = service.now()
    if job is not None:
        spans = spans_of_job(service.store, (await job_for(job, caller, service)).id)[::-1]
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
    found = policy_answer(service.store)
    response.headers["ETag"] = f'"{found.number}"'
    return found


def policy_answer(store: Store) -> PolicyAnswer:
    """The policy in force; its number is 0 before the scheduler's first start."""
    found = requests.switch_in_force(store)
    if found is None:
        return PolicyAnswer(None, 0, None, "", "")
    asked = next((one for one in requests.open_requests(store) if one.kind == "policy"), None)
    preparing = (None, None) if asked is None else (str(asked.body["policy"]), asked.at)
    return PolicyAnswer(found.policy, found.number, found.in_force, found.by, found.reason, *preparing)


@router.put("/policy")
async def switch_policy(
    body: PolicyChange, caller: AnOperator, service: TheService, response: Response, if_match: IfMatch = None
) -> PolicyAnswer:
    """Switch to another policy; this answers once it is in force. Running processes are not touched.

    If the policy is already in force and no switch is in progress, nothing changes, not even the ETag.
    """
    known = {row.name for row in status.policies(service.store)}
    if not known:
        detail = "the scheduler is starting and has not listed its policies yet; nothing was changed"
        raise Problem(503, "no-scheduler", detail, {"Retry-After": "5"})
    if body.policy not in known:
        raise not_valid(f"no policy {body.policy}: expected one of GET /api/v1/policies")
    number = (present := policy_answer(service.store)).number
    if if_match is None:
        raise Problem(428, "if-match-needed", "expected If-Match with the ETag that was read, so that nothing is lost")
    if f'"{number}"' not in if_match:
        raise _stale()
    if body.policy == present.policy and present.preparing is None:
        return await policy(caller, service, response)
    at = service.now()

    def ask(store: Store) -> int:
        others = [one for one in requests.open_requests(store) if one.kind == "policy"]
        if policy_answer(store).number != number or any(one.body.get("number") == number for one in others):
            raise _stale()
        note_change(store, caller.name, "policy.switch", body.policy, at, {"reason": body.reason, "number": number})
        wanted = {"policy": body.policy, "reason": body.reason, "number": number}
        return requests.ask(store, "policy", caller.name, at, body=wanted)

    if problem := await _answered(service, await service.commit(ask)):
        raise _stale() if policy_answer(service.store).number != number else Problem(409, "policy-refused", problem)
    return await policy(caller, service, response)


def _stale() -> Problem:
    """The ETag in If-Match is out of date, because another request changed the policy first."""
    return Problem(412, "stale", "it has been changed since that ETag was read; read it again")


async def _answered(service: Service, request: int) -> str:
    """Wait for the scheduler's answer: the reason of a refusal, or empty. Raises Problem if no answer comes in time."""
    asked = alive = service.now()
    while (found := requests.get_request(service.store, request)) is not None and found.done_at is None:
        beat = status.heartbeat(service.store)
        alive = alive if beat is None else max(alive, beat[0])
        if service.now() > min(alive + ANSWER_TIMEOUT_S, asked + READY_TIMEOUT_S) or service.notifier.closing:
            await service.commit(lambda store: requests.answer(store, request, service.now(), _WITHDRAWN))
        else:
            await asyncio.sleep(_LOOK_S)
    if found is not None and found.problem == _WITHDRAWN:
        detail = f"the scheduler has not answered within {service.now() - asked:.0f} s; nothing was changed"
        raise Problem(503, "no-scheduler", detail, {"Retry-After": "5"})
    return "" if found is None else found.problem or ""


@router.get("/decisions")
async def decisions(
    _: TheCaller, service: TheService, since: Time = None, limit: Annotated[int, Query(ge=1, le=2000)] = 500
) -> dict[Literal["decisions"], list[status.DecisionRow]]:
    """Decisions with reward, its parts, and the agent's steps of index weights. Default for `since`: one day ago."""
    begin = service.now() - _DAY_S if since is None else since
    return {"decisions": status.decisions(service.store, begin, limit)}


@router.get("/volume")
async def volume(
    _: TheCaller, service: TheService, since: Time = None, limit: Annotated[int, Query(ge=1, le=2000)] = 500
) -> dict[Literal["volume"], list[status.VolumeRow]]:
    """Task volume by step, and its forecast with an 80 % interval. Default for `since`: one day ago."""
    begin = service.now() - _DAY_S if since is None else since
    return {"volume": status.volume(service.store, begin, limit)}


@router.put("/drain", status_code=202)
async def drain(body: DrainBody, caller: AnOperator, service: TheService) -> dict[Literal["on"], bool]:
    """Stop starting jobs, which empties the cluster, or allow starts again."""
    at = service.now()

    def ask(store: Store) -> None:
        requests.ask(store, "drain", caller.name, at, body={"on": body.on})
        note_change(store, caller.name, "drain", "on" if body.on else "off", at)

    await service.commit(ask)
    return {"on": body.on}


health = APIRouter(tags=["operations"])


@health.get("/healthz")
async def healthz() -> dict[Literal["status"], str]:
    """The web process answers."""
    return {"status": "ok"}


@health.get("/readyz", responses={503: {"description": "The scheduler is not at work."}})
async def readyz(service: TheService) -> dict[Literal["status"], str]:
    """The database can be read, and the scheduler is at work."""
    found = status.heartbeat(service.store)
    if found is None or service.now() - found[0] > SILENCE_S:
        detail = "the scheduler gives no sign of life; jobs are taken and wait"
        raise Problem(503, "no-scheduler", detail, {"Retry-After": "5"})
    return {"status": "ready"}


@health.get("/metrics", response_class=Response)
async def metrics(caller: TheCaller, service: TheService) -> Response:
    """Counts for Prometheus."""
    service.limits.scrapes.take(caller.name)
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
