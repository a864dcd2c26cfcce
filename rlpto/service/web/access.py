"""Who asks: by token in a header, or by the session cookie of a browser; and what that role may do."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from rlpto.service.web.guard import COOKIE, SAFE_METHODS
from rlpto.service.web.problems import Problem, not_found
from rlpto.service.web.state import Service, TheService
from rlpto.store.jobs import JobRow, get_job
from rlpto.store.users import Role, Token, User, user_of_token

_BEARER = "bearer "
_describe_bearer = HTTPBearer(auto_error=False, description="A token of `rlpto serve`, or of POST /api/v1/tokens.")


@dataclass(frozen=True)
class Caller:
    """Who asks, and by which token."""

    user: User
    token: Token

    @property
    def name(self) -> str:
        """Of the user."""
        return self.user.name


def caller_of(service: Service, request: Request) -> Caller | None:
    """Who asks; None: nobody that is known."""
    header = request.headers.get("authorization")
    if header is not None:
        secret = header[len(_BEARER) :].strip() if header.lower().startswith(_BEARER) else ""
        kinds = ("token",)
    else:
        secret, kinds = request.cookies.get(COOKIE, ""), ("session",)
    found = user_of_token(service.store, secret, service.now()) if secret else None
    if found is None or found[1].kind not in kinds:
        return None
    return Caller(*found)


async def known_caller(
    request: Request, service: TheService, _: Annotated[object, Depends(_describe_bearer)] = None
) -> Caller:
    """Who asks. Raises Problem 401 for nobody that is known, 403 where a browser does not say which page asks, or 429
    for too many changes."""
    caller = caller_of(service, request)
    if caller is None:
        headers = {"WWW-Authenticate": "Bearer"}
        raise Problem(401, "unauthorized", "expected a token: Authorization: Bearer rlpto_...", headers)
    if request.method not in SAFE_METHODS:
        if caller.token.kind == "session" and request.headers.get("origin") is None:
            raise Problem(403, "wrong-origin", "a browser must say which page asks")
        service.limits.change(caller.token.id, service.now())
    return caller


TheCaller = Annotated[Caller, Depends(known_caller)]


def _of_role(*roles: Role) -> Callable[[Caller], Coroutine[Any, Any, Caller]]:
    async def check(caller: TheCaller) -> Caller:
        if caller.user.role not in roles:
            raise Problem(
                403, "role-needed", f"expected a user of role {' or '.join(roles)}, {caller.name} is {caller.user.role}"
            )
        return caller

    return check


AnOperator = Annotated[Caller, Depends(_of_role("operator", "admin"))]
AnAdmin = Annotated[Caller, Depends(_of_role("admin"))]


def job_for(service: Service, caller: Caller, job: str) -> JobRow:
    """A job that the caller may see. Raises Problem 404 for any other, whether it is there or not."""
    found = get_job(service.store, job)
    if found is None or not (caller.user.sees_all or found.owner == caller.name):
        raise not_found("job")
    return found
