"""Every error as application/problem+json (RFC 9457)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from rlpto.service.web.rendering import page
from rlpto.store.database import StoreError

API = "/api/v1"
MEDIA_TYPE = "application/problem+json"
_MOST_ERRORS = 20
_LONGEST_DETAIL = 500
_LOG = logging.getLogger("rlpto.service.web")


class FieldProblem(BaseModel):
    """What is wrong with one value of a request."""

    at: str = Field(description="Where it stands, such as body.gpus.")
    said: str = Field(description="What was expected there.")


class ProblemBody(BaseModel):
    """An error."""

    type: str = Field(description="What kind of error it is, as urn:rlpto:KIND; stable.")
    title: str = Field(description="The kind in words.")
    status: int = Field(description="HTTP status.")
    detail: str = Field(description="What is wrong this time, and what was expected.")
    errors: list[FieldProblem] = Field(default_factory=list, description="By value, where several may be wrong.")


class Problem(Exception):  # noqa: N818 - the word of RFC 9457
    """An answer that is an error. kind: in words joined by hyphens, such as `quota-exceeded`."""

    def __init__(self, status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail, self.headers = status, kind, detail, dict(headers or {})


def not_found(what: str) -> Problem:
    """It does not exist, or it belongs to another user: the answer is the same."""
    return Problem(404, "not-found", f"no such {what}")


def problem_response(
    status: int,
    kind: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    errors: Sequence[Mapping[str, str]] = (),
) -> Response:
    """An error as the API answers it. Quoted text is sent as ASCII."""
    body: dict[str, Any] = {
        "type": f"urn:rlpto:{kind}",
        "title": kind.replace("-", " ").capitalize(),
        "status": status,
        "detail": detail[:_LONGEST_DETAIL],
        "errors": list(errors),
    }
    return Response(json.dumps(body), status, {**(headers or {}), "Cache-Control": "no-store"}, MEDIA_TYPE)


def add_handlers(app: FastAPI) -> None:
    """Let an application answer with problems only."""
    app.add_exception_handler(Problem, _own)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(StoreError, _store)
    app.add_exception_handler(Exception, _unexpected)


async def _own(request: Request, error: Exception) -> Response:
    """The answer to a Problem: a page for a browser, which the API never sends."""
    assert isinstance(error, Problem)
    if not request.url.path.startswith(API) and "text/html" in request.headers.get("accept", ""):
        return page("error.html", error.status, user=None, detail=error.detail, status=error.status)
    return problem_response(error.status, error.kind, error.detail, error.headers)


async def _validation(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = [
        {"at": ".".join(map(_short, one["loc"])), "said": _short(one["msg"]).removeprefix("Value error, ")}
        for one in error.errors()[:_MOST_ERRORS]
    ]
    first = found[0] if found else {"at": "the request", "said": "cannot be read"}
    if any(one["type"] == "json_invalid" for one in error.errors()):
        return problem_response(400, "not-json", "the body cannot be read as JSON", errors=found)
    return problem_response(422, "not-valid", f"{first['at']}: {first['said']}", errors=found)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
    return await _own(request, Problem(error.status_code, kind, str(error.detail), error.headers))


async def _store(_: Request, error: Exception) -> Response:
    _LOG.error("%s", error)
    detail = "the database of the service cannot be read or written now; try again with the same Idempotency-Key"
    return problem_response(503, "database-busy", detail, {"Retry-After": "1"})


async def _unexpected(request: Request, error: Exception) -> Response:
    _LOG.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return problem_response(500, "internal-error", "the service has failed to answer; its log says why")


def _short(text: object, longest: int = 200) -> str:
    said = str(text)
    return said if len(said) <= longest else f"{said[:longest]}..."
