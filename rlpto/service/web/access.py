"""Authentication by the token of a header or the session cookie of a browser, and what each role may do."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from rlpto.service.web.errors import Problem, not_found
from rlpto.service.web.middleware import COOKIE, SAFE_METHODS
from rlpto.service.web.schemas import JobId
from rlpto.service.web.state import Service, TheService
from rlpto.store.jobs import JobRow, get_job
from rlpto.store.users import Role, Token, User, user_of_token

_BEARER = "bearer "
_describe_bearer = HTTPBearer(auto_error=False, description="A token of `rlpto serve`, or of POST /api/v1/tokens.")


@dataclass(frozen=True)
class Caller:
    """The user who sends the request, and the token used."""

    user: User
    token: Token

    @property
    def name(self) -> str:
        """Of the user."""
        return self.user.name

    @property
    def whose(self) -> str | None:
        """The owner whose jobs alone are listed for this caller; None: those of all users are."""
        return None if self.user.sees_all else self.name

    def may_see(self, owner: str | None) -> bool:
        """Whether this caller may see what `owner` owns; None: it belongs to no user."""
        return owner is None or self.whose in (None, owner)


def caller_of(service: Service, request: Request) -> Caller | None:
    """The user of a request's token or session; None: neither is valid."""
    header = request.headers.get("authorization")
    if header is None:
        secret, kind = request.cookies.get(COOKIE, ""), "session"
    else:
        secret, kind = header[len(_BEARER) :].strip() if header.lower().startswith(_BEARER) else "", "token"
    found = user_of_token(service.store, secret, service.now())
    if found is None or found[1].kind != kind:
        return None
    request.state.known = True  # of connections without a token some are closed where there are too many
    return Caller(*found)


async def known_caller(
    request: Request, service: TheService, _: Annotated[object, Depends(_describe_bearer)] = None
) -> Caller:
    """The user who asks. Raises Problem 401 without a valid token, 403 for a browser's change without an origin, 429
    for too many changes."""
    caller = caller_of(service, request)
    if caller is None:
        headers = {"WWW-Authenticate": "Bearer"}
        raise Problem(401, "unauthorized", "expected a token: Authorization: Bearer rlpto_...", headers)
    if request.method not in SAFE_METHODS:
        if caller.token.kind == "session" and request.headers.get("origin") is None:
            raise Problem(403, "wrong-origin", "a browser must say which page asks")
        service.limits.changes.take(caller.name)
    return caller


TheCaller = Annotated[Caller, Depends(known_caller)]


def _of_role(*roles: Role) -> Callable[[Caller], Coroutine[Any, Any, Caller]]:
    async def check(caller: TheCaller) -> Caller:
        if caller.user.role not in roles:
            said = f"expected a user of role {' or '.join(roles)}, {caller.name} is {caller.user.role}"
            raise Problem(403, "role-needed", said)
        return caller

    return check


AnOperator = Annotated[Caller, Depends(_of_role("operator", "admin"))]
AnAdmin = Annotated[Caller, Depends(_of_role("admin"))]


async def job_for(job: JobId, caller: TheCaller, service: TheService) -> JobRow:
    """A job that the caller may see. Raises Problem 404 for any other, whether it exists or not."""
    found = get_job(service.store, job)
    if found is None or not caller.may_see(found.owner):
        raise not_found("job")
    return found


TheJob = Annotated[JobRow, Depends(job_for)]
