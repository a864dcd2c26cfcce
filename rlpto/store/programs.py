"""The admin's catalogue: what may be trained, and what users may choose about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlpto.store.database import Store
from rlpto.store.rows import Row, find, first, insert

Checked = Literal["unchecked", "usable", "refused"]


@dataclass(frozen=True)
class ProgramRow(Row):
    """A program. spec: `rlpto.service.settings.CatalogueProgram` as JSON. version: counts changes from 1.

    checked: whether the scheduler could make it train; problem: why not. changed: s.
    """

    TABLE = "programs"

    name: str
    spec: Mapping[str, Any]
    version: int
    enabled: bool
    checked: Checked
    problem: str
    changed: float
    changed_by: str


def set_program(store: Store, name: str, spec: Mapping[str, Any], by: str, at: float, *, enabled: bool = True) -> int:
    """Add or replace a program, to be checked again where its spec has changed; its version."""
    text = json.dumps(dict(spec), sort_keys=True)
    with store.transaction():
        old = store.row("SELECT version, spec, enabled FROM programs WHERE name = ?", (name,))
        if old is None:
            insert(store, "programs", name=name, spec=text, version=1, enabled=enabled, changed=at, changed_by=by)
            return 1
        version, same = int(old[0]), old[1] == text
        if same and bool(old[2]) == enabled:
            return version
        again = "" if same else ", checked = 'unchecked', problem = ''"
        store.write(
            f"UPDATE programs SET spec = ?, version = ?, enabled = ?, changed = ?, changed_by = ?{again} "
            "WHERE name = ?",
            (text, version + 1, enabled, at, by, name),
        )
        return version + 1


def get_program(store: Store, name: str) -> ProgramRow | None:
    """The program of a name, enabled or not."""
    return first(store, ProgramRow, "WHERE name = ?", (name,))


def all_programs(store: Store) -> list[ProgramRow]:
    """The whole catalogue by name."""
    return find(store, ProgramRow, "ORDER BY name")


def note_check(store: Store, name: str, version: int, checked: Checked, problem: str = "") -> None:
    """Note whether a version of a program can train; nothing if it has been changed since."""
    values = (checked, problem, name, version)
    store.write("UPDATE programs SET checked = ?, problem = ? WHERE name = ? AND version = ?", values)
