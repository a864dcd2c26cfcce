"""Schedulearn's S1 on real jobs: other policies are asked for while 30 jobs train, and none of them notices.

Jobs as in its experiment with mixed jobs: 30 that ask for 1 to 4 GPUs, on 3 servers of 4, with random gaps. Each trains
the digits for some seconds, paced, so that logical GPUs do not wait for the few cores there are.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from _common import Check
from _ray_job import BATCH, DIGITS, SAMPLES, cluster, load

from rlpto.core.loop import run as schedule
from rlpto.core.queues import QueueSettings
from rlpto.core.rewards import RewardWeights
from rlpto.evaluation.runner import Cell
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import prepare
from rlpto.experiments.on_ray import compile_ahead, real_cluster, session_of
from rlpto.experiments.session_policy import SessionPolicy
from rlpto.policies.registry import make_policy
from rlpto.policies.switching import switching
from rlpto.ray_cluster.controllers import find_controllers
from rlpto.ray_cluster.scheduler.backend import RayBackend
from rlpto.ray_cluster.scheduler.cluster import RayCluster
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase, policy_answer, read_table, request_policy

SERVERS, GPUS, JOBS = 3, 4, 30
GAP_S = (0.5, 3.0)
PACE, EPOCHS = 0.2, 8
"""Seconds of a step with one worker; epochs of a job: 37 s of one GPU."""
STEPS = -(-SAMPLES // BATCH)
"""Steps of an epoch."""
FIRST = "fifo:one_node=true"
LATER = ("elastic_fifo:one_node=true", "round_robin", "fifo:one_node=true")
EVERY = 7
"""Jobs that finish from one switch to the next."""
ENOUGH = 6
"""Processes of jobs that wait for nothing which there are at a switch, at least."""
CALL_S = 1.0
INTERVAL_S = 1.0


def run(_: int) -> tuple[list[Check], dict[str, object]]:
    """One run, however many are asked for; about two minutes."""
    with tempfile.TemporaryDirectory() as folder, cluster(SERVERS, GPUS):
        cell = Cell(FIRST, "jobs", 0)
        experiment, session = prepare(config()), session_of(Path(folder), cell)
        compile_ahead(experiment, (FIRST, *LATER))
        backend = RayBackend(session)
        began = time.monotonic()
        with SessionDatabase(Path(folder) / "state.sqlite") as database:
            switcher = Switcher(database.path, session)
            started = real_cluster(experiment, "jobs", 0, backend, database, session, [switcher])
            policy = SessionPolicy(switching(make_policy(FIRST)), make_policy, database, started.deciding)
            try:
                schedule(started, policy, QueueSettings(), RewardWeights())
            finally:
                started.close()
            return verdict(switcher, database.path, time.monotonic() - began)


def config() -> Config:
    """The experiment; the same jobs every time."""
    rng = np.random.default_rng(17)
    submits, gpus = np.cumsum(rng.uniform(*GAP_S, JOBS)), rng.integers(1, GPUS + 1, JOBS)
    jobs = [
        {"name": f"job-{i}", "model": "digits", "submit": at, "epochs": EPOCHS, "gpus": wanted, "max_gpus": GPUS}
        for i, (at, wanted) in enumerate(zip(submits.tolist(), gpus.tolist(), strict=True))
    ]
    trained = {"training": f"{DIGITS}:DigitsMlp", "samples": SAMPLES, "batch_size": BATCH, "pace": PACE}
    return Config.model_validate(
        {
            "name": "switching",
            "cluster": {"nodes": [{"count": SERVERS, "gpus": GPUS}]},
            "workload": {"source": "jobs", "jobs": jobs},
            "simulator": {"interval": INTERVAL_S},
            "ray": {"programs": {"digits": trained}, "tensorboard": False},
            "policies": [FIRST],
            "evaluation": {"reference": FIRST},
        }
    )


class Switcher:
    """Asks for the next policy, as `rlpto cluster switch` does, once `EVERY` more jobs have finished and `ENOUGH`
    processes train, and looks at those before and after.

    seconds: of each call. obeyed: s from each call until a policy had answered. lost: processes of running jobs that
    were there before a switch and not after it. watched: processes that were compared.
    """

    def __init__(self, path: Path, session: str) -> None:
        self._path, self._session = path, session
        self._requests: list[int] = []
        self._asked_at = 0.0
        self._before: dict[str, set[int]] = {}
        self.seconds: list[float] = []
        self.obeyed: list[float] = []
        self.lost = self.watched = 0

    def __call__(self, started: RayCluster) -> None:
        """An observer of the cluster, called about once a second and after every decision."""
        if len(self.obeyed) < len(self._requests):
            answer = policy_answer(self._path, self._requests[-1])
            if answer is None:
                return
            assert answer == "", answer
            self.obeyed.append(time.monotonic() - self._asked_at)
            after = workers_of(self._session)
            for job, pids in self._before.items():
                report = started.reports.get(job)
                if report is None or not report.ended:
                    self.watched += len(pids)
                    self.lost += len(pids - after.get(job, set()))
        elif len(self._requests) < len(LATER) and started.columns.finished.sum() >= EVERY * (len(self._requests) + 1):
            workers = workers_of(self._session)
            self._before = {job: pids for job, pids in workers.items() if settled(started, job, pids)}
            if sum(map(len, self._before.values())) < ENOUGH:
                return
            self._asked_at = time.monotonic()
            self._requests.append(request_policy(self._path, LATER[len(self._requests)]))
            self.seconds.append(time.monotonic() - self._asked_at)


def settled(started: RayCluster, job: str, pids: set[int]) -> bool:
    """Whether a job trains with just the workers that it is to have: no decision before the switch is on its way."""
    report, planned = started.reports.get(job), started.nodes_of(job)
    return report is not None and sorted(report.training_on) == sorted(planned) and len(pids) == len(planned)


def workers_of(session: str) -> dict[str, set[int]]:
    """Process ids of the workers of every job that has a controller."""
    # No public call tells this without the dashboard.
    from ray._private.state import actors

    alive = [actor for actor in actors().values() if actor["State"] == "ALIVE"]
    jobs = {handle._actor_id.hex(): job for job, handle in find_controllers(session).items()}
    owners = {place_of(actor["Address"]): jobs[actor["ActorID"]] for actor in alive if actor["ActorID"] in jobs}
    found: dict[str, set[int]] = {}
    for actor in alive:
        job = owners.get(place_of(actor["OwnerAddress"]))
        if job is not None and actor["ActorID"] not in jobs:
            found.setdefault(job, set()).add(actor["Pid"])
    return found


def place_of(address: Mapping[str, Any]) -> tuple[object, object]:
    """Where a process is: its node and its port there."""
    return address["NodeID"], address["Port"]


def verdict(switcher: Switcher, path: Path, seconds: float) -> tuple[list[Check], dict[str, object]]:
    """What was promised, against what was seen."""
    jobs, events, decisions = (rows(path, table) for table in ("jobs", "events", "decisions"))
    events = [event | json.loads(event["body"]) for event in events]
    ends = Counter(event["job"] for event in events if event.get("what") == "finished")
    switches = [event for event in events if event.get("what") == "policy"]
    next_by = [
        next(taken["policy"] for taken in decisions if taken["time"] >= event["time"])
        == str(event["detail"]).partition(" -> ")[2]
        for event in switches
    ]
    wrong_steps = [job["id"] for job in jobs if job["step"] != EPOCHS * STEPS]
    checks = [
        Check("S1: jobs finished", sum(job["state"] == "finished" for job in jobs), "jobs", JOBS, True),
        Check("S1: jobs that ended more than once", sum(count > 1 for count in ends.values()), "", 0, False),
        Check("S1: jobs with steps lost or trained twice", len(wrong_steps), "", 0, False),
        Check("S1: faults of jobs", sum(job["recoveries"] for job in jobs), "", 0, False),
        Check("S1: switches", len(switches), "", len(LATER), True),
        Check("S1: switches after which the new policy decides next", sum(next_by), "", len(LATER), True),
        Check("S1: processes of running jobs that a switch ended", switcher.lost, "", 0, False),
        Check("S1: processes that were looked at", switcher.watched, "", ENOUGH * len(LATER), True),
        Check("S1: slowest call", max(switcher.seconds), "s", CALL_S, False),
    ]
    facts: dict[str, object] = {
        "switches": [f"{event['detail']} at {event['time']:.1f} s" for event in switches],
        "obeyed after [s]": [round(one, 2) for one in switcher.obeyed],
        "calls [s]": [round(one, 4) for one in switcher.seconds],
        "last job finished after [s]": round(max(job["finish_time"] for job in jobs), 1),
        "seconds in all": round(seconds, 1),
        "load during switching": load(),
    }
    return checks, facts


def rows(path: Path, table: str) -> list[dict[str, Any]]:
    """A table of the session database."""
    columns, found = read_table(path, table)
    return [dict(zip(columns, row, strict=True)) for row in found]
