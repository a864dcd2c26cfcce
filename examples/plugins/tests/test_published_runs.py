"""Jobs whose batch size follows a schedule, and the study of published runs."""

from pathlib import Path

import numpy as np
import pytest

from rlpto.core.cluster import Node
from rlpto.core.jobs import Job
from rlpto.evaluation.metrics import measure
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings
from rlpto_shockwave import study
from rlpto_shockwave.scheduled import ScheduledModel, compile_scheduled, present_batch
from tests.builders import played

MODEL = ScheduledModel(1000, np.array([10, 10, 20, 300]), {10: 5.0, 20: 4.0, 300: 1.0}, gpus=2, rescale_delay=20.0)
"""Epochs of 100, 100, 50 and 4 steps: 20, 20, 12.5 and 4 s."""


@pytest.mark.parametrize(("epochs", "seconds"), [(4.0, 56.5), (2.5, 46.25), (1.0, 20.0)])
def test_a_job_takes_what_its_batches_take(epochs: float, seconds: float) -> None:
    job = Job("job", 0.0, "m", epochs, 1000.0, 2, 1, 4)
    cluster = SimulatedCluster([Node(4)], [job], compile_scheduled({"m": MODEL}, 4), SimulatorSettings())
    assert present_batch(cluster.state().jobs).tolist() == [10]
    record = played(cluster, "equal_share").jobs
    assert record.peak_gpus.tolist() == [2], "it runs on its number of GPUs only"
    assert record.finish_time[0] == pytest.approx(20.0 + seconds)
    assert record.requested_time[0] == pytest.approx(20.0 + seconds)


SPEEDS = {("LM", 1): {5: 100.0, 10: 90.0, 20: 70.0, 40: 50.0, 80: 25.0}}


@pytest.mark.parametrize("mode", ["static", "accordion", "gns"])
def test_batches_grow_earlier_than_fairness_is_judged_by(mode: str) -> None:
    one = study.Submitted("LM", 20, 60 * 2984, 1, mode, 0.0)
    trained, judged = (study.trained(one, SPEEDS, judged=which).batches for which in (False, True))
    changes = {"static": ([], []), "accordion": ([9], [19]), "gns": ([9, 39], [11, 41])}[mode]
    assert [(np.flatnonzero(np.diff(each)) + 1).tolist() for each in (trained, judged)] == list(changes)


def test_max_min_fairness_comes_to_the_published_figures(shared_data: Path) -> None:
    folder = shared_data / "shockwave"
    submitted, speeds = study.read_trace(folder / study.TRACE), study.read_speeds(folder)
    found = measure(study.replay(submitted, speeds, "gavel"))
    assert found["makespan"] == pytest.approx(33_208, rel=0.03)
    assert found["jct_mean"] == pytest.approx(11_274, rel=0.03)
