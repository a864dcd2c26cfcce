"""The programs of the settings, as the scheduler has found them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rlpto.store.database import Store
from rlpto.store.rows import Row, find, put

Checked = Literal["unchecked", "usable", "refused"]


@dataclass(frozen=True)
class ProgramRow(Row):
    """A program that the settings name, or named when jobs of it were submitted. spec: `ProgramKeys` as JSON.
    checked: whether the scheduler could make it train; problem: why not."""

    TABLE = "programs"

    name: str
    spec: Mapping[str, Any]
    checked: Checked = "unchecked"
    problem: str = ""


def set_programs(store: Store, specs: Mapping[str, Mapping[str, Any]]) -> None:
    """Take in the programs of the settings by name. New, changed and refused ones have to be checked."""
    with store.transaction():
        same = {row.name for row in all_programs(store) if row.checked != "refused" and row.spec == specs.get(row.name)}
        put(store, [ProgramRow(name, spec) for name, spec in specs.items() if name not in same])


def all_programs(store: Store) -> list[ProgramRow]:
    """All programs by name."""
    return find(store, ProgramRow, "ORDER BY name")


def refused_programs(store: Store) -> dict[str, str]:
    """Why programs cannot train, by name; usable and unchecked ones are left out."""
    return dict(store.rows("SELECT name, problem FROM programs WHERE checked = 'refused'"))


def note_check(store: Store, name: str, problem: str) -> None:
    """Note what keeps a program from training; empty: nothing."""
    checked: Checked = "refused" if problem else "usable"
    store.write("UPDATE programs SET checked = ?, problem = ? WHERE name = ?", (checked, problem, name))
