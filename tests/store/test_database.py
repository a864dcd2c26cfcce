import sqlite3
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from rlpto.store import database
from rlpto.store.database import Store, StoreError
from rlpto.store.schema import SCHEMA, row_sum


def test_two_processes_meet_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "store"
    web, scheduler = Store(path), Store(path, durable=False)
    with web.transaction():
        web.write("INSERT INTO facts (key, value) VALUES ('a', '1')")
        assert scheduler.rows("SELECT * FROM facts") == [], "nobody sees half of a transaction"
    assert len(scheduler.rows("SELECT * FROM facts")) == 1


def test_a_transaction_is_kept_whole_or_not_at_all(store: Store) -> None:
    def write_half() -> None:
        with store.transaction():
            store.write("INSERT INTO facts (key, value) VALUES ('a', '1')")
            with store.transaction():
                store.write("INSERT INTO facts (key, value) VALUES ('b', '1')")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert store.rows("SELECT * FROM facts") == []


def test_a_savepoint_undoes_one_of_several_writes(store: Store) -> None:
    with store.transaction():
        store.write("INSERT INTO facts (key, value) VALUES ('a', '1')")
        with suppress(RuntimeError), store.savepoint():
            store.write("INSERT INTO facts (key, value) VALUES ('b', '1')")
            raise RuntimeError
    assert [row[0] for row in store.rows("SELECT * FROM facts")] == ["a"]


@pytest.mark.parametrize(
    "content", [b"not a database at all, but long enough to be read as one" * 20, b"SQLite format 3\0"]
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="store") as refused:
        Store(path)
    assert "\n" not in str(refused.value)


def test_databases_of_others_and_of_another_version_are_refused(tmp_path: Path) -> None:
    Store(tmp_path / "newer").close()
    for name, change, said in (
        ("newer", f"PRAGMA user_version = {SCHEMA + 1}", f"version {SCHEMA + 1}, expected {SCHEMA}: go on with the"),
        ("other", "PRAGMA application_id = 7; CREATE TABLE a (b)", "another SQLite database"),
    ):
        with closing(sqlite3.connect(tmp_path / name)) as base:
            base.executescript(change)
        with pytest.raises(StoreError, match=said):
            Store(tmp_path / name)


def test_ctrl_c_within_the_sum_of_a_row_undoes_no_write_and_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressed: list[bool] = []
    seen: list[type[BaseException]] = []

    def interrupted(*values: object) -> int:
        if not pressed:
            pressed.append(True)
            raise KeyboardInterrupt
        return row_sum(*values)

    monkeypatch.setattr(sys, "unraisablehook", lambda lost: seen.append(lost.exc_type))
    monkeypatch.setattr(database, "row_sum", interrupted)
    with closing(Store(tmp_path / "store")) as store:
        store.write("INSERT INTO facts (key, value) VALUES ('a', '1')")
        assert seen == [KeyboardInterrupt]
        assert store.rows("SELECT key FROM facts") == [("a",)]
        store.check()
