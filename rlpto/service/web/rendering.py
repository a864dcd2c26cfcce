"""Pages from templates, and the files they need: vendored scripts, own scripts and styles, all from this process."""

from __future__ import annotations

import hashlib
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from rlpto import __version__
from rlpto.io.durations import span_text

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
_YEAR_S = 31_536_000
_NONE = "\u2013"


class VersionedFiles(StaticFiles):
    """Scripts and styles. Browsers keep them for ever: their addresses have a version of the content."""

    def file_response(self, *given: Any, **more: Any) -> Response:
        """A file as it is sent."""
        response = super().file_response(*given, **more)
        response.headers["Cache-Control"] = f"public, max-age={_YEAR_S}, immutable"
        return response


def static_app() -> ASGIApp:
    """Answers with the files that pages need."""
    return GZipMiddleware(VersionedFiles(directory=STATIC))


def page(template: str, code: int = 200, **values: Any) -> HTMLResponse:
    """A page, or a part of one, from its template. All values are escaped. code: HTTP status."""
    return HTMLResponse(_environment().get_template(template).render(values), code)


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"static": _static_url, "version": __version__, "now": time.time}
    made.filters |= {
        "span": partial(span_text, none=_NONE),
        "utc": utc_text,
        "number": number_text,
        "share": share_text,
    }
    return made


@cache
def _static_url(name: str) -> str:
    return f"/static/{name}?v={hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:10]}"


def utc_text(at: float | None) -> str:
    """A time until the browser shows it by its own clock; a dash for None."""
    return _NONE if at is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def number_text(value: float | None) -> str:
    """A number with four digits; a dash for None."""
    return _NONE if value is None else f"{value:.4g}"


def share_text(part: float, whole: float) -> str:
    """A share in percent."""
    return f"{part / whole:.0%}" if whole else "0%"
