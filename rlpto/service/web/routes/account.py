"""The caller's own: who they are, their tokens, and sessions of browsers."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from rlpto.service.web.access import TheCaller
from rlpto.service.web.answers.people import NewToken, TokenAnswer, Tokens, UserAnswer
from rlpto.service.web.guard import COOKIE
from rlpto.service.web.problems import Problem, not_found
from rlpto.service.web.state import Service, TheService
from rlpto.service.web.values import NameInPath, SessionBody, TokenBody
from rlpto.store import audit, users
from rlpto.store.database import Store

router = APIRouter(tags=["account"])
_DAY_S = 86_400.0
_HOUR_S = 3600.0
_MOST_TOKENS = 100
_NO_ATTEMPTS_OF = "session"


@router.get("/me")
async def me(caller: TheCaller, service: TheService) -> UserAnswer:
    """Who the caller is, and what they may have."""
    return user_answer(service, caller.user)


def user_answer(service: Service, user: users.User) -> UserAnswer:
    """A user with the quotas that hold."""
    quotas = service.settings.quotas
    return UserAnswer(
        **vars(user)
        | {"gpus_held": user.gpus_held or quotas.gpus_held, "jobs_queued": user.jobs_queued or quotas.jobs_queued}
    )


@router.get("/tokens")
async def tokens(caller: TheCaller, service: TheService) -> Tokens:
    """The caller's tokens."""
    found = users.tokens_of(service.store, caller.name, service.now())
    return Tokens(
        tokens=[TokenAnswer(id=one.id, label=one.label, created=one.created, expires=one.expires) for one in found]
    )


@router.post("/tokens", status_code=201)
async def make_token(body: TokenBody, caller: TheCaller, service: TheService) -> NewToken:
    """A further token of the caller."""
    return await new_token(service, caller.name, caller.name, body)


async def new_token(service: Service, by: str, user: str, body: TokenBody) -> NewToken:
    """A token for a user. Raises Problem where there are too many."""
    at = service.now()
    expires = None if body.days is None else at + body.days * _DAY_S

    def write(store: Store) -> NewToken:
        if len(users.tokens_of(store, user, at)) >= _MOST_TOKENS:
            raise Problem(403, "quota-exceeded", f"{user} has {_MOST_TOKENS} tokens; end some first")
        token, secret = users.add_token(store, user, body.label, at, expires=expires)
        audit.note(store, by, "token.add", user, at, {"id": token.id, "label": body.label})
        return NewToken(id=token.id, label=token.label, created=at, expires=expires, token=secret)

    return await service.commit(write)


@router.delete("/tokens/{name}", status_code=204)
async def end_token(name: NameInPath, caller: TheCaller, service: TheService) -> None:
    """End one of the caller's tokens."""
    at = service.now()

    def write(store: Store) -> None:
        if not users.revoke_token(store, name, caller.name, at):
            raise not_found("token")
        audit.note(store, caller.name, "token.end", caller.name, at, {"id": name})

    await service.commit(write)


@router.post("/session", status_code=201)
async def sign_in(body: SessionBody, request: Request, service: TheService, response: Response) -> UserAnswer:
    """Sign a browser in with a token: it gets a cookie of its own, which scripts cannot read."""
    at = service.now()
    service.limits.change(_NO_ATTEMPTS_OF, at)
    found = users.user_of_token(service.store, body.token, at)
    if found is None or found[1].kind != "token":
        raise Problem(401, "unauthorized", "no such token, or it has ended")
    user, token = found
    hours = service.settings.web.session_hours
    expires = at + hours * _HOUR_S
    _, secret = await service.commit(
        lambda store: users.add_token(store, user.name, "browser", at, expires=expires, session_of=token)
    )
    secure = request.url.scheme == "https" or service.settings.web.behind_proxy
    response.set_cookie(
        COOKIE, secret, max_age=int(hours * _HOUR_S), secure=secure, httponly=True, samesite="strict", path="/"
    )
    return user_answer(service, user)


@router.delete("/session", status_code=204)
async def sign_out(caller: TheCaller, service: TheService, response: Response) -> None:
    """End the session of this browser."""
    at = service.now()
    if caller.token.kind == "session":
        await service.commit(lambda store: users.revoke_token(store, caller.token.id, caller.name, at))
    response.delete_cookie(COOKIE, path="/")
