"""Signing in at a provider of OpenID Connect: there, and back."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, cast

from fastapi import APIRouter, Depends, Request
from starlette.responses import RedirectResponse, Response

from rlpto.service.web.errors import Problem
from rlpto.service.web.oidc import SIGN_IN_S, SingleSignOn, user_of
from rlpto.service.web.rendering import page
from rlpto.service.web.routes.account import add_session, address_of, is_encrypted, refuse_sign_in, set_session
from rlpto.service.web.state import Service, TheService
from rlpto.store import users
from rlpto.store.database import Store

router = APIRouter(include_in_schema=False)
PLACE = "/login/oidc"
COOKIE = "rlpto_sign_in"
"""Binds a sign-in to the browser that has begun it. The provider's redirection has to bring it, so it is not strict."""
_LOCAL = re.compile(r"/(?![/\\])[!-\[\]-~]{0,2000}")


async def _provider(request: Request) -> SingleSignOn:
    return cast(SingleSignOn, request.app.state.single_sign_on)


TheProvider = Annotated[SingleSignOn, Depends(_provider)]


@router.get(PLACE)
async def begin(request: Request, service: TheService, provider: TheProvider, next: str = "/") -> Response:
    """Send a browser to the provider. next: path to continue at."""
    service.limits.sign_ins.take(address_of(request))
    async with _audited(service, request):
        if not _LOCAL.fullmatch(next):
            raise Problem(400, "wrong-return", "next: expected a path of this service, such as /history")
        scheme = "https" if is_encrypted(service, request) else "http"
        state, there = await provider.begin(f"{scheme}://{request.headers['host']}{PLACE}/callback", next)
    answer, secure = RedirectResponse(there, 303), is_encrypted(service, request)
    answer.set_cookie(COOKIE, state, int(SIGN_IN_S), path=PLACE, secure=secure, httponly=True, samesite="lax")
    return answer


@router.get(f"{PLACE}/callback")
async def callback(
    request: Request, service: TheService, provider: TheProvider, state: str = "", code: str = "", error: str = ""
) -> Response:
    """Where the provider sends a browser back to: it gets a session."""
    at = service.now()
    async with _audited(service, request):
        if not secrets.compare_digest(request.cookies.get(COOKIE, "").encode(), state.encode()):
            raise Problem(400, "sign-in-over", "this sign-in was not begun in this browser: sign in again")
        begun = provider.take(state)
        if error or not code:
            said = error if re.fullmatch(r"[a-z_]{1,40}", error) else "no code"
            raise Problem(403, "sign-in-refused", f"the provider has refused the sign-in: {said}")
        who = await provider.identity(begun, code)

        def write(store: Store) -> tuple[users.Token, str]:
            user = user_of(store, provider.settings, who, at)
            return add_session(service, request, user.name, at, {"sign_in": who.sign_in}, store)

        session, secret = await service.commit(write)
    # Browsers send the session's strict cookie with no redirection that began elsewhere: the page itself goes on.
    answer = page("signed_in.html", user=None, back=begun.back)
    set_session(answer, service, request, session, secret)
    answer.delete_cookie(COOKIE, path=PLACE)
    return answer


@asynccontextmanager
async def _audited(service: Service, request: Request) -> AsyncIterator[None]:
    try:
        yield
    except Problem as refused:
        await refuse_sign_in(service, request, refused)
