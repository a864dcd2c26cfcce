"""Compilation by numba, with a cache on disk that cannot go stale.

numba's own cache depends only on the path and the contents of the function's file. If a called function or an imported
constant changes, its callers keep running the old code from their cache; if the project is copied, everything is
compiled again. Here the cache lies in a folder named after a digest of all sources of compiled code, and functions are
found in it by module and qualified name. Every checkout, clone and installation with the same sources shares it.

This module has all uses of non-public parts of numba; tested with version 0.68.1.
"""

from __future__ import annotations

import ast
import gc
import hashlib
import logging
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from functools import lru_cache, partial
from glob import glob
from multiprocessing import parent_process
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, TypeVar, cast

import numba
from llvmlite.binding import ModuleRef
from llvmlite.binding.ffi import OutputString, lib
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import UserProvidedCacheLocator
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.event import Event, Listener, register
from numba.core.registry import CPUDispatcher
from numba.core.targetconfig import TargetConfig
from numba.extending import register_jitable, typeof_impl

from rlpto.io.errors import CheckpointError
from rlpto.io.files import FileLock, in_home, write_text

Function = TypeVar("Function", bound=Callable[..., Any])

_CONFIG: Any = numba.config  # its attributes are made at run time, so type checkers see none

# numba counts the functions of a process from 1 and puts the count into the names of machine code. If two processes
# fill one cache, two lambdas or closures get the same name, and a process that loads both runs one in place of the
# other (numba's issue 10486). Forked processes share a count, so every function draws a random number.
FunctionIdentity._unique_ids = iter(partial(secrets.randbits, 64), None)  # type: ignore[assignment]


def _link_in(self: Any, other: Any, preserve: bool = False) -> None:
    """Link a module of LLVM into another, as llvmlite does.

    LLVM destroys `other`. Here Python releases it before, not after: if a Ctrl-C came between, the module was destroyed
    twice, and the process ended with a segmentation fault.
    """
    other = other.clone() if preserve else other
    pointer = other._ptr
    other.detach()
    with OutputString() as message:
        if lib.LLVMPY_LinkModules(self, pointer, message):
            raise RuntimeError(str(message))


ModuleRef.link_in = _link_in


def _same_options(one: Any, other: Any) -> bool:
    """Compare options of compilation. numba looks each up as an attribute, which took a sixth of the compile time."""
    if type(one) is not type(other):
        return False
    ours, theirs = one._values, other._values
    return ours == theirs or (
        all(ours[name] == theirs[name] for name in ours.keys() & theirs.keys())
        and all(getattr(one, name) == getattr(other, name) for name in ours.keys() ^ theirs.keys())
    )


TargetConfig.__eq__ = _same_options  # type: ignore[method-assign]
TargetConfig.__hash__ = lambda one: hash(type(one))  # type: ignore[method-assign]  # before, it hashed their names too

PACKAGE = Path(__file__).resolve().parents[1]
NOT_COMPILED = frozenset(
    {"agents", "arrivals", "bench", "cli", "client.py", "elastic"}
    | {"evaluation", "experiments", "ray_cluster", "service", "store", "workloads"}
)
"""Packages without compiled functions and their constants. All other packages count, hence no new one is missed."""

LOG = logging.getLogger(__name__)
COMPILING = "compiling kernels, about half a minute on an idle core, once per version"
SAID_AFTER_S = 2.0
"""Seconds of compiling after which the user is informed."""

LONGEST_WAIT_S = 120.0
"""Longest wait for another process that compiles the same function, which may have been stopped [s]."""

KEPT_VERSIONS = 8
"""Number of folders of machine code, the last used ones, that stay in a cache; a folder has some 50 MB."""


class _Listener(Listener):
    """Reports once in a process that kernels are being compiled, and makes garbage collection rarer meanwhile."""

    inside, took, since, said, threshold = 0, 0.0, 0.0, False, gc.get_threshold()

    def on_start(self, event: Event) -> None:  # noqa: ARG002
        """Handle the start of a compilation, which may be nested in another one."""
        if self.inside == 0:
            self.since, self.threshold = time.monotonic(), gc.get_threshold()
            gc.set_threshold(50_000)  # garbage collection took a tenth of the time, and found little
        elif self.took + time.monotonic() - self.since > SAID_AFTER_S:
            self.say()
        self.inside += 1

    def on_end(self, event: Event) -> None:  # noqa: ARG002
        """Handle the end of a compilation."""
        self.inside -= 1
        if self.inside == 0:
            self.took += time.monotonic() - self.since
            gc.set_threshold(*self.threshold)

    def say(self) -> None:
        """Report it to the log if that is read, else to a terminal. Workers are silent."""
        if not self.said and parent_process() is None:
            self.said = True
            if LOG.isEnabledFor(logging.INFO) and LOG.hasHandlers():
                LOG.info(COMPILING)
            elif sys.stderr.isatty():
                print(f"rlpto: {COMPILING}", file=sys.stderr)


_LISTENER = _Listener()
register("numba:compile", _LISTENER)


def say_if_cold(function: Callable[..., Any]) -> None:
    """Report that workers will compile kernels, unless the cache has such a function."""
    folder = cast(Any, function).stats.cache_path
    if folder is None or not any(Path(folder).glob(f"*.{function.__name__}-*.nbi")):
        _LISTENER.say()


class _LinkedLibrary(JITCodeLibrary):
    """Code that is only linked into other code and optimised there, without machine code of its own."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:  # noqa: ARG002
        """Return 0: there is no machine code."""
        return 0

    @property
    def codegen(self) -> Any:
        """A stub: it is only asked to tell machine code where its Python constants are."""
        return SimpleNamespace(set_env=lambda *_: None)


class _LinkedCompiler(Compiler):
    """Compiles into a `_LinkedLibrary`."""

    def __init__(self, typing: Any, target: Any, library: Any, *rest: Any) -> None:
        library = _LinkedLibrary(target.codegen(), "linked")
        library.enable_object_caching()
        super().__init__(typing, target, library, *rest)


LINKED: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": _LinkedCompiler}
"""Options of functions that only compiled code calls."""


@typeof_impl.register(CPUDispatcher)
def _type_in_compiled_code(function: Any, context: Any) -> Any:  # noqa: ARG001
    """Type of the function that compiled code calls instead of one that Python can call."""
    return numba.types.Dispatcher(getattr(function, "linked", function))


def njit(**options: Any) -> Callable[[Function], Function]:
    """Decorator: compile a function on its first call, and keep the machine code for later processes.

    In other compiled functions it is linked before optimisation, as if it were a `helper`.
    options: options of `numba.njit`, without `cache`.
    """

    def decorate(function: Function) -> Function:
        before = _CONFIG.CACHE_DIR, _CONFIG.CACHE_LOCATOR_CLASSES
        folder = cache_folder()
        _CONFIG.CACHE_DIR, _CONFIG.CACHE_LOCATOR_CLASSES = folder or "", f"{__name__}.{SourcesLocator.__name__}"
        try:
            # _nrt is set even to its default: otherwise a callee would inherit it from a `kernel`. Entry points from C,
            # which serve functions passed on as values, would be compiled for nothing.
            defaults = {"_nrt": True, "no_cfunc_wrapper": True, "cache": folder is not None}
            compiled: Any = numba.njit(**(defaults | options))(function)
            compiled.linked = numba.njit(**({"_nrt": True} | LINKED | options))(function)
        finally:
            _CONFIG.CACHE_DIR, _CONFIG.CACHE_LOCATOR_CLASSES = before
        if folder is not None and hasattr(compiled, "compile"):  # not with NUMBA_DISABLE_JIT
            lock = Path(folder, f"{function.__module__}.{function.__qualname__}.lock")
            compiled.compile = partial(_compile_alone, compiled.compile, lock)
        return cast(Function, compiled)

    return decorate


def _compile_alone(compile_or_load: Callable[[Any], Any], lock: Path, signature: Any) -> Any:
    """Compile a function, or load the machine code that another process has made meanwhile."""
    since = time.monotonic()
    with ExitStack() as held:
        while (waited := time.monotonic() - since) < LONGEST_WAIT_S:
            try:
                held.enter_context(closing(FileLock(lock)))
            except BlockingIOError:
                if waited > SAID_AFTER_S:
                    _LISTENER.say()
                time.sleep(0.05)
                continue
            except OSError:  # the folder is gone, belongs to another user, or its file system has no locks
                pass
            break
        return compile_or_load(signature)


def kernel(**options: Any) -> Callable[[Function], Function]:
    """Decorator like `njit`, for functions that allocate no memory: numba then keeps no reference counts.

    Counting is atomic and happens at every access to an array; in the simulator's short loops it
    took more time than the work. A function that does allocate fails to compile.
    """
    return njit(_nrt=False, **options)


def helper(**options: Any) -> Callable[[Function], Function]:
    """Decorator like `kernel`, for functions that only compiled code calls: they become part of their callers.

    They have no cache and no entry point from Python, whose compilation takes longer than the function's if a `World`
    is an argument. Python would run them uncompiled. Functions with a few plain arguments gain nothing.
    """
    compiled: Any = register_jitable(**({"_nrt": False} | LINKED | options))
    return cast(Callable[[Function], Function], compiled)


@helper()
def copy_rows(to: Any, rows: Any) -> None:
    """Copy an array of one axis. An array assignment would also compile an error message, which takes seconds."""
    for i in range(len(rows)):
        to[i] = rows[i]


def chained(rows: Sequence[Callable[..., float]]) -> Callable[..., None]:
    """Make a compiled function `fill(out, arguments)` that puts row(*arguments) of every compiled row into out [rows].

    It evaluates tables of functions (features, terms) without a loop in Python.
    """
    body = "".join(f"    out[{at}] = row_{at}(*arguments)\n" for at in range(len(rows)))
    names: dict[str, Any] = {f"row_{at}": row for at, row in enumerate(rows)}
    exec(f"def fill(out, arguments):\n{body}", names)
    return cast(Callable[..., None], numba.njit(**{"error_model": "numpy"} | LINKED)(names["fill"]))


class SourcesLocator(UserProvidedCacheLocator):
    """Locates a function's machine code in `cache_folder`, and tells it from other functions.

    Functions of other packages (plug-ins) are not part of the digest in the folder's name: numba's rules hold for them.
    """

    def __init__(self, function: Any, file: str) -> None:
        super().__init__(function, file)
        self._ours = function.__module__.startswith(f"{PACKAGE.name}.")
        if self._ours:
            self._code = _code_digest(function)
            self._cache_path = os.path.join(_CONFIG.CACHE_DIR, function.__module__)

    def get_source_stamp(self) -> Any:
        """Return a constant for functions of this package: other sources have another folder."""
        return "" if self._ours else super().get_source_stamp()

    def get_disambiguator(self) -> str:
        """Return a digest of the code, not of lines, to tell functions with the same qualified name apart."""
        return self._code if self._ours else str(super().get_disambiguator())

    def ensure_cache_path(self) -> None:
        """Make the folder, which `cache_folder` has found to be writable."""
        os.makedirs(self._cache_path, exist_ok=True)


def _code_digest(function: Any) -> str:
    """Digest of a function's code without its docstring and line numbers."""

    def parts(code: CodeType) -> list[object]:
        constants = [parts(one) if isinstance(one, CodeType) else one for one in code.co_consts]
        return [code.co_code, code.co_names, code.co_freevars, [one for one in constants if one != function.__doc__]]

    return hashlib.sha256(repr(parts(function.__code__)).encode()).hexdigest()[:12]


@lru_cache(maxsize=1)
def cache_folder() -> str | None:
    """Folder of this version's machine code, in $NUMBA_CACHE_DIR or the user's cache; None if neither is writable.

    The folder is marked as used, and folders of versions that were used longest ago are deleted.
    """
    usual = in_home("XDG_CACHE_HOME", ".cache")
    parent = Path(_CONFIG.CACHE_DIR) if _CONFIG.CACHE_DIR else usual and usual / "rlpto"
    if parent is None:
        return None
    note = parent / f"sources-{hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:16]}"
    folder = parent / f"rlpto-{noted_digest(PACKAGE, note)}-numba-{numba.__version__}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
    except OSError:
        return None
    delete_old(parent)
    return str(folder)


def delete_old(parent: Path, kept: int = KEPT_VERSIONS) -> None:
    """Delete all but the last used folders of machine code, and all but the newest notes of sources.

    A process that still uses a deleted folder compiles the functions again that it has not loaded yet.
    """
    for pattern, most in (("rlpto-*", kept), ("sources-*", 4 * kept)):
        with suppress(OSError):  # another process may delete at the same time
            for old in sorted(parent.glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)[most:]:
                shutil.rmtree(old) if old.is_dir() else old.unlink()


def noted_digest(package: Path, note: Path) -> str:
    """`sources_digest`, which takes most of a second, read from a note as long as no source has changed since."""
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
    """Digest of everything that compiled code depends on: compiled functions, constants and named tuples."""
    digest = hashlib.sha256()
    for name in compiled_sources(package):
        digest.update(f"{name}\0".encode())
        for node in ast.parse((package / name).read_bytes()).body:
            if name == "io/by_reference.py" or _is_compiled_in(node):
                digest.update(ast.dump(_without_docstring(node)).encode())
    return digest.hexdigest()[:16]


def _is_compiled_in(node: ast.stmt) -> bool:
    """Whether compiled code can depend on a statement of a module. Other statements cannot change it."""
    if isinstance(node, ast.FunctionDef):
        return any(isinstance(mark, ast.Call) for mark in node.decorator_list)  # including rows of tables (`chained`)
    if isinstance(node, ast.ClassDef):
        return any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in node.bases)
    return isinstance(node, ast.Assign | ast.AnnAssign)


def _without_docstring(node: ast.stmt) -> ast.stmt:
    """The statement without its docstring, which is not compiled."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
        node.body = node.body[1:]
    return node
