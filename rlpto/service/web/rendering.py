"""Pages from templates, and the files they need: vendored scripts, own scripts and styles, all from this process."""

from __future__ import annotations

import gzip
import hashlib
import time
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

from rlpto import __version__
from rlpto.io.durations import span_text

_HERE = Path(__file__).parent
_KINDS = {".js": "text/javascript", ".css": "text/css", ".txt": "text/plain", ".svg": "image/svg+xml"}
_YEAR_S = 31_536_000
_NONE = "\u2013"


@dataclass(frozen=True)
class StaticFile:
    """A file as it is served. version: of its content."""

    content: bytes
    packed: bytes
    kind: str
    version: str


@cache
def static_files() -> dict[str, StaticFile]:
    """All files by name, held in memory: they are few and small."""
    found = {}
    for path in sorted((_HERE / "static").iterdir()):
        if path.suffix in _KINDS:
            content = path.read_bytes()
            version = hashlib.sha256(content).hexdigest()[:10]
            found[path.name] = StaticFile(content, gzip.compress(content, mtime=0), _KINDS[path.suffix], version)
    return found


def static_response(name: str, packed: bool) -> Response | None:
    """A file; None if no file has that name. packed: whether the browser accepts gzip."""
    file = static_files().get(name)
    if file is None:
        return None
    headers = {
        "Cache-Control": f"public, max-age={_YEAR_S}, immutable",
        "ETag": f'"{file.version}"',
        "Vary": "Accept-Encoding",
    }
    if packed:
        headers["Content-Encoding"] = "gzip"
    return Response(file.packed if packed else file.content, 200, headers, file.kind)


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


def _static_url(name: str) -> str:
    return f"/static/{name}?v={static_files()[name].version}"


def utc_text(at: float | None) -> str:
    """A time until the browser shows it by its own clock; a dash for None."""
    return _NONE if at is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def number_text(value: float | None) -> str:
    """A number with four digits; a dash for None."""
    return _NONE if value is None else f"{value:.4g}"


def share_text(part: float, whole: float) -> str:
    """A share in percent."""
    return f"{part / whole:.0%}" if whole else "0%"
