"""Which policy decides in a service: switched to, being made ready, or one that fails; in virtual time."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from rlpto.core.cluster import ClusterState
from rlpto.core.policy import Policy
from rlpto.io.arrays import IntArray
from rlpto.io.errors import ConfigError
from rlpto.policies.registry import make_policy
from rlpto.service.scheduler.policy_catalogue import PolicyWarmup
from rlpto.store.curves import spans_of_job
from rlpto.store.database import StoreError
from rlpto.store.requests import answer, switch_in_force
from rlpto.store.status import decisions
from tests.builders import Scripted
from tests.service.scheduler.virtual import VirtualService, config


def test_while_a_policy_is_made_ready_jobs_go_on_under_the_old_one(tmp_path: Path) -> None:
    ready = set[str]()
    service = VirtualService(tmp_path, ready=ready.__contains__)
    first = service.submit()
    slow = service.ask("policy", policy="las")
    behind = service.ask("policy", policy="sjf")
    in_vain = service.ask("policy", policy="srtf")
    ready.add("sjf")
    service.until(first, "finished")
    assert [one.policy for one in service.switches()] == ["fifo"], "requests are met in order"
    answer(service.store, in_vain, service.now(), "withdrawn")
    ready.update(("las", "srtf"))
    service.run(lambda: service.problem(behind) is not None)
    assert [one.policy for one in service.switches()] == ["sjf", "las", "fifo"]
    assert (service.problem(slow), service.problem(behind)) == ("", "")


def test_an_agent_is_switched_to_by_its_name_in_the_catalogue(tmp_path: Path) -> None:
    settings = {"scheduler": {"policies": {"agent": "pretrained:synthetic"}}}
    service = VirtualService(tmp_path, settings=settings)
    job, number = service.submit(gpus=2, max_gpus=4), service.ask("policy", policy="agent")
    service.until(job, "running")
    assert service.problem(number) == ""
    assert decisions(service.store, 0.0)[-1].policy == "agent"


def test_another_policy_is_in_force_at_once_also_when_idle(service: VirtualService) -> None:
    first = service.ask("policy", policy="elastic_fifo", reason="more", number=1)
    stale = service.ask("policy", policy="las", reason="", number=1)
    wrong = service.ask("policy", policy="none_such", reason="", number=2)
    service.steps(2)
    assert service.problem(first) == ""
    assert service.problem(stale) == "the policy was switched before: elastic_fifo is in force"
    assert "no policy 'none_such' in the catalogue" in str(service.problem(wrong))
    now = switch_in_force(service.store)
    assert (now.number, now.policy, now.before, now.by, now.reason) == (2, "elastic_fifo", "fifo", "op", "more")
    service.downtime = 10.0
    service.restart()
    assert service.loop.policy.name == "elastic_fifo", "a restart takes up the policy in force"


@pytest.mark.parametrize("error", [ZeroDivisionError("by a plug-in"), StoreError("locked")])
def test_fifo_decides_where_a_policy_fails_but_not_where_the_database_does(tmp_path: Path, error: Exception) -> None:
    decisions = 0

    def decide(state: ClusterState) -> IntArray:
        nonlocal decisions
        decisions += 1
        if decisions == 3:
            raise error
        return state.jobs.requested_gpus

    def make(spec: str) -> Policy:
        return Scripted(decide, "broken") if spec == "las" else make_policy(spec)

    service = VirtualService(tmp_path, make=make, settings={"scheduler": {"policy": "las"}})
    jobs = [service.submit(epochs=1.0 + 0.1 * number) for number in range(5)]
    if isinstance(error, StoreError):
        with pytest.raises(StoreError, match="locked"):
            service.until(jobs[-1], "finished")
        assert [one.policy for one in service.switches()] == ["las"]
    else:
        service.until(jobs[-1], "finished")
        assert [one.policy for one in service.switches()] == ["fifo", "las"]
        reason = service.switches()[0].reason
        assert re.fullmatch(r"las failed: .*builders\.py:\d+: ZeroDivisionError: by a plug-in", reason)


def test_policies_are_made_ready_one_after_the_other_and_one_that_cannot_be_is_asked_for_no_less() -> None:
    go_on, begun, said = threading.Event(), list[str](), list[str]()

    def make_ready(spec: str) -> None:
        begun.append(spec)
        go_on.wait(10)
        if spec == "agent:run=x":
            raise ConfigError("no such\nrun")
        if spec == "ends":
            sys.exit(3)

    warmup = PolicyWarmup(make_ready, said.append)
    assert not any(map(warmup, ("pollux", "agent:run=x", "pollux"))), "nobody waits"
    go_on.set()
    while not warmup("agent:run=x"):
        time.sleep(0.005)
    assert warmup("pollux")
    assert begun == ["pollux", "agent:run=x"], "each once"
    assert said == ["policy agent:run=x cannot be used: no such run"]
    warmup("ends")
    while not warmup("after it"):
        time.sleep(0.005)
    assert said[1:] == ["policy ends cannot be used: 3"]


def three_nodes(folder: Path, policy: str) -> VirtualService:
    """A service on three nodes of two GPUs."""
    folder.mkdir(exist_ok=True)
    setup = config(cluster={"nodes": [{"count": 3, "gpus": 2}]})
    return VirtualService(folder, setup, settings={"scheduler": {"policy": policy}})


def test_s3_round_robin_gives_nodes_equally_many_jobs_and_fifo_fills_one_after_the_other(tmp_path: Path) -> None:
    packed = {}
    for policy in ("fifo", "round_robin"):
        service = three_nodes(tmp_path / policy, policy)
        jobs = [service.submit(epochs=1.0) for _ in range(3)]
        service.until(jobs[-1], "running")
        jobs += [service.submit(epochs=0.5) for _ in range(3)] if policy == "round_robin" else []
        service.run(lambda service=service, jobs=jobs: {service.row(job).state for job in jobs} == {"finished"})
        packed[policy] = Counter(spans_of_job(service.store, job)[0].node for job in jobs)
    assert sorted(packed["fifo"].values()) == [1, 2], "a job more than fits on one node"
    assert list(packed["round_robin"].values()) == [2, 2, 2]


def test_s4_fifo_starts_jobs_in_the_order_of_submission(tmp_path: Path) -> None:
    service = three_nodes(tmp_path, "fifo")
    jobs = [service.submit(epochs=1.0, gpus=gpus, max_gpus=gpus) for gpus in (2, 1, 4, 1, 3, 2)]
    service.until(jobs[-1], "finished")
    starts = [service.row(job).started for job in jobs]
    assert starts == sorted(starts)
    assert starts[0] < starts[-1], "some have waited"
