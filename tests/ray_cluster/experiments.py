"""An experiment whose files lie in a folder of the user: a trace, weights, and a policy that waits for a file."""

from pathlib import Path

import numpy as np

from rlpto.policies.index_weights import IndexWeights, save_index_weights
from rlpto.workloads.trace import make_trace, write_trace

OWN = """
import os
import time

from deeper.more import FIELD
from rlpto.core.cluster import Allocation
from rlpto.core.policy import BasePolicy
from rlpto.io.settings import Settings


class Own(BasePolicy):
    summary, source = "what is asked for", "a test"

    class Options(Settings):
        until: str = ""

    def __call__(self, state):
        while self.options.until and not os.path.exists(self.options.until):
            time.sleep(0.1)
        return Allocation(getattr(state.jobs, FIELD) * 1)
"""


def write_project(folder: Path) -> Path:
    """Write the experiment: `exp.yaml` with two test windows, `own.py`, `mine.yaml`. Returns the folder."""
    (folder / "deeper").mkdir(parents=True)
    (folder / "deeper" / "more.py").write_text("FIELD = 'requested_gpus'\n")
    (folder / "own.py").write_text(OWN)
    weights = IndexWeights().array()
    weights[0] += 0.5
    save_index_weights(weights, folder / "mine.yaml")
    rng = np.random.default_rng(5)
    times = {"submit_time": np.sort(rng.uniform(0, 36_000, 60)), "duration": rng.lognormal(6.5, 1.0, 60)}
    write_trace(make_trace({**times, "gpus": rng.choice([1, 1, 2, 4], 60)}, source="sixty jobs"), folder / "j.parquet")
    (folder / "exp.yaml").write_text(
        "name: small\ncluster: {nodes: [{count: 2, gpus: 4}]}\npolicies: [fifo]\n"
        "workload: {source: trace, path: 'j*.parquet', windows: {hours: 0.95}}\n"
    )
    return folder
