"""Table rows as dataclasses with the columns as fields; mappings and sequences are stored as JSON.

The REST interface returns these rows, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, ClassVar, TypeVar, get_origin, get_type_hints

from rlpto.store.database import Store, Values


class Row:
    """Base of the dataclasses. TABLE: name of their table."""

    TABLE: ClassVar[str]


R = TypeVar("R", bound=Row)


def find(store: Store, kind: type[R], tail: str = "", values: Values = (), source: str = "") -> list[R]:
    """Find rows of a table. tail: SQL after FROM, such as WHERE and ORDER BY. values: values of its question marks.
    source: a join in place of the table."""
    columns = _columns(kind)  # type: ignore[arg-type]  # mypy takes no class as hashable
    decoders = [(at, decode) for at, decode in enumerate(columns.values()) if decode is not None]
    found = []
    for row in store.rows(f"SELECT {', '.join(columns)} FROM {source or kind.TABLE} {tail}", values):
        decoded = list(row)
        for at, decode in decoders:
            decoded[at] = decode(row[at])
        found.append(kind(*decoded))
    return found


def first(store: Store, kind: type[R], tail: str = "", values: Values = ()) -> R | None:
    """The first row that `find` would return; None if there is none."""
    return next(iter(find(store, kind, f"{tail} LIMIT 1", values)), None)


def insert(store: Store, table: str, **columns: object) -> int:
    """Insert a row, and return its number."""
    return int(store.write(_statement("INSERT", table, list(columns)), [*map(_kept, columns.values())]).lastrowid or 0)


def put(store: Store, rows: Sequence[Row]) -> None:
    """Insert rows of one table, replacing rows with the same key."""
    if rows:
        names = list(_columns(type(rows[0])))  # type: ignore[arg-type]
        values = ([_kept(getattr(row, name)) for name in names] for row in rows)
        store.write(_statement("INSERT OR REPLACE", rows[0].TABLE, names), *values)


def put_all(store: Store, kind: type[R], rows: Sequence[R], where: str = "", values: Values = ()) -> None:
    """Replace all rows of a table. where: SQL condition that limits the replaced rows. values: its values."""
    with store.transaction():
        store.write(f"DELETE FROM {kind.TABLE} {where}", values)
        put(store, rows)


def _statement(verb: str, table: str, names: Sequence[str]) -> str:
    return f"{verb} INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"


@cache
def _columns(kind: Any) -> dict[str, Callable[[Any], Any] | None]:
    """Names of the columns, and decoders of values for which SQLite has no type."""
    hints = get_type_hints(kind)
    return {one.name: _decoder(hints[one.name]) for one in fields(kind)}


def _decoder(hint: object) -> Callable[[Any], Any] | None:
    if hint is bool:
        return bool
    if get_origin(hint) is Sequence:
        return lambda kept: tuple(json.loads(kept))
    return json.loads if get_origin(hint) is Mapping else None


def _kept(value: object) -> object:
    if isinstance(value, Mapping):
        return json.dumps(dict(value))
    return json.dumps(value) if isinstance(value, list | tuple) else value
