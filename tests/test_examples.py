"""The examples with other people's libraries train, and compare themselves with the index."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = {
    "train_sb3": ["stable_baselines3"],
    "train_cleanrl": ["torch"],
    "train_rllib": ["ray", "tree"],
    "offline_minari": ["minari", "h5py", "jax"],
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_trains_and_compares_itself_with_the_index(example: str) -> None:
    for library in EXAMPLES[example]:
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed: pip install -c constraints.txt -e '.[examples]'")
    command = [sys.executable, str(ROOT / "examples" / f"{example}.py"), "--steps", "256"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["RAY_ADDRESS"] = "127.0.0.1:1"  # a cluster that is gone: examples start what they need
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    number = r"-?\d+\.\d+"
    assert re.fullmatch(rf".+: reward {number}, index {number} over 10 episodes", done.stdout.splitlines()[-1])
