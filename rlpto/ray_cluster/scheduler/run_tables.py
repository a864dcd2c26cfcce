"""What happens in a session: events between two reports of a job, and the tables in its run folder, as CSV."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from rlpto.core.records import AllocationChanges, DecisionRecords, PolicySwitches, intervals
from rlpto.core.rewards import RewardWeights, reward_terms
from rlpto.io.files import write_text
from rlpto.ray_cluster.messages import JobReport
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase


def write_tables(database: SessionDatabase, folder: Path) -> None:
    """Write `allocation_by_node.csv`, `rescale_pauses.csv`, `recovery_times.csv`, `jobs.csv` and `events.csv`.

    Jobs go by their names; jobs.csv has their ids, which folders are called by. allocation_by_node: GPUs of a
    node that a job holds from `time_s` on. Raises CheckpointError if they cannot be written.
    """
    numbers = {node: number for node, number, _, _ in database.nodes()}
    rows = database.jobs()
    names = {"": "", **{row.id: row.name for row in rows}}
    events = [(time, kind, names.get(job, job), *rest) for time, kind, job, *rest in database.events()]
    _write(
        folder / "allocation_by_node.csv",
        ("time_s", "node", "node_id", "job", "gpus"),
        [(*at, names.get(job, job), gpus) for *at, job, gpus in allocation_by_node(database, numbers)],
    )
    pauses = [(f"{time:.3f}", job, detail, value) for time, kind, job, _, value, detail in events if kind == "rescale"]
    _write(folder / "rescale_pauses.csv", ("time_s", "job", "to", "pause_s"), pauses)
    faults = ("recovery", "controller_lost", "node_down", "scheduler_returned")
    _write(
        folder / "recovery_times.csv",
        ("time_s", "kind", "job", "node", "value", "detail"),
        [(f"{time:.3f}", kind, *rest) for time, kind, *rest in events if kind in faults],
    )
    _write(
        folder / "events.csv",
        ("time_s", "kind", "job", "node", "value", "detail"),
        [(f"{time:.3f}", *rest) for time, *rest in events],
    )
    columns = tuple(name for name in rows[0].__dataclass_fields__ if name != "number") if rows else ()
    _write(folder / "jobs.csv", columns, [tuple(getattr(row, name) for name in columns) for row in rows])


def allocation_by_node(database: SessionDatabase, numbers: dict[str, int]) -> list[tuple[str, int, str, str, int]]:
    """Every change of what a job holds of a node, in order: time [s], number and id of the node, job's id, GPUs."""
    before: dict[str, Counter[str]] = {}
    rows: list[tuple[str, int, str, str, int]] = []
    for time, job, _, _, nodes in database.changes():
        now, then = Counter(nodes), before.get(job, Counter())
        rows += [
            (f"{time:.3f}", numbers.get(node, -1), node, job, now[node])
            for node in sorted(now.keys() | then.keys(), key=lambda node: numbers.get(node, -1))
            if now[node] != then[node]
        ]
        before[job] = now
    return rows


def allocation_changes(database: SessionDatabase, numbers: Mapping[str, int]) -> AllocationChanges:
    """Every change of the GPUs that a job's controller has reported to hold. numbers: of jobs, by id."""
    rows = database.changes()
    return AllocationChanges(
        time=np.array([row[0] for row in rows], dtype=np.float64),
        job=np.array([numbers[row[1]] for row in rows], dtype=np.int64),
        gpus=np.array([row[2] for row in rows], dtype=np.int64),
        accuracy=np.array([row[3] for row in rows], dtype=np.float64),
    )


def decision_records(database: SessionDatabase, weights: RewardWeights) -> DecisionRecords:
    """All decisions of a session, those of schedulers that are gone included; latency: of the policy alone."""
    rows = np.array(database.decisions(), dtype=np.float64).reshape(-1, 15)
    shortfall = rows[:, 12:15]
    passed = intervals(rows[:, 6:9], rows[:, 9], rows[:, 10], rows[:, 11], shortfall)
    return DecisionRecords.from_rows(rows[:, :6], reward_terms(passed, weights), shortfall.sum(axis=1))


def policy_switches(database: SessionDatabase) -> PolicySwitches:
    """Which policy took the decisions of a session when; empty if one took them all."""
    taken = database.deciders()
    firsts = [taken[i] for i in range(len(taken)) if i == 0 or taken[i][1] != taken[i - 1][1]]
    if len(firsts) < 2:
        return PolicySwitches()
    return PolicySwitches(np.array([time for time, _ in firsts]), tuple(name for _, name in firsts))


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(path, text.getvalue(), "a table")


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


def last_line(text: str) -> str:
    """The last line of a traceback: what was raised."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"
