"""The reward's formula and units."""

from __future__ import annotations

import numpy as np
import pytest

from rlpto.core.loop import run
from rlpto.core.queues import QueueSettings
from rlpto.core.records import intervals
from rlpto.core.rewards import REWARD_PARTS, TERMS, RewardWeights, reward_terms, weigh
from rlpto.policies.registry import make_policy

from ..builders import give, job, linear_tables, make_cluster


def test_every_part_by_hand():
    amounts = {"accuracy": 2.0, "time": 3.0, "resources": 0.5, "rescale": 10.0, "shortfall": 5.0, "money": 0.5}
    weights = RewardWeights(**amounts, classes=(4.0, 2.0, 1.0))
    lost = np.array([[3600.0, 0.0, 1800.0], [0.0, 7200.0, 0.0]])
    sums = intervals(np.array([[0.5, 0.25, 1.0], [0.0, 0.0, 1.0]]), 7200.0, 3600.0 * 8, [360.0, 0.0], lost)
    sums["cost"] = 6.0, 0.0
    parts = reward_terms(sums, weights)
    assert parts[0].tolist() == [2.0 * (2.0 + 0.5 + 1.0), -3.0 * 2, -0.5 * 8, -10.0 * 0.1, -5.0 * 4.5, -3.0]
    assert parts[1].tolist() == [2.0, -6.0, -4.0, 0.0, -5.0 * 4.0, 0.0]
    for at in range(2):
        one = np.zeros(len(TERMS))
        weigh(sums[at : at + 1], weights.record(), one)
        assert one.tolist() == pytest.approx(parts[at].tolist(), rel=1e-15)


def test_terms_are_a_table_with_a_weight_each():
    assert REWARD_PARTS == ("accuracy", "time", "resources", "rescale", "shortfall", "money")
    for term in TERMS:
        assert getattr(RewardWeights(), term.name) >= 0
        assert term.description.endswith(".")
        only = RewardWeights(**{name: float(name == term.name) for name in REWARD_PARTS})
        sums = intervals(np.ones((1, 3)), 3600.0, 7200.0, 1800.0, np.ones((1, 3)))
        sums["cost"] = 1.0
        parts = reward_terms(sums, only)[0]
        assert parts[REWARD_PARTS.index(term.name)] != 0.0
        assert np.count_nonzero(parts) == 1


@pytest.mark.parametrize("decide_on", ["interval", "events"])
def test_time_cost_is_total_jct_and_accuracy_the_weight_of_finished_jobs(decide_on):
    jobs = [job(i, 7.0 * i, epochs=0.1 * (1 + i % 7), priority=i % 3) for i in range(30)]
    weights = RewardWeights(accuracy=1.5, time=2.0, classes=(5.0, 3.0, 2.0))
    cluster = make_cluster(jobs, linear_tables(), [3], decide_on=decide_on)
    record = run(cluster, make_policy("fifo"), QueueSettings(), weights)
    accuracy, time, *_ = record.decisions.reward.sum(axis=0)
    jct = record.jobs.finish_time - record.jobs.submit_time
    assert time * -3600 / 2.0 == pytest.approx(jct.sum(), rel=1e-12)
    assert accuracy == pytest.approx(1.5 * 10 * (5.0 + 3.0 + 2.0), rel=1e-12)


def test_accuracy_goes_to_the_class_the_job_came_with():
    """Aging changes who is served first, not what a job is worth."""
    cluster = make_cluster([job(0, epochs=1.0), job(1, epochs=1.0, priority=2)], linear_tables(), [1], interval=1e6)
    give(cluster, [1, 0])
    gains = [cluster.advance().accuracy_gain.tolist()]
    give(cluster, [1])
    gains.append(cluster.advance().accuracy_gain.tolist())
    assert gains == [pytest.approx([0, 1, 0]), pytest.approx([0, 0, 1])]
