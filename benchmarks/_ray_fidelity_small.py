"""Fidelity in small: six jobs of less than a minute, two policies. It says whether all is in order, not how close."""

from __future__ import annotations

import json

from _common import Check
from _ray_fidelity import compare

JOBS = [
    {"name": "cnn", "model": "digits_cnn", "count": 3, "every": 15, "epochs": 20, "gpus": 2, "max_gpus": 4},
    {"name": "mlp", "model": "digits_mlp", "count": 3, "every": 20, "submit": 5, "epochs": 16, "max_gpus": 4},
]


def run(repeats: int) -> tuple[list[Check], dict[str, object]]:
    quick = ["--seconds", "4", "--learning", "60"]
    return compare("fifo,equal_share", min(repeats, 1), quick, [f"workload.jobs={json.dumps(JOBS)}"])
