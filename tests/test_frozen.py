"""What every policy comes to on three small workloads, to the last digit: reward, mean JCT and number of rescales.

The figures are in `tests/frozen.json`. `python -m tests.test_frozen` shows what has moved and writes the file again.
Write it again only in a commit that is meant to change results, and name the cells that moved, and why, in its message:
a mended error, another default, or a policy, workload or case added here. A change of structure moves no figure. The
digits hold for the versions in `constraints.txt` on x86-64 with AVX2; elsewhere they may differ in the last place.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from rlpto.experiments.config import Config
from rlpto.experiments.experiment import Experiment
from rlpto.policies.registry import is_complete, own_policies

from .slow import few

FILE = Path(__file__).with_name("frozen.json")
KNOWLEDGE: dict[str, dict[str, object]] = {
    "exact": {"mode": "exact"},
    "noisy": {"mode": "noisy"},
    "noisy-learnt": {"mode": "noisy", "remaining": "learnt"},
    "online": {"mode": "online"},
    "online-learnt": {"mode": "online", "fits": "shared", "remaining": "learnt"},
}
TRACE = {"source": "synthetic", "calibration": "philly", "days": 14}
WINDOW = {"train": 0.0, "validation": 0.0, "test": 1.0, "limit": 1}
WORKLOADS: dict[str, dict[str, object]] = {
    "synthetic": {
        "cluster": {"nodes": [{"count": 3, "gpus": 4}]},
        "workload": {
            **TRACE,
            "load": 2.0,
            "windows": {**WINDOW, "hours": 1, "seed": 6},
            "mapping": {"oversized": "skip", "max_duration": 1800},
        },
        "simulator": {"interval": 300, "failures": {"mtbf_hours": 8}},
    },
    "pollux": {
        "cluster": {"nodes": [{"count": 4, "gpus": 4}]},
        "workload": {
            **TRACE,
            "load": 2.0,
            "windows": {**WINDOW, "hours": 1, "seed": 2},
            "mapping": {"mode": "category", "oversized": "clip", "max_gpus": 16, "max_duration": 7200},
        },
        "simulator": {
            "interval": 60,
            "decide_on": "interval",
            "placement": "most_free",
            "rescale_delay": 30,
            "epoch_resolution": 1,
        },
    },
    "kinds": {
        "cluster": {"nodes": [{"count": 2, "gpus": 4, "gpu": gpu_type} for gpu_type in ("t4", "a100")]},
        "workload": {
            **TRACE,
            "load": 2.0,
            "windows": {**WINDOW, "hours": 1, "seed": 5},
            "mapping": {"mode": "category", "oversized": "clip", "max_gpus": 8, "max_duration": 7200},
        },
        "simulator": {"interval": 300, "growth": "overlap"},
    },
}
FEW = ("srtf", "max_throughput", "reward_greedy", "pollux", "planner:perturbations=3")
"""Policies where jobs fit their speeds, which takes ten times as long, or where lengths are learnt."""
PROGRAMMES = ("sia", "gavel")
"""Policies that choose GPU types, by a programme at every decision."""
FIRST_TERMS = 5
"""Terms of the reward that are summed: later ones weigh nothing here, but with them NumPy sums in another order."""
CASES = [
    f"{workload} {knowledge} {classes}"
    for workload in WORKLOADS
    for knowledge in KNOWLEDGE
    for classes in ("strict", "weighted")
    if knowledge in ("exact", "noisy") or classes == ("weighted" if knowledge == "online-learnt" else "strict")
]

MOST_TELLING = (
    "pollux online-learnt weighted",
    "synthetic exact strict",
    "synthetic noisy-learnt strict",
    "kinds noisy weighted",
)
"""What `make test` runs of CASES: every kind of knowledge, and both treatments of classes."""


def policies(case: str) -> list[str]:
    """The policies of one of CASES: every one whose name is enough, and the planner with few candidates, or FEW.

    Those that solve a programme at every decision are slow; they choose GPU types, and run where there are several.
    """
    workload, knowledge, _ = case.split()
    if knowledge not in ("exact", "noisy"):
        return list(FEW)
    named = [name for name, policy in own_policies().items() if is_complete(policy) and name != "planner"]
    return [*(name for name in named if workload == "kinds" or name not in PROGRAMMES), FEW[-1]]


def experiment(case: str) -> Experiment:
    """The experiment of one of CASES."""
    workload, knowledge, classes = case.split()
    data = {"knowledge": KNOWLEDGE[knowledge], "queue": {"classes": classes}, "seed": 1}
    return Experiment(Config.model_validate({**WORKLOADS[workload], **data}))


def figures(given: Experiment, policy: str) -> list[str]:
    """Reward, mean JCT [s] and number of rescales of a policy, with all their digits."""
    record = given.run_policy(given.policy(policy), given.windows()[0], given.config.seed)
    times = record.jobs.finish_time - record.jobs.submit_time
    assert np.isfinite(times).all()
    reward = record.decisions.reward
    assert not reward[:, FIRST_TERMS:].any()
    found = (np.ascontiguousarray(reward[:, :FIRST_TERMS]).sum(), times.mean())
    return [*(repr(float(value)) for value in found), str(record.jobs.rescales.sum())]


@pytest.mark.parametrize("case", few(CASES, *MOST_TELLING))
def test_no_figure_has_moved(case: str) -> None:
    kept, given = json.loads(FILE.read_text(encoding="utf-8"))[case], experiment(case)
    found = {policy: figures(given, policy) for policy in policies(case)}
    moved = [f"{case} {name}: {kept.get(name)} -> {found[name]}" for name in found if found[name] != kept.get(name)]
    assert not moved, "\n".join(["reward, mean JCT, rescales", *moved])
    assert found.keys() == kept.keys()


def write() -> None:
    """Compute all figures, show those that differ from the file's, and write them to it."""
    kept = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    found: dict[str, dict[str, list[str]]] = {}
    for case in CASES:
        given = experiment(case)
        found[case] = {policy: figures(given, policy) for policy in policies(case)}
        for name, values in found[case].items():
            if values != (before := kept.get(case, {}).get(name)):
                print(f"{case} {name}: {before} -> {values}", flush=True)
    lines = (
        f"{json.dumps(case)}: {{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in cells.items()) + "\n}"
        for case, cells in found.items()
    )
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
