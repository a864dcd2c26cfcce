from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rlpto.io.errors import ConfigError
from rlpto.service.scheduler.policy_catalogue import PolicyWarmup


def until(holds: Callable[[], bool]) -> None:
    by = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < by
        time.sleep(0.005)


def test_nobody_waits_for_a_policy_that_is_made_ready() -> None:
    go_on, begun = threading.Event(), list[str]()

    def make_ready(spec: str) -> None:
        begun.append(spec)
        go_on.wait(10)

    warmup = PolicyWarmup(make_ready, print)
    assert not warmup("pollux")
    assert not warmup("planner")
    until(lambda: begun == ["pollux"])
    assert not warmup("pollux")
    go_on.set()
    until(lambda: warmup("planner"))
    assert warmup("pollux")
    assert begun == ["pollux", "planner"], "each once"


def test_one_that_cannot_be_made_is_asked_for_no_less() -> None:
    said = list[str]()

    def refuse(_: str) -> None:
        raise ConfigError("no such\nrun")

    warmup = PolicyWarmup(refuse, said.append)
    warmup.now("agent:run=x")
    assert warmup("agent:run=x")
    assert said == ["policy agent:run=x cannot be used: no such run"]
