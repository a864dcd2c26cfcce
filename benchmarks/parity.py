"""Parity with the Pollux simulator: mean JCT of Tiresias and Optimus on its workloads, against published figures.

    python benchmarks/parity.py --workloads FOLDER --profiles FOLDER

The figures are those published with the simulator (OSDI'21 artifact of Pollux). Exits 1 if one of them is missed by
more than 0.1 %.
"""

from __future__ import annotations

import json
from pathlib import Path

import _common
import numpy as np

from rlpto.config import load_config
from rlpto.evaluation.runner import Cell
from rlpto.experiment import Experiment

PUBLISHED = {
    "tiresias": {"workload-1": 2473.7, "workload-2": 5145.0, "workload-3": 3876.3, "workload-4": 3280.3},
    "optimus": {"workload-1": 4087.1, "workload-2": 6913.9, "workload-3": 3944.0, "workload-4": 5967.8},
}
"""Mean JCT [s] by policy and workload."""
TOLERANCE = 0.001


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("--workloads", type=Path, help="folder with workload csv files")
    arguments.add_argument("--profiles", type=Path, help="folder with measured profiles")
    options = arguments.parse_args()
    workloads = _common.needed(options.workloads, "traces", "pollux")
    profiles = _common.needed(options.profiles, "profiles")
    overrides = [
        f"workload.path={json.dumps(str(workloads / '*.csv'))}",
        f"profiles.folder={json.dumps(str(profiles))}",
    ]
    checks, facts = [], {}
    with _common.bad_input():
        experiment = Experiment(load_config(_common.CONFIGS / "pollux.yaml", overrides))
        for policy, published in PUBLISHED.items():
            for window in experiment.windows():
                jobs = experiment.run_cell(Cell(policy, window, 0)).jobs
                ours = float(np.mean(jobs.finish_time - jobs.submit_time))
                facts[f"{policy} on {window}, mean JCT [s]"] = round(ours, 2)
                if window in published:
                    off = abs(ours / published[window] - 1)
                    checks.append(_common.Check(f"{policy} on {window}, off by", off, "", TOLERANCE, False))
    _common.finish(checks, options.json, **facts)


if __name__ == "__main__":
    main()
