"""The tables of the session database, and what their rows are to the rest of the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMA = 5
"""Version of the tables. In 1 jobs had names, but no ids; in 2 allocations had no batch sizes, in 3 no servers,
in 4 jobs no levels of accuracy."""

# STRICT and the checks are what SQLite's integrity check can tell damage by.
TABLES = """
CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE jobs (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, number INTEGER NOT NULL UNIQUE, spec TEXT NOT NULL,
    submit_time REAL NOT NULL,
    state TEXT NOT NULL DEFAULT 'expected' CHECK (state IN ('expected', 'active', 'finished', 'failed')),
    started INTEGER NOT NULL DEFAULT 0 CHECK (started IN (0, 1)), start_time REAL, finish_time REAL,
    progress REAL NOT NULL DEFAULT 0, step INTEGER NOT NULL DEFAULT 0, accuracy REAL, loss REAL,
    gpu_seconds REAL NOT NULL DEFAULT 0, peak_gpus INTEGER NOT NULL DEFAULT 0, rescales INTEGER NOT NULL DEFAULT 0,
    rescale_seconds REAL NOT NULL DEFAULT 0, recoveries INTEGER NOT NULL DEFAULT 0, failure TEXT NOT NULL DEFAULT '',
    reached_90 REAL, reached_95 REAL, reached_99 REAL
) STRICT;
CREATE TABLE allocations (
    generation INTEGER PRIMARY KEY, job TEXT NOT NULL, nodes TEXT NOT NULL, batch_size INTEGER,
    servers TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('planned', 'commanded', 'applied', 'superseded')),
    planned_at REAL NOT NULL, commanded_at REAL, applied_at REAL) STRICT;
CREATE INDEX allocations_of_job ON allocations (job, generation);
CREATE TABLE decisions (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, policy TEXT NOT NULL, latency REAL NOT NULL,
    capacity INTEGER NOT NULL, held INTEGER NOT NULL, active INTEGER NOT NULL, waiting INTEGER NOT NULL,
    observation TEXT NOT NULL, action TEXT NOT NULL, batch_sizes TEXT NOT NULL,
    gain_high REAL NOT NULL DEFAULT 0, gain_normal REAL NOT NULL DEFAULT 0, gain_low REAL NOT NULL DEFAULT 0,
    unfinished REAL NOT NULL DEFAULT 0, gpu_seconds REAL NOT NULL DEFAULT 0, rescale_seconds REAL NOT NULL DEFAULT 0,
    short_high REAL NOT NULL DEFAULT 0, short_normal REAL NOT NULL DEFAULT 0, short_low REAL NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE events (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, kind TEXT NOT NULL, job TEXT, node TEXT, value REAL,
    detail TEXT NOT NULL DEFAULT '') STRICT;
CREATE TABLE changes (
    id INTEGER PRIMARY KEY, time REAL NOT NULL, job TEXT NOT NULL, gpus INTEGER NOT NULL, accuracy REAL NOT NULL,
    nodes TEXT NOT NULL) STRICT;
CREATE TABLE nodes (
    id TEXT PRIMARY KEY, number INTEGER NOT NULL, gpus INTEGER NOT NULL, alive INTEGER NOT NULL, since REAL NOT NULL
) STRICT;
CREATE TABLE requests (id INTEGER PRIMARY KEY, policy TEXT NOT NULL, answered_at REAL, answer TEXT) STRICT;
"""


@dataclass(frozen=True)
class JobRow:
    """A job as the database has it: columns of table `jobs`. state: expected, active, finished or failed.

    reached_90 and so on [s]: when it had gained that share [%] of the accuracy it can gain; None: not yet.
    """

    id: str
    name: str
    number: int
    state: str
    started: bool
    start_time: float | None
    finish_time: float | None
    progress: float
    step: int
    accuracy: float | None
    loss: float | None
    gpu_seconds: float
    peak_gpus: int
    rescales: int
    rescale_seconds: float
    recoveries: int
    failure: str
    reached_90: float | None
    reached_95: float | None
    reached_99: float | None


@dataclass(frozen=True)
class Decision:
    """A decision of a policy. time: s. latency: s the policy took. capacity, held: GPUs up, and held after it.
    active, waiting: jobs. observation, action: GPUs of each active job before and after. batch_sizes: samples of a step
    of those jobs for which the policy has chosen them."""

    time: float
    policy: str
    latency: float
    capacity: int
    held: int
    active: int
    waiting: int
    observation: Mapping[str, int]
    action: Mapping[str, int]
    batch_sizes: Mapping[str, int] = field(default_factory=dict)
