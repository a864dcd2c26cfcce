"""Authentication by a header's token or a browser's session cookie, and permissions of each role."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from rlpto.service.web.errors import Problem, not_found
from rlpto.service.web.middleware import SAFE_METHODS, cookie_of
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
        """Name of the user."""
        return self.user.name

    @property
    def whose(self) -> str | None:
        """The only owner whose jobs are listed for this caller; None if all users' jobs are."""
        return None if self.user.sees_all else self.name

    def may_see(self, owner: str | None) -> bool:
        """Whether this caller may see objects of `owner`; None stands for objects without an owner."""
        return owner is None or self.whose in (None, owner)


def caller_of(service: Service, request: Request) -> Caller | None:
    """The user of a request's token or session; None if it is invalid."""
    header = request.headers.get("authorization")
    if header is None:
        secret, kind = request.cookies.get(cookie_of(request), ""), "session"
    else:
        secret, kind = header[len(_BEARER) :].strip() if header.lower().startswith(_BEARER) else "", "token"
    found = user_of_token(service.store, secret, service.now())
    if found is None or found[1].kind != kind:
        return None
    request.state.known = True  # if there are too many connections, ones without a token are closed
    return Caller(*found)


async def known_caller(
    request: Request, service: TheService, _: Annotated[object, Depends(_describe_bearer)] = None
) -> Caller:
    """The user of a request. Raises Problem 401 without a valid token, 403 for a browser's change without an origin,
    429 for too many changes."""
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
    """A job that the caller may see. Raises Problem 404 for all others, existing or not."""
    found = get_job(service.store, job)
    if found is None or not caller.may_see(found.owner):
        raise not_found("job")
    return found


TheJob = Annotated[JobRow, Depends(job_for)]
