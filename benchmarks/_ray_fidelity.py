"""Fidelity: jobs of `configs/ray.yaml`, real and simulated with profiles from `rlpto profile` alone."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from _common import CONFIGS, Check
from _ray_job import load, rlpto

POLICIES = "fifo,equal_share,optimus"
MEAN, JOB = 0.05, 0.10


def run(repeats: int) -> tuple[list[Check], dict[str, object]]:
    return compare(POLICIES, repeats, [], [])


def compare(
    policies: str, repeats: int, profiling: Sequence[str], changes: Sequence[str]
) -> tuple[list[Check], dict[str, object]]:
    """Measure the programs, then evaluate both, as a user would. profiling: more options of `rlpto profile`; changes:
    `--set` of the evaluation."""
    before = load()
    with tempfile.TemporaryDirectory() as folder:
        profiles, results = Path(folder, "here.yaml"), Path(folder, "run")
        config = str(CONFIGS / "ray.yaml")
        rlpto("profile", config, "-o", str(profiles), "--quiet", *profiling)
        given = [part for change in changes for part in ("--set", change)]
        where = ["--cluster", "both", "--profiles", str(profiles), "--run-dir", str(results)]
        how = ["--policies", policies, "--seeds", str(repeats), "--no-report", "--quiet"]
        rlpto("evaluate", config, *where, *how, *given)
        found = json.loads((results / "fidelity.json").read_text())
        measured = profiles.read_text()
    return checks_of(found), {
        "fidelity": found,
        "profiles": measured,
        "load of the machine before and after": f"{before}, {load()}",
    }


def checks_of(found: dict[str, object]) -> list[Check]:
    """Mean JCT of every policy, JCT of every job (the worst), and the order of policies."""
    checks = []
    policies = found["policies"]
    assert isinstance(policies, list)
    for policy in policies:
        name = policy["policy"]
        mean = abs(policy["metrics"]["jct_mean"]["relative"])
        worst = max(abs(job["relative"]) for job in policy["jobs"].values())
        checks.append(Check(f"{name}: mean JCT off by", mean, "", MEAN, least=False))
        checks.append(Check(f"{name}: worst job's JCT off by", worst, "", JOB, least=False))
        checks.append(Check(f"{name}: finished on one only", policy["unfinished"], "jobs", 0, least=False))
    same = found["same_ranking"]
    assert isinstance(same, dict)
    checks.append(Check("policies ranked the same by mean JCT", float(same["jct_mean"]), "", 1, least=True))
    return checks
