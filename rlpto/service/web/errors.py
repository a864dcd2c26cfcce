"""Every error as application/problem+json (RFC 9457)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from rlpto.service.web.rendering import page
from rlpto.store.database import StoreError

API = "/api/v1"
MEDIA_TYPE = "application/problem+json"
LARGEST_BODY_BYTES = 384 * 1024
_MOST_ERRORS = 20
_LONGEST_DETAIL, _LONGEST_PART = 500, 200
_LOG = logging.getLogger("rlpto.service.web")


class FieldProblem(BaseModel):
    """An invalid value in a request."""

    at: str = Field(description="Where it stands, such as body.gpus.")
    said: str = Field(description="What was expected there.")


class ProblemBody(BaseModel):
    """An error."""

    type: str = Field(description="What kind of error it is, as urn:rlpto:KIND; stable.")
    title: str = Field(description="The kind in words.")
    status: int = Field(description="HTTP status.")
    detail: str = Field(description="What is wrong this time, and what was expected.")
    errors: list[FieldProblem] = Field(default_factory=list, description="By value, where several may be wrong.")


class Problem(HTTPException):
    """An answer that is an error. kind: hyphenated words, such as `quota-exceeded`. errors: messages by value."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        errors: Sequence[Mapping[str, str]] = (),
    ) -> None:
        super().__init__(status, detail, headers)
        self.kind, self.errors = kind, errors

    def response(self) -> Response:
        """The answer of the API. Quoted text is sent as ASCII."""
        body = {
            "type": f"urn:rlpto:{self.kind}",
            "title": self.kind.replace("-", " ").capitalize(),
            "status": self.status_code,
            "detail": self.detail[:_LONGEST_DETAIL],
            "errors": list(self.errors),
        }
        headers = {**(self.headers or {}), "Cache-Control": "no-store"}
        return Response(json.dumps(body), self.status_code, headers, MEDIA_TYPE)


def not_found(what: str) -> Problem:
    """The object does not exist or belongs to another user; both give the same answer."""
    return Problem(404, "not-found", f"no such {what}")


def not_valid(detail: str) -> Problem:
    """A value has the right type, but is not allowed."""
    return Problem(422, "not-valid", detail)


def too_large() -> Problem:
    """The request is larger than allowed."""
    return Problem(413, "too-large", f"expected a body of at most {LARGEST_BODY_BYTES} bytes")


async def _too_large(_: Request, __: HTTPException) -> Response:
    return too_large().response()


async def _http(request: Request, error: HTTPException) -> Response:
    """A Problem, or an error of Starlette. Browsers get a page, but never from the API."""
    if not request.url.path.startswith(API) and "text/html" in request.headers.get("accept", ""):
        status = error.status_code
        return page("error.html", status, user=None, detail=error.detail, status=status)
    if isinstance(error, Problem):
        return error.response()
    kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    return Problem(error.status_code, kind, error.detail, error.headers).response()


async def _validation(_: Request, error: RequestValidationError) -> Response:
    found = [
        {"at": ".".join(map(_short, one["loc"])), "said": _short(one["msg"]).removeprefix("Value error, ")}
        for one in error.errors()[:_MOST_ERRORS]
    ]
    if any(one["type"] == "json_invalid" for one in error.errors()):
        return Problem(400, "not-json", "the body cannot be read as JSON", errors=found).response()
    return Problem(422, "not-valid", f"{found[0]['at']}: {found[0]['said']}", errors=found).response()


async def _store(_: Request, error: StoreError) -> Response:
    _LOG.error("%s", error)
    detail = "the database of the service cannot be read or written now; try again with the same Idempotency-Key"
    return Problem(503, "database-busy", detail, {"Retry-After": "1"}).response()


async def _unexpected(request: Request, error: Exception) -> Response:
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return Problem(500, "internal-error", "the service has failed to answer; its log says why").response()


def _short(text: object) -> str:
    said = str(text)
    return said if len(said) <= _LONGEST_PART else f"{said[:_LONGEST_PART]}..."


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    HTTPException: _http,
    413: _too_large,
    RequestValidationError: _validation,
    StoreError: _store,
    Exception: _unexpected,
}
"""Handlers that turn every error of an application into a problem."""
