"""README and the pages that it links, typed line by line in a fresh copy of the project (`tests/pages.py` says how)."""

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.pages import Script, blocks, script

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DATA = Path(os.environ.get("RLPTO_DATA") or ROOT.parent / "shared")
LINKS = re.findall(r"\]\(([\w/.-]+\.md)", README.read_text(encoding="utf-8"))
PAGES = [page for page in dict.fromkeys([README, *(ROOT / link for link in LINKS)]) if [*blocks(page.read_text())]]
PRELUDE = """\
set -eEo pipefail
PS4='+ $PAGE:$LINENO, after $SECONDS s: '
trap 'echo "$PAGE:$LINENO: exit code $?" >&2' ERR
trap 'for one in $running; do { kill $one && wait $one; } || true; done 2> /dev/null' EXIT
background() {  # OUTPUT COMMAND...
  local - output=$(mktemp output-XXXX); set +x
  "${@:2}" > $output 2>&1 & running="$! $running"
  until grep -q "$1" $output; do sleep 0.2; kill -0 $! || { cat $output; return 1; }; done
}
set -x
"""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def typed(page: Path, slow: bool = True) -> Script:
    return script(page.read_text(encoding="utf-8"), slow, lambda path: (DATA / path).exists())


def is_on_ray(page: Path) -> bool:
    return bool(re.search(r"--cluster ray|rlpto cluster up|rlpto serve", "\n".join(typed(page).lines)))


ON_RAY = [page for page in PAGES if is_on_ray(page)]


def fresh_copy(folder: Path) -> Path:
    """What a clone has, with changes that are not committed yet."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a checkout: what a clone has is asked of git")
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    files = b"\0".join(name for name in names if name and os.path.lexists(os.fsencode(ROOT) + b"/" + name))
    folder.mkdir()
    command = ["xargs", "-0", "cp", "--parents", "--no-dereference", "--preserve=timestamps", "-t", str(folder)]
    subprocess.run(command, cwd=ROOT, input=files, check=True)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("page", "slow"),
    [
        pytest.param(README, False, id="README.md, quick"),
        *(pytest.param(page, True, id=name_of(page)) for page in PAGES if page not in ON_RAY),
    ],
)
def test_what_a_page_says_works_as_it_is_typed(page: Path, slow: bool, tmp_path: Path) -> None:
    type_page(page, slow, tmp_path)


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", ON_RAY, ids=name_of)
def test_what_a_page_says_works_on_ray(page: Path, tmp_path: Path) -> None:
    type_page(page, True, tmp_path)


def type_page(page: Path, slow: bool, tmp_path: Path) -> None:
    """Type all commands of a page in a fresh copy of the project. Nothing that they have started stays."""
    folder, commands, output = fresh_copy(tmp_path / "rlpto"), tmp_path / "commands.sh", tmp_path / "output"
    made = typed(page, slow)
    assert not made.wrong
    commands.write_text("\n".join(made.lines), encoding="utf-8")
    state = str(tmp_path / "state")
    own = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "PAGE": name_of(page),
    }
    own |= {"PYTHONUNBUFFERED": "1", "XDG_STATE_HOME": state, "RLPTO_DATA": str(DATA)}
    left_out = ("RAY_ADDRESS", "RLPTO_SERVICE", "RLPTO_STATE", "RLPTO_TOKEN")
    environment = {name: value for name, value in os.environ.items() if name not in left_out} | own
    try:
        with output.open("w", encoding="utf-8") as file:  # no pipe: processes that are left behind would keep it open
            bash = ["bash", "-c", f"{PRELUDE}. {commands}"]
            done = subprocess.run(bash, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    finally:
        left = [process for process in psutil.process_iter() if belongs_to(process, state)]
        for process in left:
            process.kill()
    assert done.returncode == 0, output.read_text(encoding="utf-8")[-6000:]
    assert not left, f"the page leaves processes behind: {left}"


def belongs_to(process: psutil.Process, state: str) -> bool:
    try:
        return process.environ().get("XDG_STATE_HOME") == state
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


@pytest.mark.parametrize(
    ("page", "line", "command", "reason"),
    [pytest.param(page, *left, id=f"{name_of(page)}:{left[0]}") for page in PAGES for left in typed(page).skipped],
)
def test_not_typed(page: Path, line: int, command: str, reason: str) -> None:
    pytest.skip(f"{name_of(page)}:{line}: {command.partition('  ')[0]!r}: {reason}")
