"""Specs of policies as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlpto.io.errors import ConfigError
from rlpto.policies.spec import parse_spec, policy_label, split_specs


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("fifo", ["fifo"]),
        ("fifo, las", ["fifo", "las"]),
        ("las:levels=[1,2],gpus=max,fifo", ["las:levels=[1,2],gpus=max", "fifo"]),
        ("reward_greedy:weights={time: 1, rescale: 2},fifo", ["reward_greedy:weights={time: 1, rescale: 2}", "fifo"]),
        ("3600:las,7200:agent:run=runs/a,label=b", ["3600:las", "7200:agent:run=runs/a,label=b"]),
    ],
)
def test_a_list_is_split_at_the_commas_between_specs(text: str, specs: list[str]) -> None:
    assert split_specs(text) == specs
    assert [str(parse_spec(spec)) for spec in specs] == specs, "a spec is kept as it was written"


def test_an_empty_spec_is_refused_with_the_option_it_was_given_to() -> None:
    with pytest.raises(ConfigError, match="--switch fifo,,las: expected policies separated by commas"):
        split_specs("fifo,,las", "--switch")


def test_options_are_read_as_yaml() -> None:
    assert parse_spec("a:x=[1, 2],y={b: [3]},z=off").options == {"x": [1, 2], "y": {"b": [3]}, "z": False}
    assert parse_spec("pretrained:synthetic").options == {"": "synthetic"}
    assert policy_label("las:label=levelled,levels=[1]") == "levelled"
    assert policy_label("las:levels=[1]") == "las:levels=[1]"
    with pytest.raises(ConfigError, match="option x: not valid YAML"):
        _ = parse_spec("a:x=" + "[" * 100_000).options


def test_files_and_runs_are_found_and_replaced_and_nothing_else() -> None:
    spec = parse_spec("agent:label=x.y,run=runs/a,weights=w.yaml,files=[a.yaml],max_jobs=3")
    assert spec.paths == [Path("runs/a"), Path("w.yaml")]
    assert str(spec.with_paths(str.upper)) == "agent:label=x.y,run=RUNS/A,weights=W.YAML,files=[a.yaml],max_jobs=3"
