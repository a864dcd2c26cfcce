"""What jobs with shared fits lack: the tuned index is told one part of the truth at a time.

See docs/notes/shared-fits.md. Pollux's workloads 1 to 4, declared epochs. Every speed that a policy is told of a job is
changed in one respect.
"""

from __future__ import annotations

import json
import time
from unittest import mock

import _common
import numpy as np
from _common import Check
from parity import PUBLISHED

from rlpto.evaluation.metrics import completion_times
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.io.arrays import FloatArray
from rlpto.simulator.online import OnlineJobs

SPANS = 2
"""Rows of a job's told speeds: on one node, on more."""
PARTS = ("nothing", "the level", "the course over epochs", "the speeds by number of GPUs", "everything")


def told(part: str, believed: FloatArray, true: FloatArray, now: int) -> FloatArray:
    """Speeds [SPANS, K, P] that are told where a part of them is true. now: the present epoch."""
    here, truth = believed[:, :, now, None], true[:, :, now, None]
    if part == "the level":
        return believed * (truth[:1, :1] / here[:1, :1])
    if part == "the course over epochs":
        return here * (true / truth)
    if part == "the speeds by number of GPUs":
        return believed * (truth / here)
    return true if part == "everything" else believed


def mean_jct(experiment: Experiment, part: str) -> float:
    """Of the four workloads [s], where a part of what is told of speeds is true."""
    tell = OnlineJobs._tell

    def changed(self: OnlineJobs, job: int) -> None:
        tell(self, job)
        truth, record = self._truth, self._store.records[job]
        own = self.tables.row[self._slots[job], :SPANS, 1:]
        spans = np.minimum(np.arange(SPANS), truth.row.shape[1] - 1)
        true = truth.rates[truth.row[record["type_index"]][spans][:, 1:]]
        now = min(int(record["progress"]), true.shape[2] - 1)
        self.tables.rates[own] = told(part, self.tables.rates[own], true, now)

    base = _common.CONFIGS / "tuned" / "pollux-adaptive.yaml"
    names = [window for window in experiment.windows() if ("pollux", window) in PUBLISHED]
    with mock.patch.object(OnlineJobs, "_tell", changed):
        jobs = [experiment.run_policy(experiment.policy(f"index:weights={base}"), name, 0).jobs for name in names]
    return float(np.mean([completion_times(one).mean() for one in jobs]))


def main() -> None:
    options = _common.parser(__doc__.split("\n")[0]).parse_args()
    data = _common.data_folder()
    given = [
        f"workload.path={json.dumps(str(data / 'traces' / 'pollux' / 'workload-*.csv'))}",
        f"profiles.folder={json.dumps(str(data / 'profiles'))}",
        *("workload.mapping.adaptive_batch=true", "workload.mapping.fixed_batch_models=[ncf]"),
        *("knowledge.mode=online", "knowledge.fits=shared"),
    ]
    published, began = (
        float(np.mean([jct for (policy, _), jct in PUBLISHED.items() if policy == "pollux"])),
        time.time(),
    )
    with _common.bad_input():
        experiment = Experiment(load_config(_common.CONFIGS / "pollux.yaml", given))
        found = {part: mean_jct(experiment, part) / published for part in PARTS}
    if not options.json:
        print("| true of what is told | mean JCT by Pollux's published one |\n| --- | --- |")
        print("\n".join(f"| {name} | {ratio:.3f} |" for name, ratio in found.items()))
        print(f"\n{time.time() - began:.0f} s")
    check = Check("told the true speeds by number of GPUs", found["the speeds by number of GPUs"], "", 0.86, False)
    _common.finish([check], options.json)


if __name__ == "__main__":
    main()
