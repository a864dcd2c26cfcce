"""How much the books keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.service.books.audit import audit_trail, note
from rlpto.service.books.database import Books
from rlpto.service.books.events import add_event
from rlpto.service.books.jobs import NewJob, change_job, get_job, insert_job
from rlpto.service.books.requests import add_switch, switch_in_force, switches
from rlpto.service.books.status import VolumeRow, set_volume, volume
from rlpto.service.books.users import add_token, add_user
from rlpto.service.scheduler.retention import DAY_S, Retention
from rlpto.service.settings import RetentionSettings

NOW = 400 * DAY_S


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path / "service.sqlite", durable=False)


def trimmed(books: Books, folder: Path) -> None:
    """What a scheduler does every ten minutes."""
    kept = RetentionSettings(jobs=100, events=1000, spans=1000, audit=1000, decisions=100)
    Retention(books, folder, kept)._trim_books(NOW)


def test_what_there_is_too_much_of_goes_the_oldest_first(books: Books, tmp_path: Path) -> None:
    with books.transaction():
        for number in range(1500):
            note(books, "root", "user.add", f"user-{number}", float(number))
            add_switch(books, ("fifo", "las")[number % 2], "op", "", float(number), float(number))
            add_event(books, "queue", float(number), body={})
        jobs = [insert_job(books, NewJob("ann", "a job", "tiny", 1.0), float(number)).id for number in range(250)]
        for job in jobs[:-10]:
            change_job(books, job, 1.0, state="finished", ended=1.0)
    trimmed(books, tmp_path)
    for table in ("audit", "switches", "events"):
        assert books.rows(f"SELECT count(*) FROM {table}")[0][0] == 1000
    assert audit_trail(books)[0].target == "user-1499"
    assert switches(books)[0].number == 1500
    now = switch_in_force(books)
    assert now is not None
    assert now.number == 1500, "the number of a switch goes on: it is the ETag of the policy"
    assert [get_job(books, job) is not None for job in jobs] == [False] * 140 + [True] * 110


def test_what_is_over_long_ago_goes(books: Books, tmp_path: Path) -> None:
    add_user(books, "ann", "user", 0.0)
    add_token(books, "ann", "ended", 0.0, expires=NOW - 100 * DAY_S)
    kept = [add_token(books, "ann", "open", 0.0)[0].id, add_token(books, "ann", "new", 0.0, expires=NOW - DAY_S)[0].id]
    set_volume(books, [VolumeRow(at, 1.0) for at in (NOW - 100 * DAY_S, NOW - DAY_S)])
    trimmed(books, tmp_path)
    assert [row[0] for row in books.rows("SELECT id FROM tokens ORDER BY expires NULLS FIRST")] == kept
    assert [row.at for row in volume(books, 0.0)] == [NOW - DAY_S]
