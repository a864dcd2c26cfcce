"""The budgets of lines and words that `make lint` holds the project to."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / ".ci" / "limits.py"


def limits(root: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, PROGRAM, "--root", root, *flags], capture_output=True, text=True, check=False
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "rlpto" / "core").mkdir(parents=True)
    (tmp_path / "rlpto" / "core" / "jobs.py").write_text('"""What nobody was told."""\nJOBS = 3\n')
    (tmp_path / "pyproject.toml").write_text(
        '[tool.rlpto.lines]\n"rlpto/core" = 3\n\n[tool.rlpto.words]\n"told|tell" = 1\n"nobody" = 5\n'
    )
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return tmp_path


def test_within_budget_and_shrunk(project: Path) -> None:
    assert limits(project, "--shrink").returncode == 0
    assert (project / "pyproject.toml").read_text() == (
        '[tool.rlpto.lines]\n"rlpto/core" = 2\n\n[tool.rlpto.words]\n"told|tell" = 1\n"nobody" = 1\n'
    )


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("rlpto/core/queue.py", "A = 1\nB = 2\n", "rlpto/core: 4, budget 3"),
        ("rlpto/other/queue.py", "A = 1\n", "rlpto/other: has no budget"),
        ("docs/page.md", "As told.\n", "told|tell: 2, budget 1"),
    ],
)
def test_above_budget(project: Path, file: str, text: str, complaint: str) -> None:
    (project / file).parent.mkdir(parents=True, exist_ok=True)
    (project / file).write_text(text)
    run = limits(project)
    assert run.returncode == 1
    assert complaint in run.stdout
