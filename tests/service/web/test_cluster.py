"""Policies and how they are switched, draining, nodes, decisions, volume, whether the service is ready, and metrics:
deploy/monitoring asks for what /metrics answers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlpto.service.web.routes import cluster
from rlpto.store import requests, status
from rlpto.store.jobs import STATES, change_job
from rlpto.store.requests import switch_in_force
from rlpto.store.rows import put, put_all
from tests.service.web.helpers import Api, problem, scheduler_answers

MONITORING = Path(__file__).parents[3] / "deploy" / "monitoring"


def switch(api: Api, policy: str = "las", tag: str = '"1"', **more: Any) -> Any:
    return api("PUT", "policy", "olga", json={"policy": policy, **more}, headers={"If-Match": tag})


class TestPolicies:
    def test_a_switch_answers_once_it_is_in_force(self, api: Api) -> None:
        before = api("GET", "policy", "olga")
        assert (before.json()["policy"], before.headers["ETag"]) == ("fifo", '"1"')
        with scheduler_answers(api.settings.database):
            answer = switch(api, reason="busy")
        assert (answer.status_code, answer.headers["ETag"]) == (200, '"2"')
        assert api("GET", "policy").json()["policy"] == "las"
        now = switch_in_force(api.store)
        assert (now.policy, now.before, now.by, now.reason) == ("las", "fifo", "olga", "busy")
        assert api.audit() == [("olga", "policy.switch", "las")]

    def test_a_switch_to_the_policy_in_force_changes_nothing(self, api: Api) -> None:
        answer = switch(api, "fifo")
        assert (answer.status_code, answer.headers["ETag"], answer.json()["policy"]) == (200, '"1"', "fifo")
        assert (requests.open_requests(api.store), api.audit()) == ([], [])
        problem(api("PUT", "policy", "ann", json={"policy": "fifo"}, headers={"If-Match": '"1"'}), 403, "role-needed")

    def test_a_switch_that_takes_long_is_shown(self, api: Api) -> None:
        assert api("GET", "policy").json()["preparing"] is None
        requests.ask(api.store, "policy", "olga", 7.0, body={"policy": "pollux", "number": 1})
        found = api("GET", "policy").json()
        assert (found["policy"], found["preparing"], found["preparing_since"]) == ("fifo", "pollux", 7.0)

    def test_of_two_switches_of_one_etag_one_is_made(self, api: Api) -> None:
        with scheduler_answers(api.settings.database), ThreadPoolExecutor(2) as pool:
            answers = pool.map(lambda policy: switch(api, policy).status_code, ("las", "round_robin"))
            assert sorted(answers) == [200, 412]
        assert api("GET", "policy").json()["number"] == 2

    def test_who_may_not_and_what_is_missing(self, api: Api) -> None:
        problem(api("PUT", "policy", "ann", json={"policy": "las"}), 403, "role-needed")
        problem(api("PUT", "policy", "olga", json={"policy": "las"}), 428, "if-match-needed")
        for stale in ('"0"', '"11"', "*"):
            problem(switch(api, tag=stale), 412, "stale")
        for name in ("nothing", "agent:run=/etc", "fifo>3600:las"):
            problem(switch(api, name), 422, "not-valid")
        assert requests.open_requests(api.store) == []

    def test_a_policy_that_cannot_decide_leaves_the_one_in_force(self, api: Api) -> None:
        with scheduler_answers(api.settings.database, lambda _: "las needs something"):
            answer = switch(api, tag='W/"0", "1"')
        assert problem(answer, 409, "policy-refused") == "las needs something"
        assert api("GET", "policy").json()["number"] == 1

    def test_a_switch_is_withdrawn_when_no_scheduler_answers(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 0.1)
        problem(switch(api), 503, "no-scheduler")
        assert requests.open_requests(api.store) == [], "it is not made later either"
        put_all(api.store, status.PolicyEntry, [])
        answer = switch(api)
        assert "starting" in problem(answer, 503, "no-scheduler")
        assert answer.headers["Retry-After"] == "5"

    def test_a_scheduler_that_lives_is_waited_for(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 0.3)
        status.beat(api.store, status.Heartbeat(1, 0.0), time.time() + 10)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(switch, api)
            time.sleep(0.8)
            with scheduler_answers(api.settings.database):
                answer = asked.result()
        assert (answer.status_code, answer.json()["policy"]) == (200, "las")


def test_the_queue_has_every_job_that_waits_and_why(api: Api) -> None:
    placed, starts, checked, new, other = (api.submit(user)["id"] for user in ("ann", "ann", "ann", "ann", "bob"))
    for job in (placed, starts):
        change_job(api.store, job, time.time(), state="queued")
    change_job(api.store, checked, time.time(), state="checking", reason="its program is being checked")
    status.set_queue(api.store, [status.QueueRow(placed, 1, 0, "0 of 8 GPUs are free")])
    found = api("GET", "queue").json()["queue"]
    assert [(row["job"], row["position"], row["reason"]) for row in found] == [
        (placed, 1, "0 of 8 GPUs are free"),
        (starts, 0, "it is about to start"),
        (checked, 0, "its program is being checked"),
        (new, 0, "the scheduler has not looked at it yet"),
    ]
    page = api("GET", "/parts/queue").text
    assert all(row["reason"] in page and row["job"] in page for row in found)
    assert other in {row["job"] for row in api("GET", "queue", "olga").json()["queue"]}


def test_draining(api: Api) -> None:
    problem(api("PUT", "drain", "ann", json={"on": True}), 403, "role-needed")
    with scheduler_answers(api.settings.database):
        assert api("PUT", "drain", "olga", json={"on": True}).status_code == 202
        while not status.is_drained(api.store):
            time.sleep(0.01)
    assert "drained: no job starts" in api("GET", "/parts/tiles").text


def test_nodes_show_what_labels_say_and_when_they_go(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    ask: dict[str, Any] = {"json": {"seconds": 600}}
    problem(api("POST", "nodes/node-1/drain", "ann", **ask), 403, "role-needed")
    said = problem(api("POST", "nodes/node/drain", "olga", **ask), 404, "no-such-node")
    assert said == "4 nodes that are up begin with node: expected one of node-0, node-1, node-2, node-3"
    with scheduler_answers(api.settings.database):
        found = api("POST", "nodes/node-1/drain", "olga", **ask).json()
    assert (found["id"], round((found["leaves"] - time.time()) / 600)) == ("node-1", 1)
    assert api.audit() == [("olga", "node.drain", "node-1")]
    put(api.store, [status.NodeRow("node-9", 2, True, "h100", spot=True)])
    put(api.store, [status.NodeRow("node-8", 2, False, silent=time.time())])
    labels = {node["id"]: node["spot"] for node in api("GET", "nodes").json()["nodes"]}
    assert (labels["node-9"], labels["node-0"]) == (True, False)
    shown = api("GET", "/parts/nodes").text
    assert [shown.count(text) for text in ("leaves at", ">h100<", ">spot<", "does not answer")] == [1, 1, 1, 1]
    monkeypatch.setattr(cluster, "ANSWER_TIMEOUT_S", 0.1)
    problem(api("POST", "nodes/node-2/drain", "olga", **ask), 503, "no-scheduler")
    assert requests.open_requests(api.store) == [], "it is not announced later either"


def test_what_a_provisioner_wants_stands_with_the_nodes(api: Api) -> None:
    assert api("GET", "nodes").json()["provisioning"] is None
    said = status.ProvisioningStatus(1.0, "spare:gpus=4", wanted=8, ready=4, booting=2, held=3, spare=4)
    api.store.set_fact(status.PROVISIONING, json.dumps(asdict(said)))
    assert api("GET", "nodes").json()["provisioning"] == asdict(said)
    assert said.text in api("GET", "/parts/nodes").text


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


def test_every_metric_and_label_that_is_asked_for_is_there(api: Api) -> None:
    status.beat(api.store, status.Heartbeat(1, 0.0), time.time())
    assert api("GET", "/metrics", None).status_code == 401
    api.submit()
    text = api("GET", "/metrics").text
    while (answer := api("GET", "/metrics", "bob")).status_code == 200:
        pass
    assert "20 readings of metrics" in problem(answer, 429, "too-many-requests")
    assert api("GET", "/metrics").status_code == 200, "of another user"
    assert 'rlpto_jobs{state="submitted"} 1.0' in text
    assert 'rlpto_http_requests_total{method="POST",route="/api/v1/jobs",status="201"} 1.0' in text
    series = re.findall(r"^(rlpto_\w+)(?:\{(.*)\})? ", text, re.MULTILINE)
    labels: dict[str, set[str]] = {}
    for name, given in series:
        labels.setdefault(name, set()).update(re.findall(r"(\w+)=", given))
    (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    dashboard = json.loads((MONITORING / "grafana.json").read_text())
    questions = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    (source,) = dashboard["templating"]["list"]
    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    for panel in dashboard["panels"]:
        questions |= {f"{panel['title']} {target['refId']}": target["expr"] for target in panel["targets"]}
        asked = (one["datasource"]["uid"] for one in (panel, *panel["targets"]))
        assert set(asked) == {f"${{{source['name']}}}"}, "the source that the dashboard chooses"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for where, asked in questions.items():
        for name, matchers in re.findall(r"(rlpto_\w+)(?:\{([^}]*)\})?", asked):
            assert name in labels, where
            assert set(re.findall(r"(\w+)[!=]", matchers)) <= labels[name], where
        states = [one for found in re.findall(r'state=~?"([^"]+)"', asked) for one in found.split("|")]
        assert set(states) <= set(STATES), where


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
def test_prometheus_accepts_configuration_and_alerts(tmp_path: Path) -> None:
    shutil.copytree(MONITORING, tmp_path, dirs_exist_ok=True)
    (tmp_path / "rlpto-token").write_text("rlpto_x")
    call = ["promtool", "check", "config", "prometheus.yaml"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
