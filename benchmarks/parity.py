"""Parity with the Pollux simulator: mean JCT of policies on its workloads, against published figures.

    python benchmarks/parity.py --workloads FOLDER --profiles FOLDER [--policies A,B] [--within 0.1]

Figures are those published with the simulator (OSDI'21 artifact of Pollux). Exits 1 if one is missed by more than
`--within` percent.
Policy pollux schedules jobs that choose their batch sizes by their own fits (`knowledge.mode: online`), the others jobs
whose batch sizes are fixed: so the published figures came about.
"""

from __future__ import annotations

import json
from pathlib import Path

import _common
import numpy as np

from rlpto.evaluation.runner import Cell
from rlpto.experiments.config import Config, load_config
from rlpto.experiments.experiment import Experiment

PUBLISHED = {
    ("tiresias", "workload-1"): 2473.7,
    ("tiresias", "workload-2"): 5145.0,
    ("tiresias", "workload-3"): 3876.3,
    ("tiresias", "workload-4"): 3280.3,
    ("optimus", "workload-1"): 4087.1,
    ("optimus", "workload-2"): 6913.9,
    ("optimus", "workload-3"): 3944.0,
    ("optimus", "workload-4"): 5967.8,
    ("pollux", "workload-1"): 2089.0,
    ("pollux", "workload-2"): 3323.0,
    ("pollux", "workload-3"): 2188.0,
    ("pollux", "workload-4"): 2721.0,
}
"""Mean JCT [s] by policy and workload."""
ADAPTIVE = "workload.mapping.adaptive_batch=true"
ONLINE = ("knowledge.mode=online", "workload.mapping.fixed_batch_models=[ncf]")
"""Jobs know their own fits. In the simulator ncf always trains at 32,768."""


def main() -> None:
    arguments = _common.parser(__doc__)
    arguments.add_argument("--workloads", type=Path, help="folder with workload csv files")
    arguments.add_argument("--profiles", type=Path, help="folder with measured profiles")
    arguments.add_argument("--policies", metavar="A,B", default="tiresias,optimus", help="policies to run")
    arguments.add_argument("--within", type=float, default=0.1, help="percent that a figure may be missed by")
    options = arguments.parse_args()
    workloads = _common.needed(options.workloads, "traces", "pollux")
    profiles = _common.needed(options.profiles, "profiles")
    policies = options.policies.split(",")
    checks, facts = [], {}
    with _common.bad_input():
        experiments = {policy: Experiment(config_of(workloads, profiles, *rules_of(policy))) for policy in policies}
        for policy in policies:
            for window in experiments[policy].windows():
                _common.progress(f"{policy} on {window}")
                jobs = experiments[policy].run_cell(Cell(policy, window, 0)).jobs
                ours = float(np.mean(jobs.finish_time - jobs.submit_time))
                facts[f"{policy} on {window}, mean JCT [s]"] = round(ours, 2)
                if (policy, window) in PUBLISHED:
                    off = 100 * abs(ours / PUBLISHED[policy, window] - 1)
                    checks.append(_common.Check(f"{policy} on {window}, off by", off, "%", options.within, False))
    _common.finish(checks, options.json, **facts)


def rules_of(policy: str) -> tuple[str, ...]:
    """Overrides with which the published figures of a policy came about."""
    return (*ONLINE, ADAPTIVE) if policy == "pollux" else ()


def config_of(workloads: Path, profiles: Path, *overrides: str) -> Config:
    """Pollux's rules on the workloads and profiles of these folders."""
    paths = {"workload.path": str(workloads / "*.csv"), "profiles.folder": str(profiles)}
    given = [f"{key}={json.dumps(path)}" for key, path in paths.items()]
    return load_config(_common.CONFIGS / "pollux.yaml", [*given, *overrides])


if __name__ == "__main__":
    main()
