"""Importers of public trace formats: one module each, by whose name the format goes. Imports nothing heavy.

A new one is a module here with a FORMAT; see `base.Format`.
"""

from __future__ import annotations

import pkgutil

_SHARED = ("base", "csvfile", "registry")
"""Modules that are no formats, but what formats share."""


def format_names() -> tuple[str, ...]:
    """Names of all importable formats, sorted."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in names if name not in _SHARED))
