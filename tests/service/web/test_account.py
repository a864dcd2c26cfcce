"""Tokens, sessions, users, programs, and where a request comes from."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlpto.service.web.routes import account
from rlpto.store.database import Store
from rlpto.store.users import add_token, revoke_token, tokens_of
from tests.service.web.helpers import ORIGIN, Api, problem, running_api


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_signing_in_leads_back_to_the_page_with_its_filters(api: Api) -> None:
    answer = api("GET", "/history?owner=bob&state=queued", None, follow_redirects=False)
    assert answer.headers["location"] == "/login?next=%2Fhistory%3Fowner%3Dbob%26state%3Dqueued"


class TestTokens:
    def test_nobody_without_a_token(self, api: Api) -> None:
        for header in ("", "Bearer", "Bearer ", "Bearer x", "Basic YTpi", "bearer rlpto_" + "A" * 43):
            answer = api("GET", "me", None, headers={"Authorization": header})
            problem(answer, 401, "unauthorized")
            assert answer.headers["WWW-Authenticate"] == "Bearer"

    def test_a_further_token_and_its_end(self, api: Api) -> None:
        made = api("POST", "tokens", json={"label": "laptop", "days": 1}).json()
        assert api("GET", "me", None, headers=bearer(made["token"])).json()["name"] == "ann"
        assert made["token"] not in api("GET", "tokens").text
        api.sign_in(token=made["token"])
        assert api("GET", "me", None).json()["name"] == "ann"
        problem(api("DELETE", f"tokens/{made['id']}", "bob"), 404, "not-found")
        assert api("DELETE", f"tokens/{made['id']}").status_code == 204
        problem(api("GET", "me", None, headers=bearer(made["token"])), 401, "unauthorized")
        problem(api("GET", "me", None), 401, "unauthorized")

    def test_changes_are_bounded_by_user(self, api: Api) -> None:
        api.service.limits.changes.most = 2
        headers = ({}, {}, bearer(add_token(api.store, "ann", "", time.time())[1]), {})
        codes = [api("POST", "jobs/validate", json={"program": "digits"}, headers=one).status_code for one in headers]
        assert codes == [200, 200, 429, 429], "a second token is no second quota"
        assert api("POST", "jobs/validate", "bob", json={"program": "digits"}).status_code == 200
        assert api("GET", "me").status_code == 200, "reading goes on"

    def test_an_expiring_token_makes_none_that_outlives_it(self, api: Api) -> None:
        for user, path in (("ann", "tokens"), ("root", "users/root/tokens")):
            secret = api("POST", "tokens", user, json={"days": 2}).json()["token"]
            for days in (None, 3):
                answer = api("POST", path, None, json={"days": days}, headers=bearer(secret))
                assert "at most 2" in problem(answer, 403, "outlives-token")
            assert api("POST", path, None, json={"days": 1}, headers=bearer(secret)).status_code == 201
            api.sign_in(token=secret)
            problem(api("POST", path, None, json={}, headers=ORIGIN), 403, "outlives-token")
            api.client.cookies.clear()

    def test_nothing_is_made_with_a_token_that_ends_meanwhile(self, api: Api) -> None:
        """It was valid when the request came, and is not when the write is its turn."""
        commit = api.service.commit

        async def late(write: Callable[[Store], Any]) -> Any:
            def after_its_end(store: Store) -> Any:
                for one in tokens_of(store, "ann", time.time()):
                    revoke_token(store, one.id, "ann", time.time())
                return write(store)

            return await commit(after_its_end)

        api.client.app.state.service = replace(api.service, commit=late)
        problem(api.sign_in(), 401, "unauthorized")
        problem(api("POST", "tokens", json={}), 401, "unauthorized")
        assert api("GET", "me").status_code == 200, "a refused change undoes the end in its transaction, too"
        assert len(tokens_of(api.store, "ann", time.time())) == 1

    def test_expired_tokens_do_not_count(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(account, "_MOST_TOKENS", 2)
        add_token(api.store, "ann", "", 0.0, expires=1.0)
        assert len(api("GET", "tokens").json()["tokens"]) == 1
        assert api("POST", "tokens", json={}).status_code == 201
        problem(api("POST", "tokens", json={}), 403, "quota-exceeded")

    def test_admins_list_and_end_those_of_others(self, api: Api) -> None:
        api.sign_in()
        found = api("GET", "users/ann/tokens", "root").json()["tokens"]
        assert [one["kind"] for one in found] == ["session", "token"]
        problem(api("GET", "users/ann/tokens", "olga"), 403, "role-needed")
        problem(api("GET", "users/eve/tokens", "root"), 404, "not-found")
        problem(api("DELETE", f"users/bob/tokens/{found[0]['id']}", "root"), 404, "not-found")
        assert api("DELETE", f"users/ann/tokens/{found[0]['id']}", "root").status_code == 204
        problem(api("GET", "me", None), 401, "unauthorized")
        assert api("GET", "me").status_code == 200, "the token of that session goes on"
        assert [done[:2] for done in api.audit()] == [("root", "token.end"), ("ann", "session.add")]


class TestSessions:
    def test_wrong_tokens_lock_nobody_out_and_are_audited(self, api: Api) -> None:
        codes = [api.sign_in(token="rlpto_" + "A" * 43).status_code for _ in range(8)]
        assert codes == [401] * 5 + [429] * 3
        assert api.sign_in().status_code == 201, "from the same address"
        refused = [done for done in api.audit() if done[1] == "session.refuse"]
        assert refused == [("", "session.refuse", "testclient")] * 6, "of those beyond the limit one a window"

    def test_pages_of_others_change_nothing(self, api: Api) -> None:
        api.sign_in()
        for origin in ("null", "http://evil.example", "http://127.0.0.1:9999", None):
            headers = {} if origin is None else {"Origin": origin}
            problem(api("POST", "jobs", None, json={"program": "digits"}, headers=headers), 403, "wrong-origin")
        assert api("GET", "jobs").json()["jobs"] == []

    def test_a_session_is_a_cookie_and_no_token_and_a_token_no_session(self, api: Api) -> None:
        assert "HttpOnly; Max-Age=43200; Path=/; SameSite=strict" in api.sign_in().headers["set-cookie"]
        secret = api.client.cookies["rlpto_session_8765"]
        problem(api("GET", "me", None, headers=bearer(secret)), 401, "unauthorized")
        assert api("POST", "jobs", None, json={"program": "digits"}, headers=ORIGIN).status_code == 201
        assert api("DELETE", "session", None, headers=ORIGIN).status_code == 204
        for cookie in (secret, api.tokens["ann"]):
            problem(api("GET", "me", None, headers={"Cookie": f"rlpto_session_8765={cookie}"}), 401, "unauthorized")


def test_only_requests_for_this_host_are_answered(shared_api: Api) -> None:
    for host in ("127.0.0.1:8765", "localhost:8765", "LOCALHOST", "[::1]:80"):
        assert shared_api("GET", "/healthz", None, headers={"Host": host}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost@evil", "a b", "127.0.0.2"):
        problem(shared_api("GET", "/healthz", None, headers={"Host": host}), 421, "wrong-host")


def test_an_admin_adds_and_disables_users_and_one_admin_stays(api: Api) -> None:
    assert api("POST", "users", "root", json={"name": "eve", "role": "user"}).status_code == 201
    problem(api("POST", "users", "root", json={"name": "eve"}), 409, "name-taken")
    header = bearer(api("POST", "users/eve/tokens", "root", json={}).json()["token"])
    assert api("GET", "me", None, headers=header).json()["role"] == "user"
    assert api("PATCH", "users/eve", "root", json={"disabled": True}).json()["disabled"] is True
    problem(api("GET", "me", None, headers=header), 401, "unauthorized")
    problem(api("PATCH", "users/root", "root", json={"role": "user"}), 409, "last-admin")
    assert api("GET", "me", "root").json()["role"] == "admin"
    for user in ("ann", "dev", "olga"):
        for path in ("users", "audit"):
            problem(api("GET", path, user), 403, "role-needed")
        assert api("GET", "/admin", user).status_code in (403, 404)
        assert 'href="/admin"' not in api("GET", "/", user).text


class TestPrograms:
    def test_the_catalogue_says_what_users_may_choose(self, shared_api: Api) -> None:
        answer = shared_api("GET", "programs")
        found = answer.json()["programs"][0]
        assert (found["name"], found["epochs"], found["batch_sizes"], found["most_gpus"]) == ("digits", 20, [32], 8)
        assert found["options"]["hidden"]["maximum"] == 512
        assert len(found["preview"]) == 12
        assert "DigitsMlp" not in answer.text, "class paths are the admin's"

    def test_a_program_that_cannot_train_is_not_taken(self, api: Api) -> None:
        api.refuse("no module named x")
        answer = api("POST", "jobs", json={"program": "digits"})
        assert "no module named x" in problem(answer, 403, "program-not-allowed")
        assert [row["name"] for row in api("GET", "programs").json()["programs"]] == ["script"]
        found = api("GET", "programs", "root").json()["programs"][0]
        assert (found["name"], found["checked"], found["problem"]) == ("digits", "refused", "no module named x")
        assert "no module named x" in api("GET", "/admin", "root").text

    def test_an_admin_adds_changes_and_deletes_programs(self, api: Api) -> None:
        body = {"program": {"training": "mine.code:Net", "epochs": 7}, "most_gpus": 4}
        assert api("PUT", "programs/mine", "root", json=body).json()["checked"] == "unchecked"
        job = api.submit(program="mine", gpus=4)
        assert (job["epochs"], job["max_gpus"]) == (7, 4)
        problem(api("PUT", "programs/mine", "olga", json=body), 403, "role-needed")
        problem(api("DELETE", "programs/mine", "olga"), 403, "role-needed")
        assert api("PUT", "programs/mine", "root", json=body | {"most_gpus": 2}).json()["most_gpus"] == 2
        assert "at most, got 4" in problem(api("POST", "jobs", json={"program": "mine", "gpus": 4}), 422, "not-valid")
        assert "mine.code:Net" in api("GET", "/admin", "root").text
        assert api("DELETE", "programs/mine", "root").status_code == 204
        problem(api("POST", "jobs", json={"program": "mine"}), 403, "program-not-allowed")
        for user, names in (("ann", ["digits", "script"]), ("root", ["digits", "mine", "script"])):
            assert [row["name"] for row in api("GET", "programs", user).json()["programs"]] == names
        problem(api("DELETE", "programs/none", "root"), 404, "not-found")
        assert api.audit() == [("root", f"program.{what}", "mine") for what in ("delete", "set", "set")]

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            ({"sampels": 3}, "body.program.sampels: Extra inputs are not permitted"),
            ({"epochs": True}, "body.program.epochs: expected a number, got true or false"),
            ({"servers": 2, "most_servers": 1}, "body.program: most_servers 1 is below servers 2"),
            ({"training": "a:\ud800"}, "body.program.training: Input should be a valid string"),
            ({"options": {"a": "x" * 16_384}}, "expected a program of at most 16384 characters"),
        ],
    )
    def test_a_program_that_the_scheduler_could_not_read_is_not_taken(
        self, shared_api: Api, wrong: dict[str, Any], said: str
    ) -> None:
        body = json.dumps({"program": {"training": "a:B", **wrong}})
        headers = {"Content-Type": "application/json"}
        answer = shared_api("PUT", "programs/digits", "root", content=body, headers=headers)
        assert problem(answer, 422, "not-valid").startswith(said)
        assert shared_api.submit()["program"] == "digits", "it is as it was"


def test_who_may_use_which_class(api: Api) -> None:
    low, high = api.submit(priority="low"), api.submit(priority="high")
    for change, said in (("normal", "normal or low"), ("low", "low")):
        api("PATCH", "users/ann", "root", json={"highest_priority": change})
        assert api("GET", "me").json()["highest_priority"] == change
        refused = api("POST", "jobs", json={"program": "digits", "priority": "high"})
        assert problem(refused, 403, "quota-exceeded") == f"priority: you may not use class high: expected {said}"
    problem(api("PATCH", f"jobs/{low['id']}", json={"priority": "normal"}), 403, "quota-exceeded")
    assert api("PATCH", f"jobs/{low['id']}", "olga", json={"priority": "high"}).status_code == 200
    kept = api("PATCH", f"jobs/{high['id']}", json={"priority": "high"})
    assert kept.status_code == 200, "what has the class already keeps it"


def test_the_settings_bound_the_class_of_users_and_developers(tmp_path: Path) -> None:
    with running_api(tmp_path, quotas={"highest_priority": "normal"}) as api:
        for user, code in {"ann": 403, "bob": 403, "dev": 403, "olga": 201, "root": 201}.items():
            answer = api("POST", "jobs", user, json={"program": "digits", "priority": "high"})
            assert answer.status_code == code, user
        for own, code in (("high", 201), (None, 403)):
            api("PATCH", "users/ann", "root", json={"highest_priority": own})
            assert api("POST", "jobs", json={"program": "digits", "priority": "high"}).status_code == code
