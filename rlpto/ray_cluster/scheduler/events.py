"""What two successive reports of a job say has happened in between."""

from __future__ import annotations

from collections.abc import Sequence

from rlpto.ray_cluster.messages import JobReport
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase


def note_events(database: SessionDatabase, at: float, before: JobReport, report: JobReport) -> None:
    """Enter pauses, recoveries and failures that are new in a report. at: s of the session at which it was made."""
    for pause in newest_of(report.pauses, report.rescales - before.rescales):
        database.event(at, "rescale", report.job, value=pause, detail=f"{len(report.training_on)} workers")
    for seconds in newest_of(report.recovery_seconds, report.recoveries - before.recoveries):
        database.event(at, "recovery", report.job, value=seconds)
    if report.failure and report.failure != before.failure and not report.ended:
        database.event(at, "fault", report.job, detail=report.failure)


def newest_of(values: Sequence[float], count: int) -> Sequence[float]:
    """The newest `count` of values of which only the newest were kept."""
    return values[-count:] if count > 0 else ()


def last_line(text: str) -> str:
    """The last line of a traceback: what was raised."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"
