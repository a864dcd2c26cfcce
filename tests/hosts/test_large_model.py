"""A job with a large model that grows and shrinks between hosts, by the program that measures its pauses."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rlpto.ray_cluster.messages import RECORD
from rlpto.ray_cluster.nodes.processes import load_factor
from rlpto.ray_cluster.worker.training import Trainer
from rlpto.store.checkpoints import read_newest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from _common import NoDataError
from _ray_latency import measured, spec, started_hosts


@pytest.mark.slow
def test_100_mb_grow_and_shrink_between_hosts_and_end_where_one_process_does(tmp_path: Path) -> None:
    job = spec(str(tmp_path / "job"), 100)
    try:
        with started_hosts(tmp_path) as hosts:
            changes = measured(hosts, Path(job.folder), 100, repeats=1)
    except NoDataError as refused:
        pytest.skip(str(refused))
    assert [kind for kind, *_ in changes] == ["1 to 2", "2 to 1"]
    # No name server answers on these hosts: 6 s until a process knows, which must not be in a pause.
    assert max(pause for _, pause, _ in changes) < 3.0 * load_factor()
    kept, found = json.loads(Path(job.folder, RECORD).read_text()), read_newest(Path(job.folder))
    assert found is not None
    counted, (checkpoint, state, _) = kept["statistics"]["interruptions"], found
    assert (counted["rescales"], counted["recoveries"], kept["report"]["step"]) == (2, 0, checkpoint.step)
    alone = Trainer(replace(job, pace=None))
    alone.run(checkpoint.step)
    expected = [one.detach().clone() for one in alone.network.parameters()]
    alone.load(state)
    for reached, one in zip(alone.network.parameters(), expected, strict=True):
        assert (reached - one).norm() <= 1e-4 * one.norm()
