"""Finding policies by name, and what wrong names and options are answered with."""

from importlib import metadata
from pathlib import Path

import pytest

from rlpto.core.policy import NoOptions
from rlpto.io.errors import ConfigError
from rlpto.policies.registry import BUILT_IN, available, make_policy, own_policies, plugin_files

NO_POLICY = 3


class Undecided:
    """It decides nothing."""

    summary, source, Options = "nothing", "a test", NoOptions


class Whole(Undecided):
    """A policy."""

    reset = __call__ = print


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Pretend that these entry points are installed."""
    offered: dict[str, str] = {}

    def entry_points(*, group: str) -> list[metadata.EntryPoint]:
        return [metadata.EntryPoint(name, value, group) for name, value in offered.items() if group == "rlpto.policies"]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    return offered


def test_a_variant_is_named_by_its_spec_or_its_label() -> None:
    assert make_policy("srtf").name == "srtf"
    assert make_policy("coach:form=async").name == "coach:form=async"
    assert make_policy("coach:form=async,label=my coach").name == "my coach"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sfrt", r"no policy 'sfrt' .*; did you mean srtf\?$"),
        ("nosuch", r"no policy 'nosuch' .*; expected one of fifo, elastic_fifo, .* more$"),
        ("coach:from=sync", r"policy coach: option from: unknown key, .* form"),
        ("coach:form=cubic", r"policy coach: option form: .*'cubic'"),
        ("las:levels=[3,2]", r"policy las: option levels: .*ascending"),
        ("coach:form=sync,form=sync", r"option form is given twice"),
        ("reward_greedy:weights={tme: 1.0}", r"option weights.tme: unknown key, did you mean weights.time\?"),
    ],
)
def test_wrong_specs_are_answered_with_one_clear_line(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_policy(spec)
    assert "\n" not in str(caught.value)


def test_plugins_cannot_take_over_a_built_in_name(plugins: dict[str, str]) -> None:
    plugins["fifo"] = f"{__name__}:Undecided"
    assert make_policy("fifo").name == "fifo"
    assert list(available()) == list(BUILT_IN)


def test_rlptos_own_policies_are_those_without_plugins(plugins: dict[str, str]) -> None:
    plugins |= {"theirs": f"{__name__}:Whole", "planner": f"{__name__}:Whole"}
    plugins_of_rlpto = {"agent": "rlpto.agents.policy:Agent"}
    plugins |= plugins_of_rlpto
    assert list(own_policies()) == [*BUILT_IN, *plugins_of_rlpto]
    assert {"theirs", "agent"} <= available().keys(), "for users, plug-ins belong to all policies"
    assert plugin_files("agent") == plugin_files("fifo") == []
    assert Path(__file__) in plugin_files("theirs")


@pytest.mark.parametrize(
    "target",
    [
        "halfway:Policy",
        "no_module:Policy",
        *(f"{__name__}:{name}" for name in ("Missing", "NO_POLICY", "Undecided")),
    ],
)
def test_broken_plugins_are_named(
    plugins: dict[str, str], target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halfway.py").write_text("class Policy(:\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins["broken"] = target
    with pytest.raises(ConfigError, match="policy plug-in broken"):
        make_policy("broken")
    with pytest.raises(ConfigError, match="policy plug-in broken"):
        available()
    problems = list[str]()
    assert list(available(problems.append)) == list(BUILT_IN), "one that is broken hides no others"
    assert [problem.startswith("policy plug-in broken") for problem in problems] == [True]
