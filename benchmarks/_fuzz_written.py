"""Fuzzed: files that `rlpto` has written. Agents, forecasters, records, run folders, searches, clusters, sessions."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from unittest import mock

import numpy as np
from _fuzz_mutations import (
    NASTY,
    broken_archive,
    broken_bytes,
    pick,
    plain_json,
)
from _fuzz_registry import broken_file, broken_json, broken_yaml, prepared, put_file, small_environment, target
from numpy.random import Generator

from rlpto.agents.archive import AGENT, read_archive, write_archive
from rlpto.agents.network import JobSetPolicy
from rlpto.agents.settings import AgentSettings
from rlpto.agents.trained import action_space, agent_manifest, load_agent, observation_space, weight_arrays
from rlpto.core.cluster import Progress
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.metrics import measure
from rlpto.evaluation.runner import Cell, evaluate, load_cells
from rlpto.evaluation.storage import load_record, save_record
from rlpto.evaluation.tuning import read_costs
from rlpto.experiments.config import Config
from rlpto.experiments.run_folder import begin_run, read_run_config, refuse_foreign
from rlpto.forecasting.registry import METHODS, make_method
from rlpto.forecasting.registry import load as load_forecaster
from rlpto.ray_cluster.messages import JobSpec, Plan
from rlpto.ray_cluster.nodes.background import noted_cluster
from rlpto.ray_cluster.scheduler.gpu_claims import Command
from rlpto.ray_cluster.scheduler.run_tables import decision_records, policy_switches, write_tables
from rlpto.ray_cluster.scheduler.schema import Decision
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase, read_table
from tests.evaluation.helpers import tiny_record


@prepared
def _agent() -> bytes:
    setup = small_environment().setup
    network = JobSetPolicy(observation_space(setup.settings), action_space(), lambda _: 0.0, width=8)
    settings = AgentSettings.model_validate({"network": {"width": 8}})
    path = Path("agent.zip")
    write_archive(path, {"format": AGENT, **agent_manifest(setup, settings)}, weight_arrays(network), "an agent")
    return path.read_bytes()


@broken_file(2, "agent.zip", lambda rng: broken_archive(rng, _agent(), "manifest.json"))
def agent_file(path: Path) -> None:
    read_archive(path, (AGENT,))
    load_agent(path)


@prepared
def _forecasters() -> tuple[bytes, ...]:
    rng = np.random.default_rng(0)
    counts = rng.poisson(5.0, 400).astype(float)
    found = []
    for method in [name for name in ("smoothing", "season_24h", "arima_log", "arima_fourier") if name in METHODS]:
        path = Path("forecaster.npz")
        make_method(method).fit(counts, step=3600.0).save(path)
        found.append(path.read_bytes())
    return tuple(found)


@broken_file(2, "model.npz", lambda rng: broken_archive(rng, pick(rng, _forecasters()), None))
def forecaster_file(path: Path) -> None:
    forecaster = load_forecaster(path)
    told = forecaster.update([3.0, 4.0]).predict(6, (0.1, 0.9))
    assert np.isfinite(told.point).all(), "a forecast that is not finite"


@prepared
def _record() -> bytes:
    path = Path("record.npz")
    save_record(tiny_record(), path)
    return path.read_bytes()


@broken_file(2, "record.npz", lambda rng: broken_archive(rng, _record(), None))
def record_file(path: Path) -> None:
    measure(load_record(path))


@target(1)
def run_folder(rng: Generator, folder: Path) -> None:
    """A finished run of which one file is broken, compared, and gone on with."""
    config = Config()
    begin_run(folder, config)
    cells = [Cell("tiny", "w0", 0)]
    evaluate(cells, lambda _: tiny_record(), folder, False, config={})
    victim = pick(rng, sorted(path for path in folder.rglob("*") if path.is_file()))
    content = victim.read_bytes()
    if victim.suffix == ".json":
        victim.write_bytes(broken_json(rng, content))
    elif victim.suffix == ".yaml":
        victim.write_bytes(broken_yaml(rng, content.decode()))
    else:
        victim.write_bytes(broken_archive(rng, content, None))
    refuse_foreign(folder, config)
    read_run_config(folder)
    for finished in load_cells(folder):
        finished.record()
    evaluate(cells, lambda _: tiny_record(), folder, False, config={})


TUNING = {"format": "rlpto tuning 1", "fingerprint": "f", "costs": [[1.0, 2.0, 3.0, 4.0]], "best": {}}


@broken_file(1, "tuning.json", lambda rng: broken_json(rng, plain_json(TUNING)))
def tuning_file(path: Path) -> None:
    read_costs(path, "f", 4)


STARTED = {"address": "127.0.0.1:1", "folder": "x", "gpus": [2, 2], "cpus": 4, "durable": False}


@broken_file(1, "cluster.json", lambda rng: broken_json(rng, plain_json(STARTED)))
def started_cluster_file(path: Path) -> None:
    with mock.patch.dict(os.environ, RLPTO_STATE=str(path)):
        noted_cluster()


@prepared
def _session() -> bytes:
    """The database of a session of two jobs that has taken a decision."""
    path = Path("session.sqlite")
    specs = [JobSpec(f"job-{i}", f"j{i}", "s", "a.b:C", "folder", 8, 1.0, 100) for i in range(2)]
    gain, late = np.array([0.1, 0.2, 0.3]), np.array([9.0, 0.0, 30.0])
    passed = Progress(1.0, 61.0, gain, late, 60.0, 120.0, rescales=1, rescale_seconds=5.0, arrived=2, finished=0)
    with SessionDatabase(path) as database:
        database.enter_jobs([(spec, 60.0 * i) for i, spec in enumerate(specs)])
        for key in ("began", "beat"):
            database.set_fact(key, "5.0")
        database.node("n1", 0, 4, True, 0.0)
        database.decision(Decision(1.0, "fifo", 0.01, 4, 2, 2, 1, {"job-0": 0}, {"job-0": 2}, {"job-0": 8}))
        database.followed(passed)
        database.plan(["job-0"], [Command("job-0", database.next_generation(), Plan(("n1", "n1")))], 1.0)
        database.change(1.0, "job-0", 2, 0.5, ("n1", "n1"))
        database.event(2.0, "rescale", "job-0", "n1", 3.0, "2")
    content = path.read_bytes()
    path.unlink()
    return content


@target(2)
def session_file(rng: Generator, folder: Path) -> None:
    """A session database broken as bytes, or in one of its values, opened by a scheduler and by who looks."""
    path = put_file(folder, "state.sqlite", _session())
    if rng.random() < 0.5:
        path.write_bytes(broken_bytes(rng, _session()))
    else:
        with closing(sqlite3.connect(path, isolation_level=None)) as base:
            base.execute("PRAGMA ignore_check_constraints = 1")
            table = pick(rng, ("facts", "jobs", "allocations", "decisions", "events", "changes", "nodes"))
            column = pick(rng, [row[1] for row in base.execute(f"PRAGMA table_info({table})")])
            value = pick(rng, [value for value in NASTY if isinstance(value, str | int | float | None)])
            with suppress(sqlite3.Error, OverflowError):  # values that SQLite itself keeps out
                base.execute(f"UPDATE {table} SET {column} = ?", (value,))
    read_table(path, "jobs")
    with SessionDatabase(path, lambda _: None) as database:
        write_tables(database, folder)
        decision_records(database, RewardWeights())
        policy_switches(database)
        database.newest_commands()
