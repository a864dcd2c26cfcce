"""Every submission of the repository holds: all its cells are there, and some of them come out the same again."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from rlpto.bench.leaderboard import entries_of, page
from rlpto.bench.results import Row, read_rows
from rlpto.bench.submissions import CARD, RESULTS, verify
from rlpto.bench.suite import FOLDER, find_case
from rlpto.workloads.frozen import read_jobs

REPOSITORY = Path(__file__).resolve().parents[2]
SUBMISSIONS = REPOSITORY / "submissions"
jobs_of = cache(read_jobs)


def few_jobs(rows: list[Row]) -> int:
    """Of many seeds the one by which `verify` draws the cell with the fewest jobs."""

    def jobs(seed: int) -> int:
        row = rows[np.random.default_rng(seed).choice(len(rows), 1)[0]]
        return len(jobs_of(FOLDER / "jobs" / f"{find_case(row.case).jobs}.parquet")[row.window])

    return min(range(100), key=jobs)


@pytest.mark.parametrize("name", sorted(path.parent.name for path in SUBMISSIONS.glob(f"*/{CARD}")))
def test_a_submission_comes_out_the_same_again(name: str) -> None:
    rows = read_rows(SUBMISSIONS / name / RESULTS)
    wrong = list(verify(SUBMISSIONS / name, 1 / len(rows), few_jobs(rows)))
    assert wrong == [], "one cell; `rlpto bench verify` takes one in twenty"


def test_the_leaderboard_is_that_of_the_submissions() -> None:
    divisions, left_out = entries_of([SUBMISSIONS])
    assert left_out == []
    assert page(divisions) == (REPOSITORY / "docs" / "leaderboard.md").read_text(encoding="utf-8")
