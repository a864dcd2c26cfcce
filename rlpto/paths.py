"""Paths in experiment files: variables filled in, relative to the file they stand in."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, ValidationInfo

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}")


class TypedOnCommandLine(str):
    """Text given with --set: a path in it is relative to the working directory, not to the file."""

    __slots__ = ()


def expand_path(value: object, info: ValidationInfo) -> object:
    """Fill in `${NAME}` and `${NAME:-default}`, then make the path relative to the config file."""
    if not isinstance(value, str | Path):
        return value
    text = _VARIABLE.sub(_variable_value, str(value))
    folder = (info.context or {}).get("folder", Path())
    base = Path() if isinstance(value, TypedOnCommandLine | Path) else folder
    return os.path.normpath(base / Path(text).expanduser())


def _variable_value(match: re.Match[str]) -> str:
    name, default = match["name"], match["default"]
    value = os.environ.get(name) or default
    if value is None:
        raise ValueError(f"environment variable {name} is not set (${{{name}:-default}} would give it a default)")
    return value


ConfigPath = Annotated[Path, BeforeValidator(expand_path)]
"""A path in a configuration, as `expand_path` makes it."""
