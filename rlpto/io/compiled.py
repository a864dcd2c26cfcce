"""Compilation by numba, with a cache on disk that cannot go stale.

numba's own cache looks at the file of the function alone: change a function that others call, or a
constant they import, and they keep running the old code from their cache. Here the cache lies in a
folder named after a digest of all sources of compiled code.

All that is used of numba beyond its public interface stands here; tested with version 0.68.1.
"""

from __future__ import annotations

import ast
import hashlib
import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from glob import glob
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core.bytecode import FunctionIdentity
from numba.extending import register_jitable

from rlpto.io.errors import CheckpointError
from rlpto.io.files import write_text

Function = TypeVar("Function", bound=Callable[..., Any])

_CONFIG: Any = numba.config  # its attributes are made at run time, so type checkers see none

# numba counts the functions of a process from 1 and puts the count into the names of machine code. Where two processes
# fill one cache, two lambdas or closures get the same name, and a process that loads both runs one in place of the
# other (numba's issue 10486). Forked processes share a count, so every function draws a number.
FunctionIdentity._unique_ids = iter(partial(secrets.randbits, 64), None)  # type: ignore[assignment]

PACKAGE = Path(__file__).resolve().parents[1]
NOT_COMPILED = frozenset(("agents", "cli", "evaluation", "experiments", "ray_cluster", "service", "store", "workloads"))
"""Packages without compiled functions and constants of them; all others count, so no new package is missed."""


def njit(**options: Any) -> Callable[[Function], Function]:
    """Decorator: compile a function on its first call, and keep the machine code for later processes.

    options: those of `numba.njit`, without `cache`.
    """

    def decorate(function: Function) -> Function:
        before = _CONFIG.CACHE_DIR
        _CONFIG.CACHE_DIR = cache_folder()
        try:
            # _nrt is set even where it is the default: otherwise a callee would inherit it from a `kernel`. Entry
            # points from C, for functions that are handed on as values, would be compiled for nothing.
            compiled: Any = numba.njit(cache=True, **({"_nrt": True, "no_cfunc_wrapper": True} | options))(function)
        finally:
            _CONFIG.CACHE_DIR = before
        return cast(Function, compiled)

    return decorate


def kernel(**options: Any) -> Callable[[Function], Function]:
    """`njit` for functions that allocate no memory: numba then keeps no reference counts.

    Counting is atomic and happens at every access to an array; in the simulator's short loops it
    took more time than the work. A function that does allocate fails to compile.
    """
    return njit(_nrt=False, **options)


def helper(**options: Any) -> Callable[[Function], Function]:
    """`kernel` for functions that only compiled code calls: they become part of their callers and have no cache.

    numba then makes no entry point from Python; where a `World` is handed over, that takes longer than to compile
    the function. Python would run it uncompiled. Functions with a few plain arguments gain nothing.
    """
    compiled: Any = register_jitable(**({"_nrt": False, "no_cfunc_wrapper": True} | options))
    return cast(Callable[[Function], Function], compiled)


def closure(**options: Any) -> Callable[[Function], Function]:
    """Decorator: compile a function made by another function. It is compiled into its callers, so it has no cache.

    options: those of `numba.njit`.
    """
    compiled: Any = numba.njit(**options)
    return cast(Callable[[Function], Function], compiled)


def chained(rows: Sequence[Callable[..., float]]) -> Callable[..., None]:
    """One compiled function `fill(out, arguments)` that puts row(*arguments) of every compiled row into out [rows].

    How tables of functions (features, terms) are evaluated without a loop in Python.
    """
    fill: Callable[..., None] = _nothing
    for at, row in enumerate(rows):
        fill = _then(fill, row, at)
    return fill


@closure(inline="always")
def _nothing(out: Any, arguments: Any) -> None:
    """The end of a chain."""


def _then(before: Callable[..., None], row: Callable[..., float], at: int) -> Callable[..., None]:
    """A link of a chain."""

    @closure(error_model="numpy", inline="always")
    def fill(out: Any, arguments: Any) -> None:
        before(out, arguments)
        out[at] = row(*arguments)

    return fill


@lru_cache(maxsize=1)
def cache_folder() -> str:
    """Folder of this version's machine code: in $NUMBA_CACHE_DIR, next to the package, or in the user's cache."""
    if _CONFIG.CACHE_DIR:
        folder = Path(_CONFIG.CACHE_DIR)
    elif os.access(PACKAGE, os.W_OK):
        folder = PACKAGE / "__pycache__"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlpto"
    return str(folder / f"rlpto-{noted_digest(PACKAGE, folder / 'rlpto-sources')}")


def noted_digest(package: Path, note: Path) -> str:
    """`sources_digest`, which takes most of a second, from a note of it as long as no source has changed since."""
    files = [(name, (package / name).stat()) for name in compiled_sources(package)]
    state = [str(package), *(f"{name} {about.st_size} {about.st_mtime_ns}" for name, about in files)]
    stamp = hashlib.sha256("\0".join(state).encode()).hexdigest()
    with suppress(OSError, ValueError):
        noted, digest = note.read_text(encoding="ascii").split()
        if noted == stamp:
            return digest
    digest = sources_digest(package)
    with suppress(CheckpointError):  # a note that cannot be written only costs time
        write_text(note, f"{stamp} {digest}\n", "a note of the sources")
    return digest


def compiled_sources(package: Path) -> list[str]:
    """Paths within the package of all sources that may have compiled code."""
    names = glob("**/*.py", root_dir=package, recursive=True)  # follows the links to agents, envs and forecasting
    return sorted(name for name in names if Path(name).parts[0] not in NOT_COMPILED)


def sources_digest(package: Path) -> str:
    """Digest of all that compiled code is made of, in all sources: compiled functions, constants and named tuples."""
    digest = hashlib.sha256()
    for name in compiled_sources(package):
        digest.update(f"{name}\0".encode())
        for node in ast.parse((package / name).read_bytes()).body:
            if _is_compiled_in(node):
                digest.update(ast.dump(node).encode())
    return digest.hexdigest()[:16]


def _is_compiled_in(node: ast.stmt) -> bool:
    """Whether compiled code can depend on a statement. Other statements of a module cannot change it."""
    if isinstance(node, ast.FunctionDef):
        return any(isinstance(mark, ast.Call) for mark in node.decorator_list)  # also rows of tables, see `chained`
    if isinstance(node, ast.ClassDef):
        return any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in node.bases)
    return isinstance(node, ast.Assign | ast.AnnAssign)
