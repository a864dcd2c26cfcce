"""Examples with other people's libraries train and compare themselves with the index; notebooks run from the start."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from rlpto.experiments.environments import cluster_env
from rlpto.experiments.experiment import Experiment

from .slow import few
from .small import SMALL

ROOT = Path(__file__).parents[1]
EXAMPLES = {
    "train_sb3": ["stable_baselines3"],
    "train_cleanrl": ["torch"],
    "train_rllib": ["ray", "tree"],
    "offline_minari": ["minari", "h5py", "jax"],
}


@pytest.mark.parametrize("example", few(EXAMPLES, "train_cleanrl"))
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


def test_an_agent_of_stable_baselines3_becomes_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_from_file_location("sb3_policy", ROOT / "examples" / "sb3_policy.py")
    assert spec is not None
    assert spec.loader is not None
    example = module_from_spec(spec)
    spec.loader.exec_module(example)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["sb3_policy.py", "--steps", "256"])
    example.main()
    experiment, policy = Experiment(SMALL), example.Learnt()
    records = [experiment.run_policy(policy, "test-000", 0) for _ in range(2)]
    assert np.isfinite(records[0].jobs.finish_time).all()
    np.testing.assert_array_equal(*(record.jobs.finish_time for record in records))
    seen = cluster_env().reset(seed=0)[0]
    assert policy.act(seen).any(), "it is not the index alone"


NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
NotebookClient(nbformat.read(sys.argv[1], 4), timeout=600, kernel_name="python3").execute()
"""
MISSING = [name for name in ("nbclient", "ipykernel") if find_spec(name) is None]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_no_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert not [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.skipif(
    bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install -c constraints.txt '.[docs]'"
)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path / "ipython")}
    ran = subprocess.run(
        [sys.executable, "-c", EXECUTE, str(notebook)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
