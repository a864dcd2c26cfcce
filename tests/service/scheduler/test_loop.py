"""The scheduler of a service, in virtual time."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlpto.experiments.config import Config
from rlpto.io.errors import ClusterError
from rlpto.performance.profiles import profile_yaml
from rlpto.performance.size_table import SizeTable
from rlpto.ray_cluster.settings import ProgramSettings
from rlpto.service import parent
from rlpto.service.scheduler import __main__ as process
from rlpto.service.scheduler import source
from rlpto.service.scheduler.catalogue import FAILED_KEPT_S, ProgramChecks
from rlpto.store.curves import points_after, spans_of_job
from rlpto.store.events import events_of_job
from rlpto.store.program_keys import SCRIPTS
from rlpto.store.programs import all_programs
from rlpto.store.rows import put
from rlpto.store.status import decisions, heartbeat, nodes, policies, previews, queue
from rlpto.store.users import add_user, change_user
from tests.service.scheduler import virtual
from tests.service.scheduler.virtual import PROGRAM, Inline, VirtualBackend, VirtualService, config
from tests.service.web.helpers import make_settings
from tests.slow import few


def test_a_job_is_queued_started_trained_and_finished(service: VirtualService) -> None:
    job = service.submit(gpus=2, max_gpus=2)
    service.until(job, "running")
    assert service.row(job).gpus_held == 2
    assert sum(span.gpus for span in spans_of_job(service.store, job)) == 2
    service.until(job, "finished")
    service.steps(3)
    row = service.row(job)
    assert row.progress == pytest.approx(2.0)
    assert row.gpu_seconds > 0
    assert row.gpus_held == 0
    assert all(span.ended is not None for span in spans_of_job(service.store, job))
    seen = [event.body["state"] for event in events_of_job(service.store, job) if "state" in event.body]
    assert list(dict.fromkeys(seen)) == ["queued", "starting", "running", "finished"]
    assert seen.count("queued") == 1, "a job that has finished does not wait again"
    times = [event.at for event in events_of_job(service.store, job)]
    assert times == sorted(times)
    epochs = [point.epoch for point in points_after(service.store, job)]
    assert epochs == sorted(epochs)
    assert len(epochs) > 10
    assert decisions(service.store, 0.0)[-1].policy == "fifo"
    assert heartbeat(service.store)[1].decisions > 0
    assert [(node.gpus, node.alive) for node in nodes(service.store)] == [(2, True), (2, True)]
    assert "elastic_fifo" in {row.name for row in policies(service.store)}


def test_previews_are_of_programs_whose_speed_is_known_and_once_if_metrics_agree(tmp_path: Path) -> None:
    service = VirtualService(tmp_path, programs={"tiny": PROGRAM, "script": {"training": SCRIPTS}})
    assert [(row.metric, row.gpus) for row in previews(service.store, "tiny")] == [("any", 1), ("any", 2), ("any", 4)]
    assert previews(service.store, "script") == [], "nobody has measured it"


def test_waiting_jobs_know_their_place_and_why_they_wait(service: VirtualService) -> None:
    jobs = [service.submit(gpus=2, max_gpus=2, epochs=50.0) for _ in range(4)]
    service.until(jobs[1], "running")
    rows = queue(service.store)
    assert [(row.job, row.position, row.gpus_ahead) for row in rows] == [(jobs[2], 1, 0), (jobs[3], 2, 2)]
    assert rows[0].reason == "it asks for 2 GPUs; jobs that run or start are given 4 of 4"


def test_jobs_that_cannot_run_are_rejected_with_a_reason(tmp_path: Path) -> None:
    programs = {"tiny": PROGRAM, "broken": {**PROGRAM, "training": "other:Class"}}
    service = VirtualService(tmp_path, programs=programs)
    wrong = {
        service.submit(gpus=9, max_gpus=9): "it asks for 9 GPUs, and the cluster has 4 for one job",
        service.submit(program="broken"): "other:Class cannot be used: no such class",
        service.submit(epochs=1.0, program="nothing"): "no program nothing in the catalogue",
    }
    service.loop.step()
    for job, reason in wrong.items():
        assert (service.row(job).state, service.row(job).reason) == ("rejected", reason)


def test_programs_are_added_changed_and_deleted_while_jobs_run(service: VirtualService) -> None:
    first = service.submit(gpus=2, max_gpus=2, epochs=8.0)
    service.until(first, "running")
    service.set_programs({"late": {**PROGRAM, "samples": 400}, "broken": {**PROGRAM, "training": "other:Class"}})
    jobs = [service.submit(epochs=1.0, program="late") for _ in range(2)]
    seen: set[str] = set()

    def over() -> bool:
        seen.update(service.row(job).state for job in jobs)
        return all(service.row(job).is_over for job in jobs)

    service.run(over)
    assert seen <= {"submitted", "checking", "queued", "starting", "running", "finished"}
    assert [service.row(job).state for job in (first, *jobs)] == ["running", "finished", "finished"]
    assert checked(service) == {"tiny": ("usable", ""), "late": ("usable", ""), "broken": ("refused", "no such class")}
    hours = previews(service.store, "late")[0].hours
    service.set_programs({"late": {**PROGRAM, "samples": 800}})
    service.run(lambda: previews(service.store, "late")[0].hours > 1.5 * hours)
    service.until(service.submit(epochs=1.0, program="late"), "finished")
    put(service.store, [replace(row, checked="deleted") for row in all_programs(service.store)])
    service.restart()
    service.until(first, "finished")
    assert {said for said, _ in checked(service).values()} == {"deleted"}
    assert service.row(first).progress == pytest.approx(8.0)


def checked(service: VirtualService) -> dict[str, tuple[str, str]]:
    """Whether programs can train, and why not."""
    return {row.name: (row.checked, row.problem) for row in all_programs(service.store)}


def test_jobs_whose_program_is_being_checked_hold_up_no_others(
    service: VirtualService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.set_programs({"slow": PROGRAM})
    catalogue = service.loop.catalogue
    judge = catalogue.problem
    monkeypatch.setattr(catalogue, "problem", lambda row: None if row.program == "slow" else judge(row))
    monkeypatch.setattr(source, "MOST_AT_ONCE", 2)
    slow = [service.submit(program="slow") for _ in range(3)]
    service.steps(3)
    other = service.submit()
    service.steps(3)
    assert service.row(other).state == "running"
    monkeypatch.setattr(catalogue, "problem", judge)
    service.run(lambda: all(service.row(job).state == "finished" for job in (*slow, other)))


def test_a_program_is_judged_by_what_it_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ""
    monkeypatch.setattr(virtual, "problem_of", lambda *_: problem)
    service = VirtualService(tmp_path)
    for samples, problem in ((100, ""), (200, "no such class"), (200, ""), (300, "no such class")):
        service.set_programs({"tiny": {**PROGRAM, "samples": samples}})
        service.steps(2)
        assert checked(service) == {"tiny": ("refused" if problem else "usable", problem)}


def test_cancelled_jobs_end_wherever_they_are(service: VirtualService) -> None:
    running, waiting = (service.submit(gpus=4, max_gpus=4, epochs=50.0) for _ in range(2))
    service.until(running, "running")
    asked = [service.ask("cancel", job) for job in (running, waiting)]
    service.until(running, "cancelled")
    service.steps(3)
    for job, request in zip((running, waiting), asked, strict=True):
        assert service.row(job).state == "cancelled"
        assert service.problem(request) == ""
    assert not service.backend.controllers
    late = service.ask("cancel", running)
    service.loop.step()
    assert service.problem(late) == "it has ended"


def test_many_jobs_that_are_cancelled_together_are_each_looked_at_a_few_times(
    service: VirtualService, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [service.submit(gpus=2, max_gpus=2, epochs=50.0) for _ in range(200)]
    service.until(jobs[-1], "queued")
    for job in jobs:
        service.ask("cancel", job)
    database, read = service.database, 0
    find_rows = database.rows

    def counted(*given: Any) -> list[tuple[Any, ...]]:
        nonlocal read
        found = find_rows(*given)
        read += len(found)
        return found

    monkeypatch.setattr(database, "rows", counted)
    service.until(jobs[-1], "cancelled")
    assert read < 30 * len(jobs)


@pytest.mark.parametrize("jump", few([7200.0, -7200.0], -7200.0))
def test_a_clock_that_is_set_holds_nothing_up_and_ends_no_job_before_its_time(
    service: VirtualService, jump: float
) -> None:
    first = service.submit(epochs=500.0, most_hours=1.0)
    service.until(first, "running")
    service.clock_error = jump
    service.set_programs({"late": PROGRAM})
    second, third, began = service.submit(epochs=1.0), service.submit(epochs=500.0, most_hours=1.0), service.world.wall
    service.until(second, "finished")
    assert service.world.wall - began < 3000.0
    assert abs(heartbeat(service.store)[0] - service.now()) < 120.0
    assert checked(service)["late"] == ("usable", "")
    times = [event.at for event in events_of_job(service.store, second)]
    assert times == sorted(times)
    for job in (first, third):
        service.until(job, "cancelled")
        assert 3400.0 < service.world.wall - began < 3700.0


def test_a_higher_priority_is_served_first(service: VirtualService) -> None:
    jobs = [service.submit(gpus=4, max_gpus=4) for _ in range(3)]
    service.until(jobs[0], "running")
    service.ask("priority", jobs[2], priority="high")
    service.until(jobs[2], "running")
    assert service.row(jobs[1]).state == "queued"


def test_drained_nothing_starts_and_what_runs_goes_on(service: VirtualService) -> None:
    running = service.submit()
    service.until(running, "running")
    service.ask("drain", on=True)
    waiting = service.submit()
    service.until(running, "finished")
    assert service.row(waiting).state == "queued"
    assert queue(service.store)[0].reason == "no job starts: the service is drained"
    service.ask("drain", on=False)
    service.until(waiting, "finished")


@pytest.mark.parametrize("days", [None, 0])
def test_lengths_are_learnt_from_jobs_that_the_session_has_forgotten(tmp_path: Path, days: float | None) -> None:
    setup = config(knowledge={"remaining": "learnt", "history_days": days})
    service = VirtualService(tmp_path, setup)
    for owner, length in (("ann", 4.0), ("ann", 6.0), ("bob", 20.0), ("bob", 2.0)):
        service.until(service.submit(owner, length), "finished")
    service.loop.retention.in_memory = 2
    job = service.submit("ann", 50.0)

    service.run(lambda: service.loop.cluster.ids == (job,))
    for _ in range(2):
        seen = service.loop.cluster.tracker.knowledge.table_of(np.array([0]))
        assert seen.remaining_known[0] == (days is None)
        if days is None:
            assert seen.epochs[0] == pytest.approx(6.0), "two of hers, and the mean of all counts as a third"
        service.restart()
    service.close()


def test_no_user_holds_more_than_the_quota(tmp_path: Path) -> None:
    service = VirtualService(tmp_path, settings={"scheduler": {"policy": "equal_share"}})
    change_user(service.store, replace(add_user(service.store, "ann", "user", 0.0), gpus_held=2))
    mine = [service.submit(max_gpus=4) for _ in range(3)]
    other = service.submit(owner="bob", epochs=1.0, max_gpus=4)
    most = 0

    def over() -> bool:
        nonlocal most
        most = max(most, sum(service.row(job).gpus_held for job in mine))
        return all(service.row(job).state == "finished" for job in (*mine, other))

    service.run(over)
    assert most == 2
    wide = service.submit(gpus=4, min_gpus=4, max_gpus=4)
    narrow = service.submit(gpus=1)
    service.until(narrow, "running")
    assert queue(service.store)[0].job == wide
    assert queue(service.store)[0].reason == "it needs 4 GPUs, and its owner may hold 2"


@pytest.mark.parametrize("policy", few(["fifo", "elastic_fifo", "equal_share"], "elastic_fifo"))
def test_jobs_go_on_within_a_quota_that_is_lowered(tmp_path: Path, policy: str) -> None:
    service = VirtualService(tmp_path, settings={"scheduler": {"policy": policy}})
    bob, ann = (add_user(service.store, name, "user", 0.0) for name in ("bob", "ann"))
    service.submit(owner="bob", gpus=4, min_gpus=4, max_gpus=4)
    waiting = service.submit(gpus=4, max_gpus=4)
    service.submit(gpus=3, min_gpus=3, max_gpus=3)
    service.run(lambda: len(queue(service.store)) == 2)
    change_user(service.store, replace(ann, gpus_held=2))
    service.until(waiting, "running")
    assert service.row(waiting).gpus_held == 2
    service.until(waiting, "finished")
    service.steps(3)
    assert [row.reason for row in queue(service.store)] == ["it needs 3 GPUs, and its owner may hold 2"]
    running = service.submit(owner="bob", gpus=2, max_gpus=4, epochs=500.0)
    service.until(running, "running")
    change_user(service.store, replace(bob, gpus_held=1))
    if policy != "fifo":  # which takes nothing from a running job
        for _ in range(50):
            service.steps(1)
        assert service.row(running).gpus_held == 1


def test_a_scheduler_that_loses_its_cluster_is_started_again_and_does_not_count_as_wrong_input(
    service: VirtualService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(*connecting: Any, **_: Any) -> None:
        if connecting:
            connecting[-1]()
        raise ClusterError("the head is gone")

    monkeypatch.setattr(service.loop, "step", lost)
    with pytest.raises(SystemExit) as ended:
        process._serve(service.loop, process.StopRequest(keeps=True))
    assert "the head is gone" in capsys.readouterr().err
    codes = [ended.value.code]
    monkeypatch.setattr(process, "real_nodes", lost)
    monkeypatch.setattr(os, "_exit", codes.append)
    with pytest.raises(ClusterError, match="the head is gone"):
        process.serve(make_settings(tmp_path / "new", scheduler={"address": "127.0.0.1:1"}))
    assert codes == [process.LOST, process.LOST]
    assert process.LOST != parent._BAD_INPUT


def test_a_job_comes_after_others_and_is_rejected_where_one_has_not_finished(service: VirtualService) -> None:
    first, other = service.submit(), service.submit()
    both, vain = service.submit(after=(first, other)), service.submit(after=(first,))
    later = service.submit(after=(vain,))
    service.until(first, "running")
    assert [service.row(job).state for job in (both, vain)] == ["submitted"] * 2
    service.ask("cancel", vain)
    service.until(other, "finished")
    assert service.row(first).state == "finished"
    service.until(both, "finished")
    assert service.row(both).reason == ""
    service.until(later, "rejected")
    assert service.row(later).reason == f"it comes after job {vain}, which is cancelled"


def test_a_job_is_cancelled_at_its_time_limit(service: VirtualService) -> None:
    short, long = service.submit(epochs=500.0, most_hours=0.1), service.submit(most_hours=100.0)
    service.until(short, "cancelled")
    row = service.row(short)
    assert row.reason == "cancelled by its time limit"
    assert 360 <= row.ended - row.started < 420
    service.until(long, "finished")


def with_sizes(folder: Path) -> Config:
    """An experiment with a profile by which program `tiny` runs on 2 and 4 GPUs only."""
    guess = ProgramSettings.model_validate(PROGRAM).guessed_profile("tiny")
    path = folder / "profiles.yaml"
    path.write_text(profile_yaml(replace(guess, throughput=SizeTable(((1, 2, 0.25), (2, 4, 0.125))))))
    return config(profiles={"folder": str(path)})


def test_a_job_that_no_allowed_size_suits_is_rejected_and_others_hold_such_sizes_only(tmp_path: Path) -> None:
    service = VirtualService(tmp_path, with_sizes(tmp_path))
    alone, three = service.submit(), service.submit(gpus=3, max_gpus=3)
    service.until(alone, "rejected")
    assert service.row(alone).reason == (
        f"job {alone}: may have 1 to 1 GPUs, but model tiny runs on 2, 4 only (min_gpus, max_gpus)"
    )
    service.until(three, "running")
    assert service.row(three).gpus_held == 2
    service.until(three, "finished")


def test_jobs_that_a_changed_profile_does_not_suit_fail_at_the_next_start(
    service: VirtualService, tmp_path: Path
) -> None:
    alone, pair = service.submit(epochs=5.0), service.submit(gpus=2, max_gpus=2, epochs=5.0)
    for job in (alone, pair):
        service.until(job, "running")
    service.setup = with_sizes(tmp_path)
    service.restart()
    row = service.row(alone)
    assert (row.state, row.gpus_held) == ("failed", 0)
    assert row.reason.endswith("may have 1 to 1 GPUs, but model tiny runs on 2, 4 only (min_gpus, max_gpus)")
    assert events_of_job(service.store, alone)[-1].body == {"state": "failed", "reason": row.reason}
    assert all(span.ended is not None for span in spans_of_job(service.store, alone))
    service.until(pair, "finished")


def test_a_job_waits_while_there_are_not_enough_slots_for_its_servers(tmp_path: Path) -> None:
    setup = config(60.0, cluster={"nodes": [{"count": 2, "gpus": 2, "cpus": 2}]})
    programs = {"tiny": {**PROGRAM, "architecture": "parameter_server", "servers": 3}}
    backend = partial(VirtualBackend, cpus={"n0": 2, "n1": 2})
    service = VirtualService(tmp_path, setup, programs=programs, backend=backend)
    service.backend.kill_node("n1")
    service.loop.step()
    job = service.submit()
    service.until(job, "queued")
    service.restart()
    service.loop.step()
    assert service.row(job).state == "queued"
    service.backend.gpus["n1"] = 2
    service.until(job, "finished")


def test_packages_that_could_not_be_installed_are_tried_again_later() -> None:
    now, found = [0.0], ["no such package", ""]
    checks = ProgramChecks(lambda *_: found.pop(0), Inline(), lambda: now[0])
    later = FAILED_KEPT_S + 1
    for now[0], problem in ((0.0, "no such package"), (FAILED_KEPT_S, "no such package"), (later, ""), (1e6, "")):
        assert checks.problem("a:B", ["x"]) == problem
