"""Fidelity: jobs of `configs/ray.yaml`, real and simulated with profiles from `rlpto profile` alone."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from _common import CONFIGS, Check
from _ray_job import load, rlpto

POLICIES = "fifo,equal_share,optimus"
MEAN, JOB = 0.05, 0.10


def run(repeats: int) -> tuple[list[Check], dict[str, object]]:
    """Measure the programs, then evaluate both, as a user would."""
    before = load()
    with tempfile.TemporaryDirectory() as folder:
        profiles, results = Path(folder, "here.yaml"), Path(folder, "run")
        config = str(CONFIGS / "ray.yaml")
        rlpto("profile", config, "-o", str(profiles), "--quiet")
        where = ["--cluster", "both", "--profiles", str(profiles), "--run-dir", str(results)]
        how = ["--policies", POLICIES, "--seeds", str(repeats), "--no-report", "--quiet"]
        rlpto("evaluate", config, *where, *how)
        found = json.loads((results / "fidelity.json").read_text())
        measured = profiles.read_text()
    return checks_of(found), {
        "fidelity": found,
        "profiles": measured,
        "load of the machine before and after": f"{before}, {load()}",
    }


def checks_of(found: dict[str, Any]) -> list[Check]:
    """Mean JCT of every policy, JCT of every job (the worst), and the order of policies."""
    checks = []
    for policy in found["policies"]:
        name = policy["policy"]
        mean = abs(policy["metrics"]["jct_mean"]["relative"])
        worst = max(abs(job["relative"]) for job in policy["jobs"].values())
        checks.append(Check(f"{name}: mean JCT off by", mean, "", MEAN, least=False))
        checks.append(Check(f"{name}: worst job's JCT off by", worst, "", JOB, least=False))
        checks.append(Check(f"{name}: finished on one only", policy["unfinished"], "jobs", 0, least=False))
    same = float(found["same_ranking"]["jct_mean"])
    return [*checks, Check("policies ranked the same by mean JCT", same, "", 1, least=True)]
