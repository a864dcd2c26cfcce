"""Specs of policies as text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.io.errors import ConfigError
from rlpto.policies.spec import PolicySpec, parse_spec, parse_switch, policy_label, split_specs


@pytest.mark.parametrize(
    ("text", "specs"),
    [
        ("fifo", ["fifo"]),
        ("fifo, las", ["fifo", "las"]),
        ("las:levels=[1,2],label=a,fifo", ["las:levels=[1,2],label=a", "fifo"]),
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


_NAME = st.sampled_from(["fifo", "las", "agent", "my_policy"])
_VALUE = st.sampled_from(["1", "[1,2]", "{a: [3, 4], b: 5}", "off", "runs/a b", "w.yaml", "x=y", ""])
_SINGLE = st.builds(
    PolicySpec,
    _NAME,
    st.dictionaries(st.sampled_from(["x", "label", "run"]), _VALUE, max_size=3).map(lambda given: tuple(given.items())),
)
_LATER = st.dictionaries(st.floats(1e-3, 1e12), _SINGLE, max_size=3).map(lambda given: tuple(sorted(given.items())))


@given(first=_SINGLE, later=_LATER)
def test_every_spec_reads_back_as_itself(first: PolicySpec, later: tuple[tuple[float, PolicySpec], ...]) -> None:
    spec = PolicySpec(first.name, first.texts, later)
    assert parse_spec(str(spec)) == spec
    for time, single in later:
        assert parse_switch(f"{time!r}:{single}") == (time, single)


@given(st.text(alphabet="ab>:,=[]{} 123.", max_size=25))
def test_a_text_is_refused_or_its_spec_reads_back_as_itself(text: str) -> None:
    try:
        spec = parse_spec(text)
    except ConfigError:
        return
    assert parse_spec(str(spec)) == spec


def test_a_policy_that_is_switched_to_switches_to_no_further_one() -> None:
    with pytest.raises(ConfigError, match="expected SECONDS:POLICY"):
        parse_switch("3600:las>7200:srtf")
