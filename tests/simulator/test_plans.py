"""Plans of parallelism: a job keeps its own or the best of each size, unless a policy names one, as `rubick` does."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlpto.core.cluster import Allocation, ClusterState, Node
from rlpto.core.jobs import Job
from rlpto.io.errors import JobError, PolicyError, ProfileError
from rlpto.performance.compile import compile_tables
from rlpto.performance.fitted import FittedProfiles
from rlpto.performance.profiles import large_profiles
from rlpto.performance.size_table import SizeTable
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import Scripted, admit, advance_to, job, played, run_out

PLANS = {"1x2": ((1, 2, 4.0), (1, 4, 2.5)), "2x2": ((1, 4, 2.0), (1, 8, 1.0)), "ga": ((1, 1, 9.0), (1, 2, 5.0))}
SIZES = ({1, 2, 4, 8}, *({gpus for _, gpus, _ in steps} for steps in PLANS.values()))
"""Numbers of GPUs of the best plan of each size, then of each plan."""
BEST, ONE_BY_TWO, TWO_BY_TWO, GA = range(4)
DELAY, STEPS = 100.0, 1000


@cache
def tables_of(models: tuple[str, ...], chosen: bool) -> SpeedTables:
    shipped = large_profiles()["rubick-bert"]
    model = replace(shipped, name="m", kinds={}, throughput=SizeTable(plans=PLANS), rescale_delay=DELAY)
    return compile_tables(FittedProfiles({"m": model}), list(map(JobType, models)), 8, 8, choose_plans=chosen)


def train(model: str, gpus: int, **more: object) -> Job:
    """A job of STEPS steps that may have any number of GPUs."""
    given = {"model": model, "data_size": 1024.0 * STEPS, "min_gpus": 1, "max_gpus": 8} | more
    return job(epochs=1.0, gpus=gpus, **given)


def cluster_of(*jobs: Job, chosen: bool = True) -> SimulatedCluster:
    jobs = tuple(replace(given, name=f"j{i}") for i, given in enumerate(jobs))
    tables = tables_of(tuple(sorted({given.model for given in jobs})), chosen)
    return SimulatedCluster((Node(8),), jobs, tables, SimulatorSettings(interval=10.0))


@pytest.mark.parametrize(
    ("model", "plan", "seconds"),
    [("m", None, 2.0), ("m@1x2", None, 2.5), ("m@1x2", BEST, 2.5), ("m@1x2", TWO_BY_TWO, 2.0), ("m", ONE_BY_TWO, 2.5)],
)
def test_a_job_trains_by_the_plan_that_is_named_or_its_own_or_the_best(
    model: str, plan: int | None, seconds: float
) -> None:
    cluster = cluster_of(train(model, 4))
    admit(cluster, [4], plan=None if plan is None else [plan])
    assert run_out(cluster) == pytest.approx(DELAY + STEPS * seconds)


@pytest.mark.parametrize(("gpus", "plan", "seconds"), [(4, TWO_BY_TWO, 2.0), (8, TWO_BY_TWO, 1.0)])
def test_another_plan_restarts_a_job_once(gpus: int, plan: int, seconds: float) -> None:
    cluster = cluster_of(train("m@1x2", 4))
    admit(cluster, [4])
    advance_to(cluster, DELAY + 250.0)  # 100 steps
    admit(cluster, [gpus], plan=[plan])
    assert run_out(cluster) == pytest.approx(DELAY + 250 + DELAY + 900 * seconds)
    assert cluster.store.rescales.tolist() == [1]


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(BEST, GA)), min_size=1, max_size=3), st.booleans())
def test_no_job_gets_a_size_that_its_plan_lacks(wishes: list[tuple[int, int]], named: bool) -> None:
    cluster = cluster_of(*(train("m@1x2", 4) for _ in wishes))
    gpus, plan = ([wish[part] for wish in wishes] for part in (0, 1))
    admitted = admit(cluster, gpus, plan=plan if named else None)
    for given_gpus, wish, chosen in zip(admitted.gpus.tolist(), gpus, plan, strict=True):
        sizes = SIZES[chosen if named and chosen else ONE_BY_TWO]
        assert given_gpus in {0, *sizes}
        assert given_gpus <= wish
    assert int(admitted.gpus.sum()) <= 8


@pytest.mark.parametrize(("chosen", "plan", "said"), [
    (True, 4, r"the plan 4 at 0 s: expected 0 \(its own choice\) or one of \[1, 2, 3\]"),
    (True, -1, "the plan -1 at 0 s"),
    (False, 2, r"the plan 2 at 0 s: expected 0 \(its own choice\)$"),
])  # fmt: skip
def test_a_plan_that_a_job_cannot_have_is_named(chosen: bool, plan: int, said: str) -> None:
    """Tables without plans are also those of real clusters, whose programs run as they are written."""
    with pytest.raises(PolicyError, match=f"policy mine gave job 0 {said}"):
        admit(cluster_of(train("m@1x2" if chosen else "m", 4), chosen=chosen), [4], plan=[plan])


def test_plans_that_do_not_divide_or_do_not_exist_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="plans: 2x4: 12 GPUs, expected a multiple of 8"):
        SizeTable(plans={"2x4": ((1, 8, 2.0), (2, 12, 1.5))})
    with pytest.raises(JobError, match="job j0: may have 1 to 1 GPUs, but model m@1x2 runs on 2, 4 only"):
        cluster_of(train("m@1x2", 1, max_gpus=1), chosen=False)
    with pytest.raises(ProfileError, match="the profile of model 'm' has no plan '4x4'; known: 1x2, 2x2, ga"):
        cluster_of(train("m@4x4", 4))


class TestRubick:
    def test_a_plan_is_the_best_of_its_size_and_changes_with_the_size_only(self) -> None:
        cluster = cluster_of(train("m@ga", 2), *(train("m@ga", 1, submit=505.0) for _ in range(2)))
        policy, decided = make_policy("rubick"), []

        def decide(state: ClusterState) -> Allocation:
            found = policy(state)
            decided.append(list(zip(state.jobs.index.tolist(), found.gpus.tolist(), found.plan.tolist(), strict=True)))
            return found

        assert np.isfinite(played(cluster, Scripted(decide)).jobs.finish_time).all()
        assert decided[0] == [(0, 8, TWO_BY_TWO)]
        assert [(0, 4, TWO_BY_TWO), (1, 2, ONE_BY_TWO), (2, 2, ONE_BY_TWO)] in decided
        for before, after in pairwise(decided):
            sizes = {job: (gpus, plan) for job, gpus, plan in before}
            assert all(sizes[job][1] == plan for job, gpus, plan in after if sizes.get(job, (0, 0))[0] == gpus)

    @pytest.mark.parametrize(("model", "gpus", "least"), [("m@ga", 2, 2), ("m@1x2", 4, 4), ("m@2x2", 8, 8)])
    def test_a_job_of_class_high_is_as_fast_as_it_was_submitted_for(self, model: str, gpus: int, least: int) -> None:
        others = [train("m@ga", 1) for _ in range(8)]
        state = cluster_of(train(model, gpus, priority=0), *others).state()
        found = make_policy("rubick")(state)
        assert found.gpus[0] == least
        assert int(found.gpus.sum()) == 8

    def test_without_plans_it_divides_gpus_by_gain(self) -> None:
        found = make_policy("rubick")(cluster_of(train("m", 1), train("m", 1), chosen=False).state())
        assert found.plan.tolist() == [BEST, BEST]
        assert found.gpus.tolist() == [4, 4]
