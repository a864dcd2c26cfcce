"""The tables of the database, as numbered migrations: `user_version` says how many have been made."""

from __future__ import annotations

_FIRST = """
CREATE TABLE users (
    name TEXT PRIMARY KEY, role TEXT NOT NULL CHECK (role IN ('user', 'developer', 'operator', 'admin')),
    created REAL NOT NULL, disabled INTEGER NOT NULL DEFAULT 0 CHECK (disabled IN (0, 1)),
    gpus_held INTEGER, jobs_queued INTEGER) STRICT;
CREATE TABLE tokens (
    id TEXT PRIMARY KEY, user TEXT NOT NULL REFERENCES users (name), hash TEXT NOT NULL UNIQUE, label TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('token', 'session')), created REAL NOT NULL, expires REAL, revoked REAL,
    made_with TEXT) STRICT;
CREATE INDEX tokens_of_user ON tokens (user);
CREATE INDEX tokens_made_with ON tokens (made_with) WHERE made_with IS NOT NULL;

CREATE TABLE programs (
    name TEXT PRIMARY KEY, spec TEXT NOT NULL, version INTEGER NOT NULL,
    enabled INTEGER NOT NULL CHECK (enabled IN (0, 1)),
    checked TEXT NOT NULL DEFAULT 'unchecked' CHECK (checked IN ('unchecked', 'usable', 'refused')),
    problem TEXT NOT NULL DEFAULT '', changed REAL NOT NULL, changed_by TEXT NOT NULL) STRICT;
CREATE TABLE previews (
    program TEXT NOT NULL, metric TEXT NOT NULL, gpus INTEGER NOT NULL, hours REAL NOT NULL, gpu_hours REAL NOT NULL,
    PRIMARY KEY (program, metric, gpus)) STRICT, WITHOUT ROWID;

CREATE TABLE jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, name TEXT NOT NULL,
    program TEXT NOT NULL, training TEXT, options TEXT NOT NULL, epochs REAL NOT NULL CHECK (epochs > 0),
    batch_size INTEGER, metric TEXT, gpus INTEGER NOT NULL, min_gpus INTEGER NOT NULL, max_gpus INTEGER NOT NULL,
    priority TEXT NOT NULL CHECK (priority IN ('high', 'normal', 'low')), labels TEXT NOT NULL,
    version INTEGER NOT NULL DEFAULT 1,
    state TEXT NOT NULL DEFAULT 'submitted' CHECK (state IN ('submitted', 'checking', 'queued', 'starting', 'running',
        'finished', 'failed', 'cancelled', 'rejected')),
    reason TEXT NOT NULL DEFAULT '', submitted REAL NOT NULL, changed REAL NOT NULL, queued REAL, started REAL,
    ended REAL,
    progress REAL NOT NULL DEFAULT 0, gpus_held INTEGER NOT NULL DEFAULT 0, gpu_seconds REAL NOT NULL DEFAULT 0,
    loss REAL, accuracy REAL, rescales INTEGER NOT NULL DEFAULT 0, recoveries INTEGER NOT NULL DEFAULT 0,
    CHECK (1 <= min_gpus AND min_gpus <= gpus AND gpus <= max_gpus)) STRICT;
CREATE INDEX jobs_of_owner ON jobs (owner, seq);
CREATE INDEX jobs_in_state ON jobs (state, seq);
CREATE INDEX jobs_open ON jobs (owner) WHERE state IN ('submitted', 'checking', 'queued', 'starting', 'running');
CREATE TABLE labels (label TEXT NOT NULL, job INTEGER NOT NULL, PRIMARY KEY (label, job)) STRICT, WITHOUT ROWID;
CREATE TABLE queue (
    job TEXT PRIMARY KEY, position INTEGER NOT NULL, gpus_ahead INTEGER NOT NULL, reason TEXT NOT NULL) STRICT;
CREATE TABLE predictions (
    job TEXT PRIMARY KEY, as_of REAL NOT NULL, policy TEXT NOT NULL, start REAL, start_low REAL, start_high REAL,
    finish REAL, finish_low REAL, finish_high REAL) STRICT;

CREATE TABLE requests (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL CHECK (kind IN ('cancel', 'priority', 'policy', 'drain')),
    job TEXT, body TEXT NOT NULL, by TEXT NOT NULL, at REAL NOT NULL, done_at REAL, problem TEXT) STRICT;
CREATE INDEX requests_open ON requests (seq) WHERE done_at IS NULL;
CREATE TABLE switches (
    number INTEGER PRIMARY KEY, policy TEXT NOT NULL, before TEXT, by TEXT NOT NULL, reason TEXT NOT NULL,
    asked REAL NOT NULL, in_force REAL NOT NULL) STRICT;
CREATE TABLE policies (name TEXT PRIMARY KEY, spec TEXT NOT NULL, summary TEXT NOT NULL, source TEXT NOT NULL) STRICT;

CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL, job TEXT, owner TEXT,
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
CREATE TABLE decisions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, policy TEXT NOT NULL, latency REAL NOT NULL,
    capacity INTEGER NOT NULL, held INTEGER NOT NULL, active INTEGER NOT NULL, waiting INTEGER NOT NULL,
    reward REAL, parts TEXT NOT NULL, steering TEXT NOT NULL) STRICT;
CREATE TABLE volume (
    at REAL PRIMARY KEY, seen REAL, forecast REAL, low REAL, high REAL) STRICT;
CREATE TABLE status (key TEXT PRIMARY KEY, at REAL NOT NULL, value TEXT NOT NULL) STRICT;

CREATE TABLE idempotency (
    user TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL, job TEXT NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (user, key)) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_by_age ON idempotency (at);
CREATE TABLE audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, by TEXT NOT NULL, action TEXT NOT NULL,
    target TEXT NOT NULL, detail TEXT NOT NULL) STRICT;
"""

MIGRATIONS: tuple[str, ...] = (_FIRST,)
"""What makes version n + 1 of version n. One that was released is never edited: another one is added."""
