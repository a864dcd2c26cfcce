"""The tables of the database: state of one scheduler, requests of a service's users, and data shown to them.

A session is the work of one scheduler on one cluster: the whole life of a service, or one cell of `rlpto evaluate
--cluster ray`. Session times are seconds since its beginning, without times in which nothing trained; all others are
seconds since 1970.
"""

from __future__ import annotations

import sqlite3
import zlib
from contextlib import closing

SCHEMA = 20
"""Version of the tables, in SQLite's `user_version`. Lower versions predate the first release and are refused."""

# STRICT and the checks let SQLite's integrity check notice damage.
_TABLES = """
CREATE TABLE users (
    name TEXT PRIMARY KEY, role TEXT NOT NULL CHECK (role IN ('user', 'developer', 'operator', 'admin')),
    created REAL NOT NULL, disabled INTEGER NOT NULL DEFAULT 0 CHECK (disabled IN (0, 1)),
    gpus_held INTEGER, jobs_queued INTEGER, highest_priority TEXT CHECK (highest_priority IN ('high', 'normal', 'low')),
    sign_in TEXT UNIQUE) STRICT;
CREATE TABLE tokens (
    id TEXT PRIMARY KEY, user TEXT NOT NULL REFERENCES users (name), hash TEXT NOT NULL UNIQUE, label TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('token', 'session')), created REAL NOT NULL, expires REAL, revoked REAL,
    made_with TEXT) STRICT;
CREATE INDEX tokens_of_user ON tokens (user);
CREATE INDEX tokens_made_with ON tokens (made_with) WHERE made_with IS NOT NULL;

CREATE TABLE programs (
    name TEXT PRIMARY KEY, spec TEXT NOT NULL,
    checked TEXT NOT NULL CHECK (checked IN ('unchecked', 'usable', 'refused', 'deleted')),
    problem TEXT NOT NULL) STRICT;
CREATE TABLE previews (
    program TEXT NOT NULL, metric TEXT NOT NULL, gpus INTEGER NOT NULL, hours REAL NOT NULL, gpu_hours REAL NOT NULL,
    PRIMARY KEY (program, metric, gpus)) STRICT, WITHOUT ROWID;

CREATE TABLE scripts (
    digest TEXT PRIMARY KEY, name TEXT NOT NULL, source TEXT NOT NULL, files TEXT NOT NULL DEFAULT '') STRICT;

-- number, spec, submit_time and what follows launched: of the session, NULL where its scheduler knows the job no more.
CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL DEFAULT '', name TEXT NOT NULL,
    program TEXT NOT NULL DEFAULT '', options TEXT NOT NULL DEFAULT '{}',
    script TEXT, arguments TEXT NOT NULL DEFAULT '[]', samples INTEGER,
    pip TEXT NOT NULL DEFAULT '[]', after TEXT NOT NULL DEFAULT '[]', most_hours REAL, seed INTEGER,
    epochs REAL NOT NULL CHECK (epochs > 0), batch_size INTEGER, metric TEXT, gpus INTEGER NOT NULL DEFAULT 1,
    min_gpus INTEGER NOT NULL DEFAULT 1, max_gpus INTEGER NOT NULL DEFAULT 1,
    priority TEXT NOT NULL DEFAULT 'normal' CHECK (priority IN ('high', 'normal', 'low')),
    labels TEXT NOT NULL DEFAULT '{}',
    state TEXT NOT NULL DEFAULT 'submitted' CHECK (state IN ('submitted', 'checking', 'queued', 'starting', 'running',
        'finished', 'failed', 'cancelled', 'rejected')),
    reason TEXT NOT NULL DEFAULT '', held_by TEXT NOT NULL DEFAULT '',
    submitted REAL NOT NULL, changed REAL NOT NULL, queued REAL, started REAL, ended REAL,
    progress REAL NOT NULL DEFAULT 0, gpus_held INTEGER NOT NULL DEFAULT 0, gpu_seconds REAL NOT NULL DEFAULT 0,
    loss REAL, accuracy REAL, rescales INTEGER NOT NULL DEFAULT 0, recoveries INTEGER NOT NULL DEFAULT 0,
    number INTEGER UNIQUE, spec TEXT, submit_time REAL,
    launched INTEGER NOT NULL DEFAULT 0 CHECK (launched IN (0, 1)), start_time REAL, finish_time REAL,
    step INTEGER NOT NULL DEFAULT 0, peak_gpus INTEGER NOT NULL DEFAULT 0, rescale_seconds REAL NOT NULL DEFAULT 0,
    failure TEXT NOT NULL DEFAULT '', reached_90 REAL, reached_95 REAL, reached_99 REAL,
    kept_seconds REAL NOT NULL DEFAULT 0, lost_gpu_seconds REAL,
    final_accuracy REAL, gained REAL NOT NULL DEFAULT 0, shortfall REAL NOT NULL DEFAULT 0,
    CHECK (1 <= min_gpus AND min_gpus <= gpus AND gpus <= max_gpus)) STRICT;
CREATE INDEX jobs_of_owner ON jobs (owner, seq);
CREATE INDEX jobs_in_state ON jobs (state, seq);
CREATE INDEX jobs_open ON jobs (owner) WHERE state IN ('submitted', 'checking', 'queued', 'starting', 'running');
CREATE INDEX jobs_on_hold ON jobs (id) WHERE held_by != '' AND ended IS NULL;
CREATE TABLE labels (label TEXT NOT NULL, job INTEGER NOT NULL, PRIMARY KEY (label, job)) STRICT, WITHOUT ROWID;
CREATE TABLE queue (
    job TEXT PRIMARY KEY, position INTEGER NOT NULL, gpus_ahead INTEGER NOT NULL, reason TEXT NOT NULL) STRICT;
CREATE TABLE predictions (
    job TEXT PRIMARY KEY, as_of REAL NOT NULL, policy TEXT NOT NULL, start REAL, start_low REAL, start_high REAL,
    finish REAL, finish_low REAL, finish_high REAL) STRICT;

CREATE TABLE requests (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    kind TEXT NOT NULL CHECK (kind IN ('cancel', 'priority', 'hold', 'policy', 'drain', 'leave')), job TEXT,
    body TEXT NOT NULL, by TEXT NOT NULL, at REAL NOT NULL, done_at REAL, problem TEXT) STRICT;
CREATE INDEX requests_open ON requests (seq) WHERE done_at IS NULL;
CREATE TABLE switches (
    number INTEGER PRIMARY KEY, policy TEXT NOT NULL, before TEXT, by TEXT NOT NULL, reason TEXT NOT NULL,
    asked REAL NOT NULL, in_force REAL NOT NULL) STRICT;
CREATE TABLE policies (name TEXT PRIMARY KEY, summary TEXT NOT NULL, source TEXT NOT NULL) STRICT;

-- time: of the session, NULL where the event is none of its own.
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, time REAL, kind TEXT NOT NULL, job TEXT, owner TEXT,
    body TEXT NOT NULL) STRICT;
CREATE INDEX events_of_job ON events (job, seq) WHERE job IS NOT NULL;
CREATE TABLE points (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, at REAL NOT NULL, epoch REAL NOT NULL, loss REAL,
    accuracy REAL, gpus INTEGER NOT NULL, goodput REAL, noise_scale REAL) STRICT;
CREATE INDEX points_of_job ON points (job, seq);
CREATE TABLE spans (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, owner TEXT NOT NULL, node TEXT NOT NULL,
    gpus INTEGER NOT NULL CHECK (gpus > 0), started REAL NOT NULL, ended REAL) STRICT;
CREATE INDEX spans_of_job ON spans (job);
CREATE INDEX spans_open ON spans (job) WHERE ended IS NULL;
CREATE INDEX spans_ended ON spans (ended);
-- gain_high and what follows: what has happened since.
CREATE TABLE decisions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, time REAL NOT NULL DEFAULT 0, policy TEXT NOT NULL,
    latency REAL NOT NULL, capacity INTEGER NOT NULL, held INTEGER NOT NULL, active INTEGER NOT NULL,
    waiting INTEGER NOT NULL, reward REAL, parts TEXT NOT NULL DEFAULT '{}', weight_steps TEXT NOT NULL DEFAULT '{}',
    observation TEXT NOT NULL DEFAULT '{}', action TEXT NOT NULL DEFAULT '{}', batch_sizes TEXT NOT NULL DEFAULT '{}',
    gain_high REAL NOT NULL DEFAULT 0, gain_normal REAL NOT NULL DEFAULT 0, gain_low REAL NOT NULL DEFAULT 0,
    unfinished REAL NOT NULL DEFAULT 0, gpu_seconds REAL NOT NULL DEFAULT 0, rescale_seconds REAL NOT NULL DEFAULT 0,
    short_high REAL NOT NULL DEFAULT 0, short_normal REAL NOT NULL DEFAULT 0, short_low REAL NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE allocations (
    generation INTEGER PRIMARY KEY, job TEXT NOT NULL, nodes TEXT NOT NULL, batch_size INTEGER,
    servers TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('planned', 'commanded', 'applied', 'superseded')),
    planned_at REAL NOT NULL, commanded_at REAL, applied_at REAL) STRICT;
CREATE INDEX allocations_of_job ON allocations (job, generation);
CREATE TABLE changes (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, job TEXT NOT NULL, gpus INTEGER NOT NULL, accuracy REAL NOT NULL,
    nodes TEXT NOT NULL) STRICT;
CREATE INDEX changes_of_job ON changes (job);
CREATE TABLE improvements (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, job TEXT NOT NULL, accuracy REAL NOT NULL) STRICT;
CREATE INDEX improvements_of_job ON improvements (job);
-- In the order in which they were first seen. jobs: GPUs that each job holds there.
CREATE TABLE nodes (
    id TEXT PRIMARY KEY, gpus INTEGER NOT NULL, alive INTEGER NOT NULL, gpu_type TEXT NOT NULL DEFAULT '',
    jobs TEXT NOT NULL DEFAULT '{}', host TEXT NOT NULL DEFAULT '', leaves REAL,
    silent REAL, spot INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE volume (
    at REAL PRIMARY KEY, seen REAL, forecast REAL, low REAL, high REAL) STRICT;

CREATE TABLE idempotency (
    user TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, job TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (user, key)) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_by_age ON idempotency (at);
CREATE TABLE packages (
    owner TEXT NOT NULL, name TEXT NOT NULL, files TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (owner, name)) STRICT, WITHOUT ROWID;
CREATE TABLE audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, by TEXT NOT NULL, action TEXT NOT NULL,
    target TEXT NOT NULL, detail TEXT NOT NULL) STRICT;
"""

SUMMED = ("jobs", "facts", "allocations", "changes", "improvements", "nodes", "events", "decisions")
"""Tables that a restarted scheduler relies on. Each of their rows has a checksum over its other columns."""


def row_sum(*values: object) -> int:
    """Value of column `sum` of a row. SQLite itself does not notice a changed byte that is still a valid value."""
    return zlib.crc32(repr(values).encode("utf-8", "surrogateescape"))


def _columns() -> dict[str, str]:
    """Names of the columns of every table in `SUMMED`."""
    with closing(sqlite3.connect(":memory:")) as base:
        base.executescript(_TABLES)
        found = {table: base.execute(f"PRAGMA table_info({table})").fetchall() for table in SUMMED}
    return {table: ", ".join(row[1] for row in rows) for table, rows in found.items()}


_COLUMNS = _columns()
TABLES = _TABLES + "".join(
    f"ALTER TABLE {table} ADD COLUMN sum INTEGER NOT NULL DEFAULT 0;\n"
    + "".join(
        f"CREATE TRIGGER sum_of_{table}_{event} AFTER {event} ON {table} BEGIN UPDATE {table} "
        f"SET sum = row_sum({columns}) WHERE rowid = new.rowid; END;\n"
        for event in ("INSERT", "UPDATE")
    )
    for table, columns in _COLUMNS.items()
)
"""SQL that creates all tables, with the checksums of their rows."""


def changed_rows(base: sqlite3.Connection) -> str:
    """Describe rows whose checksum is wrong; empty if there are none."""
    before = base.text_factory
    base.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
    try:
        for table, names in _COLUMNS.items():
            count = sum(row_sum(*row) != written for *row, written in base.execute(f"SELECT {names}, sum FROM {table}"))
            if count:
                return f"{count} rows of table {table} are not as they were written"
        return ""
    finally:
        base.text_factory = before
