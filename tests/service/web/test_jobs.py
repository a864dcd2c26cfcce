"""Jobs: submitted, listed, changed, held, cancelled, repeated, many at once; whose they are; what they report."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rlpto.store import requests, status
from rlpto.store.checkpoints import write_checkpoint
from rlpto.store.code_files import packed
from rlpto.store.events import last_event
from rlpto.store.jobs import JobRow, change_job, insert_job
from rlpto.store.logs import job_folder
from rlpto.store.programs import set_programs
from rlpto.store.rows import insert, put, put_all
from rlpto.store.scripts import get_script
from tests.service.web.helpers import Api, problem

SCRIPT = {
    "name": "a.py",
    "source": "from rlpto import elastic\nprint('ä')",
    "arguments": ["--lr", "0.1"],
    "samples": 100,
}
ELASTIC = b"from rlpto import elastic"


class TestSubmitting:
    def test_a_job_is_taken_as_asked(self, api: Api) -> None:
        body = {"program": "digits", "name": "Größe 3", "gpus": 2, "max_gpus": 4, "epochs": 5, "labels": {"team": "x"}}
        answer = api("POST", "jobs", json=body | {"options": {"hidden": 64, "optimizer": "adam"}})
        assert answer.status_code == 201
        job = answer.json()
        assert answer.headers["Location"] == f"/api/v1/jobs/{job['id']}"
        assert {name: job[name] for name in body} == body
        assert (job["state"], job["owner"], job["min_gpus"]) == ("submitted", "ann", 1)
        assert job["options"] == {"learning_rate": 0.1, "hidden": 64, "optimizer": "adam"}
        assert api("GET", f"jobs/{job['id']}").json().items() >= job.items()
        plain = api.submit()
        left_out = ("name", "epochs", "gpus", "max_gpus", "priority")
        assert [plain[name] for name in left_out] == ["digits", 20, 1, 1, "normal"]

    def test_a_default_counts_as_if_a_user_had_given_it(self, api: Api) -> None:
        options = {"width": {"type": "choice", "choices": ["16", "32"], "default": 16}}
        set_programs(api.store, {"digits": {**api.settings.program_specs["digits"], "options": options}})
        assert api.submit()["options"] == {"width": "16"}

    def test_the_same_key_makes_one_job_whatever_has_changed_since(self, api: Api) -> None:
        key, body = {"Idempotency-Key": "k1"}, {"program": "digits", "gpus": 2}
        first = api("POST", "jobs", json=body, headers=key)
        assert api("POST", "jobs", "bob", json=body, headers=key).json()["id"] != first.json()["id"]
        api("PATCH", "users/ann", "root", json={"gpus_held": 1})
        api.refuse("no such class")
        again = api("POST", "jobs", json=body, headers=key)
        assert (again.status_code, again.json(), again.headers["Idempotency-Replayed"]) == (201, first.json(), "true")
        problem(api("POST", "jobs", json=body | {"gpus": 1}, headers=key), 422, "key-reused")
        assert "no such class" in problem(api("POST", "jobs", json=body), 403, "program-not-allowed")

    def test_an_unknown_program_is_answered_with_those_there_are(self, api: Api) -> None:
        ask: dict[str, Any] = {"json": {"program": "digit"}}
        said = "the catalogue has no program digit: expected one of "
        assert problem(api("POST", "jobs", **ask), 403, "program-not-allowed") == f"{said}digits, script"
        more = [f"a{number}" for number in range(10)]
        set_programs(api.store, dict.fromkeys(more, api.settings.program_specs["digits"]))
        said_now = problem(api("POST", "jobs/validate", **ask), 403, "program-not-allowed")
        assert said_now == f"{said}{', '.join(more)}, ..."

    def test_a_check_keeps_nothing_and_says_what_it_takes(self, api: Api) -> None:
        found = api("POST", "jobs/validate", json={"program": "digits", "epochs": 40}).json()
        hours = {row["gpus"]: row["hours"] for row in found["preview"] if row["metric"] == "goodput"}
        assert hours[1] == 1.0, "twice the epochs of the preview"
        assert hours[8] < hours[4] < hours[1]
        assert api("GET", "jobs").json()["jobs"] == []
        assert (found["job"]["epochs"], found["gpus_ahead"]) == (40, 0)
        with api.store.transaction():
            for number in range(250):
                job = insert_job(api.store, JobRow("bob", "a job", "digits", 1.0, gpus=2, max_gpus=2), float(number))
                change_job(api.store, job.id, float(number), state="queued")
        assert api("POST", "jobs/validate", json={"program": "digits"}).json()["gpus_ahead"] == 500, "of all that wait"

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ({"gpus": 9, "max_gpus": 9}, "8 GPUs at most"),
            ({"gpus": 2, "max_gpus": 1}, "min_gpus <= gpus <= max_gpus"),
            ({"epochs": 101}, "100 epochs at most"),
            ({"batch_size": 63}, "expected one of 32, 64"),
            ({"options": {"hidden": 0}}, "options.hidden: expected a whole number from 1 to 512"),
            ({"options": {"path": 1}}, "lets users choose: learning_rate, hidden, optimizer"),
            ({"after": ["nothing"]}, "no job nothing of yours"),
            ({"most_hours": 0}, "body.most_hours"),
            ({"priority": "urgent"}, "body.priority: Input should be 'high', 'normal' or 'low'"),
        ],
    )
    def test_what_is_not_allowed_is_said(self, shared_api: Api, body: dict[str, Any], said: str) -> None:
        assert said in problem(shared_api("POST", "jobs", json={"program": "digits", **body}), 422, "not-valid")
        assert shared_api("GET", "jobs").json()["jobs"] == []

    def test_a_job_comes_after_jobs_of_ones_own(self, api: Api) -> None:
        first = api.submit()["id"]
        second = api.submit(after=[first], most_hours=2.5, seed=7)
        assert (second["after"], second["most_hours"], second["seed"]) == ([first], 2.5, 7)
        assert second["reason"] == api("GET", f"jobs/{second['id']}").json()["reason"] == f"it comes after {first}"
        answer = api("POST", "jobs", "bob", json={"program": "digits", "after": [first]})
        assert f"no job {first} of yours" in problem(answer, 422, "not-valid")

    def test_developers_submit_scripts(self, api: Api) -> None:
        job = api.submit("dev", program="script", script=SCRIPT)
        assert (job["name"], job["arguments"], job["samples"]) == ("a.py", ["--lr", "0.1"], 100)
        again = api.submit("dev", program="script", script={**SCRIPT, "arguments": []})
        assert again["script"] == job["script"]
        assert get_script(api.store, job["script"]).name == "a.py"
        assert api("GET", f"jobs/{job['id']}/script", "dev").json()["source"] == SCRIPT["source"]
        problem(api("GET", f"jobs/{job['id']}/script", "ann"), 404, "not-found")
        problem(api("GET", f"jobs/{api.submit()['id']}/script"), 404, "no-script")
        assert "--lr 0.1" in api("GET", f"/jobs/{job['id']}", "dev").text

    @pytest.mark.parametrize(
        ("user", "program", "change", "code", "said"),
        [
            ("ann", "script", {}, 403, "not user: by an admin, `rlpto user add NAME --role developer`"),
            (
                "root",
                "script",
                {},
                403,
                "not admin: `rlpto user add NAME --role developer` prints a token",
            ),
            ("dev", "digits", {}, 422, "digits trains by no script"),
            ("dev", "script", None, 422, "expected one"),
            ("dev", "script", {"name": "../a.py"}, 422, "body.script.name"),
            ("dev", "script", {"source": "a\0b"}, 422, "without NUL"),
            ("dev", "script", {"source": "a" * 50_000}, 422, "body.script.source"),
            ("dev", "script", {"source": "1\nfor x in:"}, 422, "line 2"),
            ("dev", "script", {"files": "AAAA"}, 422, "expected a zip archive"),
            ("dev", "script", {"source": "import torch"}, 422, "a.py: expected an elastic.session"),
            (
                "dev",
                "script",
                {"source": "# import rlpto.elastic\nfrom .rlpto import elastic"},
                422,
                "expected an elastic.",
            ),
            ("dev", "script", {"source": "1", "files": packed({"a.txt": ELASTIC})}, 422, "neither it nor its --files"),
        ],
    )
    def test_scripts_that_are_refused(
        self, shared_api: Api, user: str, program: str, change: dict[str, Any] | None, code: int, said: str
    ) -> None:
        script = None if change is None else SCRIPT | change
        answer = shared_api("POST", "jobs", user, json={"program": program, "script": script})
        assert said in problem(answer, code, "role-needed" if code == 403 else "not-valid")
        assert shared_api.store.rows("SELECT count(*) FROM scripts") == [(0,)]

    @pytest.mark.parametrize(
        "change",
        [
            {"source": "import rlpto.elastic as e"},
            {"source": "from rlpto.elastic.lightning import fit"},
            {"source": "import importlib\nimportlib.import_module('rlpto.elastic')"},
            {"source": "import mine.loop", "files": packed({"mine/loop.py": ELASTIC, "broken.py": b"elastic ("})},
        ],
    )
    def test_a_session_may_be_opened_in_several_ways(self, shared_api: Api, change: dict[str, Any]) -> None:
        answer = shared_api("POST", "jobs/validate", "dev", json={"program": "script", "script": SCRIPT | change})
        assert (answer.status_code, answer.json()["preview"]) == (200, [])

    def test_quotas(self, api: Api) -> None:
        api("PATCH", "users/ann", "root", json={"jobs_queued": 2, "gpus_held": 3})
        jobs = [api.submit() for _ in range(2)]
        problem(api("POST", "jobs", json={"program": "digits"}), 403, "quota-exceeded")
        wide = {"program": "digits", "gpus": 4, "min_gpus": 1, "max_gpus": 4}
        assert "hold 3 GPUs" in problem(api("POST", "jobs", json=wide), 403, "quota-exceeded")
        change_job(api.store, jobs[0]["id"], time.time(), state="finished")
        api.submit()
        assert api("GET", "me").json()["jobs_queued"] == 2
        found = api("PATCH", "users/ann", "root", json={"jobs_queued": None}).json()
        assert (found["jobs_queued"], found["gpus_held"], found["role"]) == (1000, 3, "user"), "null: of the settings"
        problem(api("PATCH", "users/ann", "root", json={"role": None}), 422, "not-valid")


def test_jobs_are_listed_by_page_and_filter(api: Api) -> None:
    def listed(**params: Any) -> list[str]:
        return [job["id"] for job in api("GET", "jobs", "root", params=params).json()["jobs"]]

    made = [api.submit(labels={"team": "x"})["id"], *(api.submit()["id"] for _ in range(3)), api.submit("bob")["id"]]
    change_job(api.store, made[0], time.time(), state="running")
    page = api("GET", "jobs", "root", params={"limit": 3}).json()
    assert [job["id"] for job in page["jobs"]] + listed(limit=3, cursor=page["next"]) == made[::-1]
    assert api("GET", "jobs", "root", params={"limit": 5}).json()["next"] is None
    assert listed(state=["running", "queued"]) == listed(label="team=x") == made[:1]
    assert listed(owner="bob") == made[-1:]
    problem(api("GET", "jobs", params={"state": "asleep"}), 422, "not-valid")


class TestOtherPeoplesJobs:
    def test_are_not_there(self, api: Api) -> None:
        job = api.submit("ann")["id"]
        problem(api("GET", f"jobs/{job}/checkpoint"), 404, "no-checkpoint")
        write_checkpoint(job_folder(api.settings.folder, job), 7, b"state")
        for epoch in range(3):
            insert(api.store, "points", job=job, at=0.0, epoch=float(epoch), gpus=1, loss=0.5)
        first = api("GET", f"jobs/{job}/curves?limit=2").json()
        rest = api("GET", f"jobs/{job}/curves?since={first['next']}").json()
        assert [[point["epoch"] for point in some["points"]] for some in (first, rest)] == [[0.0, 1.0], [2.0]]
        assert f"{job}-step-7.pt" in api("GET", f"jobs/{job}/checkpoint").headers["Content-Disposition"]
        parts = ("", "/logs", "/curves", "/checkpoint")
        gets = (*(f"jobs/{{}}{part}" for part in parts), "events?job={}&once=1", "allocations?job={}")
        posts = ("jobs/{}/hold", "jobs/{}/release", "jobs/{}/cancel")
        asked = [("PATCH", "jobs/{}"), *(("GET", path) for path in gets), *(("POST", path) for path in posts)]
        for method, path in asked:
            body: dict[str, Any] = {"json": {"priority": "low"}} if method == "PATCH" else {}
            theirs = api(method, path.format(job), "bob", **body)
            missing = api(method, path.format("jaaaaaaaaaaaa"), "bob", **body)
            assert problem(theirs, 404, "not-found") == problem(missing, 404, "not-found"), (method, path)
            assert api(method, path.format(job), "olga", **body).status_code < 300, (method, path)
        page = api("GET", f"/jobs/{job}", "bob", headers={"Accept": "text/html"})
        assert (page.status_code, "no such job" in page.text) == (404, True)

    def test_are_in_no_list(self, api: Api) -> None:
        job = api.submit("ann", name="secret")["id"]
        now = time.time()
        status.set_queue(api.store, [status.QueueRow(job, 1, 0, "because of secret")])
        put_all(api.store, status.NodeRow, [status.NodeRow("n", 2, True, jobs={job: 2})])
        insert(api.store, "spans", job=job, owner="ann", node="n", gpus=2, started=now)
        lists = ("jobs", "jobs?owner=ann", "queue", "nodes", "allocations", "events?once=1", "audit", "users")
        for path in (*lists, "/", "/history?owner=ann&state=submitted"):
            text = api("GET", path, "bob").text
            assert job not in text
            assert "secret" not in text
        assert api("GET", "nodes", "bob").json()["nodes"][0]["jobs"] == {"": 2}
        assert api("GET", "queue", "bob").json()["queue"][0]["gpus"] == 1, "the place is no secret"
        assert "another user's" in api("GET", "/", "bob").text
        assert job in api("GET", "allocations", "ann").text


class TestChanging:
    def test_the_priority_until_the_job_is_over(self, api: Api) -> None:
        job = api.submit()["id"]
        for _ in range(2):
            assert api("PATCH", f"jobs/{job}", json={"priority": "high"}).json()["priority"] == "high"
        assert api("GET", f"jobs/{job}").json()["priority"] == "high"
        asked = requests.open_requests(api.store)
        assert [(one.kind, one.body) for one in asked] == [("priority", {"priority": "high"})]
        change_job(api.store, job, time.time(), state="finished")
        problem(api("PATCH", f"jobs/{job}", json={"priority": "low"}), 409, "job-over")

    def test_cancelling_twice_asks_once(self, api: Api) -> None:
        job = api.submit()["id"]
        for _ in range(2):
            assert api("POST", f"jobs/{job}/cancel").status_code == 202
        assert [(one.kind, one.job) for one in requests.open_requests(api.store)] == [("cancel", job)]
        requests.answer(api.store, 1, time.time())
        change_job(api.store, job, time.time(), state="cancelled")
        assert api("POST", f"jobs/{job}/cancel").json() == {"id": job, "state": "cancelled"}
        assert requests.open_requests(api.store) == []

    def test_all_own_jobs_are_cancelled_at_once(self, api: Api) -> None:
        jobs = [api.submit(labels={"a": label})["id"] for label in "xyx"]
        api.submit("bob")
        change_job(api.store, jobs[2], time.time(), state="finished")
        api("POST", f"jobs/{jobs[0]}/cancel")
        for params, expected in (({"label": "a=x"}, [jobs[0]]), ({}, [jobs[1], jobs[0]])):
            answer = api("POST", "jobs/cancel", params=params)
            assert (answer.status_code, [job["id"] for job in answer.json()["jobs"]]) == (202, expected)
        assert [one.job for one in requests.open_requests(api.store)] == jobs[:2], "each is asked once, bob's stays"

    def test_a_waiting_job_is_held_and_released(self, api: Api) -> None:
        first = api.submit()["id"]
        job = api.submit(after=[first])["id"]
        put(api.store, [status.PredictionRow(job, 1.0, "fifo", start=2.0, finish=9.0)])
        for _ in range(2):
            held = api("POST", f"jobs/{job}/hold", "olga").json()
            assert (held["state"], held["held_by"], held["reason"]) == ("submitted", "olga", "held by olga")
            assert held["prediction"] is None, "holds are not simulated"
        assert [(one.kind, one.job) for one in requests.open_requests(api.store)] == [("hold", job)]
        assert "Release job" in api("GET", f"/jobs/{job}").text
        for _ in range(2):
            released = api("POST", f"jobs/{job}/release").json()
            assert (released["held_by"], released["reason"]) == ("", f"it comes after {first}")
            assert released["prediction"]["start"] == 2.0
        assert [done[:2] for done in api.audit()] == [("ann", "job.release"), ("olga", "job.hold")]

    def test_only_jobs_that_wait_are_held_and_none_that_is_over_is_released(self, api: Api) -> None:
        job, held = api.submit()["id"], api.submit()["id"]
        for state in ("starting", "running", "finished"):
            change_job(api.store, job, time.time(), state=state)
            said = f"the job is {state}: expected one that waits, since a hold only keeps jobs from starting"
            assert problem(api("POST", f"jobs/{job}/hold"), 409, "not-waiting") == said
        api("POST", f"jobs/{held}/hold")
        change_job(api.store, held, time.time(), state="cancelled", reason="cancelled by ann")
        last = last_event(api.store)
        assert api("POST", f"jobs/{held}/release").json()["reason"] == "cancelled by ann"
        assert last_event(api.store) == last, "it does not end for a second time, which owners would hear of"


def test_a_job_that_is_over_is_submitted_once_more_for_its_owner(api: Api) -> None:
    asked: dict[str, Any] = {"gpus": 2, "max_gpus": 4, "priority": "low", "labels": {"a": "b"}, "seed": 3, "epochs": 5}
    for first in (
        api.submit("dev", program="script", script=SCRIPT, most_hours=2.5, **asked),
        api.submit("dev", options={"hidden": 7}, batch_size=32, metric="goodput", **asked),
    ):
        path, key = f"jobs/{first['id']}/resubmit", {"Idempotency-Key": first["id"]}
        assert "the job is submitted" in problem(api("POST", path, "dev"), 409, "not-over")
        change_job(api.store, first["id"], time.time(), state="failed", reason="out of memory")
        answer = api("POST", path, "olga", headers=key)
        again, own = answer.json(), dict.fromkeys(("id", "seq", "submitted", "changed"))
        assert (answer.status_code, again["id"] != first["id"]) == (201, True)
        assert again | own == first | own
        assert api("POST", path, "olga", headers=key).json()["id"] == again["id"], "the same key makes one job"
    api("PATCH", "users/dev", "root", json={"highest_priority": "normal"})
    answer = api("PATCH", f"jobs/{again['id']}", "olga", json={"priority": "high"})
    assert answer.json()["priority"] == "high", "an operator may raise it"
    change_job(api.store, again["id"], time.time(), state="failed")
    raised = api("POST", f"jobs/{again['id']}/resubmit", "dev").json()
    assert raised["priority"] == "normal", "the owner's highest class"
    problem(api("POST", path, "ann"), 404, "not-found")
    api.refuse("no such class")
    problem(api("POST", path, "dev"), 403, "program-not-allowed")
    api("PATCH", "users/dev", "root", json={"disabled": True})
    assert "dev may not submit" in problem(api("POST", path, "olga"), 403, "no-owner")


def array(api: Api, user: str = "ann", first: int = 1, last: int = 3, **job: Any) -> Any:
    body = {"job": {"program": "digits", **job}, "first": first, "last": last}
    return api("POST", "jobs/array", user, json=body, headers={"Idempotency-Key": "k"})


def test_jobs_that_differ_by_a_number_are_submitted_together(api: Api) -> None:
    options = {"hidden": "1{i}", "learning_rate": "1e-{i}", "optimizer": "sgd"}
    asked: dict[str, Any] = {"name": "n" * 128, "options": options, "labels": {"a": "b"}}
    made = array(api, **asked).json()["jobs"]
    assert [(job["options"]["hidden"], job["options"]["learning_rate"]) for job in made] == [
        (10 + number, 10.0**-number) for number in (1, 2, 3)
    ]
    assert [job["name"][-5:] for job in made] == ["nn[1]", "nn[2]", "nn[3]"]
    assert array(api, **asked).json()["jobs"] == made, "asked twice, done once"
    assert len(api("GET", "jobs", params={"label": "a=b"}).json()["jobs"]) == 3
    script = {**SCRIPT, "arguments": ["--seed", "{i}", "--out=x{i}"]}
    runs = array(api, "dev", 8, 10, program="script", script=script).json()["jobs"]
    assert [job["arguments"] for job in runs] == [["--seed", str(n), f"--out=x{n}"] for n in (8, 9, 10)]
    assert len({job["script"] for job in runs}) == 1
    script["arguments"] = ["{i}" * 80]
    said = problem(array(api, "dev", 1000, 1001, program="script", script=script), 422, "not-valid")
    assert said == "script.arguments: expected at most 256 characters, got 320 in job [1000]"


def test_of_an_array_all_jobs_are_taken_or_none(api: Api) -> None:
    said = problem(array(api, last=5, options={"hidden": "12{i}0"}), 422, "not-valid")
    assert said == "options.hidden: expected a whole number from 1 to 512", "its first job alone is right"
    api("PATCH", "users/ann", "root", json={"jobs_queued": 2})
    assert "at most 2 of your jobs may wait or train" in problem(array(api), 403, "quota-exceeded")
    for first, last in ((2, 1), (1, 1001)):
        assert "1000 jobs at most" in problem(array(api, first=first, last=last), 422, "not-valid")
    assert api("GET", "jobs").json()["jobs"] == []
    api("PATCH", "users/ann", "root", json={"jobs_queued": 1000})
    assert len(array(api, last=1000).json()["jobs"]) == 1000
