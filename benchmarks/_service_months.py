"""A job service for 24 days of virtual time, again and again, with what users, operators and faults do to it."""

from __future__ import annotations

import time

from _common import Check
from hypothesis import HealthCheck, given, settings

from tests.service.scheduler.test_months import Drawn, Users, live_through, months

RUNS = 200


def months_of_service() -> tuple[list[Check], dict[str, object]]:
    """Whether no GPU is given twice, no job is lost, and the database says what happened, in all of them."""
    seen: list[Users] = []
    wrong: list[str] = []

    @settings(max_examples=RUNS, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(months())
    def run(drawn: Drawn) -> None:
        seen.append(live_through(drawn))

    began = time.perf_counter()
    try:
        run()
    except AssertionError as error:
        wrong.append(str(error))
    return [
        Check("runs of 24 days", len(seen), "", RUNS, True),
        Check("runs in which a GPU is given twice, a job is lost, or the database is wrong", len(wrong), "", 0, False),
    ], {
        "jobs": sum(len(users.jobs) for users in seen),
        "cancelled": sum(len(users.cancelled) for users in seen),
        "switches": sum(len(users.switched) for users in seen),
        "kills of the scheduler asked for": sum(users.kills for users in seen),
        "starts of the scheduler": sum(users.starts for users in seen),
        "seconds": round(time.perf_counter() - began),
    } | ({"wrong": wrong[0]} if wrong else {})
