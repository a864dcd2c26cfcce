"""Importers of public trace formats. Imports nothing heavy: `rlpto --help` names all formats.

A new format is a row of `tables.py`, or a module here with the format's name and a FORMAT (`base.Format`).
"""

from __future__ import annotations

import difflib
import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from rlpto.io.errors import TraceError
from rlpto.workloads.importers.tables import TABLES

if TYPE_CHECKING:
    from rlpto.workloads.importers.base import Format, ImportResult

_SHARED = ("base", "csvfile", "tables")
"""Modules that are no formats but contain code shared by formats."""


@cache
def format_names() -> tuple[str, ...]:
    """Names of all importable formats, sorted."""
    modules = [module.name for module in pkgutil.iter_modules(__path__) if module.name not in _SHARED]
    return tuple(sorted((*TABLES, *modules)))


def import_trace(name: str, path: Path, skip_bad_lines: bool = False, columns: str | None = None) -> ImportResult:
    """Read a public trace or, with format table, a csv file whose columns are explained by `columns`.

    Raises TraceError for an unknown format, for a file of another format, and, unless
    skip_bad_lines, for the first broken line: `file:line: reason, expected ...`.
    """
    if name not in format_names():
        near = difflib.get_close_matches(name, format_names(), n=1, cutoff=0.0)[0]
        raise TraceError(f"unknown trace format {name!r}, did you mean {near}? expected {', '.join(format_names())}")
    if columns is not None and name != "table":
        raise TraceError(f"--columns with format {name}, expected format table: the columns of others are known")
    if columns is None:
        return _format(name).read(path, skip_bad_lines)
    from rlpto.workloads.importers.table import described

    return described(columns).read(path, skip_bad_lines)


def detect_format(path: Path) -> str:
    """Detect a file's format from its first lines and return its name. Raises TraceError if no format fits."""
    found = recognised_format(path)
    if found is None:
        own = "a csv of your own needs `rlpto trace import table`"
        raise TraceError(f"{path}: no known trace format, expected one of {', '.join(format_names())}; {own}")
    return found


def recognised_format(path: Path) -> str | None:
    """The name of a file's format by its first lines; None if no format fits."""
    from rlpto.workloads.importers.base import read_log

    head = read_log(path)[:4096]
    return next((name for name in format_names() if _format(name).recognises(head)), None)


def _format(name: str) -> Format:
    """Return the importer of a name, described by a table or defined in a module."""
    from rlpto.workloads.importers.csvfile import table_format

    if name in TABLES:
        return table_format(name, TABLES[name])
    found: Format = import_module(f"{__package__}.{name}").FORMAT
    return found
