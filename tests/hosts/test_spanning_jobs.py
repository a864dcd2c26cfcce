"""Jobs whose workers are on two hosts, and cells of evaluations on several hosts, on a bed of three: what faults of
hosts and of the network do to them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rlpto.ray_cluster.nodes.processes import load_factor
from rlpto.ray_cluster.scheduler.session_folder import read_table
from rlpto.service.settings import DATABASE
from tests.hosts.bed import Hosts, NoHostsError, shifted
from tests.hosts.spanning import (
    CHECKPOINT_S,
    FAULTS,
    GPUS,
    HEAD,
    NODES,
    PACE,
    RLPTO,
    WAIT_S,
    Evaluation,
    Outcome,
    cluster,
    lose_head,
    suffer,
)
from tests.ray_cluster.test_real import wait_until
from tests.ray_cluster.test_workers import timeless
from tests.service.served import write_settings

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.usefixtures("allowed")]
STEPS_OF_AN_EPOCH = 23
"""1437 samples in batches of 64."""
CLOCK = """
import ray, sys, time
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
there = ray.remote(num_cpus=0, resources={f"node:{sys.argv[2]}": 0.001})(lambda: time.time())
print(ray.get(there.remote()) - time.time())
"""
"""How far the clock of a host is ahead of the head's."""
Outcomes = Callable[[str], Outcome]


@pytest.fixture(scope="module")
def allowed() -> None:
    """Skips where this machine allows no hosts."""
    try:
        with Hosts(1):
            pass
    except NoHostsError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """What a fault of `FAULTS` does to one job that trains on both hosts, through all faults that are asked for."""
    with cluster(tmp_path_factory.mktemp("hosts")) as ray:
        job = Evaluation(ray)
        yield cache(lambda name: suffer(job, FAULTS[name]))


@pytest.mark.parametrize("name", ["cut for 5 s", "200 ms more each way", "5 % of frames lost"])
def test_a_short_cut_and_a_bad_network_only_slow_a_job_down(outcome: Outcomes, name: str) -> None:
    found = outcome(name)
    assert (found.recoveries, found.lost, found.restarted) == (0, 0, False)
    assert found.distance <= 1e-12


@pytest.mark.parametrize("name", ["cut for 30 s", "killed, there again after 90 s", "head cut for 15 s"])
def test_a_job_trains_on_after_a_host_was_away(outcome: Outcomes, name: str) -> None:
    found = outcome(name)
    assert found.pauses, "it was a fault"
    assert found.lost == 0 or name.startswith("head"), "workers on the other host had the newest state"
    assert found.capacity <= GPUS * len(NODES)
    assert found.distance <= 1e-12


@pytest.mark.parametrize("name", ["cut for 30 s", "killed, there again after 90 s"])
def test_nothing_new_goes_to_a_host_that_does_not_answer(outcome: Outcomes, name: str) -> None:
    found = outcome(name)
    assert found.left < FAULTS[name].seconds
    assert (found.planned, found.held) == (0, 0)


@pytest.mark.parametrize("power", [False, True], ids=["Ray there", "its host"])
def test_the_same_command_continues_after_the_head_was_lost(tmp_path: Path, power: bool) -> None:
    with cluster(tmp_path) as ray:
        job = Evaluation(ray)
        found = lose_head(job, power)
        assert job.command.poll() is None
    assert found.distance <= 1e-12
    assert found.lost <= (CHECKPOINT_S + 1) * len(NODES) * GPUS / PACE + 1, "the newest checkpoint, and a look"
    if not power:
        lost = [line for line in found.said if line.startswith("rlpto: the head of the Ray cluster")]
        assert (found.code, len(lost)) == (2, 1), found.said


def test_a_clock_an_hour_ahead_on_one_host_changes_nothing(tmp_path: Path) -> None:
    began = time.time()
    with cluster(tmp_path, {NODES[1]: shifted(tmp_path, 3600.0)}) as ray:
        there = [sys.executable, "-c", CLOCK, ray.address, ray.hosts[NODES[1]].address]
        ahead = float(ray.hosts[HEAD].run(there, WAIT_S, env={**ray.environment, "RAY_AUTH_MODE": "token"}))
        assert 3500 < ahead < 3700, "of a process that Ray starts there"
        job = Evaluation(ray, epochs=6)
        assert job.spans(), job.said()
        assert job.command.wait(WAIT_S) == 0, job.said()
        (row,) = job.table("jobs")
        assert (row["state"], row["step"], row["recoveries"]) == ("finished", 6 * STEPS_OF_AN_EPOCH, 0)
        assert job.distance()[1] <= 1e-12
        times = [one["at"] for name in ("events", "decisions") for one in job.table(name)]
        times += [row[name] for name in ("queued", "started", "ended", "changed")]
    assert began <= min(times) <= max(times) <= time.time()


def test_a_job_of_the_service_finishes_although_a_host_is_cut_off(tmp_path: Path) -> None:
    with cluster(tmp_path) as ray:
        settings = write_settings(tmp_path, len(NODES), GPUS, scheduler={"address": ray.address}, on_stop="end")
        served = ray.rlpto("serve", settings, "--port", "8000")
        log = tmp_path / "said.log"
        wait_until(lambda: "submit:" in log.read_text(), WAIT_S)
        gpus = str(GPUS * len(NODES))
        submit = ray.rlpto("submit", "-p", "tiny", "--gpus", gpus, "--min-gpus", "1", "--epochs", "150", "--wait")

        def job() -> dict[str, Any]:
            assert served.poll() is None, log.read_text()
            columns, rows = read_table(tmp_path / "run" / DATABASE, "jobs")
            return dict(zip(columns, rows[0], strict=True)) if rows else {"progress": 0.0, "gpus_held": 0}

        wait_until(lambda: job()["progress"] > 10 and job()["gpus_held"] == len(NODES) * GPUS, WAIT_S)
        ray.hosts.cut(NODES[1])
        time.sleep(30)
        assert job()["state"] == "running"
        ray.hosts.heal(NODES[1])
        assert submit.wait(WAIT_S * load_factor()) == 0, log.read_text()
        assert (job()["state"], job()["step"]) == ("finished", 150 * 7)
        served.send_signal(2)
        served.wait(WAIT_S)


PROJECT = "from pathlib import Path; from tests.ray_cluster.experiments import write_project as w; w(Path('/tmp/p/p'))"


def test_cells_have_their_digits_although_no_other_host_sees_their_files_and_one_is_cut_off(tmp_path: Path) -> None:
    with cluster(tmp_path) as ray:
        head, policies = ray.hosts[HEAD], f"--policies=fifo,index:weights=mine.yaml,own.py:Own:until={tmp_path}/go"
        head.run([sys.executable, "-c", PROJECT], WAIT_S, env=ray.environment)

        def evaluate(run: str, *more: str) -> subprocess.Popen[Any]:
            command = [*RLPTO, "evaluate", "exp.yaml", policies, "-q", "--no-report", f"--run-dir={tmp_path / run}"]
            return head.popen(["sh", "-c", 'cd /tmp/p/p && exec "$@"', "sh", *command, *more], env=ray.environment)

        far = evaluate("far", f"--workers={ray.address}")
        wait_until(
            lambda: len(list((tmp_path / "far" / "cells").glob("*.json"))) == 4 or far.poll() is not None, WAIT_S
        )
        ray.hosts.cut(NODES[1])  # tasks of the policy that waits may be there; they are repeated
        (tmp_path / "go").touch()
        assert far.wait(WAIT_S * load_factor()) == 0
        assert evaluate("here").wait(WAIT_S) == 0
    assert len(timeless(tmp_path / "far")) == 8, "three policies and the lower bound on two windows"
    assert timeless(tmp_path / "far") == timeless(tmp_path / "here")
