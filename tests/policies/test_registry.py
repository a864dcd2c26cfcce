"""Finding policies by name, and what wrong names and options are answered with."""

from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from rlpto.core.cluster import Allocation, ClusterState
from rlpto.core.policy import NoOptions
from rlpto.io.errors import ConfigError
from rlpto.policies.registry import BUILT_IN, available, make_policy, options_of

from .builders import J, make_state


class GreedyPlugin:
    """A stranger's policy: everything to the first job."""

    summary = "all to the first job"
    source = "a test"
    Options = NoOptions

    def __init__(self, _: NoOptions) -> None:
        self.name = "plugin"

    def reset(self, seed: int) -> None:
        pass

    def __call__(self, state: ClusterState) -> Allocation:
        gpus = np.zeros(len(state.jobs), dtype=np.int64)
        gpus[0] = min(state.jobs.max_gpus[0], state.capacity)
        return Allocation(gpus)


NO_POLICY = 3


class Undecided:
    """It decides nothing."""

    summary, source, Options = "nothing", "a test", NoOptions


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Pretend that these entry points are installed."""
    offered: dict[str, str] = {}

    def entry_points(*, group: str) -> list[metadata.EntryPoint]:
        return [metadata.EntryPoint(name, value, group) for name, value in offered.items() if group == "rlpto.policies"]

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    return offered


def test_lists_every_policy_with_its_source_and_options() -> None:
    listed = available()
    assert list(listed)[: len(BUILT_IN)] == list(BUILT_IN)
    assert all(policy.summary and policy.source for policy in listed.values())
    ((option, default, meaning),) = options_of(listed["tiresias"])
    assert (option, default) == ("threshold", "57600.0")
    assert "second queue" in meaning


def test_a_variant_is_named_by_its_spec_or_its_label() -> None:
    assert make_policy("srtf").name == "srtf"
    assert make_policy("coach:form=async").name == "coach:form=async"
    assert make_policy("coach:form=async,label=my coach").name == "my coach"


def test_options_take_effect() -> None:
    jobs = [J(requested=4, attained=150.0, held=4), J(requested=4)]
    assert list(make_policy("las:levels=[100,200]")(make_state(jobs, 4)).gpus) == [0, 4]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sfrt", r"no policy 'sfrt'; did you mean srtf\?"),
        ("coach:from=sync", r"policy coach: unknown option from; did you mean form\?"),
        ("optimus:p=1", r"policy optimus: unknown option p; it has none"),
        ("coach:form=cubic", r"policy coach: option form: .*'cubic'"),
        ("hesrpt:p=2", r"policy hesrpt: option p: .*got 2"),
        ("las:levels=[3,2]", r"policy las: option levels: .*ascending"),
        ("coach:sync", r"expected name:option=value"),
        ("coach:form=sync,form=sync", r"option form is given twice"),
        ("las:levels=[1", r"option levels: not valid YAML"),
        ("srtf:label=3", r"label: expected a name"),
        ("reward_greedy:weights={tme: 1.0}", r"unknown option weights.tme; did you mean time\?"),
    ],
)
def test_wrong_specs_are_answered_with_one_clear_line(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_policy(spec)
    assert "\n" not in str(caught.value)


def test_plugins_are_listed_and_made(plugins: dict[str, str]) -> None:
    plugins["selfish"] = f"{__name__}:GreedyPlugin"
    name, plugin = list(available().items())[-1]
    assert (name, plugin.summary, options_of(plugin)) == ("selfish", "all to the first job", [])
    policy = make_policy("selfish")
    assert policy.name == "selfish"
    assert list(policy(make_state([J(highest=3), J()], 4)).gpus) == [3, 0]


def test_plugins_cannot_take_over_a_built_in_name(plugins: dict[str, str]) -> None:
    plugins["fifo"] = f"{__name__}:GreedyPlugin"
    assert not isinstance(make_policy("fifo"), GreedyPlugin)
    assert list(available()) == list(BUILT_IN)


@pytest.mark.parametrize(
    "target",
    [
        "halfway:Policy",
        "no_module:Policy",
        *(f"{__name__}:{name}" for name in ("Missing", "NOT_A_POLICY", "Undecided")),
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
