"""Pages from templates, and their files: vendored scripts, own scripts and styles, all served by this process."""

from __future__ import annotations

import hashlib
import time
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from rlpto import __version__
from rlpto.io.durations import span_text

_HERE = Path(__file__).parent
STATIC = _HERE / "static"
_YEAR_S = 31_536_000
_NONE = "\u2013"


class VersionedFiles(StaticFiles):
    """Scripts and styles. Browsers cache them indefinitely, because their addresses contain a hash of the content."""

    def file_response(self, *given: Any, **more: Any) -> Response:
        """Serve a file."""
        response = super().file_response(*given, **more)
        response.headers["Cache-Control"] = f"public, max-age={_YEAR_S}, immutable"
        return response


def page(template: str, code: int = 200, **values: Any) -> HTMLResponse:
    """A page, or a part of one, from its template. All values are escaped. code: HTTP status."""
    return HTMLResponse(_PAGES.get_template(template).render(values), code)


@cache
def _static_url(name: str) -> str:
    return f"/static/{name}?v={hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:10]}"


def _utc_text(at: float) -> str:
    """Text of a time until the browser replaces it by local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def _number_text(value: float | None) -> str:
    """A number with four digits; a dash for None."""
    return _NONE if value is None else f"{value:.4g}"


def _span_text(seconds: float | None) -> str:
    """A time in one unit; a dash for None."""
    return span_text(seconds) or _NONE


_PAGES = Environment(
    loader=FileSystemLoader(_HERE / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_PAGES.globals |= {"static": _static_url, "version": __version__, "now": time.time}
_PAGES.filters |= {"span": _span_text, "utc": _utc_text, "number": _number_text}
