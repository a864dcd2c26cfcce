"""What `rlpto cluster status` tells of a session, from its database alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlpto.ray_cluster.messages import JobSpec
from rlpto.ray_cluster.scheduler.session_access import job_progress, newest_database
from rlpto.ray_cluster.scheduler.session_database import SessionDatabase
from rlpto.store.status import PredictionRow, set_predictions


def spec(number: int) -> JobSpec:
    return JobSpec(
        id=f"job-{number}",
        name="a label",
        session="s",
        training="a:B",
        folder="f",
        batch_size=1,
        epochs=8.0,
        data_size=10,
    )


def test_state_gpus_progress_and_end_of_every_job(tmp_path: Path) -> None:
    database = tmp_path / "ray" / "fifo-jobs-0" / "state.sqlite"
    assert newest_database(tmp_path) is None
    with SessionDatabase(database) as own:
        own.enter_jobs([(spec(number), 0.0) for number in range(3)])
        for number, gpus in ((0, 3), (1, 2), (0, 1)):
            own.change(1.0, f"job-{number}", gpus, 0.5, ())
        own.set_job("job-0", progress=2.0)
        own.set_job("job-1", state="finished", progress=8.0)
        set_predictions(
            own, [PredictionRow("job-0", 10.0, "fifo", 1.0, finish=35.0), PredictionRow("job-2", 10.0, "fifo", 40.0)]
        )
        assert newest_database(tmp_path) == database
        first, second, third = job_progress(database)
    assert (first.id, first.name, first.state, first.gpus, first.progress) == (
        "job-0",
        "a label",
        "starting",
        1,
        0.25,
    )
    assert first.left == 25.0
    assert (second.state, second.gpus, second.progress) == ("finished", 0, 1.0)
    assert (third.state, third.gpus, third.progress) == ("submitted", 0, 0.0)
    assert np.isnan([second.left, third.left]).all()
