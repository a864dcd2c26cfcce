"""The application: every address with what answers it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware import Middleware

from rlpto import __version__
from rlpto.io.errors import ConfigError
from rlpto.service.settings import OidcSettings, ServiceSettings
from rlpto.service.web.errors import API, MEDIA_TYPE, ProblemBody, add_handlers
from rlpto.service.web.messages import EndMessages, channels
from rlpto.service.web.metrics import ServiceMetrics
from rlpto.service.web.middleware import RateLimits, RequestGuard
from rlpto.service.web.rendering import static_app
from rlpto.service.web.routes import account, actions, admin, cluster, jobs, operations, pages, ray_jobs, stream
from rlpto.service.web.state import EventNotifier, GroupCommit, Service
from rlpto.store.database import Store

_PROBLEM: dict[str, Any] = {
    "description": "What was wrong, and what was expected.",
    "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}},
}


def make_app(settings: ServiceSettings) -> FastAPI:
    """The web process' application; its store must be there."""
    app = FastAPI(
        title="RLPTO job service",
        version=__version__,
        description="Submit training jobs to an elastic cluster, watch them, and switch the policy that decides.",
        docs_url=None,  # its page loads scripts of other origins
        redoc_url=None,
        openapi_url=f"{API}/openapi.json",
        lifespan=_lifespan,
        middleware=[Middleware(RequestGuard, settings=settings.web)],
        responses={"4XX": _PROBLEM},
    )
    app.openapi = _described(app)  # type: ignore[method-assign]
    app.state.settings, app.state.channels = settings, channels(settings.web)
    add_handlers(app)
    api = APIRouter(prefix=API)
    for part in (jobs, actions, cluster, stream, account, admin):
        api.include_router(part.router)
    app.include_router(api)
    app.include_router(ray_jobs.router)
    app.include_router(operations.router)
    app.include_router(pages.router)
    if settings.web.oidc is not None:
        _sign_in_at(app, settings.web.oidc, settings.web.secret("web.oidc.client_secret_env"))
    app.mount("/static", static_app())
    app.add_exception_handler(pages.SignInNeeded, pages.sign_in_first)
    return app


def _sign_in_at(app: FastAPI, settings: OidcSettings, secret: str) -> None:
    """Add single sign-on. Raises ConfigError for what is not installed."""
    try:
        from rlpto.service.web.oidc import SingleSignOn
        from rlpto.service.web.routes import single_sign_on
    except ModuleNotFoundError as missing:
        raise ConfigError(f"web.oidc: {missing.name} is not installed: pip install 'rlpto[oidc]'") from None
    app.state.single_sign_on = SingleSignOn(settings, secret)
    app.include_router(single_sign_on.router)


def openapi_text(settings: ServiceSettings) -> str:
    """openapi.json of the API; it is the same for all settings."""
    return json.dumps(make_app(settings).openapi(), indent=1, sort_keys=True) + "\n"


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: ServiceSettings = app.state.settings
    store = Store(settings.database)
    metrics = ServiceMetrics(store)
    notifier = EventNotifier(store)
    limits = RateLimits(settings.web.posts_per_second, settings.web.streams)
    service = Service(settings, store, GroupCommit(settings.database), notifier, limits, metrics)
    app.state.service = service
    senders = [EndMessages(channel, store, service.commit, notifier) for channel in app.state.channels]
    tasks = [asyncio.create_task(work) for work in (notifier.look(), *(sender.run() for sender in senders))]
    try:
        yield
    finally:
        notifier.close()
        for task in tasks:
            task.cancel()
        service.commit.close()
        store.close()


def _described(app: FastAPI) -> Callable[[], dict[str, Any]]:
    """openapi.json of an application, with the schema of problems, which no route names as its answer."""

    def describe() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            whole = ProblemBody.model_json_schema(ref_template="#/components/schemas/{model}")
            found["components"]["schemas"] |= {**whole.pop("$defs"), "ProblemBody": whole}
            app.openapi_schema = found
        return app.openapi_schema

    return describe
