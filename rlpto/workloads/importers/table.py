"""A user's own csv file, one job a line; `--columns` explains its columns."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from rlpto.io.errors import ConfigError, nearest
from rlpto.io.yaml_file import read_yaml
from rlpto.workloads.importers.base import Format
from rlpto.workloads.importers.csvfile import table_format
from rlpto.workloads.importers.tables import Table

_OTHERS = ("begins", "origin", "gpu_share")
COLUMNS = tuple(entry.name for entry in fields(Table) if entry.type == "str" and entry.name not in _OTHERS)
"""Possible meanings of a column: fields of `Table`."""
_EXPECTED = "--columns submit=COLUMN,gpus=COLUMN,..., or a YAML file of such pairs"


def described(columns: str) -> Format:
    """Return the format of a csv file by `columns`: pairs such as submit=Submit,gpus=GPUs, or a YAML file of them.

    Raises ConfigError for an unknown, missing or repeated meaning.
    """
    place, given = "--columns", dict[str, Any]()
    if not columns:
        raise ConfigError(f"{place}: missing, expected {_EXPECTED}")
    if columns.endswith((".yaml", ".yml")):
        place, given = columns, read_yaml(Path(columns), "names of columns, such as submit: Submit").data
    else:
        for pair in columns.split(","):
            meaning, _, column = (part.strip() for part in pair.partition("="))
            if not column or meaning in given:
                raise ConfigError(f"{place}: {pair[:40]!r} is no pair, or the second of its kind, expected {_EXPECTED}")
            given[meaning] = column
    for meaning, column in given.items():
        if meaning not in COLUMNS:
            raise ConfigError(f"{place}: {str(meaning)[:40]!r} means nothing here, {nearest(str(meaning), COLUMNS)}")
        if not isinstance(column, str) or not column.strip():
            raise ConfigError(f"{place}: {meaning}: {column!r}, expected the name of a column")
    for need in ("submit", "gpus", *(["start"] if "end" in given else [])):
        if need not in given:
            raise ConfigError(f"{place}: {need} missing, expected {_EXPECTED}")
    named = {meaning: column.strip() for meaning, column in given.items()}
    return table_format("table", Table("", **named, dates=None, fractions=True, identified="name" in named))


FORMAT = Format(lambda path, skip: described("").read(path, skip), lambda _: False)
