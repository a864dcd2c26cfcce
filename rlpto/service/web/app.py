"""The application: all addresses and their handlers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

from rlpto import __version__
from rlpto.io.extras import extras
from rlpto.service.settings import ServiceSettings
from rlpto.service.web.errors import API, HANDLERS, MEDIA_TYPE, ProblemBody
from rlpto.service.web.messages import EndMessages, forget_messages
from rlpto.service.web.middleware import RateLimits, RequestGuard, ServiceMetrics
from rlpto.service.web.rendering import STATIC, VersionedFiles
from rlpto.service.web.routes import account, admin, cluster, jobs, pages, ray_jobs, stream
from rlpto.service.web.state import EventNotifier, GroupCommit, Service
from rlpto.store.database import Store

_PROBLEM: dict[str, Any] = {
    "description": "What was wrong, and what was expected.",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}},
}


class _Application(FastAPI):
    """Adds problems to the OpenAPI description, because no route declares them as its answer."""

    def openapi(self) -> dict[str, Any]:
        """The content of openapi.json."""
        found, whole = super().openapi(), ProblemBody.model_json_schema(ref_template="#/components/schemas/{model}")
        found["components"]["schemas"] |= {**whole.pop("$defs"), "ProblemBody": whole}
        return found


def make_app(settings: ServiceSettings) -> FastAPI:
    """Make the web process's application. Its database must exist."""
    app = _Application(
        title="RLPTO job service",
        version=__version__,
        description="Submit training jobs to an elastic cluster, watch them, and switch the policy that decides.",
        docs_url=None,  # its page loads scripts of other origins
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
        lifespan=_lifespan,
        middleware=[Middleware(RequestGuard, settings=settings.web)],
        responses={"4XX": _PROBLEM},
        exception_handlers={**HANDLERS, pages.SignInNeeded: pages.sign_in_first},
    )
    app.state.settings = settings
    for part in (jobs, cluster, stream, account, admin):
        app.include_router(part.router, prefix=API)
    for router in (ray_jobs.router, cluster.health, pages.router):
        app.include_router(router)
    if settings.web.oidc is not None:
        with extras():
            from rlpto.service.web.routes.single_sign_on import SingleSignOn
            from rlpto.service.web.routes.single_sign_on import router as sign_in
        app.state.single_sign_on = SingleSignOn(settings.web.oidc, settings.web.oidc.secret())
        app.include_router(sign_in)
    app.mount("/static", GZipMiddleware(VersionedFiles(directory=STATIC)))
    return app


def openapi_text(settings: ServiceSettings) -> str:
    """openapi.json of the API, equal for all settings."""
    return json.dumps(make_app(settings).openapi(), indent=1, sort_keys=True) + "\n"


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: ServiceSettings = app.state.settings
    store = Store(settings.database)
    notifier, commit = EventNotifier(store), GroupCommit(settings.database)
    limits = RateLimits(settings.web.posts_per_second, settings.web.streams)
    app.state.service = Service(settings, store, commit, notifier, limits, ServiceMetrics(store))
    tasks = [asyncio.create_task(notifier.look())]
    if settings.web.webhook is not None:
        messages = EndMessages(settings.web.webhook, store, commit, notifier)
        tasks.append(asyncio.create_task(messages.run()))
    else:  # one that is set later begins with ends after that
        await commit(forget_messages)
    try:
        yield
    finally:
        notifier.close()
        for task in tasks:
            task.cancel()
        commit.close()
        store.close()
