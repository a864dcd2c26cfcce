"""Every policy where estimates are off by 20 %."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from rlpto.core.policy import chooses
from rlpto.evaluation.runner import Cell
from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment, prepare
from rlpto.policies.registry import is_complete, make_policy, own_policies

from ..slow import TYPICAL, few

POLICIES = [name for name, policy in own_policies().items() if is_complete(policy)]
NOISE = {"mode": "noisy", "speed_sigma": 0.2, "remaining_sigma": 0.2, "scaling_sigma": 0.2}
LONGER = 1.5
"""Factor by which errors of 20 % may lengthen mean JCT."""


@cache
def experiment(servers: bool, noisy: bool) -> Experiment:
    """Twelve jobs on GPUs of two kinds; servers: that train through parameter servers, on GPUs of one."""
    program: dict[str, Any] = {"training": "none:None", "samples": 10_000, "batch_size": 100, "epochs": 20, "pace": 0.4}
    if servers:
        program |= {"architecture": "parameter_server", "servers": 1, "most_servers": 3}
    jobs = [{"model": "mine" if servers or i % 2 else "cifar10"} for i in range(12)]
    jobs = [
        job | {"name": f"job-{i}", "submit": 40.0 * i, "gpus": 1 + i % 3, "max_gpus": 4, "epochs": 5 + i % 4}
        for i, job in enumerate(jobs)
    ]
    gpu_types = ("gpu", "gpu") if servers else ("t4", "a100")
    content = {
        "cluster": {"nodes": [{"count": 1, "gpus": 4, "cpus": 4, "gpu": gpu_type} for gpu_type in gpu_types]},
        "workload": {"source": "jobs", "jobs": jobs},
        "ray": {"programs": {"mine": program}},
        "knowledge": NOISE if noisy else {"mode": "exact"},
    }
    return prepare(Config.model_validate(content))


@pytest.mark.parametrize("policy", few(POLICIES, *TYPICAL))
def test_all_jobs_finish_and_little_is_lost(policy: str) -> None:
    servers = chooses(make_policy(policy), "servers")
    jcts = []
    for noisy in (False, True):
        found = experiment(servers, noisy)
        records = [found.run_cell(Cell(policy, "jobs", seed)) for seed in range(2)]
        for record in records:
            assert np.isfinite(record.jobs.finish_time).all()
            assert (record.decisions.held <= record.capacity).all()
        jcts.append(np.mean([record.jobs.finish_time - record.jobs.submit_time for record in records]))
    assert jcts[1] <= LONGER * jcts[0]
