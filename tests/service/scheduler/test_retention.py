"""How much the database keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.service.scheduler import retention
from rlpto.service.scheduler.retention import DAY_S, Retention
from rlpto.service.settings import RetentionSettings
from rlpto.store.database import Store
from rlpto.store.events import add_event
from rlpto.store.jobs import JobRow, change_job, get_job, insert_job
from rlpto.store.requests import add_switch, switch_in_force
from rlpto.store.scripts import get_script, keep_script, script_row
from rlpto.store.status import VolumeRow, set_volume, volume
from rlpto.store.users import add_token, add_user, audit_trail, note_change

NOW = 400 * DAY_S


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "service.sqlite", durable=False)


def trimmed(store: Store, folder: Path) -> None:
    """What a scheduler does every ten minutes."""
    Retention(store, folder, RetentionSettings(jobs=100, audit=1000))._trim_database(NOW)


def test_what_there_is_too_much_of_goes_the_oldest_first(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "EVENTS", 1000)
    with store.transaction():
        for number in range(1500):
            note_change(store, "root", "user.add", f"user-{number}", float(number))
            add_switch(store, ("fifo", "las")[number % 2], "op", "", float(number), float(number))
            add_event(store, "queue", float(number), body={})
        scripts = [script_row("a.py", str(number)) for number in range(250)]
        for script in scripts:
            keep_script(store, script)
        new = [JobRow("ann", "a job", "tiny", 1.0, script=script.digest) for script in scripts]
        jobs = [insert_job(store, job, float(number)).id for number, job in enumerate(new)]
        for job in jobs[:-10]:
            change_job(store, job, 1.0, state="finished", ended=1.0)
    trimmed(store, tmp_path)
    for table in ("audit", "switches", "events"):
        assert store.rows(f"SELECT count(*) FROM {table}")[0][0] == 1000
    assert audit_trail(store)[0].target == "user-1499"
    now = switch_in_force(store)
    assert now.number == 1500, "the number of a switch goes on: it is the ETag of the policy"
    assert [get_job(store, job) is not None for job in jobs] == [False] * 140 + [True] * 110
    assert [get_script(store, script.digest) is not None for script in scripts] == [False] * 140 + [True] * 110


def test_what_is_over_long_ago_goes(store: Store, tmp_path: Path) -> None:
    add_user(store, "ann", "user", 0.0)
    add_token(store, "ann", "ended", 0.0, expires=NOW - 100 * DAY_S)
    kept = [add_token(store, "ann", "open", 0.0)[0].id, add_token(store, "ann", "new", 0.0, expires=NOW - DAY_S)[0].id]
    set_volume(store, [VolumeRow(at, 1.0) for at in (NOW - 100 * DAY_S, NOW - DAY_S)])
    trimmed(store, tmp_path)
    assert [row[0] for row in store.rows("SELECT id FROM tokens ORDER BY expires NULLS FIRST")] == kept
    assert [row.at for row in volume(store, 0.0)] == [NOW - DAY_S]
