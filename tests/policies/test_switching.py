"""One policy after another: which decides when, and that nothing is lost where they change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.cluster import ClusterState
from rlpto.core.loop import run
from rlpto.core.rewards import RewardWeights
from rlpto.io.errors import ConfigError
from rlpto.policies.registry import make_policy
from rlpto.policies.spec import parse_spec
from rlpto.policies.switching import SwitchingPolicy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import Case, Scripted, cases, job, linear_tables, make_cluster, played


class TestSpecs:
    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            (">3600:las", "no policy ''"),
            ("fifo>las", "policy switch 'las': expected SECONDS:POLICY, such as 3600:las"),
            ("fifo>3600:las>nan:srtf", "policy switch 'nan:srtf': expected SECONDS:POLICY"),
            ("fifo>0:las", "policy switch '0:las': expected"),
            ("fifo>3600:", "policy switch '3600:': expected"),
            ("fifo>3600:las>3600:srtf", "policy switch 3600:srtf: expected a time later than that before it, 3600 s"),
            ("fifo>3600:lass", "no policy 'lass'; did you mean las?"),
        ],
    )
    def test_the_part_that_is_wrong_is_named(self, spec: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            make_policy(spec)

    def test_tables_show_labels_and_paths_are_found_in_every_part(self) -> None:
        spec = parse_spec("index:weights=w.yaml>60:agent:run=runs/a,label=mine>120:las")
        assert spec.label == "index:weights=w.yaml>60:mine>120:las"
        assert [str(path) for path in spec.paths] == ["w.yaml", "runs/a"]
        assert str(spec.with_paths(lambda path: "/" + path)).count("/") == 3


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


@settings(max_examples=30)
@given(cases(), st.lists(st.sampled_from(["fifo", "las", "equal_share", "optimus", "random"]), min_size=1, max_size=4))
def test_no_job_is_lost_and_capacity_is_kept_under_any_switches(case: Case, names: list[str]) -> None:
    spec = ">".join([case.policy, *(f"{200.0 * (i + 1):g}:{name}" for i, name in enumerate(names))])
    cluster = SimulatedCluster(case.nodes, case.jobs, case.tables, SimulatorSettings(), case.seed)
    record = run(cluster, make_policy(spec), case.queue, RewardWeights(), seed=case.seed)
    assert np.isfinite(record.jobs.finish_time).all()
    assert (record.decisions.held <= record.decisions.capacity).all()
