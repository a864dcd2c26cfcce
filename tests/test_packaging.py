"""What an installed RLPTO has with it, and what other distributions cannot break."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that git knows, as a clean clone has them."""
    source = tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("no git checkout: what belongs to the distribution cannot be told from what lies about")
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = REPOSITORY / name
        if not path.exists():
            continue
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            (source / name).symlink_to(os.readlink(path))
        else:
            (source / name).write_bytes(path.read_bytes())
    return source


@pytest.fixture(scope="module")
def built(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A source distribution and a wheel of the clone, by their endings."""
    out = tmp_path_factory.mktemp("built")
    build = f"from setuptools import build_meta as b; b.build_sdist({str(out)!r}); b.build_wheel({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=clone, check=True, capture_output=True)
    return {path.suffix: path for path in out.iterdir()}


def test_a_wheel_has_every_package_config_and_agent_of_the_checkout(built: dict[str, Path]) -> None:
    held = set(zipfile.ZipFile(built[".whl"]).namelist())
    for folder, pattern in (("agents", "*.py"), ("envs", "*.py"), ("forecasting", "*.py"), ("configs", "**/*.yaml")):
        expected = {f"rlpto/{path.relative_to(REPOSITORY)}" for path in (REPOSITORY / folder).glob(pattern)}
        assert expected
        assert expected <= held
    data = {
        str(path.relative_to(REPOSITORY))
        for path in (REPOSITORY / "rlpto").rglob("*")
        if path.suffix in (".html", ".css", ".js", ".yaml", ".svg")
    }
    assert any("templates/parts" in name for name in data)
    assert data <= held
    assert "rlpto/configs/pretrained/synthetic.safetensors" in held
    traces = {f"rlpto/{path.relative_to(REPOSITORY)}" for path in (REPOSITORY / "configs" / "microsoft").iterdir()}
    assert len(traces) == 10  # eight traces, their licence and where they are from
    assert traces <= held
    assert {name.split("/")[0] for name in held} == {"rlpto", next(n for n in held if "dist-info" in n).split("/")[0]}


@pytest.mark.slow
def test_an_unpacked_source_distribution_has_all_files_and_runs_its_tests(
    clone: Path, built: dict[str, Path], tmp_path: Path
) -> None:
    with tarfile.open(built[".gz"]) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / built[".gz"].name.removesuffix(".tar.gz")
    made = ("build", "rlpto.egg-info")
    names = [path.relative_to(clone) for path in clone.rglob("*") if path.is_file()]
    listed = {str(name) for name in names if name.parts[0] not in made}
    assert {name for name in listed if not (folder / name).is_file()} == set()
    tests = ["tests/workloads/test_calibration.py", "tests/test_deploy.py"]  # without compiled code: no cache is there
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_modules_of_the_same_names_from_elsewhere_break_nothing(built: dict[str, Path], tmp_path: Path) -> None:
    # openai-agents installs `agents`; a wheel unpacked into a folder is what `pip install --target` gives.
    target, foreign = tmp_path / "target", tmp_path / "foreign"
    zipfile.ZipFile(built[".whl"]).extractall(target)
    for name in ("agents", "envs", "forecasting"):
        (foreign / name).mkdir(parents=True)
        (foreign / name / "__init__.py").write_text("raise ImportError('not ours')\n")
    program = (
        "import rlpto, rlpto.agents.policy, rlpto.envs.cluster_env, rlpto.forecasting.registry\n"
        "from rlpto.agents.policy import pretrained_file\n"
        "print(rlpto.__file__, pretrained_file('synthetic'))\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{foreign}{os.pathsep}{target}"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [
        str(target / "rlpto" / "__init__.py"),
        str(target / "rlpto/configs/pretrained/synthetic.safetensors"),
    ]
