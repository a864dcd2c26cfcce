"""Scripts that developers have submitted, each kept once, and folders that Ray's client has uploaded."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from types import CodeType

from rlpto.io.errors import RlptoError
from rlpto.store.database import Store
from rlpto.store.rows import Row, first, put

_LARGEST_PARSED = 256 * 1024
MOST_PACKAGES = 20
"""Folders of one user; the oldest go."""


@dataclass(frozen=True)
class ScriptRow(Row):
    """A script. digest: of the rest, which jobs name it by. name: of its file. source: its text. files: those that go
    with it, as `rlpto.store.code_files` packs them; empty: none."""

    TABLE = "scripts"

    digest: str
    name: str
    source: str
    files: str = ""


def compiled(source: str, name: str, error: type[RlptoError]) -> CodeType:
    """The code of a script called `name`. Raises `error` for what is no Python."""
    try:
        return compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as wrong:
        raise error(f"{name}: not Python: {str(wrong) or type(wrong).__name__}") from None


def imports_session(source: bytes) -> bool:
    """Return whether a text in Python imports `rlpto.elastic` or a module of it, or has such a name as a text, as an
    import by `importlib` does. A large text that only mentions `elastic` passes: it is not parsed, which no other
    thread could interrupt."""
    if b"elastic" not in source:
        return False
    if len(source) > _LARGEST_PARSED:
        return True
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    named = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and not node.level:
            named += [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            named.append(node.value)
    return any(re.fullmatch(r"rlpto\.elastic(\.\w+)*", name) for name in named)


def script_row(name: str, source: str, files: str = "") -> ScriptRow:
    """The row of a script."""
    return ScriptRow(hashlib.sha256(f"{name}\0{files}\0{source}".encode()).hexdigest(), name, source, files)


def keep_script(store: Store, script: ScriptRow) -> None:
    """Keep a script, for as long as a job names it."""
    if get_script(store, script.digest) is None:
        put(store, [script])


def get_script(store: Store, digest: str) -> ScriptRow | None:
    """The script with a digest."""
    return first(store, ScriptRow, "WHERE digest = ?", (digest,))


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
