"""Requests, curves, status, programs."""

from dataclasses import replace

from rlpto.store import curves, programs, requests, status
from rlpto.store.database import Store
from rlpto.store.jobs import NewJob, insert_job
from rlpto.store.rows import insert, put


def test_requests_are_answered_once_and_in_order(store: Store) -> None:
    first = requests.ask(store, "cancel", "ann", 1.0, "j1")
    second = requests.ask(store, "policy", "ann", 2.0, body={"policy": "las", "reason": "", "number": 1})
    assert [request.seq for request in requests.open_requests(store)] == [first, second]
    assert requests.is_asked(store, "cancel", "j1")
    requests.answer(store, first, 3.0)
    requests.answer(store, first, 4.0, "too late")
    answered = requests.get_request(store, first)
    assert (answered.done_at, answered.problem) == (3.0, "")
    assert not requests.is_asked(store, "cancel", "j1")
    assert [request.body["policy"] for request in requests.open_requests(store)] == ["las"]


def add_point(store: Store, job: str, at: float) -> int:
    return insert(store, "points", job=job, at=at, epoch=at, gpus=2)


def test_points_are_thinned_and_keep_the_newest(store: Store) -> None:
    numbers = [add_point(store, "j1", float(i)) for i in range(11)]
    add_point(store, "j2", 0.0)
    curves.thin_points(store, "j1", 11)
    assert len(curves.points_after(store, "j1")) == 11
    curves.thin_points(store, "j1", 10)
    kept = [point.seq for point in curves.points_after(store, "j1")]
    assert kept == [*numbers[:10:2], numbers[-1]]
    assert [point.seq for point in curves.points_after(store, "j1", numbers[7])] == [numbers[8], numbers[10]]
    assert len(curves.points_after(store, "j2")) == 1


def test_usage_counts_what_was_held_within_the_time(store: Store) -> None:
    jobs = []
    held = ("a", {"team": "x"}, 2, 0.0), ("a", {"team": "y"}, 1, 3600.0), ("b", {}, 4, 7200.0)
    for owner, labels, gpus, started in held:
        jobs.append(insert_job(store, NewJob(owner, "j", "p", 1.0, labels=labels), 0.0).id)
        insert(store, "spans", job=jobs[-1], owner=owner, node="n", gpus=gpus, started=started)
    curves.close_spans(store, jobs[0], 7200.0)
    assert curves.usage(store, 3600.0, 10_800.0) == [curves.Usage("a", 2, 4.0), curves.Usage("b", 1, 4.0)]
    by_team = curves.usage(store, 0.0, 7200.0, "team")
    assert by_team == [curves.Usage("x", 1, 4.0), curves.Usage("y", 1, 1.0)]
    assert curves.usage(store, 0.0, 9000.0, "team", "b") == [curves.Usage("", 1, 2.0)]
    assert curves.usage(store, 20_000.0, 20_000.0) == []


def test_spans_are_found_by_the_time_they_overlap(store: Store) -> None:
    insert(store, "spans", job="j1", owner="ann", node="n0", gpus=2, started=10.0)
    curves.close_spans(store, "j1", 20.0)
    insert(store, "spans", job="j2", owner="bob", node="n1", gpus=1, started=15.0)
    assert [span.job for span in curves.spans_between(store, 0.0, 12.0)] == ["j1"]
    assert [span.job for span in curves.spans_between(store, 16.0, 30.0)] == ["j2", "j1"]
    assert [span.job for span in curves.spans_between(store, 21.0, 30.0)] == ["j2"], "one without an end goes on"
    assert [span.ended for span in curves.spans_of_job(store, "j1")] == [20.0]


def test_of_a_long_queue_what_differs_is_written(store: Store) -> None:
    rows = [status.QueueRow("j2", 1, 0, "2 GPUs are free, it needs 4"), status.QueueRow("j3", 2, 4, "behind j2")]
    moved = [status.QueueRow("j3", 1, 0, "first now"), status.QueueRow("j4", 2, 1, "new")]
    for before, queue in (([], rows), (rows, rows[1:]), ([], rows), (rows, moved), (moved, moved), (moved, [])):
        status.set_queue(store, queue, before)
        assert status.queue(store) == queue


def test_a_forecast_of_volume_stays_when_the_step_is_over(store: Store) -> None:
    status.set_volume(store, [status.VolumeRow(0.0, 5.0), status.VolumeRow(600.0, None, 4.0, 1.0, 9.0)])
    status.set_volume(store, [status.VolumeRow(600.0, seen=3.0)])
    assert status.volume(store, 0.0) == [status.VolumeRow(0.0, 5.0), status.VolumeRow(600.0, 3.0, 4.0, 1.0, 9.0)]


def test_a_program_is_checked_again_when_it_has_changed_or_takes_no_jobs(store: Store) -> None:
    def checked() -> dict[str, str]:
        return {row.name: row.checked for row in programs.all_programs(store)}

    specs = {name: {"samples": 1} for name in ("kept", "other", "refused", "deleted")}
    programs.set_programs(store, specs)
    rows = {row.name: row for row in programs.all_programs(store)}
    put(store, [replace(rows["deleted"], checked="deleted")])
    for row in rows.values():
        programs.note_check(store, row, "no such class" if row.name == "refused" else "")
    assert checked() == {"kept": "usable", "other": "usable", "refused": "refused", "deleted": "deleted"}
    programs.set_programs(store, specs | {"other": {"samples": 2}})
    assert checked() == {"kept": "usable"} | dict.fromkeys(("other", "refused", "deleted"), "unchecked")
    programs.note_check(store, rows["other"], "an old answer")
    assert checked()["other"] == "unchecked"
