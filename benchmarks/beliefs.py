"""What jobs believe of themselves: fits against those of Pollux's own code, and the time they take.

The 30 stored cases give observed steps, and the best goodput on five placements by Pollux's own fit of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import _common
import numpy as np

from rlpto.knowledge.beliefs import ThroughputBelief
from rlpto.knowledge.online_fit import fit_observed
from rlpto.performance.efficiency import BatchLimits
from rlpto.performance.throughput import StepMeasurements

FITS = 2500
"""About as many as a workload of Pollux takes."""
LOOPS, MOST_OFF_PERCENT = 250.0, 1.0
"""Calibration loops that all fits may take, and what the goodput by a fit may be off by."""
OBSERVED = ("nodes", "gpus", "local", "step_time", "sync_time")


def rows_of(case: dict[str, Any]) -> StepMeasurements:
    """The steps that a case has observed."""
    return StepMeasurements(*(np.array([row[key] for row in case["observations"]], dtype=float) for key in OBSERVED))


def off_percent(case: dict[str, Any]) -> float:
    """How far the goodput by our fit is from the stored one, on the worst placement."""
    limits = BatchLimits(*(case[key] for key in ("base", "largest", "min_local", "max_local")))
    belief = ThroughputBelief(limits, None, 64, params=fit_observed(rows_of(case)))
    goodput = belief.score(case["grad_sqr"], case["grad_var"])
    found = [goodput[min(best["nodes"], 2) - 1, best["gpus"] - 1] / best["goodput"] - 1 for best in case["best"]]
    return 100 * float(np.max(np.abs(found)))


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("--cases", type=Path, help="stored fits, as JSON")
    options = arguments.parse_args()
    cases = json.loads(_common.needed(options.cases, "pollux", "pollux-fit-cases.json").read_text(encoding="utf-8"))
    worst = max(map(off_percent, cases))
    rows = [rows_of(case) for case in cases]

    def fit_all() -> None:
        for number in range(FITS):
            fit_observed(rows[number % len(rows)])

    taken = _common.calibrated("beliefs", {"fits": fit_all}, repeats=1)["fits"]
    checks = [
        _common.Check("goodput by our fit, worst case off by", worst, "%", MOST_OFF_PERCENT, False),
        _common.Check(f"{FITS:,} fits", taken.loops, "calibration loops", LOOPS, False),
    ]
    _common.finish(checks, options.json, **{f"{FITS:,} fits, CPU-seconds": round(taken.seconds, 1)})


if __name__ == "__main__":
    main()
