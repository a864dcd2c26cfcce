"""Files are written whole or not at all, what killed runs leave is swept up; examples are found by their names."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlpto.experiments.config import load_config
from rlpto.io.errors import CheckpointError, ConfigError, TraceError
from rlpto.io.files import PART_LIFETIME_S, FileLock, file_there, folder_there, is_there, whole_file, write_text
from rlpto.io.paths import EXAMPLES, example_config, example_trace, trace_names
from rlpto.policies.spec import parse_spec
from rlpto.workloads.files import read_any

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


def test_the_file_that_a_link_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name in ("old", "new"):
        (tmp_path / name).symlink_to(Path("there") / name)
    (tmp_path / "there" / "old").write_text("half")
    for name in ("old", "new"):
        write_text(tmp_path / name, "whole", "a file")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "there" / name).read_text() == "whole"


@pytest.mark.parametrize("name", ["pipe", "link"])
def test_a_pipe_is_not_replaced(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with pytest.raises(CheckpointError, match=f"{name}: cannot write a file there: expected a file, got a device"):
        write_text(tmp_path / name, "whole", "a file")
    assert (tmp_path / "pipe").is_fifo()
    assert {path.name for path in tmp_path.iterdir()} == {"pipe", "link"}


def test_where_output_goes_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """A link of root leads from /dev/stdout to it, such as to a log."""
    log = tmp_path / "log"
    with log.open("w") as file, pytest.raises(CheckpointError, match="expected a file, got a device, pipe or socket"):
        write_text(Path(f"/dev/fd/{file.fileno()}"), "whole", "a file")
    assert log.read_text() == ""


def test_a_lock_that_the_file_system_refuses_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("rlpto.io.files.fcntl.flock", refuse)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="No locks available"):
        FileLock(tmp_path / "lock")
    assert set(os.listdir("/proc/self/fd")) <= before


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


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "name", ["quickstart", "quickstart.yaml", "results/synthetic", "tuned/philly", "pretrained/synthetic"]
)
def test_an_example_goes_by_its_name(name: str) -> None:
    found = example_config(name)
    assert found.is_file()
    assert found.is_relative_to(EXAMPLES)


@pytest.mark.parametrize(
    "name", ["", ".", "nothing", "../configs/quickstart", "/etc/hosts", "pretrained", "pretrained/README.md"]
)
def test_nothing_else_is_an_example(name: str) -> None:
    assert example_config(name) is None


def test_a_file_comes_before_the_example_of_its_name(tmp_path: Path) -> None:
    assert load_config("quickstart").name == "quickstart"
    (tmp_path / "quickstart").write_text("name: mine\n")
    assert load_config("quickstart").name == "mine"
    with pytest.raises(ConfigError, match=r"nothing: no such file, and no example of that name .*; expected one of "):
        load_config("nothing")
    with pytest.raises(ConfigError, match=r"no such file here; expected quickstart, an example that works anywhere"):
        load_config("configs/quickstart.yaml")


def test_a_folder_does_not_hide_the_example_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "quickstart").mkdir()
    assert load_config("quickstart").name == "quickstart"
    (tmp_path / "microsoft" / "cluster04").mkdir(parents=True)
    (tmp_path / "mine.yaml").write_text("workload: {source: trace, path: microsoft/cluster04}\n")
    assert load_config("mine.yaml").workload.path == (EXAMPLES / "microsoft" / "cluster04.parquet",)
    (tmp_path / "other").mkdir()
    with pytest.raises(ConfigError, match=r"other: .*directory"):
        load_config("other")


def test_weights_of_an_example_are_found_from_any_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "policies: ['index:weights=tuned/philly.yaml', 'agent:file=mine.safetensors']\n"
    )
    paths = [path for spec in load_config("mine.yaml").policies for path in parse_spec(spec).paths]
    assert paths == [EXAMPLES / "tuned" / "philly.yaml", Path("mine.safetensors")]


def test_a_trace_goes_by_its_name_in_any_config_unless_a_file_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("workload: {source: trace, path: microsoft/cluster04}\n")
    shipped = EXAMPLES / "microsoft" / "cluster04.parquet"
    assert load_config("mine.yaml").workload.path == (shipped,)
    other = load_config("mine.yaml", ["workload.path=microsoft/cluster03.parquet"])
    assert other.workload.path == (EXAMPLES / "microsoft" / "cluster03.parquet",)
    (tmp_path / "microsoft").mkdir()
    (tmp_path / "microsoft" / "cluster04").write_text("mine")
    assert load_config("mine.yaml").workload.path == (Path("microsoft/cluster04"),)


def test_a_wrong_name_of_a_trace_lists_those_there_are(tmp_path: Path) -> None:
    assert all(example_trace(name) for name in trace_names())
    (tmp_path / "mine.yaml").write_text("workload: {source: trace, path: microsoft/cluster06}\n")
    listed = (
        "microsoft/cluster06: no such trace; .* or take one that comes with RLPTO: microsoft/cluster01, .*cluster10$"
    )
    with pytest.raises(TraceError, match=listed):
        read_any(load_config("mine.yaml").workload.path[0])
