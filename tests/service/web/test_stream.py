from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import httpx2
import pytest

from rlpto.service.web import state
from rlpto.service.web.access import Caller
from rlpto.service.web.routes import stream
from rlpto.service.web.routes.stream import _lines
from rlpto.store.database import Store, StoreError
from rlpto.store.events import Event, add_event, events_after, last_event
from rlpto.store.jobs import change_job
from rlpto.store.users import add_token, add_user, change_user, revoke_token, user_of_token
from tests.service.web.helpers import Api, fill, make_settings, problem, web_process


def heard(api: Api, user: str = "ann", after: int | None = None, **params: Any) -> list[tuple[str, Any]]:
    """Kind and data of every event of a stream."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    text = api("GET", "events", user, params={"once": "true", **params}, headers=headers).text
    parts = [dict(line.split(": ", 1) for line in part.splitlines() if ": " in line) for part in text.split("\n\n")]
    return [(fields["event"], json.loads(fields["data"])) for fields in parts if "event" in fields]


def test_a_stream_resumes_and_ends_and_tells_nothing_of_other_peoples_jobs(api: Api) -> None:
    job = api.submit()["id"]
    numbers = [
        add_event(api.store, "job", time.time(), job, "ann", {"state": state}) for state in ("queued", "running")
    ]
    first = heard(api)
    assert [data["body"].get("state") for kind, data in first if kind == "job"] == ["submitted", "queued", "running"]
    assert first[-1] == ("end", {"over": False})
    assert [data["seq"] for kind, data in heard(api, after=numbers[0]) if kind == "job"] == [numbers[1]]
    add_event(api.store, "policy", time.time(), body={"policy": "las"})
    assert [kind for kind, _ in heard(api, "bob")] == ["policy", "end"]
    change_job(api.store, job, time.time(), state="finished")
    found = heard(api, once="false", job=job)
    assert [kind for kind, _ in found] == ["job", "job", "job", "end"]
    assert found[-1][1] == {"over": True}


def test_events_that_are_gone_are_said_to_be(api: Api) -> None:
    numbers = [add_event(api.store, "nodes", 1.0) for _ in range(5)]
    api.store.write("DELETE FROM events WHERE seq <= ?", (numbers[2],))
    assert [kind for kind, _ in heard(api, after=numbers[0])] == ["gap", "nodes", "nodes", "end"]


def test_others_are_answered_while_a_stream_passes_over_what_it_does_not_show(api: Api) -> None:
    service = replace(api.service, store=api.store)
    ann = user_of_token(api.store, api.tokens["ann"], time.time())
    turns = 0
    with api.store.transaction():
        for number in range(1100):
            add_event(api.store, "job", float(number), "jaaa", "bob")

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def follow() -> list[str]:
        waiting = asyncio.create_task(others())
        found = [text async for text in _lines(service, Caller(*ann), 0, None, once=True)]
        waiting.cancel()
        return found

    assert "event: end" in asyncio.run(follow())[-1]
    assert turns >= 2


@pytest.mark.parametrize("what", ["token", "role"])
def test_what_happens_after_the_right_to_read_has_ended_is_not_shown(
    api: Api, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The right ends, and another user's job changes, in the moment before the stream reads its events."""
    user, token = add_user(api.store, "eve", "operator", time.time()), add_token(api.store, "eve", "", time.time())[0]

    def read(store: Store, *read: int) -> list[Event]:
        if what == "token":
            revoke_token(store, token.id, "eve", time.time())
        else:
            change_user(store, replace(user, role="user"))
        add_event(store, "job", time.time(), "jaaa", "bob", {"state": "after"})
        return events_after(store, *read)

    monkeypatch.setattr(stream, "events_after", read)
    service = replace(api.service, store=api.store)

    async def follow() -> str:
        return "".join([text async for text in _lines(service, Caller(user, token), 0, None, once=True)])

    text = asyncio.run(follow())
    assert "after" not in text
    assert "event: end" in text


def test_streams_are_bounded_by_user(api: Api) -> None:
    api.service.limits.most_streams = 0
    problem(api("GET", "events", params={"once": "true"}), 429, "too-many-streams")


def test_a_database_that_cannot_be_read_for_a_while_ends_no_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: Iterator[int | StoreError] = chain([1, StoreError("busy")], repeat(2))

    def last(_: Store) -> int:
        found = next(answers)
        if isinstance(found, StoreError):
            raise found
        return found

    monkeypatch.setattr(state, "last_event", last)
    monkeypatch.setattr(state, "LOOK_AGAIN_S", 0.0)

    async def follow(store: Store) -> bool:
        notifier = state.EventNotifier(store)
        looking = asyncio.create_task(notifier.look())
        heard = await notifier.wait(5.0)
        notifier.close()
        await looking
        return heard

    with closing(Store(tmp_path / "service.sqlite")) as opened:
        assert asyncio.run(follow(opened))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Store]]:
    """Address and database of a web process."""
    settings = make_settings(tmp_path_factory.mktemp("stream") / "service")
    fill(settings)
    with web_process(settings) as web, closing(Store(settings.database)) as store:
        yield web.address, store


@pytest.mark.parametrize("what", ["token", "user", "role", "session"])
def test_a_stream_ends_with_what_allows_it(served: tuple[str, Store], what: str) -> None:
    """A stream of all jobs that an operator has opened, when the right to read it ends."""
    address, store = served
    user = add_user(store, what, "operator", time.time())
    token, secret = add_token(store, what, "", time.time())
    headers = {"Authorization": f"Bearer {secret}"}
    if what == "session":
        signed_in = httpx2.post(f"{address}/api/v1/session", json={"token": secret})
        headers = {"Cookie": signed_in.headers["set-cookie"].partition(";")[0]}
    headers["Last-Event-ID"] = str(last_event(store))
    with httpx2.stream("GET", f"{address}/api/v1/events", headers=headers, timeout=20) as answer:
        lines = answer.iter_lines()
        add_event(store, "job", time.time(), "jaaa", "ann", {"state": "before"})
        assert any("before" in line for line in lines)
        if what == "user":  # and nothing happens
            change_user(store, replace(user, disabled=True))
            assert "event: end" in list(lines)
            return
        if what in ("token", "session"):
            revoke_token(store, token.id, what, time.time())
        else:
            change_user(store, replace(user, role="user"))
        for _ in range(3):
            add_event(store, "job", time.time(), "jaaa", "ann", {"state": "after"})
        add_event(store, "drain", time.time(), body={"on": True})
        rest = []
        for line in lines:
            rest.append(line)
            if "event: drain" in line:
                break
        else:
            assert rest[-3] == "event: end"
            assert "the token has ended" in json.loads(rest[-2].removeprefix("data: "))["reason"]
    assert not any("after" in line for line in rest), "another user's job"
    assert ("event: drain" in rest) == (what == "role"), "a user of another role goes on with their own"
