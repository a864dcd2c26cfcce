"""Scripts submitted by developers, each stored once, and folders uploaded by Ray's client."""

from __future__ import annotations

import ast
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

from rlpto.io.errors import RlptoError
from rlpto.store.database import Store
from rlpto.store.rows import Row, first, put

_LARGEST_PARSED = 256 * 1024
MOST_PACKAGES = 20
"""Most folders of one user; the oldest are removed."""


@dataclass(frozen=True)
class ScriptRow(Row):
    """A script. digest: hash of the other fields, by which jobs refer to it. name: name of its file. source: its text.
    files: accompanying files, packed by `rlpto.store.code_files`, empty if there are none."""

    TABLE = "scripts"

    digest: str
    name: str
    source: str
    files: str = ""


def compiled(source: str, name: str, error: type[RlptoError]) -> CodeType:
    """Compile a script called `name`. Raises `error` if it is not valid Python."""
    try:
        return compile(source, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as wrong:
        raise error(f"{name}: not Python: {str(wrong) or type(wrong).__name__}") from None


def imports_session(source: bytes) -> bool:
    """Return whether Python source imports `rlpto.elastic` or one of its modules, or contains such a name as a string,
    for example for `importlib`. A large text that mentions `elastic` passes unparsed, because no other thread could
    interrupt parsing."""
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


@lru_cache(maxsize=1)
def script_row(name: str, source: str, files: str = "") -> ScriptRow:
    """The row of a script. The jobs of an array have the same."""
    return ScriptRow(hashlib.sha256(f"{name}\0{files}\0{source}".encode()).hexdigest(), name, source, files)


def keep_script(store: Store, script: ScriptRow) -> None:
    """Store a script, for as long as a job refers to it."""
    if store.row("SELECT 1 FROM scripts WHERE digest = ?", (script.digest,)) is None:
        put(store, [script])


def get_script(store: Store, digest: str) -> ScriptRow | None:
    """The script with a digest."""
    return first(store, ScriptRow, "WHERE digest = ?", (digest,))


@dataclass(frozen=True)
class PackageRow(Row):
    """A folder. name: name given by Ray's client. files: packed by `rlpto.store.code_files`. at: s."""

    TABLE = "packages"

    owner: str
    name: str
    files: str
    at: float


def keep_package(store: Store, package: PackageRow) -> None:
    """Store a folder of a user."""
    put(store, [package])
    kept = "SELECT name FROM packages WHERE owner = ? ORDER BY at DESC LIMIT ?"
    values = (package.owner, package.owner, MOST_PACKAGES)
    store.write(f"DELETE FROM packages WHERE owner = ? AND name NOT IN ({kept})", values)


def get_package(store: Store, owner: str, name: str) -> PackageRow | None:
    """The folder of a user with a name."""
    return first(store, PackageRow, "WHERE owner = ? AND name = ?", (owner, name))
