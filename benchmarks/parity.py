"""Parity with the Pollux simulator: mean JCT of Tiresias and Optimus on its workloads, against published figures.

    python benchmarks/parity.py --workloads FOLDER --profiles FOLDER [--expect FILE.csv]

FILE.csv has columns policy, workload, mean_jct (s). By default the figures published with the
simulator (OSDI'21 artifact of Pollux). Exits 1 if one of them is missed by more than 0.1 %.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import _common
import numpy as np

from rlpto.config import load_config
from rlpto.errors import RlptoError
from rlpto.evaluation.runner import Cell
from rlpto.experiment import Experiment

PUBLISHED = {
    ("tiresias", "workload-1"): 2473.7,
    ("tiresias", "workload-2"): 5145.0,
    ("tiresias", "workload-3"): 3876.3,
    ("tiresias", "workload-4"): 3280.3,
    ("optimus", "workload-1"): 4087.1,
    ("optimus", "workload-2"): 6913.9,
    ("optimus", "workload-3"): 3944.0,
    ("optimus", "workload-4"): 5967.8,
}
TOLERANCE = 0.001


def read_expected(path: Path) -> dict[tuple[str, str], float]:
    """Expected mean JCT in s by policy and workload. Ends the program if the file is not of that form."""
    expected = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                workload = row["workload"].removesuffix(".csv")
                expected[row["policy"].lower(), workload] = float(row["mean_jct"])
            except (AttributeError, KeyError, TypeError, ValueError):
                _common.refuse(f"{path}: expected columns policy, workload, mean_jct (s), got the row {row}")
    if not expected:
        _common.refuse(f"{path}: no rows, expected columns policy, workload, mean_jct (s)")
    return expected


def main() -> None:
    arguments = _common.parser(__doc__.split("\n")[0])
    arguments.add_argument("--workloads", type=Path, help="folder with workload csv files")
    arguments.add_argument("--profiles", type=Path, help="folder with measured profiles")
    arguments.add_argument("--expect", type=Path, help="csv with columns policy, workload, mean_jct")
    options = arguments.parse_args()
    data = _common.data_folder()
    workloads = _common.needed(options.workloads or data / "traces" / "pollux", options.workloads is not None)
    profiles = _common.needed(options.profiles or data / "profiles", options.profiles is not None)
    expected = read_expected(_common.needed(options.expect, True)) if options.expect else PUBLISHED
    overrides = [
        f"workload.path={json.dumps(str(workloads / '*.csv'))}",
        f"profiles.folder={json.dumps(str(profiles))}",
    ]
    try:
        experiment = Experiment(load_config(_common.CONFIGS / "pollux.yaml", overrides))
        rows = [compare(experiment, window, policy, expected) for window in experiment.windows() for policy in POLICIES]
    except RlptoError as error:
        _common.refuse(f"{error}")
    report(rows, options.json)
    ran = {(row["policy"], row["workload"]) for row in rows}
    missing = set(expected) - ran if options.expect else set()  # of the published ones, those that are there count
    for policy, workload in sorted(missing):
        print(f"expected {policy} on {workload}, but {workloads} has no such workload", file=sys.stderr)
    sys.exit(1 if missing or not all(row["passed"] for row in rows) else 0)


POLICIES = ("tiresias", "optimus")


def compare(
    experiment: Experiment, window: str, policy: str, expected: dict[tuple[str, str], float]
) -> dict[str, object]:
    """Run one policy on one workload; a workload without an expected figure passes."""
    jobs = experiment.run_cell(Cell(policy, window, 0)).jobs
    ours = float(np.mean(jobs.finish_time - jobs.submit_time))
    theirs = expected.get((policy, window))
    off = None if theirs is None else ours / theirs - 1
    passed = off is None or abs(off) <= TOLERANCE
    return {"policy": policy, "workload": window, "mean_jct": ours, "expected": theirs, "off": off, "passed": passed}


def report(rows: list[dict[str, object]], as_json: bool) -> None:
    """Print the comparison."""
    if as_json:
        print(json.dumps({"tolerance": TOLERANCE, "rows": rows}, indent=2))
        return
    print(f"{'policy':10} {'workload':14} {'mean JCT [s]':>13} {'expected':>10} {'off':>10}")
    for row in rows:
        theirs = "-" if row["expected"] is None else f"{row['expected']:.1f}"
        off = "-" if row["off"] is None else f"{row['off']:+.4%}"
        verdict = "" if row["passed"] else "  SHORT"
        print(f"{row['policy']:10} {row['workload']:14} {row['mean_jct']:13.2f} {theirs:>10} {off:>10}{verdict}")


if __name__ == "__main__":
    main()
