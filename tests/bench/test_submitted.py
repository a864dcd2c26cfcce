"""Every submission of the repository holds: all its cells are there, and some of them come out the same again."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.bench.leaderboard import entries_of, page
from rlpto.bench.results import read_rows
from rlpto.bench.submissions import CARD, RESULTS, verify

REPOSITORY = Path(__file__).resolve().parents[2]
SUBMISSIONS = REPOSITORY / "submissions"


@pytest.mark.parametrize("name", sorted(path.parent.name for path in SUBMISSIONS.glob(f"*/{CARD}")))
def test_a_submission_comes_out_the_same_again(name: str) -> None:
    cells = len(read_rows(SUBMISSIONS / name / RESULTS))
    assert list(verify(SUBMISSIONS / name, share=1 / cells)) == [], (
        "one of them; `rlpto bench verify` takes one in twenty"
    )


def test_the_leaderboard_is_that_of_the_submissions() -> None:
    divisions, left_out = entries_of([SUBMISSIONS])
    assert left_out == []
    assert page(divisions) == (REPOSITORY / "docs" / "leaderboard.md").read_text(encoding="utf-8")
