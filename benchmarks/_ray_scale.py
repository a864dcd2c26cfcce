"""Scale: 64 logical GPUs on the cores there are, under the command that users start.

All is real, the training of 64 workers included, but paced: little of a step is training. Timing shows whether so many
still keep pace; it says nothing about training speed.
"""

from __future__ import annotations

import math
import sqlite3
import statistics
import tempfile
from contextlib import closing
from itertools import accumulate
from pathlib import Path

import numpy as np
from _common import Check
from _ray_job import experiment, load, rlpto

NODES, GPUS, EACH = 4, 16, 4
PACE = 4.0
TIMING, LATENCY = 0.02, 0.100
POLICY = "equal_share"
ENOUGH = 20
"""Steps from which on the speed of a job is known."""


def run(_: int) -> tuple[list[Check], dict[str, object]]:
    """One run, however many are asked for: it takes 7 GB of memory and 23 minutes."""
    with tempfile.TemporaryDirectory() as folder:
        config, results = Path(folder, "scale.yaml"), Path(folder, "run")
        jobs = {"name": "job", "count": NODES * GPUS // EACH, "every": 26.0, "epochs": 40} | {
            "gpus": EACH,
            "max_gpus": EACH,
        }
        config.write_text(experiment("scale", NODES, GPUS, jobs, {"pace": PACE}, heartbeat_timeout=30))
        where = ["--cluster", "ray", "--run-dir", str(results), "--set", "simulator.interval=5"]
        rlpto("evaluate", str(config), *where, "--policies", POLICY, "--no-report", "--quiet")
        (database,) = results.glob("ray/*/state.sqlite")
        with closing(sqlite3.connect(database)) as found:
            return judged(found)


def judged(database: sqlite3.Connection) -> tuple[list[Check], dict[str, object]]:
    """What the session database tells."""
    latency = [row[0] for row in database.execute("SELECT latency FROM decisions")]
    # From when all workers of a job trained to its end: of those that nothing has disturbed.
    spans = database.execute(
        "SELECT finish_time - min(applied_at), step FROM jobs JOIN allocations ON job = jobs.id WHERE applied_at "
        "IS NOT NULL AND jobs.state = 'finished' AND rescales = 0 AND recoveries = 0 AND step >= ? GROUP BY jobs.id",
        (ENOUGH,),
    )
    timing = [abs(seconds / step / (PACE / EACH) - 1.0) for seconds, step in spans]
    finished, failed = (
        database.execute("SELECT count(*) FROM jobs WHERE state = ?", (state,)).fetchone()[0]
        for state in ("finished", "failed")
    )
    checks = [
        Check("step time off by, median job", statistics.median(timing or [math.inf]), "", TIMING, least=False),
        Check("decision, 99 %", float(np.quantile(latency, 0.99)), "s", LATENCY, least=False),
        Check("GPUs that trained at once", most_training(database), "GPUs", NODES * GPUS, least=True),
        Check("jobs finished", finished, "jobs", NODES * GPUS // EACH, least=True),
    ]
    facts = {
        "workers": f"paced: a step of {EACH} takes {PACE / EACH:g} s, of which little is training",
        "decisions": len(latency),
        "decision, median [ms]": round(1e3 * statistics.median(latency), 2),
        "step time off by, worst job": round(max(timing, default=math.inf), 4),
        "jobs failed": failed,
        "load during scale": load(),
    }
    return checks, facts


def most_training(database: sqlite3.Connection) -> int:
    """Most GPUs that trained at once: of jobs whose workers all trained, until the job had finished."""
    query = (
        "SELECT min(applied_at), finish_time FROM allocations JOIN jobs ON job = jobs.id "
        "WHERE applied_at IS NOT NULL GROUP BY job"
    )
    spans = database.execute(query).fetchall()
    moments = [(begin, EACH) for begin, _ in spans] + [(end, -EACH) for _, end in spans if end is not None]
    return max(accumulate(change for _, change in sorted(moments)), default=0)
