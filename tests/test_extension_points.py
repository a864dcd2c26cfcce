"""The table of CONTRIBUTING.md says what an addition costs; here every one of them is made, on a copy, and used.

Files of the project that are new or changed are counted, tests of the addition not included. Compiled functions run
uncompiled: an addition to them would have everything compiled again, which takes half a minute each.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from .slow import few

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("rlpto", "agents", "envs", "forecasting", "configs", "benchmarks")

TABLE_ROW = re.compile(r"^\| (?P<what>an? [^|]+?) \| [^|]+ \| (?P<files>[^|]+?) \|$", re.MULTILINE)
PROMISED = {
    row["what"]: max(0 if count == "none" else int(count) for count in re.findall(r"\d+|none", row["files"]))
    for row in TABLE_ROW.finditer((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
}
"""Files that each kind of addition touches at most."""
ADDITIONS = yaml.safe_load((ROOT / "tests" / "additions" / "additions.yaml").read_text(encoding="utf-8"))
PRELUDE = (ROOT / "tests" / "additions" / "prelude.py").read_text(encoding="utf-8")


def test_every_row_of_the_table_is_tried() -> None:
    assert PROMISED.keys() == ADDITIONS.keys()


LOG = """\
timestamp,duration,num_gpus,cluster
2017-10-03 00:00:00,1000,2,a
2017-10-03 00:05:00,500,4,a
2017-10-03 00:06:00,900,1,a
"""
EXPERIMENT = """\
cluster: {nodes: [{count: 1, gpus: 4}]}
workload: {source: trace, windows: {hours: 0.1}}
policies: [fifo]
"""


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project."""
    folder = tmp_path_factory.mktemp("project")
    leave_out = shutil.ignore_patterns("__pycache__", "*.safetensors")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, symlinks=True, ignore=leave_out)
    for package in PACKAGES[1:-1]:  # links in a checkout, folders in an unpacked source distribution
        inside = folder / "rlpto" / package
        if not inside.is_symlink():
            shutil.rmtree(inside)
            inside.symlink_to(Path("..") / package)
    return folder


@pytest.fixture
def copy(untouched: Path) -> Iterator[Path]:
    """The same copy for every addition, mended afterwards: what Python has parsed of it need not be parsed again."""
    before = contents(untouched)
    yield untouched
    for path, content in contents(untouched).items():
        if before.get(path) != content:
            (untouched / path).unlink()
            if path in before:
                shutil.copy2(ROOT / path, untouched / path)


@pytest.mark.parametrize("what", few(ADDITIONS, "a policy"))
def test_an_addition_touches_no_more_files_than_the_table_says(what: str, copy: Path, tmp_path: Path) -> None:
    addition = ADDITIONS[what]
    before = contents(copy)
    write(copy, addition.get("new", {}))
    for part in addition.get("inserted", []):
        path, line = part["into"], part["before"]
        content = (copy / path).read_text(encoding="utf-8")
        assert content.count(line) == 1, f"{path} has {line!r} {content.count(line)} times, not once"
        (copy / path).write_text(content.replace(line, part["text"] + line), encoding="utf-8")
    after = contents(copy)
    files = {"log.csv": LOG, "exp.yaml": EXPERIMENT, "use.py": f"{PRELUDE}\n\n{addition['use']}"}
    write(tmp_path, files | addition.get("brought", {}))

    command = [sys.executable, "use.py"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPATH": str(copy), "NUMBA_DISABLE_JIT": "1"}
    used = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert used.returncode == 0, used.stdout + used.stderr
    touched = sorted(path for path in after if before.get(path) != after[path])
    assert len(touched) <= PROMISED[what], touched


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def contents(folder: Path) -> dict[str, bytes]:
    """What is in every file by its path; folders behind symbolic links are passed over."""
    files = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.suffix != ".pyc"}
