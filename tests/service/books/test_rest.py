"""Requests, switches, events, curves, status, programs, audit."""

from __future__ import annotations

from rlpto.service.books import audit, curves, events, programs, requests, status
from rlpto.service.books.database import Books


def test_requests_are_answered_once_and_in_order(books: Books) -> None:
    first = requests.ask(books, "cancel", "ann", 1.0, "j1")
    second = requests.ask(books, "policy", "ann", 2.0, body={"policy": "las", "reason": "", "number": 1})
    assert [request.seq for request in requests.open_requests(books)] == [first, second]
    assert requests.is_asked(books, "cancel", "j1")
    requests.answer(books, first, 3.0)
    requests.answer(books, first, 4.0, "too late")
    answered = requests.get_request(books, first)
    assert answered is not None
    assert (answered.done_at, answered.problem) == (3.0, "")
    assert not requests.is_asked(books, "cancel", "j1")
    assert [request.body["policy"] for request in requests.open_requests(books)] == ["las"]


def test_switches_are_numbered(books: Books) -> None:
    assert requests.switch_in_force(books) is None
    requests.add_switch(books, "fifo", "", "start", 1.0, 1.0)
    second = requests.add_switch(books, "las", "ann", "busy", 2.0, 2.5)
    assert (second.number, second.before) == (2, "fifo")
    assert requests.switch_in_force(books) == second
    assert [switch.number for switch in requests.switches(books, before=2)] == [1]


def test_events_resume_after_a_number(books: Books) -> None:
    numbers = [events.add_event(books, "job", float(i), "j1" if i % 2 else None, "ann", {"i": i}) for i in range(5)]
    assert [event.body["i"] for event in events.events_after(books, numbers[1])] == [2, 3, 4]
    assert [event.body["i"] for event in events.events_of_job(books, "j1", numbers[1])] == [3]
    assert (events.first_event(books), events.last_event(books)) == (numbers[0], numbers[-1])


def test_points_are_thinned_and_keep_the_newest(books: Books) -> None:
    numbers = [curves.add_point(books, "j1", float(i), float(i), 2, loss=1.0 / (i + 1)) for i in range(11)]
    curves.add_point(books, "j2", 0.0, 0.0, 1)
    curves.thin_points(books, "j1", 11)
    assert len(curves.points_after(books, "j1")) == 11
    curves.thin_points(books, "j1", 10)
    kept = [point.seq for point in curves.points_after(books, "j1")]
    assert kept == [*numbers[:10:2], numbers[-1]]
    assert [point.seq for point in curves.points_after(books, "j1", numbers[7])] == [numbers[8], numbers[10]]
    assert len(curves.points_after(books, "j2")) == 1


def test_spans_are_found_by_the_time_they_overlap(books: Books) -> None:
    curves.open_span(books, "j1", "ann", "n0", 2, 10.0)
    curves.close_spans(books, "j1", 20.0)
    curves.open_span(books, "j2", "bob", "n1", 1, 15.0)
    assert [span.job for span in curves.spans_between(books, 0.0, 12.0)] == ["j1"]
    assert [span.job for span in curves.spans_between(books, 16.0, 30.0)] == ["j2", "j1"]
    assert [span.job for span in curves.spans_between(books, 21.0, 30.0)] == ["j2"], "one without an end goes on"
    assert [span.ended for span in curves.spans_of_job(books, "j1")] == [20.0]


def test_how_the_cluster_stands_is_replaced(books: Books) -> None:
    assert status.heartbeat(books) is None
    status.beat(books, status.Heartbeat(7, 1.0, decisions=3), 2.0)
    assert status.heartbeat(books) == (2.0, status.Heartbeat(7, 1.0, decisions=3))
    node = status.NodeRow("n0", 2, True, "t4", {"j1": 2})
    status.set_nodes(books, [node], 2.0)
    assert status.nodes(books) == [node]
    rows = [status.QueueRow("j2", 1, 0, "2 GPUs are free, it needs 4"), status.QueueRow("j3", 2, 4, "behind j2")]
    for queue in (rows, rows[1:], []):
        status.set_queue(books, queue)
        assert status.queue(books) == queue
    moved = [status.QueueRow("j3", 1, 0, "first now"), status.QueueRow("j4", 2, 1, "new")]
    for before, queue in (([], rows), (rows, moved), (moved, moved), (moved, [])):
        status.set_queue(books, queue, before)
        assert status.queue(books) == queue
    said = status.PredictionRow("j2", 5.0, "fifo", start=6.0, finish=9.0)
    status.set_predictions(books, [said])
    assert status.prediction(books, "j2") == said
    assert status.predictions(books) == {"j2": said}
    decision = status.DecisionRow(1.0, "fifo", 0.1, 8, 4, 2, 1, -1.5, {"throughput": 1.0, "waiting": -2.5})
    status.add_decision(books, decision)
    assert status.decisions(books, 0.0) == [decision]
    status.set_volume(
        books, [status.VolumeRow(0.0, seen=5.0), status.VolumeRow(600.0, forecast=4.0, low=1.0, high=9.0)]
    )
    status.set_volume(books, [status.VolumeRow(600.0, 3.0, 4.0, 1.0, 9.0)])
    assert [row.seen for row in status.volume(books, 0.0)] == [5.0, 3.0]
    policy = status.PolicyRow("agent", "agent:run=runs/philly", "a trained agent", "this project")
    status.set_policies(books, [policy])
    assert status.policies(books) == [policy]
    previews = [status.PreviewRow("digits", "goodput", gpus, 4.0 / gpus, 4.0) for gpus in (1, 2)]
    status.set_previews(books, "digits", previews)
    status.set_previews(books, "other", [])
    assert status.previews(books, "digits") == previews


def test_a_program_is_checked_again_when_it_changes(books: Books) -> None:
    assert programs.set_program(books, "digits", {"a": 1}, "root", 1.0) == 1
    programs.note_check(books, "digits", 1, "usable")
    assert programs.set_program(books, "digits", {"a": 1}, "root", 2.0) == 1, "nothing has changed"
    assert programs.set_program(books, "digits", {"a": 1}, "root", 2.0, enabled=False) == 2
    found = programs.get_program(books, "digits")
    assert found is not None
    assert (found.checked, found.enabled) == ("usable", False)
    assert programs.set_program(books, "digits", {"a": 2}, "root", 3.0) == 3
    programs.note_check(books, "digits", 2, "refused", "an old answer")
    assert [(row.name, row.checked, row.problem) for row in programs.all_programs(books)] == [
        ("digits", "unchecked", "")
    ]


def test_the_audit_trail_and_keys(books: Books) -> None:
    audit.note(books, "ann", "policy.switch", "las", 1.0, {"reason": "busy"})
    audit.note(books, "root", "user.add", "bob", 2.0)
    assert [row.target for row in audit.audit_trail(books)] == ["bob", "las"]
    assert [row.detail for row in audit.audit_trail(books, before=2)] == [{"reason": "busy"}]
    audit.keep_key(books, "ann", "k", "d", "j1", 5.0)
    assert audit.submitted_before(books, "ann", "k") == ("d", "j1")
    assert audit.submitted_before(books, "bob", "k") is None
    audit.forget_keys(books, 6.0)
    assert audit.submitted_before(books, "ann", "k") is None
