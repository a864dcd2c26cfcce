"""Policies of users in the process that predicts."""

import sys
from concurrent.futures import wait
from pathlib import Path

import numpy as np
import pytest

from rlpto.core.queues import Queue, QueueSettings
from rlpto.io.errors import ConfigError
from rlpto.planning import predictor
from rlpto.planning.predictor import Predictions, Predictor, Sampled, SentPolicy, look_ahead
from rlpto.planning.snapshot import take_snapshot
from rlpto.policies.registry import make_policy
from rlpto.simulator.settings import SimulatorSettings

from ..builders import job, linear_tables, make_cluster, random_jobs, random_tables

MINE = """
from rlpto.policies.rigid import Srtf


class Mine(Srtf):
    summary = "one of a file"
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file with a policy that decides as srtf does."""
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.mark.slow
def test_another_process_predicts_under_a_policy_of_a_file(mine: Path) -> None:
    made, said = list[Predictions](), list[str]()
    predictor = Predictor(QueueSettings(), SimulatorSettings(), made.append, said.append, 0.0)
    cluster = make_cluster(random_jobs(1, 6, 8, 8), random_tables(3, 8, 20.0), [4, 4])
    cluster.advance()
    state = Queue(QueueSettings()).order(cluster.state())
    for spec in ("srtf", f"{mine}:Mine", f"fifo>3600:{mine}:Mine"):
        predictor.begin(cluster, [str(at) for at in range(6)], make_policy(spec), state, spec)
        wait([predictor._under_way[0]])
        predictor.publish()
    predictor.close()
    assert said == []
    assert made[0].finish.tolist() == made[1].finish.tolist()
    assert made[2].policy.startswith("fifo>3600:")


def test_lengths_that_are_not_known_widen_the_interval_and_move_its_middle() -> None:
    """One job alone, of 10 epochs, or of 1 to 19 half epochs in its futures; the interval is from the 2nd to 18th."""
    cluster = make_cluster([job(0, epochs=10.0)], linear_tables(), [4])
    cluster.advance()
    snapshot = take_snapshot(cluster, Queue(QueueSettings()).order(cluster.state()))
    epochs = np.arange(1.0, 20.0) / 2
    (alone, nothing), (found, known), (middle, unknown) = (
        look_ahead(snapshot, make_policy("fifo"), QueueSettings(), SimulatorSettings(), futures)
        for futures in [None, *(Sampled(19, lambda _: (), np.zeros(1), left) for left in (None, epochs[:, None]))]
    )
    late = alone.finish[0] - alone.start[0]
    assert nothing is None
    assert known is not None
    assert unknown is not None
    np.testing.assert_allclose([*known[1, :, 0], *found.finish] - alone.start[0], late, rtol=0.1)
    np.testing.assert_allclose(unknown[1, :, 0] - alone.start[0], [late * 0.1, late * 0.9], rtol=0.1)
    np.testing.assert_allclose(middle.finish - alone.start[0], late * 0.5, rtol=0.1)


def test_a_job_never_finishes_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all futures start it, late, and too few finish it."""
    cluster = make_cluster([job(0, epochs=10.0)], linear_tables(), [4])
    cluster.advance()
    snapshot = take_snapshot(cluster, Queue(QueueSettings()).order(cluster.state()))
    late = [np.array([[1e6], [2e6 if number < 15 else np.nan]]) for number in range(19)]
    monkeypatch.setattr(predictor, "run_in", lambda *given: late[given[-1]])
    futures = Sampled(19, lambda _: (), np.zeros(1))
    found, bounds = look_ahead(snapshot, make_policy("fifo"), QueueSettings(), SimulatorSettings(), futures)
    assert found.start[0] < found.finish[0]
    assert bounds is not None
    assert np.isfinite(bounds[0]).all()
    assert np.isnan(bounds[1]).all()


def test_a_file_that_has_changed_since_is_named(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the process that predicts, which has not loaded it before."""
    policy = make_policy(f"{mine}:Mine")
    sent = SentPolicy.of(policy)
    monkeypatch.delitem(sys.modules, type(policy).__module__)
    assert sent.policy().summary == "one of a file"
    monkeypatch.delitem(sys.modules, type(policy).__module__)
    mine.write_text(MINE + "\n")
    with pytest.raises(ConfigError, match=r"mine\.py: it, or a file that it imports, has changed since"):
        sent.policy()
