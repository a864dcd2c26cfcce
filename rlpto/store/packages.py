"""Folders that Ray's client has uploaded, until a job names them."""

from __future__ import annotations

from dataclasses import dataclass

from rlpto.store.database import Store
from rlpto.store.rows import Row, first, put

MOST_PACKAGES = 20
"""Of one user; the oldest go."""


@dataclass(frozen=True)
class PackageRow(Row):
    """A folder. name: that Ray's client gave it. files: as `rlpto.store.code_files` packs them. at: s."""

    TABLE = "packages"

    owner: str
    name: str
    files: str
    at: float


def keep_package(store: Store, package: PackageRow) -> None:
    """Keep a folder of a user."""
    put(store, [package])
    kept = "SELECT name FROM packages WHERE owner = ? ORDER BY at DESC LIMIT ?"
    values = (package.owner, package.owner, MOST_PACKAGES)
    store.write(f"DELETE FROM packages WHERE owner = ? AND name NOT IN ({kept})", values)


def get_package(store: Store, owner: str, name: str) -> PackageRow | None:
    """The folder of a user with a name."""
    return first(store, PackageRow, "WHERE owner = ? AND name = ?", (owner, name))
