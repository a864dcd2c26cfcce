"""Jobs whose batch size follows a schedule: the rules, and how long such jobs take in the simulator."""

import numpy as np
import pytest

from rlpto.core.cluster import Node
from rlpto.core.jobs import Job
from rlpto.io.errors import ProfileError
from rlpto.performance.compile import compile_tables
from rlpto.performance.scheduled import ScheduledModel, ScheduledProfiles, by_accordion, by_noise_scale
from rlpto.performance.tables import JobType
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import played

MODEL = ScheduledModel(1000, np.array([10, 10, 20, 300]), {10: 5.0, 20: 4.0, 300: 1.0}, gpus=2, rescale_delay=20.0)
"""Epochs of 100, 100, 50 and 4 steps: 20, 20, 12.5 and 4 s."""


def test_batches_by_the_two_rules() -> None:
    assert by_noise_scale(32, 128, 6, (1, 3, 4)).tolist() == [32, 64, 64, 128, 128, 128]
    assert by_noise_scale(32, 128, 2, ()).tolist() == [32, 32]
    assert by_accordion(32, 128, 5, {0, 1, 3}).tolist() == [32, 32, 128, 32, 128]


@pytest.mark.parametrize(("epochs", "seconds"), [(4.0, 56.5), (2.5, 46.25), (1.0, 20.0)])
def test_a_job_takes_what_its_batches_take(epochs: float, seconds: float) -> None:
    tables = compile_tables(ScheduledProfiles({"m": MODEL}), [JobType("m")], 4, 4)
    job = Job("job", 0.0, "m", epochs, 1000.0, 2, 1, 4)
    cluster = SimulatedCluster([Node(4)], [job], tables, SimulatorSettings())
    assert cluster.state().jobs.batch_size.tolist() == [10]
    record = played(cluster, "equal_share").jobs
    assert record.peak_gpus.tolist() == [2], "it runs on its number of GPUs only"
    assert record.finish_time[0] == pytest.approx(20.0 + seconds)
    assert record.requested_time[0] == pytest.approx(20.0 + seconds)


def test_a_batch_without_a_speed_is_refused() -> None:
    broken = ScheduledProfiles({"m": ScheduledModel(1000, np.array([10, 40]), {10: 5.0, 20: 4.0})})
    with pytest.raises(ProfileError, match=r"no steps/s at batch size 40; known: \[10, 20\]"):
        compile_tables(broken, [JobType("m")], 1, 1)
    with pytest.raises(ProfileError, match="no profile of model 'n'; known: m"):
        broken.facts("n")
