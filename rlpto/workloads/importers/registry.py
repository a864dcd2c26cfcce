"""All importable formats by name."""

from __future__ import annotations

import difflib
from importlib import import_module
from pathlib import Path

from rlpto.io.errors import TraceError
from rlpto.workloads.importers import format_names, own_modules
from rlpto.workloads.importers.base import Format, ImportResult, read_log
from rlpto.workloads.importers.csvfile import table_format
from rlpto.workloads.importers.tables import TABLES

_OWN: dict[str, Format] = {name: import_module(f"{__package__}.{name}").FORMAT for name in own_modules()}
FORMATS: dict[str, Format] = {
    name: _OWN[name] if name in _OWN else table_format(name, TABLES[name]) for name in format_names()
}
"""Importers by the name that `rlpto trace import` takes."""


def import_trace(format: str, path: Path, skip_bad_lines: bool = False) -> ImportResult:
    """Read a public trace.

    Raises TraceError for an unknown format, for a file that is none of that format, and, unless
    skip_bad_lines, for the first broken line as `file:line: reason, expected ...`.
    """
    if format not in FORMATS:
        near = difflib.get_close_matches(format, FORMATS, n=1, cutoff=0.0)[0]
        raise TraceError(f"unknown trace format {format!r}, did you mean {near}? expected {', '.join(FORMATS)}")
    return FORMATS[format].read(path, skip_bad_lines)


def detect_format(path: Path) -> str:
    """Name of the format detected from a file's first lines; TraceError if no format fits."""
    head = read_log(path)[:4096]
    for name, known in FORMATS.items():
        if known.recognises(head):
            return name
    raise TraceError(f"{path}: no known trace format, expected one of {', '.join(FORMATS)}")
