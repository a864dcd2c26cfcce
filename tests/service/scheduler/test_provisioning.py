"""A service on a cluster with Ray's autoscaler: a provisioner says how many GPUs are asked for."""

from __future__ import annotations

from pathlib import Path

from rlpto.store.status import provisioning
from tests.service.scheduler.virtual import VirtualService, config

CLUSTER = {"nodes": [{"gpus": 2, "rented": {"most": 8, "boot": 120.0}}]}
AUTOSCALE = {"autoscale": {"most_gpus": 16, "idle_seconds": 30}}


def test_what_was_asked_for_lately_is_asked_for_ahead_and_users_see_why(tmp_path: Path) -> None:
    setup = config(cluster=CLUSTER, ray=AUTOSCALE, provision="average:factor=2,half_life=2")
    service = VirtualService(tmp_path, setup)
    first = service.submit(gpus=2, max_gpus=2)
    service.until(first, "finished")
    seen = provisioning(service.store)
    assert seen is not None
    assert seen.provisioner == "average:factor=2,half_life=2"
    assert seen.spare > 0, "of a job of two GPUs in one of the last minutes"
    assert seen.text.startswith("average:factor=2,half_life=2 wants nodes of")
    assert max(service.backend.requested) > 2
    service.restart()
    service.steps(3)
    again = provisioning(service.store)
    assert again is not None
    assert 0 < again.spare < seen.spare, "arrivals before a restart count on, less and less"


def test_reactive_asks_for_what_jobs_hold_or_wait_for(tmp_path: Path) -> None:
    service = VirtualService(tmp_path, config(cluster=CLUSTER, ray=AUTOSCALE))
    service.until(service.submit(gpus=2, max_gpus=2), "finished")
    service.steps(3)
    assert list(dict.fromkeys(service.backend.requested)) in ([0, 2], [2, 0])
