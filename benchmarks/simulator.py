"""Speed of the simulator on the Pollux simulator's own input: Tiresias on a 160-job workload.

The Pollux simulator manages 12.8 jobs per CPU-second there. Counted: building the cluster from the
job list and the whole run, records included. Not counted: compilation, reading files, speed tables.
"""

from __future__ import annotations

import json
from pathlib import Path

import _common

from rlpto.evaluation.runner import Cell
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment

POLLUX_JOBS_PER_SECOND = 12.8
LOOPS = 2.5
"""Calibration loops that a run of 160 jobs may take."""


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument(
        "--trace", type=Path, help="workload csv (name, time, application, num_replicas, batch_size)"
    )
    arguments.add_argument("--profiles", type=Path, help="folder with measured profiles")
    arguments.add_argument("--repeats", type=int, default=9)
    options = arguments.parse_args()
    trace = _common.needed(options.trace, "traces", "pollux", "workload-1.csv")
    profiles = _common.needed(options.profiles, "profiles")
    overrides = [f"workload.path={json.dumps(str(trace))}", f"profiles.folder={json.dumps(str(profiles))}"]
    with _common.bad_input():
        experiment = Experiment(load_config(_common.CONFIGS / "pollux.yaml", overrides))
        cell = Cell("tiresias", experiment.windows()[0], 0)
        jobs = len(experiment.run_cell(cell).jobs.names)
    taken = _common.calibrated("simulator", {"tiresias": lambda: experiment.run_cell(cell)}, options.repeats)[
        "tiresias"
    ]
    check = _common.Check(f"run of {jobs} jobs", taken.loops, "calibration loops", LOOPS, False)
    rate = jobs / taken.seconds
    facts = {"jobs per CPU-second": round(rate, 1), "times the Pollux simulator": round(rate / POLLUX_JOBS_PER_SECOND)}
    _common.finish([check], options.json, trace=trace, **facts)


if __name__ == "__main__":
    main()
