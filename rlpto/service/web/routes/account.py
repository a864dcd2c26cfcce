"""The caller's own account: tokens, browser sessions, and quotas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal, NoReturn

from fastapi import APIRouter, Request, Response

from rlpto.service.web.access import Caller, TheCaller
from rlpto.service.web.errors import Problem, not_found
from rlpto.service.web.middleware import WINDOW_S, cookie_of
from rlpto.service.web.schemas import NameInPath, SessionBody, TokenBody
from rlpto.service.web.state import Service, TheService
from rlpto.service.web.submitting import highest_priority
from rlpto.store import users
from rlpto.store.database import Store

router = APIRouter(tags=["account"])
_DAY_S = 86_400.0
_HOUR_S = 3600.0
_MOST_TOKENS = 100
Tokens = dict[Literal["tokens"], list[users.Token]]
"""Usable tokens and browser sessions of a user, newest first."""


@dataclass(frozen=True, kw_only=True)
class NewToken(users.Token):
    """A newly made token. token: its secret, which cannot be read later."""

    token: str


@router.get("/me")
async def me(caller: TheCaller, service: TheService) -> users.User:
    """The caller with the quotas that apply."""
    return with_quotas(service, caller.user)


def with_quotas(service: Service, user: users.User) -> users.User:
    """Return a user with the quotas that apply: the user's own, or the quotas of the settings."""
    quotas = service.settings.quotas
    return replace(
        user,
        gpus_held=user.gpus_held or quotas.gpus_held,
        jobs_queued=user.jobs_queued or quotas.jobs_queued,
        highest_priority=highest_priority(service.settings, user),
    )


@router.get("/tokens")
async def tokens(caller: TheCaller, service: TheService) -> Tokens:
    """The caller's tokens and sessions."""
    return {"tokens": users.tokens_of(service.store, caller.name, service.now())}


@router.post("/tokens", status_code=201)
async def make_token(body: TokenBody, caller: TheCaller, service: TheService) -> NewToken:
    """Make another token for the caller."""
    return await new_token(service, caller, caller.name, body)


async def new_token(service: Service, caller: Caller, user: str, body: TokenBody) -> NewToken:
    """Make a token for a user. Raises Problem if it would outlive the caller's token, or if there are too many."""
    at = service.now()
    expires = None if body.days is None else at + body.days * _DAY_S
    bound = users.last_expiry(service.store, caller.token)
    oidc = service.settings.web.oidc
    if oidc is not None and caller.token.kind == "session" and caller.token.made_with is None:
        bound = at + oidc.token_days * _DAY_S
    if bound is not None and (expires is None or expires > bound):
        days = max(0.0, bound - at) / _DAY_S
        raise Problem(403, "outlives-token", f"days: expected at most {days:.4g}, when the token in use expires")

    def write(store: Store) -> NewToken:
        refuse_ended(store, caller.token, at)
        known = [one for one in users.tokens_of(store, user, at) if one.kind == "token"]
        if len(known) >= _MOST_TOKENS:
            raise Problem(403, "quota-exceeded", f"{user} has {_MOST_TOKENS} tokens; end some first")
        token, secret = users.add_token(store, user, body.label, at, expires=expires)
        users.note_change(store, caller.name, "token.add", user, at, {"id": token.id, "label": body.label})
        return NewToken(**asdict(token), token=secret)

    return await service.commit(write)


@router.delete("/tokens/{name}", status_code=204)
async def end_token(name: NameInPath, caller: TheCaller, service: TheService) -> None:
    """End one of the caller's tokens with the sessions made with it, or one session."""
    await end_token_of(service, caller, caller.name, name)


async def end_token_of(service: Service, caller: Caller, user: str, token: str) -> None:
    """End a token or a session of a user. Raises Problem 404 for an unknown id."""
    at = service.now()

    def write(store: Store) -> None:
        if not users.revoke_token(store, token, user, at):
            raise not_found("token")
        users.note_change(store, caller.name, "token.end", user, at, {"id": token})

    await service.commit(write)


@router.post("/session", status_code=201)
async def sign_in(body: SessionBody, request: Request, service: TheService, response: Response) -> users.User:
    """Sign a browser in with a token: it gets its own session cookie, which scripts cannot read."""
    found = users.user_of_token(service.store, body.token, service.now())
    if found is None or found[1].kind != "token":
        await refuse_sign_in(service, request, Problem(401, "unauthorized", "no such token, or it has ended"))
    user, token = found
    service.limits.changes.take(user.name)
    await begin_session(service, request, response, lambda _: (user.name, {"token": token.id}), token)
    return with_quotas(service, user)


async def begin_session(
    service: Service,
    request: Request,
    response: Response,
    who: Callable[[Store], tuple[str, dict[str, str]]],
    made_with: users.Token | None = None,
) -> None:
    """Give a browser the cookie of a new session. who: returns its user, and details of the sign-in for the audit
    trail."""
    at = service.now()

    def write(store: Store) -> tuple[users.Token, str]:
        user, detail = who(store)
        if made_with is not None:
            refuse_ended(store, made_with, at)
        expires = at + service.settings.web.session_hours * _HOUR_S
        made = users.add_token(store, user, "browser", at, expires=expires, kind="session", made_with=made_with)
        users.note_change(store, user, "session.add", address_of(request), at, {"id": made[0].id, **detail})
        return made

    session, secret = await service.commit(write)
    age, secure = int((session.expires or 0.0) - at), is_encrypted(service, request)
    response.set_cookie(
        cookie_of(request), secret, max_age=age, secure=secure, httponly=True, samesite="strict", path="/"
    )


def refuse_ended(store: Store, token: users.Token, at: float) -> None:
    """Raise Problem if a token has ended since the request was accepted: nothing may outlive it."""
    if users.user_of_token_id(store, token.id, at) is None:
        raise Problem(401, "unauthorized", "no such token, or it has ended")


def is_encrypted(service: Service, request: Request) -> bool:
    """Whether the browser uses https, possibly through a proxy."""
    return request.url.scheme == "https" or service.settings.web.behind_proxy


def address_of(request: Request) -> str:
    """Client address of a request."""
    return request.client.host if request.client else ""


async def refuse_sign_in(service: Service, request: Request, refused: Problem) -> NoReturn:
    """Audit a failed sign-in and raise its problem, or 429 if its address had too many. Of failures beyond the limit
    only the first in a window is audited."""
    limit, address = service.limits.wrong_sign_ins, address_of(request)
    beyond = limit.count(address) - limit.most
    if beyond <= 1:
        detail = {"why": refused.detail}
        if beyond > 0:
            detail["too_many"] = f"further ones within {WINDOW_S:g} s are not listed"
        at = service.now()
        await service.commit(lambda store: users.note_change(store, "", "session.refuse", address, at, detail))
    raise limit.refusal() if beyond > 0 else refused


@router.delete("/session", status_code=204)
async def sign_out(caller: TheCaller, request: Request, service: TheService, response: Response) -> None:
    """End the session of this browser."""
    at = service.now()
    if caller.token.kind == "session":
        await service.commit(lambda store: users.revoke_token(store, caller.token.id, caller.name, at))
    response.delete_cookie(cookie_of(request), path="/")
