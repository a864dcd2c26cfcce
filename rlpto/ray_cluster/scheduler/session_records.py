"""What a session database says of a run: records of decisions and of policies, and events of reports."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from rlpto.core.records import DecisionRecords, PolicySwitches, intervals
from rlpto.core.rewards import RewardWeights, reward_terms
from rlpto.ray_cluster.messages import JobReport
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase


def decision_records(database: SessionDatabase, weights: RewardWeights) -> DecisionRecords:
    """All decisions of a session, those of schedulers that are gone included; latency: of the policy alone."""
    rows = np.array(database.decisions(), dtype=np.float64).reshape(-1, 15)
    shortfall = rows[:, 12:15]
    passed = intervals(rows[:, 6:9], rows[:, 9], rows[:, 10], rows[:, 11], shortfall)
    return DecisionRecords.from_rows(
        rows[:, :6], reward_terms(passed, weights), shortfall.sum(axis=1), np.zeros(len(rows))
    )


def policy_switches(database: SessionDatabase) -> PolicySwitches:
    """Which policy took the decisions of a session when; empty if one took them all."""
    taken = database.rows("SELECT time, policy FROM decisions ORDER BY seq")
    firsts = [next(group) for _, group in groupby(taken, key=lambda row: row[1])]
    if len(firsts) < 2:
        return PolicySwitches()
    return PolicySwitches(np.array([time for time, _ in firsts]), tuple(name for _, name in firsts))


def note_events(database: SessionDatabase, at: float, before: JobReport, report: JobReport) -> None:
    """Enter pauses, recoveries and failures that are new in a report. at: s of the session at which it was made."""
    for pause in newest_of(report.pauses, report.rescales - before.rescales):
        database.event(at, "rescale", report.job, value=pause, detail=f"{len(report.training_on)} workers")
    for seconds in newest_of(report.recovery_seconds, report.recoveries - before.recoveries):
        database.event(at, "recovery", report.job, value=seconds)
    if report.failure and report.failure != before.failure and not report.ended:
        database.event(at, "fault", report.job, detail=report.failure)


def newest_of(values: Sequence[float], count: int) -> Sequence[float]:
    """The newest `count` values, as far as they were kept."""
    return values[-count:] if count > 0 else ()
