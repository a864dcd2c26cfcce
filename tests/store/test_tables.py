"""What the tables hold: jobs, requests, curves, status, programs, users."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.store import curves, events, programs, requests, status
from rlpto.store.database import Store
from rlpto.store.jobs import STATES, JobRow, change_job, insert_job, jobs_to_take_in, list_jobs, still_expected
from rlpto.store.rows import insert, put
from rlpto.store.users import add_token, add_user, token_hash, user_of_token


@given(
    data=st.lists(st.tuples(st.sampled_from(["ann", "bob"]), st.sampled_from(STATES), st.booleans()), max_size=12),
    limit=st.integers(1, 5),
    owner=st.sampled_from([None, "ann"]),
    states=st.lists(st.sampled_from(STATES), max_size=3, unique=True),
    labelled=st.booleans(),
)
def test_pages_hold_every_job_once(
    tmp_path_factory: pytest.TempPathFactory,
    data: list[tuple[str, str, bool]],
    limit: int,
    owner: str | None,
    states: list,
    labelled: bool,
) -> None:
    store = Store(tmp_path_factory.mktemp("store") / "service.sqlite", durable=False)
    expected = []
    for name, state, has_label in data:
        job = insert_job(store, JobRow(name, "a job", "p", 1.0, labels={"a": "b"} if has_label else {}), 1.0)
        change_job(store, job.id, 2.0, state=state)
        if owner in (None, name) and (not states or state in states) and (has_label or not labelled):
            expected.append(job.id)
    found: list[str] = []
    before = None
    label = "a=b" if labelled else None
    while page := list_jobs(store, owner=owner, states=states, label=label, before=before, limit=limit):
        found += [job.id for job in page]
        before = page[-1].seq
    assert found == expected[::-1]


def test_requests_are_answered_once_and_in_order(store: Store) -> None:
    first, second = (requests.ask(store, "cancel", "ann", 1.0, job) for job in ("j1", "j2"))
    assert [request.seq for request in requests.open_requests(store)] == [first, second]
    requests.answer(store, first, 3.0)
    requests.answer(store, first, 4.0, "too late")
    answered = requests.get_request(store, first)
    assert (answered.done_at, answered.problem) == (3.0, "")
    assert [request.seq for request in requests.open_requests(store)] == [second]


def test_a_token_is_known_by_its_hash_alone_until_it_expires(store: Store) -> None:
    add_user(store, "ann", "operator", 1.0)
    token, secret = add_token(store, "ann", "laptop", 2.0, expires=10.0)
    known = user_of_token(store, secret, 9.0)
    assert (known[0].name, known[0].sees_all, known[1]) == ("ann", True, token)
    assert user_of_token(store, secret, 10.0) is None
    stored = [str(value) for row in store.rows("SELECT * FROM tokens") for value in row]
    assert token_hash(secret) in stored
    assert not any(secret in value for value in stored)


def test_points_are_thinned_and_keep_the_newest(store: Store) -> None:
    numbers = [insert(store, "points", job="j1", at=float(i), epoch=float(i), gpus=2) for i in range(11)]
    insert(store, "points", job="j2", at=0.0, epoch=0.0, gpus=2)
    curves.thin_points(store, "j1", 11)
    assert len(curves.points_after(store, "j1")) == 11
    curves.thin_points(store, "j1", 10)
    kept = [point.seq for point in curves.points_after(store, "j1")]
    assert kept == [*numbers[:10:2], numbers[-1]]
    assert [point.seq for point in curves.points_after(store, "j1", numbers[7])] == [numbers[8], numbers[10]]
    assert len(curves.points_after(store, "j2")) == 1


def test_what_was_held_is_counted_and_found_by_the_time_it_overlaps(store: Store) -> None:
    jobs = []
    held = ("a", {"team": "x"}, 2, 0.0), ("a", {"team": "y"}, 1, 3600.0), ("b", {}, 4, 7200.0)
    for owner, labels, gpus, started in held:
        jobs.append(insert_job(store, JobRow(owner, "j", "p", 1.0, labels=labels), 0.0).id)
        insert(store, "spans", job=jobs[-1], owner=owner, node="n", gpus=gpus, started=started)
    curves.close_spans(store, jobs[0], 7200.0)
    assert curves.usage(store, 3600.0, 10_800.0) == [curves.Usage("a", 2, 4.0), curves.Usage("b", 1, 4.0)]
    by_team = curves.usage(store, 0.0, 7200.0, "team")
    assert by_team == [curves.Usage("x", 1, 4.0), curves.Usage("y", 1, 1.0)]
    assert curves.usage(store, 0.0, 9000.0, "team", "b") == [curves.Usage("", 1, 2.0)]
    assert curves.usage(store, 20_000.0, 20_000.0) == []
    for since, until, found in ((0.0, 3000.0, [0]), (7000.0, 7300.0, [2, 1, 0]), (7300.0, 9000.0, [2, 1])):
        assert [span.job for span in curves.spans_between(store, since, until)] == [jobs[at] for at in found]


def test_of_many_events_of_a_job_the_newest_are_shown(store: Store) -> None:
    for number in range(210):
        events.add_event(store, "job", float(number), "j", "ann")
    assert [event.at for event in events.events_of_job(store, "j")] == [float(number) for number in range(10, 210)]


def test_held_jobs_are_not_read_again_and_again(store: Store) -> None:
    made = [insert_job(store, JobRow("ann", name, "p", 1.0), 1.0).id for name in "abc"]
    change_job(store, made[1], 2.0, held_by="ann")
    change_job(store, made[2], 2.0, state="running")
    assert [job.id for job in jobs_to_take_in(store, 9)] == made[:1]
    assert still_expected(store, made) == set(made[:2])
    assert still_expected(store, []) == set()


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
