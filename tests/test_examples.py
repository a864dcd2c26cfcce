"""Examples with other people's libraries train and compare themselves with the index; notebooks run from the start."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlpto.experiments.environments import cluster_env
from rlpto.experiments.experiment import Experiment

from .slow import few
from .small import SMALL

ROOT = Path(__file__).parents[1]
EXAMPLES = {
    "train_sb3": ["stable_baselines3"],
    "train_sb3 --env nodes": ["stable_baselines3"],
    "train_cleanrl": ["torch"],
    "train_cleanrl --env nodes": ["torch"],
    "train_rllib": ["ray", "tree"],
    "train_rllib --env nodes": ["ray", "tree"],
    "offline_minari": ["minari", "h5py", "jax"],
}


@pytest.mark.parametrize("example", few(EXAMPLES))
def test_an_example_trains_and_compares_itself_with_action_zero(example: str) -> None:
    for library in EXAMPLES[example]:
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed: pip install -c constraints.txt -e '.[examples]'")
    program, *options = example.split()
    command = [sys.executable, str(ROOT / "examples" / f"{program}.py"), *options, "--steps", "256"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["RAY_ADDRESS"] = "127.0.0.1:1"  # a cluster that is gone: examples start what they need
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    number = r"-?\d+\.\d+"
    zero = "heuristic" if "nodes" in options else "index"
    assert re.fullmatch(rf".+: reward {number}, {zero} {number} over 10 episodes", done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(find_spec("minari") is None, reason="minari is not installed")
def test_the_planner_is_not_cloned_where_nodes_are_rented() -> None:
    command = [sys.executable, str(ROOT / "examples" / "offline_minari.py"), "--env", "nodes"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 1
    assert done.stderr == "--env nodes: the planner allocates GPUs, expected --env cluster\n"


@pytest.mark.slow
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
MISSING = [name for name in ("nbclient", "ipykernel") if find_spec(name) is None]


def texts(cell: dict[str, Any]) -> list[str]:
    """What a cell of a notebook prints or shows as text, apart from pictures."""
    shown = [output for output in cell.get("outputs", ()) if "image/png" not in output.get("data", {})]
    return ["".join(output.get("text") or output["data"]["text/plain"]) for output in shown]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_with_its_outputs(notebook: Path) -> None:
    text = notebook.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    assert "image/png" in text or "index" in "".join(texts(cells[-1]))
    assert len(text) < 500_000


def test_training_of_the_notebook_improves() -> None:
    cells = json.loads((ROOT / "notebooks" / "agent.ipynb").read_text(encoding="utf-8"))["cells"]
    (table,) = (text for cell in cells for text in texts(cell) if "jct_mean" in text)
    gains = [float(line.split()[2]) for line in table.splitlines()[1:]]
    assert gains[0] == 0
    assert min(gains[1:]) > 0
    assert gains[-1] > 0.03


@pytest.mark.slow
@pytest.mark.skipif(
    bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install -c constraints.txt '.[docs]'"
)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_gives_the_outputs_that_are_stored(notebook: Path, tmp_path: Path) -> None:
    """If it does not after a change of the code: `python .ci/notebooks.py notebooks/*.ipynb`."""
    copy = shutil.copy(notebook, tmp_path)
    environment = os.environ | {"PATH": "/usr/bin:/bin"}  # no command `rlpto`
    ran = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "notebooks.py"), copy], env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    stored, new = (json.loads(Path(path).read_text(encoding="utf-8"))["cells"] for path in (notebook, copy))
    assert [texts(cell) for cell in new] == [texts(cell) for cell in stored]
