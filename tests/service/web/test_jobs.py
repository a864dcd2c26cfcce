from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from rlpto.store import requests, status
from rlpto.store.checkpoints import write_checkpoint
from rlpto.store.jobs import NewJob, change_job, insert_job
from rlpto.store.logs import job_folder
from rlpto.store.programs import set_programs
from rlpto.store.rows import insert, put_all
from rlpto.store.scripts import get_script
from tests.service.web.helpers import Api


def problem(answer: Any, code: int, kind: str) -> str:
    """The detail of an answer that must be a problem."""
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (answer.status_code, body["status"], body["type"]) == (code, code, f"urn:rlpto:{kind}"), body
    return str(body["detail"])


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
        assert found["job"]["epochs"] == 40
        hours = {row["gpus"]: row["hours"] for row in found["preview"] if row["metric"] == "goodput"}
        assert hours[1] == 1.0, "twice the epochs of the preview"
        assert hours[8] < hours[4] < hours[1]
        assert api("GET", "jobs").json()["jobs"] == []
        assert found["gpus_ahead"] == 0
        with api.store.transaction():
            for number in range(250):
                job = insert_job(api.store, NewJob("bob", "a job", "digits", 1.0, gpus=2, max_gpus=2), float(number))
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
        script = {"name": "a.py", "source": "print('ä')", "arguments": ["--lr", "0.1"], "samples": 100}
        job = api.submit("dev", program="script", script=script)
        assert (job["name"], job["arguments"], job["samples"]) == ("a.py", ["--lr", "0.1"], 100)
        again = api.submit("dev", program="script", script={**script, "arguments": []})
        assert again["script"] == job["script"]
        assert get_script(api.store, job["script"]).name == "a.py"
        assert api("GET", f"jobs/{job['id']}/script", "dev").json()["source"] == "print('ä')"
        problem(api("GET", f"jobs/{job['id']}/script", "ann"), 404, "not-found")
        problem(api("GET", f"jobs/{api.submit()['id']}/script"), 404, "no-script")
        page = api("GET", f"/jobs/{job['id']}", "dev")
        assert "--lr 0.1" in page.text

    @pytest.mark.parametrize(
        ("user", "program", "change", "code", "said"),
        [
            ("ann", "script", {}, 403, "only the role developer"),
            ("root", "script", {}, 403, "only the role developer"),
            ("dev", "digits", {}, 422, "digits trains by no script"),
            ("dev", "script", None, 422, "expected one"),
            ("dev", "script", {"name": "../a.py"}, 422, "body.script.name"),
            ("dev", "script", {"source": "a\0b"}, 422, "without NUL"),
            ("dev", "script", {"source": "a" * 50_000}, 422, "body.script.source"),
            ("dev", "script", {"source": "1\nfor x in:"}, 422, "line 2"),
            ("dev", "script", {"files": "AAAA"}, 422, "expected a zip archive"),
        ],
    )
    def test_scripts_that_are_refused(
        self, shared_api: Api, user: str, program: str, change: dict[str, Any] | None, code: int, said: str
    ) -> None:
        script = None if change is None else {"name": "a.py", "source": "1", "samples": 1} | change
        answer = shared_api("POST", "jobs", user, json={"program": program, "script": script})
        assert said in problem(answer, code, "role-needed" if code == 403 else "not-valid")
        assert shared_api.store.rows("SELECT count(*) FROM scripts") == [(0,)]

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


class TestListing:
    def test_pages(self, api: Api) -> None:
        made = [api.submit()["id"] for _ in range(5)]
        first = api("GET", "jobs", params={"limit": 3}).json()
        rest = api("GET", "jobs", params={"limit": 3, "cursor": first["next"]}).json()
        assert [job["id"] for job in first["jobs"] + rest["jobs"]] == made[::-1]
        assert rest["next"] is None

    def test_filters(self, api: Api) -> None:
        first = api.submit(labels={"team": "x"})
        change_job(api.store, first["id"], time.time(), state="running")
        second = api.submit("bob")
        for params, expected in (
            ({"state": ["running", "queued"]}, first), ({"owner": "bob"}, second), ({"label": "team=x"}, first),
        ):  # fmt: skip
            assert [job["id"] for job in api("GET", "jobs", "root", params=params).json()["jobs"]] == [expected["id"]]
        problem(api("GET", "jobs", params={"state": "asleep"}), 422, "not-valid")


class TestOtherPeoplesJobs:
    def test_are_not_there(self, api: Api) -> None:
        job = api.submit("ann")["id"]
        gets = ("jobs/{}", "jobs/{}/logs", "jobs/{}/curves", "events?job={}&once=1", "allocations?job={}")
        posts = ("jobs/{}/hold", "jobs/{}/release", "jobs/{}/cancel")
        asked = [("PATCH", "jobs/{}"), *(("GET", path) for path in gets), *(("POST", path) for path in posts)]
        for method, path in asked:
            body: dict[str, Any] = {"json": {"priority": "low"}} if method == "PATCH" else {}
            theirs = api(method, path.format(job), "bob", **body)
            missing = api(method, path.format("jaaaaaaaaaaaa"), "bob", **body)
            assert problem(theirs, 404, "not-found") == problem(missing, 404, "not-found"), (method, path)
            assert api(method, path.format(job), "olga", **body).status_code < 300, (method, path)

    def test_are_in_no_list(self, api: Api) -> None:
        job = api.submit("ann", name="secret")["id"]
        now = time.time()
        status.set_queue(api.store, [status.QueueRow(job, 1, 0, "because of secret")])
        put_all(api.store, status.NodeRow, [status.NodeRow("n", 2, True, jobs={job: 2})])
        insert(api.store, "spans", job=job, owner="ann", node="n", gpus=2, started=now)
        for path in ("jobs", "jobs?owner=ann", "queue", "nodes", "allocations", "events?once=1", "audit", "users"):
            text = api("GET", path, "bob").text
            assert job not in text
            assert "secret" not in text
        assert api("GET", "nodes", "bob").json()["nodes"][0]["jobs"] == {"": 2}
        assert api("GET", "queue", "bob").json()["queue"][0]["gpus"] == 1, "the place is no secret"
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


class TestReports:
    def test_the_newest_sound_checkpoint_is_sent_whole_to_its_owner(self, api: Api) -> None:
        job = api.submit()["id"]
        problem(api("GET", f"jobs/{job}/checkpoint"), 404, "no-checkpoint")
        folder = job_folder(api.settings.folder, job)
        write_checkpoint(folder, 7, b"before" * 1_000_000)
        newest = write_checkpoint(folder, 9, b"after")
        answer = api("GET", f"jobs/{job}/checkpoint")
        assert answer.content == b"after"
        assert answer.headers["ETag"] == f'"{newest.sha256}"'
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{job}-step-9.pt"'
        Path(newest.path).write_bytes(b"damaged")
        assert api("GET", f"jobs/{job}/checkpoint", "root").content == b"before" * 1_000_000
        problem(api("GET", f"jobs/{job}/checkpoint", "bob"), 404, "not-found")

    def test_curves_since_a_number(self, api: Api) -> None:
        job = api.submit()["id"]
        for epoch in range(3):
            known = {"loss": 1.0, "noise_scale": 50.0}
            insert(api.store, "points", job=job, at=float(epoch), epoch=float(epoch), gpus=2, **known)
        page = api("GET", f"jobs/{job}/curves", params={"limit": 2}).json()
        rest = api("GET", f"jobs/{job}/curves", params={"since": page["next"]}).json()
        assert [point["epoch"] for point in page["points"] + rest["points"]] == [0.0, 1.0, 2.0]
