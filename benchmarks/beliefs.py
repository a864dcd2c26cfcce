"""What jobs believe of themselves: fits against those of Pollux's own code, and the time they take.

    python benchmarks/beliefs.py [--real]

The 30 stored cases give observed steps, and the best goodput on five placements by Pollux's own fit of them. --real:
instead, the two fits that there are on what real jobs report (docs/notes/online-fit.md).
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import _beliefs_real
import _common
import numpy as np

from rlpto.knowledge.beliefs import ThroughputBelief
from rlpto.knowledge.online_fit import fit_observed
from rlpto.performance.efficiency import BatchLimits
from rlpto.performance.throughput import StepMeasurements

FITS = 2500
"""About as many as a workload of Pollux takes."""
MOST_CPU_S, MOST_OFF_PERCENT = 10.0, 1.0
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
    arguments.add_argument("--real", action="store_true", help="compare both fits on what real jobs report")
    options = arguments.parse_args()
    if options.real:
        data = _common.data_folder()
        compared, rows = _beliefs_real.compare(data if data.is_dir() else None)
        _common.finish(compared, options.json, **{f"row {number}": row for number, row in enumerate(rows, 1)})
    cases = json.loads(_common.needed(options.cases, "pollux", "pollux-fit-cases.json").read_text(encoding="utf-8"))
    worst = max(map(off_percent, cases))
    rows = [rows_of(case) for case in cases]
    start = time.process_time()
    for number in range(FITS):
        fit_observed(rows[number % len(rows)])
    taken = time.process_time() - start
    checks = [
        _common.Check("goodput by our fit, worst case off by", worst, "%", MOST_OFF_PERCENT, False),
        _common.Check(f"{FITS:,} fits", taken, "CPU-s", MOST_CPU_S, False),
    ]
    _common.finish(checks, options.json)


if __name__ == "__main__":
    main()
