"""Specs of policies as text, and one policy after another: which decides when, and that nothing is lost."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlpto.core.cluster import ClusterState
from rlpto.core.loop import run
from rlpto.core.rewards import RewardWeights
from rlpto.io.errors import ConfigError
from rlpto.policies.registry import make_policy
from rlpto.policies.spec import PolicySpec, parse_spec, parse_switch, policy_label, split_specs
from rlpto.policies.switching import SwitchingPolicy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import Case, Scripted, cases, job, linear_tables, make_cluster, played


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


def test_options_are_read_as_yaml() -> None:
    assert parse_spec("a:x=[1, 2],y={b: [3]},z=off").options == {"x": [1, 2], "y": {"b": [3]}, "z": False}
    assert parse_spec("pretrained:synthetic").options == {"": "synthetic"}
    assert policy_label("las:label=levelled,levels=[1]") == "levelled"
    assert policy_label("las:levels=[1]") == "las:levels=[1]"
    with pytest.raises(ConfigError, match="option x: not valid YAML"):
        _ = parse_spec("a:x=" + "[" * 100_000).options
    with pytest.raises(ConfigError, match="expected SECONDS:POLICY"):
        parse_switch("3600:las>7200:srtf")


def test_files_and_runs_are_found_and_replaced_and_nothing_else() -> None:
    spec = parse_spec("agent:label=x.y,run=runs/a,weights=w.yaml,files=[a.yaml],max_jobs=3")
    assert spec.paths == [Path("runs/a"), Path("w.yaml")]
    assert str(spec.with_paths(str.upper)) == "agent:label=x.y,run=RUNS/A,weights=W.YAML,files=[a.yaml],max_jobs=3"
    assert parse_spec("agent:run=2024-11-26").options == {"run": "2024-11-26"}, "a folder, no date"


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


class TestDecisions:
    def test_each_decides_from_the_first_decision_at_or_after_its_time(self) -> None:
        asked: list[tuple[str, float]] = []

        def scripted(name: str) -> Scripted:
            def decide(state: ClusterState) -> object:
                asked.append((name, state.time))
                return state.jobs.min_gpus

            return Scripted(decide, name)

        policy = SwitchingPolicy("all", scripted("a"), [(90.0, scripted("b")), (120.0, scripted("c"))])
        played(make_cluster([job(epochs=2.0)], linear_tables(), interval=60.0), policy)
        assert asked == [("a", 0.0), ("a", 60.0), ("c", 120.0), ("c", 180.0)]
        switches = policy.switches()
        assert switches.time.tolist() == [0.0, 120.0]
        assert switches.policy == ("a", "c")

    def test_a_decision_stands_no_longer_than_its_policy(self) -> None:
        """fifo's decision stands until a job comes or goes: the switch must not wait for that."""
        cluster = make_cluster([job(epochs=4.0, max_gpus=4)], linear_tables(), interval=60.0)
        record = played(cluster, make_policy("fifo>120:equal_share"))
        assert record.decisions.time.tolist() == [0.0, 120.0]
        assert record.decisions.held.tolist() == [1, 4]

    def test_another_asked_for_by_hand_decides_until_the_next_set_time(self) -> None:
        policy = SwitchingPolicy("all", make_policy("fifo"), [(100.0, make_policy("las"))])
        policy.switch(make_policy("srtf"), 50.0)
        assert [policy.present(time).name for time in (49.0, 50.0, 99.0, 100.0)] == ["fifo", "srtf", "srtf", "las"]
        policy.switch(make_policy("sjf"), 100.0)
        assert policy.present(100.0).name == "sjf"


@given(cases(), st.lists(st.sampled_from(["fifo", "las", "equal_share", "optimus", "random"]), min_size=1, max_size=4))
def test_no_job_is_lost_and_capacity_is_kept_under_any_switches(case: Case, names: list[str]) -> None:
    spec = ">".join([case.policy, *(f"{200.0 * (i + 1):g}:{name}" for i, name in enumerate(names))])
    cluster = SimulatedCluster(case.nodes, case.jobs, case.tables, SimulatorSettings(), case.seed)
    record = run(cluster, make_policy(spec), case.queue, RewardWeights(), seed=case.seed)
    assert np.isfinite(record.jobs.finish_time).all()
    assert (record.decisions.held <= record.decisions.capacity).all()
