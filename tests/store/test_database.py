import sqlite3
import sys
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

from rlpto.store import database
from rlpto.store.database import Store, StoreError
from rlpto.store.events import add_event
from rlpto.store.schema import SCHEMA, row_sum


def test_a_transaction_is_kept_whole_or_not_at_all(store: Store) -> None:
    write = partial(store.write, "INSERT INTO facts (key, value) VALUES (?, '1')")
    with closing(Store(store.path, durable=False)) as other:
        with store.transaction():
            write(("a",))
            with suppress(RuntimeError), store.savepoint():
                write(("b",))
                raise RuntimeError
            assert other.rows("SELECT key FROM facts") == [], "another process sees no half of it"
        with suppress(RuntimeError), store.transaction():
            write(("c",))
            with store.transaction():
                write(("d",))
            raise RuntimeError
        assert other.rows("SELECT key FROM facts") == [("a",)]


@pytest.mark.parametrize(
    ("content", "change", "said"),
    [
        (b"not a database at all, but long enough to be read as one" * 20, "", "the database cannot be used"),
        (b"SQLite format 3\0", "", "the database cannot be used"),
        (b"", "PRAGMA application_id = 7; CREATE TABLE a (b)", "another SQLite database"),
        (None, f"PRAGMA user_version = {SCHEMA + 1}", f"version {SCHEMA + 1}, expected {SCHEMA}: go on with the"),
    ],
)
def test_other_files_and_versions_are_refused_in_one_line(
    tmp_path: Path, content: bytes | None, change: str, said: str
) -> None:
    path = tmp_path / "store"
    if content is None:
        Store(path).close()
    else:
        path.write_bytes(content)
    if change:
        with closing(sqlite3.connect(path)) as base:
            base.executescript(change)
    with pytest.raises(StoreError, match=f"store: .*{said}") as refused:
        Store(path)
    assert "\n" not in str(refused.value)


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


def test_text_that_is_none_any_more_is_damage_and_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    path = tmp_path / "store"
    with closing(Store(path)) as store:
        add_event(store, "nodes", 1.0, body={"host": "abcdef"})
    path.write_bytes(path.read_bytes().replace(b"abcdef", b"abc\xefef"))
    with closing(Store(path)) as store, pytest.raises(StoreError, match="1 rows of table events are not as"):
        store.check()
    assert not seen
