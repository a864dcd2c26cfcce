"""Hold, release, submit again, many at once."""

from __future__ import annotations

import time
from typing import Any

from rlpto.store import requests, status
from rlpto.store.events import last_event
from rlpto.store.jobs import change_job
from rlpto.store.rows import put
from tests.service.web.helpers import Api
from tests.service.web.test_jobs import problem


def test_a_waiting_job_is_held_and_released(api: Api) -> None:
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
    trail = api("GET", "audit", "root").json()["audit"]
    assert [(row["by"], row["action"]) for row in trail] == [("ann", "job.release"), ("olga", "job.hold")]


def test_a_held_job_that_was_cancelled_is_not_released(api: Api) -> None:
    job = api.submit()["id"]
    api("POST", f"jobs/{job}/hold")
    change_job(api.store, job, time.time(), state="cancelled", reason="cancelled by ann")
    last = last_event(api.store)
    assert api("POST", f"jobs/{job}/release").json()["reason"] == "cancelled by ann"
    assert last_event(api.store) == last, "it does not end for a second time, which owners would hear of"


def test_a_job_that_does_not_wait_is_not_held(api: Api) -> None:
    job = api.submit()["id"]
    for state in ("starting", "running", "finished"):
        change_job(api.store, job, time.time(), state=state)
        said = f"the job is {state}: expected one that waits, since a hold only keeps jobs from starting"
        assert problem(api("POST", f"jobs/{job}/hold"), 409, "not-waiting") == said


def test_a_job_that_is_over_is_submitted_once_more_for_its_owner(api: Api) -> None:
    script = {"name": "a.py", "source": "print(1)", "arguments": ["--lr", "0.1"], "samples": 100}
    asked: dict[str, Any] = {"gpus": 2, "max_gpus": 4, "priority": "low", "labels": {"a": "b"}, "seed": 3, "epochs": 5}
    for first in (
        api.submit("dev", program="script", script=script, most_hours=2.5, **asked),
        api.submit("dev", options={"hidden": 7}, batch_size=32, metric="goodput", **asked),
    ):
        path, key = f"jobs/{first['id']}/resubmit", {"Idempotency-Key": first["id"]}
        assert "the job is submitted" in problem(api("POST", path, "dev"), 409, "not-over")
        change_job(api.store, first["id"], time.time(), state="failed", reason="out of memory")
        answer = api("POST", path, "olga", headers=key)
        assert answer.status_code == 201
        again, own = answer.json(), {"id", "seq", "submitted", "changed"}
        assert again["id"] != first["id"]
        assert {name: value for name, value in again.items() if name not in own} == {
            name: value for name, value in first.items() if name not in own
        }
        assert api("POST", path, "olga", headers=key).json()["id"] == again["id"], "the same key makes one job"
    problem(api("POST", path, "ann"), 404, "not-found")
    api.refuse("no such class")
    problem(api("POST", path, "dev"), 403, "program-not-allowed")
    api("PATCH", "users/dev", "root", json={"disabled": True})
    assert "dev may not submit" in problem(api("POST", path, "olga"), 403, "no-owner")


def array(api: Api, user: str = "ann", first: int = 1, last: int = 3, key: str = "k", **job: Any) -> Any:
    body = {"job": {"program": "digits", **job}, "first": first, "last": last}
    return api("POST", "jobs/array", user, json=body, headers={"Idempotency-Key": key})


def test_jobs_that_differ_by_a_number_are_submitted_together(api: Api) -> None:
    options = {"hidden": "1{i}", "learning_rate": "1e-{i}", "optimizer": "sgd"}
    made = array(api, name="n" * 128, options=options, labels={"a": "b"}).json()["jobs"]
    assert [(job["options"]["hidden"], job["options"]["learning_rate"]) for job in made] == [
        (10 + number, 10.0**-number) for number in (1, 2, 3)
    ]
    assert [job["name"][-5:] for job in made] == ["nn[1]", "nn[2]", "nn[3]"]
    assert array(api, name="n" * 128, options=options, labels={"a": "b"}).json()["jobs"] == made, (
        "asked twice, done once"
    )
    assert len(api("GET", "jobs", params={"label": "a=b"}).json()["jobs"]) == 3
    script = {"name": "a.py", "source": "print(1)", "arguments": ["--seed", "{i}", "--out=x{i}"], "samples": 100}
    runs = array(api, "dev", 8, 10, program="script", script=script).json()["jobs"]
    assert [job["arguments"] for job in runs] == [["--seed", str(n), f"--out=x{n}"] for n in (8, 9, 10)]
    assert len({job["script"] for job in runs}) == 1


def test_of_an_array_all_jobs_are_taken_or_none(api: Api) -> None:
    said = problem(array(api, last=5, options={"hidden": "12{i}0"}), 422, "not-valid")
    assert said == "options.hidden: expected a whole number from 1 to 512", "its first job alone is right"
    api("PATCH", "users/ann", "root", json={"jobs_queued": 2})
    assert "2 of your jobs are not over" in problem(array(api), 403, "quota-exceeded")
    for first, last in ((2, 1), (1, 1001)):
        assert "1000 jobs at most" in problem(array(api, first=first, last=last), 422, "not-valid")
    assert api("GET", "jobs").json()["jobs"] == []
    api("PATCH", "users/ann", "root", json={"jobs_queued": 1000})
    assert len(array(api, last=1000).json()["jobs"]) == 1000


def test_all_own_jobs_are_cancelled_at_once(api: Api) -> None:
    jobs = [api.submit(labels={"a": label})["id"] for label in "xyx"]
    api.submit("bob")
    change_job(api.store, jobs[2], time.time(), state="finished")
    api("POST", f"jobs/{jobs[0]}/cancel")
    for params, expected in (({"label": "a=x"}, [jobs[0]]), ({}, [jobs[1], jobs[0]])):
        answer = api("POST", "jobs/cancel", params=params)
        assert (answer.status_code, [job["id"] for job in answer.json()["jobs"]]) == (202, expected)
    assert [one.job for one in requests.open_requests(api.store)] == jobs[:2], "each is asked once, bob's stays"
