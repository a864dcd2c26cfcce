from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rlpto.service.web.routes import cluster
from rlpto.store import requests, status
from rlpto.store.requests import switch_in_force
from rlpto.store.rows import put, put_all
from tests.service.web.helpers import Api, scheduler_answers
from tests.service.web.test_jobs import problem


class TestPolicies:
    def test_a_switch_answers_once_it_is_in_force(self, api: Api) -> None:
        before = api("GET", "policy", "olga")
        assert (before.json()["policy"], before.headers["ETag"]) == ("fifo", '"1"')
        with scheduler_answers(api.settings.database):
            answer = api("PUT", "policy", "olga", json={"policy": "las", "reason": "busy"}, headers={"If-Match": '"1"'})
        assert (answer.status_code, answer.headers["ETag"]) == (200, '"2"')
        assert api("GET", "policy").json()["policy"] == "las"
        now = switch_in_force(api.store)
        assert (now.policy, now.before, now.by, now.reason) == ("las", "fifo", "olga", "busy")
        trail = api("GET", "audit", "root").json()["audit"]
        assert [(row["by"], row["action"], row["target"]) for row in trail] == [("olga", "policy.switch", "las")]

    def test_a_switch_that_takes_long_is_shown(self, api: Api) -> None:
        assert api("GET", "policy").json()["preparing"] is None
        requests.ask(api.store, "policy", "olga", 7.0, body={"policy": "pollux", "number": 1})
        found = api("GET", "policy").json()
        assert (found["policy"], found["preparing"], found["preparing_since"]) == ("fifo", "pollux", 7.0)

    def test_of_two_switches_of_one_etag_one_is_made(self, api: Api) -> None:
        def put(policy: str) -> int:
            answer = api("PUT", "policy", "olga", json={"policy": policy}, headers={"If-Match": '"1"'})
            return int(answer.status_code)

        with scheduler_answers(api.settings.database), ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(put, ("las", "round_robin"))) == [200, 412]
        assert api("GET", "policy").json()["number"] == 2

    def test_who_may_not_and_what_is_missing(self, api: Api) -> None:
        problem(api("PUT", "policy", "ann", json={"policy": "las"}), 403, "role-needed")
        problem(api("PUT", "policy", "olga", json={"policy": "las"}), 428, "if-match-needed")
        for stale in ('"0"', "*"):
            answer = api("PUT", "policy", "olga", json={"policy": "las"}, headers={"If-Match": stale})
            problem(answer, 412, "stale")
        for name in ("nothing", "agent:run=/etc", "fifo>3600:las"):
            problem(api("PUT", "policy", "olga", json={"policy": name}, headers={"If-Match": '"1"'}), 422, "not-valid")
        assert requests.open_requests(api.store) == []

    def test_a_policy_that_cannot_decide_leaves_the_one_in_force(self, api: Api) -> None:
        with scheduler_answers(api.settings.database, lambda _: "las needs something"):
            answer = api("PUT", "policy", "olga", json={"policy": "las"}, headers={"If-Match": '"1"'})
        assert problem(answer, 409, "policy-refused") == "las needs something"
        assert api("GET", "policy").json()["number"] == 1

    def test_a_scheduler_that_is_starting_is_to_be_asked_again(self, api: Api) -> None:
        put_all(api.store, status.PolicyEntry, [])
        answer = api("PUT", "policy", "olga", json={"policy": "las"}, headers={"If-Match": '"1"'})
        assert "starting" in problem(answer, 503, "no-scheduler")
        assert answer.headers["Retry-After"] == "5"

    def test_a_switch_is_withdrawn_when_no_scheduler_answers(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 0.1)
        answer = api("PUT", "policy", "olga", json={"policy": "las"}, headers={"If-Match": '"1"'})
        problem(answer, 503, "no-scheduler")
        assert requests.open_requests(api.store) == [], "it is not made later either"

    def test_a_scheduler_that_lives_is_waited_for(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 0.3)

        status.beat(api.store, status.Heartbeat(1, 0.0), time.time() + 10)

        def put() -> Any:
            return api("PUT", "policy", "olga", json={"policy": "las"}, headers={"If-Match": '"1"'})

        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(put)
            time.sleep(0.8)
            with scheduler_answers(api.settings.database):
                answer = asked.result()
        assert (answer.status_code, answer.json()["policy"]) == (200, "las")


def test_draining(api: Api) -> None:
    problem(api("PUT", "drain", "ann", json={"on": True}), 403, "role-needed")
    with scheduler_answers(api.settings.database):
        assert api("PUT", "drain", "olga", json={"on": True}).status_code == 202
        while not status.is_drained(api.store):
            time.sleep(0.01)
    assert "drained: no job starts" in api("GET", "/parts/tiles").text


def test_a_node_is_announced_to_go(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    ask: dict[str, Any] = {"json": {"seconds": 600}}
    problem(api("POST", "nodes/node-1/drain", "ann", **ask), 403, "role-needed")
    said = problem(api("POST", "nodes/node/drain", "olga", **ask), 404, "no-such-node")
    assert said == "4 nodes that are up begin with node: expected one of node-0, node-1, node-2, node-3"
    with scheduler_answers(api.settings.database):
        found = api("POST", "nodes/node-1/drain", "olga", **ask).json()
    assert (found["id"], round((found["leaves"] - time.time()) / 600)) == ("node-1", 1)
    shown = api("GET", "/parts/nodes").text
    assert shown.count("leaves at") == 1
    trail = api("GET", "audit", "root").json()["audit"]
    assert [(row["by"], row["action"], row["target"]) for row in trail] == [("olga", "node.drain", "node-1")]
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 0.1)
    problem(api("POST", "nodes/node-2/drain", "olga", **ask), 503, "no-scheduler")
    assert requests.open_requests(api.store) == [], "it is not announced later either"


def test_nodes_show_what_labels_say(api: Api) -> None:
    put(api.store, [status.NodeRow("node-9", 2, True, "h100", zone="us-east-1a", spot=True)])
    found = {node["id"]: (node["zone"], node["spot"]) for node in api("GET", "nodes").json()["nodes"]}
    assert (found["node-9"], found["node-0"]) == (("us-east-1a", True), ("", False))
    shown = api("GET", "/parts/nodes").text
    assert [shown.count(f">{label}<") for label in ("h100", "us-east-1a", "spot")] == [1, 1, 1]


def test_whether_it_is_ready(api: Api) -> None:
    assert api("GET", "/healthz", None).json() == {"status": "ok"}
    problem(api("GET", "/readyz", None), 503, "no-scheduler")
    status.beat(api.store, status.Heartbeat(1, 0.0), time.time())
    assert api("GET", "/readyz", None).json() == {"status": "ready"}
    status.beat(api.store, status.Heartbeat(1, 0.0), time.time() - 60)
    problem(api("GET", "/readyz", None), 503, "no-scheduler")


def test_decisions_and_volume(api: Api) -> None:
    now = time.time()
    put(api.store, [status.DecisionRow(now, "fifo", 0.01, 8, 4, 2, 1, -1.0, {"waiting": -1.0})])
    status.set_volume(api.store, [status.VolumeRow(now, 5.0, 4.0, 1.0, 9.0)])
    assert api("GET", "decisions").json()["decisions"][0]["parts"] == {"waiting": -1.0}
    assert api("GET", "volume").json()["volume"][0]["high"] == 9.0
    assert api("GET", "decisions", params={"since": now + 1}).json() == {"decisions": []}
