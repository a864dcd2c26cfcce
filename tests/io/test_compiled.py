"""Compiled code: a cache that cannot go stale, and kernels that allocate nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba.core.errors import NumbaError

from rlpto.io.compiled import NOT_COMPILED, PACKAGE, cache_folder, kernel, njit, noted_digest, sources_digest


def test_the_cache_is_another_one_once_any_source_has_changed(tmp_path: Path):
    callee = tmp_path / "policies" / "pollux" / "search.py"
    callee.parent.mkdir(parents=True)
    callee.write_text("RATE = 1")
    (tmp_path / "queues.py").write_text("from rlpto.policies.pollux.search import RATE")
    before = sources_digest(tmp_path)
    assert sources_digest(tmp_path) == before
    callee.write_text("RATE = 2")
    assert sources_digest(tmp_path) != before
    compiled = "@njit()\ndef double(x):\n    return 2 * x\n"
    callee.write_text(compiled + "def say():\n    return 'a'\n")
    before = sources_digest(tmp_path)
    callee.write_text("# a comment\n" + compiled + "def say():\n    return 'b'\n")
    assert sources_digest(tmp_path) == before, "what is not compiled does not count"
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


def test_packages_left_out_of_the_digest_compile_nothing():
    marks = re.compile(r"@(njit|kernel|closure)\(|\bchained\(")
    compiling = {p.relative_to(PACKAGE).parts[0] for p in PACKAGE.rglob("*.py") if marks.search(p.read_text("utf-8"))}
    assert compiling & NOT_COMPILED == set()
    assert {"core", "knowledge", "policies"} <= compiling


def test_compiled_code_is_kept_in_the_folder_of_this_version():
    @njit()
    def doubled(values):
        return values * 2

    np.testing.assert_array_equal(doubled(np.arange(3)), [0, 2, 4])
    assert any(Path(cache_folder()).rglob("*doubled*.nbi"))


def test_a_kernel_that_allocates_does_not_compile():
    @kernel()
    def wasteful(count):
        return np.zeros(count).sum()

    with pytest.raises(NumbaError):
        wasteful(3)


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
