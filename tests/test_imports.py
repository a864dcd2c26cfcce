"""No circle of imports, those inside functions included: every module can be understood after those it imports."""

import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("rlpto", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert "rlpto.agents.policy" in imports, "parts that stand in folders of their own count too"
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as circle:
        raise AssertionError(f"a circle of imports: {' -> '.join(reversed(circle.args[1]))}") from None


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("rlpto.experiments.on_ray, rlpto.ray_cluster.scheduler.cluster, rlpto.ray_cluster.job.controller", {"torch"}),
        pytest.param(
            "rlpto.experiments.environments", {"torch", "stable_baselines3", "matplotlib"}, marks=pytest.mark.slow
        ),
        ("envs", {"numba", "torch", "stable_baselines3", "matplotlib", "pandas", "scipy", "pydantic"}),
    ],
)
def test_what_only_schedules_and_what_makes_environments_is_light(modules: str, heavy: set[str]) -> None:
    if "ray_cluster" in modules:
        pytest.importorskip("ray")
    program = f"import sys, {modules}; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=False).returncode == 0
