"""The catalogue: programs that may be trained, and options that users may choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rlpto.store.database import Store
from rlpto.store.rows import Row, find, first, put

Checked = Literal["unchecked", "usable", "refused", "deleted"]


@dataclass(frozen=True)
class ProgramRow(Row):
    """A program. spec: `rlpto.service.settings.CatalogueProgram` as JSON, as it was given. checked: whether the
    scheduler could import it, or deleted if only existing jobs continue. problem: why it could not be imported."""

    TABLE = "programs"

    name: str
    spec: Mapping[str, Any]
    checked: Checked = "unchecked"
    problem: str = ""

    @property
    def takes_jobs(self) -> bool:
        """Whether jobs of it may be submitted."""
        return self.checked in ("unchecked", "usable")


def set_programs(store: Store, specs: Mapping[str, Mapping[str, Any]]) -> None:
    """Add or replace programs by name. New and changed ones, and ones that take no jobs, will be checked."""
    with store.transaction():
        same = {row.name for row in all_programs(store) if row.takes_jobs and row.spec == specs.get(row.name)}
        put(store, [ProgramRow(name, spec) for name, spec in specs.items() if name not in same])


def get_program(store: Store, name: str) -> ProgramRow | None:
    """The program with a name, including a deleted one."""
    return first(store, ProgramRow, "WHERE name = ?", (name,))


def all_programs(store: Store) -> list[ProgramRow]:
    """All programs by name."""
    return find(store, ProgramRow, "ORDER BY name")


def note_check(store: Store, row: ProgramRow, problem: str) -> None:
    """Record why a program cannot be imported, empty if it can. Nothing is recorded if it has changed since."""
    with store.transaction():
        if get_program(store, row.name) == row:
            put(store, [replace(row, checked="refused" if problem else "usable", problem=problem)])
