"""Examples are found by their names, wherever one is."""

from pathlib import Path

import pytest

from rlpto.experiments.config import load_config
from rlpto.io.errors import ConfigError, TraceError
from rlpto.io.paths import EXAMPLES, example_config, example_trace, trace_names
from rlpto.policies.spec import parse_spec
from rlpto.workloads.files import read_any


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "name", ["quickstart", "quickstart.yaml", "results/synthetic", "tuned/philly", "pretrained/synthetic"]
)
def test_an_example_goes_by_its_name(name: str) -> None:
    found = example_config(name)
    assert found.is_file()
    assert found.is_relative_to(EXAMPLES)


@pytest.mark.parametrize(
    "name", ["", ".", "nothing", "../configs/quickstart", "/etc/hosts", "pretrained", "pretrained/README.md"]
)
def test_nothing_else_is_an_example(name: str) -> None:
    assert example_config(name) is None


def test_a_file_comes_before_the_example_of_its_name(tmp_path: Path) -> None:
    assert load_config("quickstart").name == "quickstart"
    (tmp_path / "quickstart").write_text("name: mine\n")
    assert load_config("quickstart").name == "mine"
    with pytest.raises(ConfigError, match=r"nothing: no such file, and no example of that name: expected .*quickstart"):
        load_config("nothing")


def test_weights_of_an_example_are_found_from_any_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("policies: ['index:weights=tuned/philly.yaml', 'agent:file=mine.zip']\n")
    paths = [path for spec in load_config("mine.yaml").policies for path in parse_spec(spec).paths]
    assert paths == [EXAMPLES / "tuned" / "philly.yaml", Path("mine.zip")]


def test_a_trace_goes_by_its_name_in_any_config_unless_a_file_is_there(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("workload: {source: trace, path: microsoft/cluster04}\n")
    shipped = EXAMPLES / "microsoft" / "cluster04.parquet"
    assert load_config("mine.yaml").workload.path == (shipped,)
    other = load_config("mine.yaml", ["workload.path=microsoft/cluster03.parquet"])
    assert other.workload.path == (EXAMPLES / "microsoft" / "cluster03.parquet",)
    (tmp_path / "microsoft").mkdir()
    (tmp_path / "microsoft" / "cluster04").write_text("mine")
    assert load_config("mine.yaml").workload.path == (Path("microsoft/cluster04"),)


def test_a_wrong_name_of_a_trace_lists_those_there_are(tmp_path: Path) -> None:
    assert all(example_trace(name) for name in trace_names())
    (tmp_path / "mine.yaml").write_text("workload: {source: trace, path: microsoft/cluster06}\n")
    listed = (
        "microsoft/cluster06: no such trace; .* or take one that comes with RLPTO: microsoft/cluster01, .*cluster10$"
    )
    with pytest.raises(TraceError, match=listed):
        read_any(load_config("mine.yaml").workload.path[0])
