"""Pages for browsers: whole pages, and parts of them that are fetched again after events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import RedirectResponse, Response

from rlpto.performance.metrics import METRIC_NAMES
from rlpto.service.web.access import Caller, caller_of, job_for
from rlpto.service.web.errors import not_found
from rlpto.service.web.rendering import page
from rlpto.service.web.routes.account import with_quotas
from rlpto.service.web.routes.admin import audit_trail, program_answers
from rlpto.service.web.routes.cluster import SILENCE_S, policy_answer, queue_entries, visible_nodes
from rlpto.service.web.routes.jobs import ASSUMES, jobs, whole_answer
from rlpto.service.web.schemas import Cursor
from rlpto.service.web.state import Service, TheService
from rlpto.store import programs, status, users
from rlpto.store.events import events_of_job
from rlpto.store.jobs import ENDED, STATES, State, count_by_state, list_jobs

router = APIRouter(include_in_schema=False)
_SHOWN_QUEUE, _SHOWN_RUNNING, _PAGE = 25, 100, 50


class SignInNeeded(Exception):  # noqa: N818 - it is no error
    """No user is signed in in this browser."""


async def sign_in_first(request: Request, _: SignInNeeded) -> Response:
    """Redirect to the sign-in page. A request for a part of a page makes the browser reload the whole page."""
    if "hx-request" in request.headers:
        return Response(None, 204, {"HX-Redirect": "/login"})
    query = f"?{request.url.query}" if request.url.query else ""
    return RedirectResponse(f"/login?next={quote(request.url.path + query, safe='')}", 303)


async def _viewer(request: Request, service: TheService) -> Caller:
    caller = caller_of(service, request)
    if caller is None:
        raise SignInNeeded
    return caller


AViewer = Annotated[Caller, Depends(_viewer)]


@router.get("/login")
async def login(service: TheService, next: str = "/") -> Response:
    """The sign-in page, by token or single sign-on. next: path to continue at."""
    web = service.settings.web
    elsewhere = web.oidc and (web.oidc.name, f"/login/oidc?next={quote(next, safe='')}")
    return page("login.html", user=None, hours=web.session_hours, elsewhere=elsewhere)


@router.get("/")
async def overview(caller: AViewer, service: TheService) -> Response:
    """The overview of the cluster."""
    values = {key: value for part in _PARTS.values() for key, value in part(service, caller).items()}
    return page("overview.html", **values, here="overview")


@router.get("/parts/{name}")
async def part(name: str, caller: AViewer, service: TheService) -> Response:
    """A part of the overview: tiles (policy, GPUs, jobs and scheduler in numbers), queue, running or nodes."""
    if name not in _PARTS:
        raise not_found("page")
    return page(f"parts/{name}.html", **_PARTS[name](service, caller))


@router.get("/jobs/{job}")
async def job(job: str, caller: AViewer, service: TheService) -> Response:
    """One job."""
    return page("job.html", **await _job(job, caller, service), user=caller.user, here="")


@router.get("/parts/jobs/{job}")
async def job_part(job: str, caller: AViewer, service: TheService) -> Response:
    """The variable part of a job's page."""
    return page("parts/job.html", **await _job(job, caller, service))


async def _job(job: str, caller: Caller, service: Service) -> dict[str, Any]:
    found = whole_answer(service, await job_for(job, caller, service))
    return {"job": found, "events": events_of_job(service.store, found.id)[::-1]}


@router.get("/submit")
async def submit(caller: AViewer, service: TheService) -> Response:
    """The form for a new job."""
    may_script = caller.user.role == "developer"
    catalogue = [row for row in program_answers(service, all_of_them=False) if may_script or not row.scripts]
    return page("submit.html", user=caller.user, here="submit", programs=catalogue, metrics=METRIC_NAMES)


@router.get("/history")
async def history(
    caller: AViewer,
    service: TheService,
    state: Annotated[list[State] | None, Query(max_length=len(STATES))] = None,
    owner: str = "",
    label: Annotated[str, Query(max_length=100)] = "",
    before: Cursor = None,
) -> Response:
    """Past jobs with filters, page by page."""
    found = await jobs(
        caller, service, state or list(ENDED), caller.whose or owner or None, label or None, _PAGE, before
    )
    wanted = {"state": state, "owner": owner, "label": label, "before": found.next}
    query = urlencode({key: value for key, value in wanted.items() if value}, doseq=True)
    return page(
        "history.html", user=caller.user, here="history", jobs=found.jobs, older=found.next and f"/history?{query}",
        first=before is None, wanted=state or (), owner=owner, label=label, states=STATES,
    )  # fmt: skip


@router.get("/account")
async def account(caller: AViewer, service: TheService) -> Response:
    """The caller's own tokens and quotas."""
    own, me = users.tokens_of(service.store, caller.name, service.now()), with_quotas(service, caller.user)
    return page("account.html", user=caller.user, here="account", me=me, tokens=own)


@router.get("/admin")
async def admin(caller: AViewer, service: TheService, before: Cursor = None) -> Response:
    """Users, programs and the audit trail."""
    if caller.user.role != "admin":
        raise not_found("page")
    known = users.all_users(service.store)
    trail = await audit_trail(caller, service, _PAGE, before)
    return page(
        "admin.html",
        user=caller.user,
        here="admin",
        users=[with_quotas(service, one) for one in known],
        tokens={one.name: users.tokens_of(service.store, one.name, service.now()) for one in known},
        programs=programs.all_programs(service.store),
        trail=trail.audit,
        older=trail.next,
        single_sign_on=service.settings.web.oidc is not None,
    )


def _tiles(service: Service, caller: Caller) -> dict[str, Any]:
    alive = [node for node in status.nodes(service.store) if node.alive]
    beat = status.heartbeat(service.store)
    silent = None if beat is None else service.now() - beat[0]
    return {
        "user": caller.user,
        "policy": policy_answer(service.store),
        "policies": status.policies(service.store),
        "gpus": sum(node.gpus for node in alive),
        "held": sum(sum(node.jobs.values()) for node in alive),
        "counts": count_by_state(service.store),
        "scheduler": "not started" if silent is None else "at work" if silent < SILENCE_S else "silent",
        "silent": silent,
        "drained": status.is_drained(service.store),
    }


def _queue(service: Service, caller: Caller) -> dict[str, Any]:
    found = queue_entries(service, caller, _SHOWN_QUEUE + 1)
    return {"queue": found[:_SHOWN_QUEUE], "more": len(found) > _SHOWN_QUEUE, "assumes": ASSUMES}


def _running(service: Service, caller: Caller) -> dict[str, Any]:
    found = list_jobs(service.store, owner=caller.whose, states=("running", "starting"), limit=_SHOWN_RUNNING)
    return {"running": found, "said": status.predictions(service.store), "user": caller.user}


_PARTS: dict[str, Callable[[Service, Caller], dict[str, Any]]] = {
    "tiles": _tiles,
    "queue": _queue,
    "running": _running,
    "nodes": lambda service, caller: {
        "nodes": visible_nodes(service, caller),
        "provisioning": status.provisioning(service.store),
    },
}
