"""Importers of public trace formats. Imports nothing heavy.

A new one is a row of `tables.py`, or a module here, called like the format, with a FORMAT; see `base.Format`.
"""

from __future__ import annotations

import pkgutil

from rlpto.workloads.importers.tables import TABLES

_SHARED = ("base", "csvfile", "registry", "tables")
"""Modules that are no formats, but what formats share."""


def format_names() -> tuple[str, ...]:
    """Names of all importable formats, sorted."""
    return tuple(sorted((*TABLES, *own_modules())))


def own_modules() -> list[str]:
    """Formats with a module of their own."""
    return [module.name for module in pkgutil.iter_modules(__path__) if module.name not in _SHARED]
