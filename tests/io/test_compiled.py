"""Compiled code: a cache that cannot go stale, and kernels that allocate nothing."""

import ast
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba.core.compiler import Flags
from numba.core.errors import NumbaError

from rlpto.io import compiled
from rlpto.io.by_reference import by_reference
from rlpto.io.compiled import (
    COMPILING,
    NOT_COMPILED,
    PACKAGE,
    cache_folder,
    delete_old,
    helper,
    kernel,
    njit,
    noted_digest,
    sources_digest,
)
from rlpto.io.files import FileLock


def test_the_cache_is_another_one_once_any_source_has_changed(tmp_path: Path):
    callee = tmp_path / "policies" / "pollux" / "search.py"
    callee.parent.mkdir(parents=True)
    callee.write_text("RATE = 1")
    (tmp_path / "queues.py").write_text("from rlpto.policies.pollux.search import RATE")
    before = sources_digest(tmp_path)
    assert sources_digest(tmp_path) == before
    callee.write_text("RATE = 2")
    assert sources_digest(tmp_path) != before
    compiled = "@njit()\ndef double(x):\n    'Twice.'\n    return 2 * x\n"
    callee.write_text(compiled + "def say():\n    return 'a'\n")
    before = sources_digest(tmp_path)
    callee.write_text("# a comment\n" + compiled + "def say():\n    return 'b'\n")
    assert sources_digest(tmp_path) == before, "what is not compiled does not count"
    callee.write_text(compiled.replace("Twice", "Two times"))
    assert sources_digest(tmp_path) == before, "docstrings do not count"
    callee.write_text(compiled.replace("2", "3"))
    assert sources_digest(tmp_path) != before


def test_the_digest_is_noted_until_a_source_changes(tmp_path: Path):
    package, note = tmp_path / "package", tmp_path / "cache" / "note"
    package.mkdir()
    (package / "queues.py").write_text("RATE = 1")
    first = noted_digest(package, note)
    assert first == sources_digest(package)
    note.write_text(note.read_text().replace(first, "0" * 16))
    assert noted_digest(package, note) == "0" * 16, "read from the note"
    (package / "queues.py").write_text("RATE = 22")
    assert noted_digest(package, note) == sources_digest(package) != first
    note.write_text("damaged")
    assert noted_digest(package, note) == sources_digest(package)


def test_packages_left_out_of_the_digest_compile_nothing_and_no_compiled_code_uses_them():
    marks = re.compile(r"@(njit|kernel|helper)\(|\bchained\(")
    below = (path for folder in PACKAGE.iterdir() for path in folder.rglob("*.py"))  # rglob follows no links
    compiling = {path.relative_to(PACKAGE): path.read_text("utf-8") for path in (*PACKAGE.glob("*.py"), *below)}
    compiling = {path: text for path, text in compiling.items() if marks.search(text)}
    packages = {path.parts[0] for path in compiling}
    assert packages & NOT_COMPILED == set()
    assert {"core", "knowledge", "policies"} <= packages
    for path, text in compiling.items():
        imports = [node.module or "" for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
        assert {name.removeprefix("rlpto.").split(".")[0] for name in imports} & NOT_COMPILED == set(), path


DOUBLED = """
from rlpto.io.compiled import njit

@njit()
def doubled(x):
    return 2 * x

@njit()
def both(x):
    return doubled(x), halved(x)

halved = njit()(lambda x: x / 2)
twice = [njit()(lambda x: x.real), njit()(lambda x: x.imag)]
"""

CALL = """
import sys; sys.path.insert(0, {place!r})
from rlpto.core import doubling
print(doubling.both(3), [one(4 + 5j) for one in doubling.twice])
print([sum(one.stats.cache_hits.values()) for one in (doubling.both, *doubling.twice)])
"""


def test_a_copy_of_the_project_compiles_nothing_again(tmp_path: Path):
    """Its files have another path and time; lines above a function have moved, and its docstring is another."""
    hits = []
    for place, text in (
        ("one", DOUBLED),
        (
            "two",
            "# more lines\n"
            + DOUBLED.replace("2 * x", "'Twice.'\n    return 2 * x").replace("return 'Twice.'", "'Twice.'"),
        ),
    ):
        package = tmp_path / place / "rlpto"
        for name in (
            "__init__.py",
            "core/__init__.py",
            "io/__init__.py",
            "io/compiled.py",
            "io/errors.py",
            "io/files.py",
            "io/terminal.py",
        ):
            target = package / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if (PACKAGE / name).is_file():
                shutil.copyfile(PACKAGE / name, target)
        (package / "core" / "doubling.py").write_text(text)
        code = CALL.format(place=str(tmp_path / place))
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": ""}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        value, hit = done.stdout.splitlines()
        assert value == "(6, 1.5) [4.0, 5.0]"
        hits.append(hit)
    assert hits == ["[0, 0, 0]", "[1, 1, 1]"]


def test_the_versions_used_last_stay_in_the_cache(tmp_path: Path):
    for age in range(4):
        (tmp_path / f"rlpto-{age}" / "rlpto.core").mkdir(parents=True)
        os.utime(tmp_path / f"rlpto-{age}", (1e9 - age, 1e9 - age))
    (tmp_path / "others").mkdir()
    delete_old(tmp_path, kept=2)
    assert {path.name for path in tmp_path.iterdir()} == {"rlpto-0", "rlpto-1", "others"}


@pytest.mark.slow
def test_code_is_compiled_without_a_cache_where_no_folder_can_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    code = "from rlpto.io.compiled import cache_folder, njit; print(cache_folder(), njit()(lambda x: 2 * x)(3))"
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": str(tmp_path / "file")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == "None 6\n"


def test_a_kernel_that_allocates_does_not_compile():
    @kernel()
    def wasteful(count):
        return np.zeros(count).sum()

    with pytest.raises(NumbaError):
        wasteful(3)


@pytest.mark.slow
def test_functions_of_one_name_that_other_processes_compiled_stay_apart(tmp_path: Path):
    (tmp_path / "rows.py").write_text(
        "from rlpto.io.compiled import njit\n"
        "one = njit()(lambda x: x + 1.0)\n"
        "two = njit()(lambda x: x + 2.0)\n"
        "both = njit()(lambda x: 10.0 * one(x) + two(x))\n"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for call, value in (("one", 1.0), ("two", 2.0), ("both", 12.0)):
        command = [sys.executable, "-c", f"import rows; print(rows.{call}(0.0))"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
        assert float(done.stdout) == value, call


@by_reference
class Inner(NamedTuple):
    counts: np.ndarray
    step: int


@by_reference
class Outer(NamedTuple):
    inner: Inner
    rates: np.ndarray
    on: bool
    missing: None


def test_compiled_code_reads_named_tuples_by_reference_and_changes_their_arrays() -> None:
    @helper()
    def count(inner, row):
        inner.counts[row] += inner.step

    @kernel()
    def run(outer, row):
        total = 0.0
        for rate in outer.rates[row]:
            total += rate
            count(outer.inner, row)
        return total if outer.on and outer.missing is None else -1.0

    outer = Outer(Inner(np.zeros(2, dtype=np.int64), 3), np.arange(6.0).reshape(2, 3), on=True, missing=None)
    assert run(outer, 1) == 12.0
    assert outer.inner.counts.tolist() == [0, 9]
    assert run(outer._replace(on=False), 0) == -1.0


def test_arrays_passed_by_reference_are_freed_after_the_call() -> None:
    @njit()
    def first(outer):
        return np.zeros(1)[0] + outer.inner.counts[0] + outer.rates[0, 0]

    outer = Outer(Inner(np.zeros(2, dtype=np.int64), 3), np.ones((2, 3)), on=True, missing=None)
    arrays = [outer.inner.counts, outer.rates]
    before = [*map(sys.getrefcount, arrays)]
    for _ in range(10):
        assert first(outer) == 1.0
    assert [*map(sys.getrefcount, arrays)] == before


def test_only_functions_that_python_calls_become_machine_code_of_their_own() -> None:
    @njit()
    def tripled(values):
        return values * 3

    @njit()
    def tripled_sum(values):
        return tripled(values).sum()

    assert tripled_sum(np.arange(3)) == 9
    assert not any(Path(cache_folder()).rglob("*tripled-*.nbi"))
    assert any(Path(cache_folder()).rglob("*tripled_sum-*.nbi"))


def test_compiling_is_said_once_and_not_when_the_cache_has_it_all(tmp_path: Path) -> None:
    (tmp_path / "rows.py").write_text(
        "import logging\n"
        "from rlpto.io import compiled\n"
        "logging.basicConfig(level=logging.INFO, format='%(name)s: %(message)s')\n"
        "compiled.SAID_AFTER_S = 0.0\n"
        "one = compiled.njit()(lambda x: x + 1.0)\n"
        "two = compiled.njit()(lambda x: one(x) + 2.0)\n"
        "three = compiled.njit()(lambda x: two(x) + one(x))\n"
        "print(two(1.0), three(1.0))\n"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", "import rows"]
    for expected in (f"rlpto.io.compiled: {COMPILING}\n", ""):
        done = subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
        assert done.stdout == "4.0 6.0\n"
        assert done.stderr == expected


def test_ctrl_c_while_code_is_linked_does_no_harm(tmp_path: Path) -> None:
    """It comes when LLVM has destroyed a module that was linked into another, before Python knows."""
    program = tmp_path / "interrupted.py"
    program.write_text(
        "import gc, os, signal, numba, rlpto.io.compiled\n"
        "from llvmlite.binding.ffi import lib\n"
        "link = lib.LLVMPY_LinkModules\n"
        "def interrupted(*arguments):\n"
        "    lib._fntab['LLVMPY_LinkModules'] = link\n"
        "    link(*arguments)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "lib._fntab['LLVMPY_LinkModules'] = interrupted\n"
        "double = numba.njit(lambda x: 2 * x)\n"
        "four_times = numba.njit(lambda x: double(double(x)))\n"
        "try:\n    four_times(1)\nexcept KeyboardInterrupt:\n    gc.collect()\n    print('interrupted')\n"
        "print(four_times(1))\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "interrupted\n4\n"), done.stderr


def test_options_of_compilation_are_the_same_where_one_states_what_holds_anyway() -> None:
    make: Any = Flags
    plain, stated, other = make(), make(), make()
    stated.nrt, other.nrt = False, True
    assert plain == stated
    assert hash(plain) == hash(stated)
    assert stated != other
    assert plain != "nothing"


@pytest.mark.slow
def test_of_two_processes_one_compiles_and_the_other_loads(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from rlpto.io.compiled import njit\n\n\n"
        "@njit()\ndef double(x):\n    return 2 * x\n\n\n"
        "Path(sys.argv[1]).touch()\n"
        "while not Path('go').exists():\n    time.sleep(0.01)\n"
        "print(double(21), sum(double.stats.cache_hits.values()), sum(double.stats.cache_misses.values()))\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(PACKAGE.parent)}
    started = [
        subprocess.Popen(
            [sys.executable, "twice.py", name], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
        )
        for name in "ab"
    ]
    while not (tmp_path / "a").exists() or not (tmp_path / "b").exists():
        assert not any(one.poll() for one in started)
        time.sleep(0.01)
    (tmp_path / "go").touch()
    assert sorted(one.communicate()[0] for one in started) == ["42 0 1\n", "42 1 0\n"]


def test_a_process_that_was_stopped_while_it_compiled_holds_others_up_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "LONGEST_WAIT_S", 0.1)
    lock = tmp_path / "double.lock"
    with closing(FileLock(lock)):
        assert compiled._compile_alone(lambda signature: signature, lock, 1) == 1
