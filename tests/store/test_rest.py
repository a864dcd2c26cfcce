"""Requests, switches, events, curves, status, programs, audit."""

from __future__ import annotations

from rlpto.store import curves, events, jobs, programs, requests, status, users
from rlpto.store.database import Store


def test_requests_are_answered_once_and_in_order(store: Store) -> None:
    first = requests.ask(store, "cancel", "ann", 1.0, "j1")
    second = requests.ask(store, "policy", "ann", 2.0, body={"policy": "las", "reason": "", "number": 1})
    assert [request.seq for request in requests.open_requests(store)] == [first, second]
    assert requests.is_asked(store, "cancel", "j1")
    requests.answer(store, first, 3.0)
    requests.answer(store, first, 4.0, "too late")
    answered = requests.get_request(store, first)
    assert answered is not None
    assert (answered.done_at, answered.problem) == (3.0, "")
    assert not requests.is_asked(store, "cancel", "j1")
    assert [request.body["policy"] for request in requests.open_requests(store)] == ["las"]


def test_switches_are_numbered(store: Store) -> None:
    assert requests.switch_in_force(store) is None
    requests.add_switch(store, "fifo", "", "start", 1.0, 1.0)
    second = requests.add_switch(store, "las", "ann", "busy", 2.0, 2.5)
    assert (second.number, second.before) == (2, "fifo")
    assert requests.switch_in_force(store) == second
    assert [switch.number for switch in requests.switches(store, before=2)] == [1]


def test_events_resume_after_a_number(store: Store) -> None:
    numbers = [events.add_event(store, "job", float(i), "j1" if i % 2 else None, "ann", {"i": i}) for i in range(5)]
    assert [event.body["i"] for event in events.events_after(store, numbers[1])] == [2, 3, 4]
    assert [event.body["i"] for event in events.events_of_job(store, "j1", numbers[1])] == [3]
    assert (events.first_event(store), events.last_event(store)) == (numbers[0], numbers[-1])


def test_points_are_thinned_and_keep_the_newest(store: Store) -> None:
    numbers = [curves.add_point(store, "j1", float(i), float(i), 2, loss=1.0 / (i + 1)) for i in range(11)]
    curves.add_point(store, "j2", 0.0, 0.0, 1)
    curves.thin_points(store, "j1", 11)
    assert len(curves.points_after(store, "j1")) == 11
    curves.thin_points(store, "j1", 10)
    kept = [point.seq for point in curves.points_after(store, "j1")]
    assert kept == [*numbers[:10:2], numbers[-1]]
    assert [point.seq for point in curves.points_after(store, "j1", numbers[7])] == [numbers[8], numbers[10]]
    assert len(curves.points_after(store, "j2")) == 1


def test_spans_are_found_by_the_time_they_overlap(store: Store) -> None:
    curves.open_span(store, "j1", "ann", "n0", 2, 10.0)
    curves.close_spans(store, "j1", 20.0)
    curves.open_span(store, "j2", "bob", "n1", 1, 15.0)
    assert [span.job for span in curves.spans_between(store, 0.0, 12.0)] == ["j1"]
    assert [span.job for span in curves.spans_between(store, 16.0, 30.0)] == ["j2", "j1"]
    assert [span.job for span in curves.spans_between(store, 21.0, 30.0)] == ["j2"], "one without an end goes on"
    assert [span.ended for span in curves.spans_of_job(store, "j1")] == [20.0]


def test_how_the_cluster_stands_is_replaced(store: Store) -> None:
    assert status.heartbeat(store) is None
    status.beat(store, status.Heartbeat(7, 1.0, decisions=3), 2.0)
    assert status.heartbeat(store) == (2.0, status.Heartbeat(7, 1.0, decisions=3))
    node = status.NodeRow("n0", 2, True, "t4", {"j1": 2})
    status.set_nodes(store, [node], 2.0)
    assert status.nodes(store) == [node]
    rows = [status.QueueRow("j2", 1, 0, "2 GPUs are free, it needs 4"), status.QueueRow("j3", 2, 4, "behind j2")]
    for queue in (rows, rows[1:], []):
        status.set_queue(store, queue)
        assert status.queue(store) == queue
    moved = [status.QueueRow("j3", 1, 0, "first now"), status.QueueRow("j4", 2, 1, "new")]
    for before, queue in (([], rows), (rows, moved), (moved, moved), (moved, [])):
        status.set_queue(store, queue, before)
        assert status.queue(store) == queue
    said = status.PredictionRow("j2", 5.0, "fifo", start=6.0, finish=9.0)
    status.set_predictions(store, [said])
    assert status.prediction(store, "j2") == said
    assert status.predictions(store) == {"j2": said}
    decision = status.DecisionRow(1.0, "fifo", 0.1, 8, 4, 2, 1, -1.5, {"throughput": 1.0, "waiting": -2.5})
    status.add_decision(store, decision)
    assert status.decisions(store, 0.0) == [decision]
    status.set_volume(
        store, [status.VolumeRow(0.0, seen=5.0), status.VolumeRow(600.0, forecast=4.0, low=1.0, high=9.0)]
    )
    status.set_volume(store, [status.VolumeRow(600.0, 3.0, 4.0, 1.0, 9.0)])
    assert [row.seen for row in status.volume(store, 0.0)] == [5.0, 3.0]
    policy = status.PolicyEntry("agent", "a trained agent", "this project")
    status.set_policies(store, [policy])
    assert status.policies(store) == [policy]
    previews = [status.PreviewRow("digits", "goodput", gpus, 4.0 / gpus, 4.0) for gpus in (1, 2)]
    status.set_previews(store, "digits", previews)
    status.set_previews(store, "other", [])
    assert status.previews(store, "digits") == previews


def test_a_program_is_checked_again_when_it_changes(store: Store) -> None:
    assert programs.set_program(store, "digits", {"a": 1}, "root", 1.0) == 1
    programs.note_check(store, "digits", 1, "usable")
    assert programs.set_program(store, "digits", {"a": 1}, "root", 2.0) == 1, "nothing has changed"
    assert programs.set_program(store, "digits", {"a": 1}, "root", 2.0, enabled=False) == 2
    found = programs.get_program(store, "digits")
    assert found is not None
    assert (found.checked, found.enabled) == ("usable", False)
    assert programs.set_program(store, "digits", {"a": 2}, "root", 3.0) == 3
    programs.note_check(store, "digits", 2, "refused", "an old answer")
    assert [(row.name, row.checked, row.problem) for row in programs.all_programs(store)] == [
        ("digits", "unchecked", "")
    ]


def test_the_audit_trail_and_keys(store: Store) -> None:
    users.note_change(store, "ann", "policy.switch", "las", 1.0, {"reason": "busy"})
    users.note_change(store, "root", "user.add", "bob", 2.0)
    assert [row.target for row in users.audit_trail(store)] == ["bob", "las"]
    assert [row.detail for row in users.audit_trail(store, before=2)] == [{"reason": "busy"}]
    jobs.keep_key(store, "ann", "k", "d", "j1", 5.0)
    assert jobs.submitted_before(store, "ann", "k") == ("d", "j1")
    assert jobs.submitted_before(store, "bob", "k") is None
