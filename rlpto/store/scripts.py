"""Scripts that developers have submitted, each kept once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from types import CodeType

from rlpto.io.errors import RlptoError
from rlpto.store.database import Store
from rlpto.store.rows import Row, first, put


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


def drop_unused_scripts(store: Store) -> None:
    """Remove the scripts that no job names."""
    store.write("DELETE FROM scripts WHERE digest NOT IN (SELECT script FROM jobs WHERE script IS NOT NULL)")
