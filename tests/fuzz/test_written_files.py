"""Broken files that `rlpto` has written: agents, forecasters, records, run folders, searches, clusters, sessions."""

import os
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import strategies as st

from rlpto.agents.archive import AGENT
from rlpto.agents.ppo import JobSetPolicy
from rlpto.agents.settings import AgentSettings
from rlpto.agents.trained import action_space, agent_manifest, agent_of, observation_space, weight_arrays
from rlpto.core.records import intervals
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.metrics import measure
from rlpto.evaluation.record_files import load_record, record_bytes
from rlpto.evaluation.runner import Cell, evaluate, load_cells
from rlpto.experiments.config import Config
from rlpto.experiments.environments import cluster_env
from rlpto.experiments.run_folder import begin_run, read_run_config, refuse_foreign
from rlpto.forecasting.registry import load as load_forecaster
from rlpto.forecasting.registry import make_forecaster
from rlpto.io.archive import read_archive, write_archive
from rlpto.ray_cluster.messages import Command, JobSpec, Plan
from rlpto.ray_cluster.nodes.persistent_cluster import noted_cluster
from rlpto.ray_cluster.scheduler.backend import NodeInfo
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase, decision_records, policy_switches
from rlpto.ray_cluster.scheduler.session_folder import read_table
from rlpto.store.schema import SUMMED
from tests.evaluation.helpers import tiny_record
from tests.fuzz.harness import Draw, fuzzed, put_file
from tests.fuzz.mutations import NASTY, as_json, broken_archive, broken_bytes, broken_json, broken_yaml
from tests.small import SMALL


def _written(write: Callable[[Path], object], name: str = "file") -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        write(path)
        return path.read_bytes()


@cache
def _agent() -> bytes:
    setup = cluster_env(SMALL, max_jobs=6, horizon=2).setup
    network = JobSetPolicy(observation_space(setup.settings), action_space(), lambda _: 0.0, width=8)
    settings = AgentSettings.model_validate({"network": {"width": 8}})
    manifest = {"format": AGENT, **agent_manifest(setup, settings)}
    return _written(lambda path: write_archive(path, manifest, weight_arrays(network), "an agent"))


@fuzzed()
def test_agent(draw: Draw, folder: Path) -> None:
    path = put_file(folder, "agent.safetensors", draw(broken_archive(_agent())))
    agent_of(read_archive(path, (AGENT,)), path)


@cache
def _forecaster(method: str) -> bytes:
    counts = np.random.default_rng(0).poisson(5.0, 400).astype(float)
    return _written(make_forecaster(method).fit(counts, step=3600.0).save)


@fuzzed()
def test_forecaster(draw: Draw, folder: Path) -> None:
    method = draw(st.sampled_from(["smoothing", "season_24h", "arima_log"]))
    forecaster = load_forecaster(put_file(folder, "model.safetensors", draw(broken_archive(_forecaster(method)))))
    forecast = forecaster.update([3.0, 4.0]).predict(6, (0.1, 0.9))
    assert np.isfinite(forecast.point).all(), "a forecast that is not finite"


@fuzzed()
def test_record(draw: Draw, folder: Path) -> None:
    content = _written(lambda path: path.write_bytes(record_bytes(tiny_record())))
    measure(load_record(put_file(folder, "record.safetensors", draw(broken_archive(content)))))


@fuzzed()
def test_run_folder(draw: Draw, folder: Path) -> None:
    """A finished run with one broken file, compared and continued."""
    config = Config()
    begin_run(folder, config)
    cells = [Cell("tiny", "w0", 0)]
    evaluate(cells, lambda _: tiny_record(), folder, False, config={})
    victim = draw(st.sampled_from(sorted(path for path in folder.rglob("*") if path.is_file())))
    content = victim.read_bytes()
    broken = {".json": broken_json, ".yaml": lambda text: broken_yaml(text.decode())}
    victim.write_bytes(draw(broken.get(victim.suffix, broken_archive)(content)))
    refuse_foreign(folder, config)
    read_run_config(folder)
    for finished in load_cells(folder):
        finished.record()
    evaluate(cells, lambda _: tiny_record(), folder, False, config={})


STARTED = {"address": "127.0.0.1:1", "folder": "x", "gpus": [2, 2], "cpus": 4, "durable": False}


@fuzzed()
def test_started_cluster(draw: Draw, folder: Path) -> None:
    path = put_file(folder, "cluster.json", draw(broken_json(as_json(STARTED))))
    with mock.patch.dict(os.environ, RLPTO_STATE=str(path)):
        noted_cluster()


def _enter_session(path: Path) -> None:
    """The database of a session of two jobs that has taken a decision."""
    specs = [JobSpec(f"job-{i}", f"j{i}", "s", "a.b:C", "folder", 8, 1.0, 100) for i in range(2)]
    gain, late = np.array([[0.1, 0.2, 0.3]]), np.array([[9.0, 0.0, 30.0]])
    passed = intervals(gain, 60.0, 120.0, 5.0, late)
    with SessionDatabase(path) as database:
        database.enter_jobs([(spec, 60.0 * i) for i, spec in enumerate(specs)], 0.0)
        for key in ("began", "beat"):
            database.set_fact(key, "5.0")
        database.node_up(NodeInfo("n1", 4, host="host"), 0.0)
        database.decision(
            1.0, policy="fifo", latency=0.01, capacity=4, held=2, active=2, waiting=1, action={"job-0": 2}
        )
        database.add_interval(passed)
        database.plan(["job-0"], [Command("job-0", database.next_generation(), Plan(("n1", "n1")))], 1.0)
        database.change(1.0, "job-0", 2, 0.5, ("n1", "n1"))
        database.improvement("job-0", 1.5, 0.5)
        database.event(2.0, "rescale", "job-0", "n1", 3.0, "2")


@cache
def _session() -> bytes:
    return _written(_enter_session, "session.sqlite")


@fuzzed()
def test_session_database(draw: Draw, folder: Path) -> None:
    """Broken as bytes, or in one of its values, opened by a scheduler and by readers."""
    path = put_file(folder, "state.sqlite", _session())
    if draw(st.booleans()):
        path.write_bytes(draw(broken_bytes(_session())))
    else:
        with closing(sqlite3.connect(path, isolation_level=None)) as base:
            base.execute("PRAGMA ignore_check_constraints = 1")
            for (trigger,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                base.execute(f"DROP TRIGGER {trigger}")  # damage keeps no sums
            table = draw(st.sampled_from(list(SUMMED)))
            column = draw(st.sampled_from([row[1] for row in base.execute(f"PRAGMA table_info({table})")]))
            value = draw(st.sampled_from([value for value in NASTY if not isinstance(value, list | dict)]))
            with suppress(sqlite3.Error, OverflowError):  # values that SQLite keeps out
                base.execute(f"UPDATE {table} SET {column} = ?", (value,))
    read_table(path, "jobs")
    with SessionDatabase(path, lambda _: None) as database:
        decision_records(database, RewardWeights())
        policy_switches(database)
        database.newest_commands()
