"""Routes for operators: liveness, readiness and metrics."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Response

from rlpto.service.web.access import TheCaller
from rlpto.service.web.errors import Problem
from rlpto.service.web.state import TheService
from rlpto.store.status import heartbeat

router = APIRouter(tags=["operations"])
SILENCE_S = 15.0
"""A scheduler without a heartbeat for this long counts as gone."""


@router.get("/healthz")
async def healthz() -> dict[Literal["status"], str]:
    """The web process answers."""
    return {"status": "ok"}


@router.get("/readyz", responses={503: {"description": "The scheduler is not at work."}})
async def readyz(service: TheService) -> dict[Literal["status"], str]:
    """The database can be read, and the scheduler is at work."""
    found = heartbeat(service.store)
    if found is None or service.now() - found[0] > SILENCE_S:
        raise Problem(
            503, "no-scheduler", "the scheduler gives no sign of life; jobs are taken and wait", {"Retry-After": "5"}
        )
    return {"status": "ready"}


@router.get("/metrics", response_class=Response)
async def metrics(_: TheCaller, service: TheService) -> Response:
    """Counts for Prometheus."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")
