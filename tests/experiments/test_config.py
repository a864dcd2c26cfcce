import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rlpto.experiments.config import Config, load_config, resolved_yaml
from rlpto.experiments.evaluate import jobs_of_file, with_agents
from rlpto.experiments.run_folder import begin_run, outcome_of
from rlpto.io.errors import ConfigError
from rlpto.io.paths import EXAMPLES, example_names
from rlpto.policies.spec import policy_label
from rlpto.workloads.files import KEYS

CONFIGS = [EXAMPLES / f"{name}.yaml" for name in example_names()]


@pytest.fixture
def write(tmp_path: Path):
    def write_config(text: str | bytes) -> Path:
        path = tmp_path / "configs" / "exp.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        return path

    return write_config


def message_of(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed: 1\ninterval: 3\n", "exp.yaml:2: interval: unknown key, did you mean simulator.interval?"),
        (
            "cluster:\n  nodes:\n  - gpus: 4\n  - gpsu: 4\n",
            "exp.yaml:4: cluster.nodes.1.gpsu: unknown key, did you mean cluster.nodes.1.gpu?",
        ),
        ("qqq: 3\n", "exp.yaml:1: qqq: unknown key, the nearest valid key is "),
        (
            "cluster:\n  nodes:\n  - gpus: four\n",
            "exp.yaml:3: cluster.nodes.0.gpus: expected a valid integer, got 'four'",
        ),
        ("cluster:\n  nodes: []\n", "exp.yaml:2: cluster.nodes: expected at least 1 entry, got []"),
        ("simulator:\n  interval: .nan\n", "exp.yaml:2: simulator.interval: expected a finite number, got nan"),
        (
            "queue:\n  inside: lifo\n",
            "exp.yaml:2: queue.inside: expected 'fifo' or 'fair_users', got 'lifo'",
        ),
        ("reward:\n  classes: [1, 2]\n", "exp.yaml:2: reward.classes.2: missing, expected one more entry"),
        ("seed: 1\nseed: 2\n", "exp.yaml:2: not valid YAML: seed: key given twice, first on line 1"),
        ("workload:\n  source: trace\n", "exp.yaml:1: workload: source trace needs a path"),
        ("", "exp.yaml: the file is empty"),
        ("- 1\n", "exp.yaml: expected an experiment in YAML, keys and values at the top, got a list"),
        (b"\xff\xfe\x00abc", "exp.yaml:1: not a text in UTF-8, expected an experiment in YAML"),
        ("seed: [1\nname: 2\n", "exp.yaml:2: not valid YAML"),
        ("? [1, 2]\n: 3\n", "exp.yaml:1: not valid YAML: expected a plain key, got a list"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(write, text: str | bytes, expected: str) -> None:
    assert expected in message_of(write(text))


def test_an_invalid_entry_of_a_list_is_one_problem(write) -> None:
    assert message_of(write("cluster:\n  nodes:\n  - gpus: four\n")).endswith("expected a valid integer, got 'four'")


def test_a_missing_file_and_a_folder_are_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said, want = "cannot read the file: ", ", expected an experiment in YAML"
    assert message_of(tmp_path / "no.yaml").startswith(f"{tmp_path}/no.yaml: no such file, and no example of that name")
    assert message_of(tmp_path) == f"{tmp_path}: {said}is a directory{want}"
    monkeypatch.chdir(tmp_path)
    assert message_of(Path("configs")).startswith("configs: no such file, and no example of that name")
    assert "expected quickstart, an example" in message_of(Path("configs/quickstart.yaml"))


def test_overrides_change_single_values(write) -> None:
    path = write("cluster:\n  nodes:\n  - gpus: 4\n  - gpus: 8\nqueue:\n")
    overrides = ["cluster.nodes.1.gpus=2", "queue={inside: fair_users}", "reward.classes=[4, 2, 1]", "seed=7"]
    overrides.append("reward.resources=-0.0")
    config = load_config(path, [*overrides, "simulator.failures.mtbf_hours=100", "description=two words"])
    assert [group.gpus for group in config.cluster.nodes] == [4, 2]
    assert config.queue.inside == "fair_users"
    assert config.reward.classes == (4.0, 2.0, 1.0)
    assert config.seed == 7
    assert config.simulator.failures.mtbf_hours == 100.0
    assert str(config.reward.resources) == "0.0"


@pytest.mark.parametrize("value", ["~nobody-here/weights.yaml", "~nobody-here"])
def test_the_home_of_an_unknown_user_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"--set: env.start: ~nobody-here.*: no home folder of that user"):
        load_config("quickstart", [f"env.start={value}"])


@pytest.mark.parametrize("arguments", [(5,), (None,), (b"x",), ("quickstart", "env.hold=1"), ("quickstart", [1]),
                                       ("quickstart", 5), ("quickstart", None)])  # fmt: skip
def test_arguments_of_another_kind_are_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError, match=r"config: expected the path|overrides: expected a list of key=value"):
        load_config(*arguments)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("seed", "--set seed: expected key=value"),
        ("=3", "--set =3: expected key=value"),
        ("seed=[", "--set seed=[: not valid YAML"),
        ("cluster.nodes.5.gpus=3", "the list there has 1 entries, counted from 0; got 5"),
        ("cluster.nodes.gpus=3", "there is a list in the file where gpus was to be set"),
        ("policies.0=fifo", "the file has no list there"),
        # What does not go together.
        ("agent.whole_windows={rollout: 7}", "draws come in pairs: expected an even number"),
        ("agent.whole_windows={constants: 0, network: 0}", "nothing is learnt"),
        ("queue.class_weights=[1, 2, 1]", "class_weights must not rise from high to low"),
        ("simulator={epoch_resolution: 1}", "epoch_resolution 1 needs decide_on: interval"),
        ("simulator={growth: overlap, placement: most_free}", "growth overlap needs placement: pack"),
        ("simulator.failures={mtbf_hours: 5, gpu_mtbf_hours: 5}", "got both"),
        ("simulator.failures={gpu_mtbf_hours: 0.5}", "gpu_mtbf_hours: expected 0, or 1 and more"),
        ("simulator.failures={mtbf_hours: 5, checkpoint_interval: young}", "young needs checkpoint_seconds"),
        ("simulator.failures={checkpoint_interval: often}", "young or daly, got 'often'"),
        (f"simulator.failures={{checkpoint_interval: 1{'0' * 350}}}", "young or daly, got 100000"),
        ("workload.mapping={min_duration: 100, max_duration: 50}", "min_duration 100 is above max_duration 50"),
        ("workload.mapping={models: {ncf: 0}}", "weights of 0 or more, one of them above 0"),
        ("workload.mapping={priority_shares: [0.5, 0.5, 0.5]}", "three shares of 0 or more that sum to 1"),
        ("workload.mapping={mode: given, users: clustered}", "mode given takes no account of users"),
        ("workload.windows.train=0.9", "sum to 1.2, expected at most 1"),
    ],
)
def test_wrong_overrides_are_named(write, override: str, expected: str) -> None:
    assert expected in message_of(write("name: x\ncluster:\n  nodes:\n  - gpus: 4\n"), override)


def test_paths_are_relative_to_the_file_and_typed_ones_to_the_working_directory(write, monkeypatch) -> None:
    path = write("workload:\n  source: trace\n  path: ../traces/t.parquet\n")
    monkeypatch.chdir(path.parents[1])
    assert load_config("configs/exp.yaml").workload.path == (Path("traces/t.parquet"),)
    assert load_config(path).workload.path == (path.parents[1] / "traces/t.parquet",)
    assert load_config(path, ["workload.path=here.csv"]).workload.path == (Path("here.csv"),)


def test_environment_variables_in_paths(write, monkeypatch) -> None:
    path = write("workload:\n  source: files\n  path: '${RLPTO_TEST_DATA}/t*.csv'\n")
    monkeypatch.delenv("RLPTO_TEST_DATA", raising=False)
    assert "exp.yaml:3: workload.path.0: environment variable RLPTO_TEST_DATA is not set" in message_of(path)
    monkeypatch.setenv("RLPTO_TEST_DATA", "/data")
    assert load_config(path).workload.path == (Path("/data/t*.csv"),)
    path.write_text("profiles:\n  folder: ${RLPTO_TEST_DATA:-../mine}/profiles\n")
    assert load_config(path).profiles.folder == Path("/data/profiles")
    monkeypatch.setenv("RLPTO_TEST_DATA", "")
    assert load_config(path).profiles.folder == path.parents[1] / "mine/profiles"


def test_names_are_not_taken_for_paths(write, monkeypatch) -> None:
    path = write("workload:\n  calibration: philly\n")
    assert load_config(path).workload.calibration == "philly"
    path.write_text("workload:\n  calibration: mine.yaml\n")
    monkeypatch.chdir(path.parent)  # the resolved file, in the folder of a run, must mean the same calibration
    assert load_config(path.name).workload.calibration == str(path.parent / "mine.yaml")


def test_the_resolved_file_reads_back_the_same_and_explains_every_key(write, tmp_path: Path) -> None:
    path = write("description: 'two\\n: lines # here'\ncluster:\n  nodes: [{count: 2}, {gpus: 8}]\n")
    config = load_config(path, ["workload.path=[a.csv, 'b c.csv']", "simulator.max_hours=2", "queue.aging_low=1e4"])
    text = resolved_yaml(config)
    copy = tmp_path / "resolved.yaml"
    copy.write_text(text)
    again = load_config(copy)
    assert again.workload.path == (Path("a.csv").absolute(), Path("b c.csv").absolute())
    assert resolved_yaml(again) == text
    assert again.model_copy(update={"workload": config.workload}) == config
    lines = text.splitlines()
    undescribed = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if line.strip() and not line.lstrip().startswith("#") and not before.lstrip().startswith("#")
    ]
    second = ["    - count: 1", "gpus: 8", "cpus: 0", "gpu: gpu", "price: 0.0", "spot: null", "rented: null"]
    assert undescribed == [*second[:1], *(f"      {line}" for line in second[1:])], "only list entries after the first"


@given(st.text(max_size=30), st.floats(min_value=1e-3, max_value=1e9))
def test_any_text_and_number_survive_the_resolved_file(text: str, number: float) -> None:
    config = Config.model_validate({"description": text, "simulator": {"interval": number}})
    assert Config.model_validate(yaml.safe_load(resolved_yaml(config))) == config


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configs_are_valid_and_named_after_their_file(path: Path) -> None:
    config = load_config(path)
    assert config.name == path.stem
    assert config.description
    assert config.evaluation.reference in map(policy_label, config.policies)


def test_examples_know_what_a_real_scheduler_knows_and_an_oracle_is_two_settings_away() -> None:
    for name in ("quickstart", "philly", "microsoft04", "ray"):
        assert load_config(name).knowledge.text == "online, shared fits, remaining learnt"
    oracle = ["knowledge.mode=exact", "knowledge.remaining=declared"]
    assert load_config("quickstart", oracle).knowledge.text == "exact"
    assert load_config("pollux").knowledge.text == "exact"  # published figures rest on it
    assert load_config("pollux", ["knowledge.mode=noisy"]).knowledge.text == "noisy, remaining declared"


@pytest.mark.parametrize("given", [{"forecast": {"mode": "on"}}, {"ray": {"arrivals": 2.0}}])
def test_a_section_decides_once_it_has_an_effect(given: dict[str, Any]) -> None:
    off, on = (outcome_of(Config.model_validate(one), dict.fromkeys(KEYS, ())) for one in ({}, given))
    assert on.keys() - off.keys() == given.keys()


@pytest.mark.parametrize("name", ["ray_smoke", "llm", "pollux"])
def test_jobs_of_a_trace_take_the_place_of_those_of_a_config(name: str) -> None:
    workload = load_config(EXAMPLES / f"{name}.yaml", jobs_of_file(Path("jobs.csv"))).workload
    assert (workload.source, workload.jobs, workload.mixture) == ("trace", (), ())


@pytest.mark.parametrize("name", ["a,b", "a>b", "a[1]"])
def test_a_run_whose_path_would_end_a_policys_options_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"runs/{re.escape(name)}: expected a path without .* rename it"):
        with_agents(Config(name="x"), Path("runs") / name)


def test_an_agent_that_rents_nodes_needs_no_other_policy(tmp_path: Path) -> None:
    config = load_config("rented", ["policies=[srtf@spare, fifo]"])
    begin_run(tmp_path, config)
    (tmp_path / "best.safetensors").touch()
    agent = f"agent:label=agent,run={tmp_path}"
    alone = with_agents(config.model_copy(update={"policies": ()}), tmp_path)
    assert alone.policies == (f"srtf@{agent}",), "as the run has it"
    both = with_agents(config.model_copy(update={"policies": ("las",)}), tmp_path)
    assert both.policies == (f"las@{agent}", "las")
