"""Files are written whole or not at all, and what killed runs leave is swept up."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlpto.io.errors import CheckpointError
from rlpto.io.files import PART_LIFETIME_S, file_there, folder_there, is_there, whole_file, write_text

DIES = """
import os, sys
from pathlib import Path
from rlpto.io.files import whole_file
with whole_file(Path(sys.argv[1]), "a file") as unfinished:
    unfinished.write_text("half")
    os._exit(9)
"""

WRITES = """
import sys
from pathlib import Path
from rlpto.io.files import write_text
write_text(Path(sys.argv[1]), "whole", "a file")
"""


def test_what_a_killed_run_left_is_swept_up_by_the_next_that_writes_there(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", DIES, str(tmp_path / "a.txt")], check=False).returncode == 9
    left = list(tmp_path.iterdir())
    assert [path.suffix for path in left] == [".part"]
    write_text(tmp_path / "b.txt", "whole", "a file")
    assert [path.name for path in tmp_path.iterdir()] == ["b.txt"]


def test_files_that_somebody_may_still_be_writing_stay(tmp_path: Path) -> None:
    with whole_file(tmp_path / "x", "a file") as mine:
        mine.write_text("whole")
        living = mine.name.replace(str(os.getpid()), str(os.getppid())).replace(".x.", ".living.")
    elsewhere, old = ".x.other_host-99999999.part", ".y.other_host-99999999.part"
    for name in (living, elsewhere, old, ".unrelated.part"):
        (tmp_path / name).write_text("half")
    long_ago = time.time() - PART_LIFETIME_S - 60
    os.utime(tmp_path / old, (long_ago, long_ago))
    subprocess.run([sys.executable, "-c", WRITES, str(tmp_path / "new")], check=True)
    assert {path.name for path in tmp_path.iterdir()} == {living, elsewhere, ".unrelated.part", "new", "x"}


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "no/such/file"])
def test_what_can_be_no_path_is_not_there(name: str) -> None:
    assert not is_there(Path(name))
    assert not file_there(Path(name))
    assert not folder_there(Path(name))


def test_a_path_that_names_no_file_is_refused() -> None:
    for path in (Path(""), Path("/")):
        with pytest.raises(CheckpointError, match="cannot write a file there: expected the name of a file"):
            write_text(path, "whole", "a file")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")

    def fill(unfinished: Path) -> None:
        unfinished.write_text("half")
        raise OSError(28, "No space left on device")

    message = r"file\.txt: cannot write a record there: no space left"
    with pytest.raises(CheckpointError, match=message), whole_file(path, "a record") as unfinished:
        fill(unfinished)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
