"""What the scheduler finds out about programs."""

from __future__ import annotations

from collections.abc import Sequence

from rlpto.service.scheduler.catalogue import FAILED_KEPT_S, ProgramChecks
from tests.service.scheduler.virtual import Inline


def test_packages_that_could_not_be_installed_are_tried_again_later() -> None:
    now, found = [0.0], ["no such package", ""]

    def check(training: str, pip: Sequence[str]) -> str:
        assert (training, pip) == ("a:B", ["x"])
        return found.pop(0)

    checks = ProgramChecks(check, Inline(), lambda: now[0])
    for time, problem in (
        (0.0, "no such package"),
        (FAILED_KEPT_S, "no such package"),
        (FAILED_KEPT_S + 1, ""),
        (1e6, ""),
    ):
        now[0] = time
        assert checks.problem("a:B", ["x"]) == problem
