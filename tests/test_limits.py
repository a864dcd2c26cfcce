"""The budgets of lines and words that `make lint` holds the project to."""

import subprocess
import sys
from pathlib import Path

from tests.test_extension_points import write

PROGRAM = Path(__file__).parents[1] / ".ci" / "limits.py"
BUDGETS = '[tool.rlpto.lines]\n"rlpto/core" = 3\n\n[tool.rlpto.words]\n"told|tell" = 1\n"nobody" = 5\n'


def limits(root: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAM, "--root", root, *flags], capture_output=True, text=True, check=False
    )


def test_budgets_shrink_to_what_is_there_and_what_is_above_them_is_named(tmp_path: Path) -> None:
    files = {"rlpto/core/jobs.py": '"""What nobody was told."""\nJOBS = 3\n', "pyproject.toml": BUDGETS}
    more = {"rlpto/core/queue.py": "A = 1\n", "rlpto/other/queue.py": "A = 1\n", "docs/page.md": "As told.\n"}
    write(tmp_path, files)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert limits(tmp_path, "--shrink").returncode == 0
    shrunk = BUDGETS.replace('core" = 3', 'core" = 2').replace('nobody" = 5', 'nobody" = 1')
    assert (tmp_path / "pyproject.toml").read_text() == shrunk
    write(tmp_path, more)
    run = limits(tmp_path)
    assert run.returncode == 1
    for complaint in ("rlpto/core: 3, budget 2", "rlpto/other: has no budget", "told|tell: 2, budget 1"):
        assert complaint in run.stdout
