"""Parts of `benchmarks/ray.py` as far as they go without a Ray cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlpto.evaluation.runner import Cell
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import prepare
from rlpto.policies.registry import available, is_complete

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import _ray_policies as policies
import _ray_switching as switching


def test_no_policy_is_left_out() -> None:
    run = {spec.partition(":")[0] for kind in policies.kinds().values() for spec in kind.policies}
    assert run >= {name for name, policy in available().items() if is_complete(policy)}


@pytest.mark.parametrize("name", policies.kinds())
def test_jobs_of_every_kind_can_be_scheduled(name: str) -> None:
    """The same experiment, simulated; where jobs are to tell of themselves, with the truth instead."""
    kind = policies.kinds()[name]
    content = kind.config()
    if kind.knowledge["mode"] == "online":
        prepare(Config.model_validate(content)).check()
        content["knowledge"] = {"mode": "exact"}
    experiment = prepare(Config.model_validate(content))
    experiment.check()
    record = experiment.run_cell(Cell(kind.policies[0], "jobs", 0))
    assert record.changes.gpus.max() > 0
    assert (record.decisions.held <= record.capacity).all()


def test_thirty_jobs_outlast_three_switches() -> None:
    experiment = prepare(switching.config())
    experiment.check()
    jobs = experiment.jobs("jobs", 0)
    assert len(jobs) == switching.JOBS
    assert switching.EVERY * len(switching.LATER) < switching.JOBS
