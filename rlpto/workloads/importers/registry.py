"""All importable formats by name."""

from __future__ import annotations

import difflib
from pathlib import Path

from rlpto.errors import TraceError
from rlpto.workloads.importers import acme, helios, openb, pai, pai_tasks, philly, philly_csv, pollux, swf
from rlpto.workloads.importers.base import Format, ImportResult, read_text

FORMATS: dict[str, Format] = {
    module.FORMAT.name: module.FORMAT
    for module in (philly, philly_csv, helios, pai, pai_tasks, openb, acme, swf, pollux)
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
    """Name of the format a file seems to have, told from its first lines; TraceError if none fits."""
    head = read_text(path)[:4096]
    for known in FORMATS.values():
        if known.recognises(head):
            return known.name
    raise TraceError(f"{path}: no known trace format, expected one of {', '.join(FORMATS)}")
