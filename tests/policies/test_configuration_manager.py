"""ConfigurationManager: grows running jobs at their reports, in workers and servers, where that pays."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from rlpto.core.cluster import Allocation, BackgroundLoad, ClusterShape, ClusterState, Node, place_background
from rlpto.core.jobs import Job
from rlpto.core.records import RunRecord
from rlpto.knowledge.known import Knowledge
from rlpto.knowledge.remaining import RemainingKnowledge
from rlpto.performance.compile import compile_tables, load_profiles
from rlpto.performance.parameter_server import ServerParams
from rlpto.performance.tables import JobType, SpeedTables
from rlpto.policies.configuration_manager import ConfigurationManager, ConfigurationManagerOptions, Reconfiguration
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import admit, played, served_profiles

LAW = ServerParams(a=0.004, b=0.02, c=0.012, d=0.001, e=0.0015, servers=1, most_servers=4)
NODES = (Node(4, 1),) * 4
PERIOD = 30.0


def tables() -> SpeedTables:
    source = served_profiles({"served": LAW}, rescale_delay=20.0)
    return compile_tables(source, [JobType("served", 512)], 16, 4, choose_servers=True)


def job(number: int = 0, submit: float = 0.0, epochs: float = 40.0, gpus: int = 4) -> Job:
    return Job(f"j{number}", submit, "served", epochs, 50_000.0, gpus, 1, 16, batch_size=512)


def grown(
    jobs: list[Job], until: float, left: RemainingKnowledge = "declared", **options: Any
) -> tuple[RunRecord, list[Reconfiguration]]:
    """A run where others hold all but four GPUs and a CPU slot for each job until a time [s]; 0: they hold nothing."""
    load = [BackgroundLoad(gpus=16 - 4 * len(jobs), cpus=4 - len(jobs), until=until)] if until else []
    held = place_background(load, ClusterShape(NODES))
    cluster = SimulatedCluster(
        NODES, jobs, tables(), SimulatorSettings(interval=10.0), knowledge=Knowledge(remaining=left), background=held
    )
    policy = ConfigurationManager(ConfigurationManagerOptions(period=PERIOD, **options))
    return played(cluster, policy), list(policy.events)


def test_it_grows_into_what_others_free_and_by_the_model_in_the_end() -> None:
    record, events = grown([job()], until=600.0)
    assert [event.after for event in events[:-1]] == [(4, 2), (8, 2), (8, 3), (12, 3)]
    assert all(before.after == after.before for before, after in pairwise(events))
    assert events[-1].after == (16, 4)
    assert 600.0 <= events[0].time <= 600.0 + PERIOD
    assert record.jobs.rescales.tolist() == [len(events)]


@pytest.mark.parametrize(
    ("epochs", "until", "gain"),
    [(40.0, 1e6, None), (0.5, 0.0, None), (40.0, 600.0, 10.0)],
    ids=["nothing is free", "a restart takes longer than it saves", "the gain is below the option"],
)
def test_nothing_is_done_where(epochs: float, until: float, gain: float | None) -> None:
    record, events = grown([job(epochs=epochs)], until, **({"gain": gain} if gain else {}))
    assert events == []
    assert record.jobs.rescales.tolist() == [0]


def test_jobs_are_changed_at_their_reports_alone() -> None:
    _, events = grown([job(0), job(1, submit=7.0)], until=500.0)
    assert {event.job for event in events} == {0, 1}
    for number, start in ((0, 0.0), (1, 7.0)):
        since = [event.time for event in events if event.job == number]
        assert since[0] >= 500.0
        assert all(later - earlier >= PERIOD for earlier, later in pairwise([start, *since]))


def test_who_waits_goes_before_who_grows() -> None:
    record, events = grown([job(0), job(1, submit=0.0, gpus=16)], until=0.0)
    waited = record.jobs.start_time[1]
    assert waited <= record.jobs.finish_time[0]
    assert all(event.time >= waited for event in events if event.job == 1)


def state_of(gpus: int, servers: int, progress: float, time: float) -> ClusterState:
    cluster = SimulatedCluster(NODES, [job()], tables(), SimulatorSettings(interval=10.0))
    admit(cluster, [gpus], servers=[servers])
    cluster.store.progress[0], cluster.store.rescale_left[0] = progress, 0.0
    return replace(cluster.state(), time=time)


def test_growth_that_was_rolled_back_is_not_tried_again_soon() -> None:
    policy = ConfigurationManager(ConfigurationManagerOptions(period=PERIOD, retry=200.0))
    policy.reset(0)
    ask: Callable[[float, float], Allocation] = lambda time, progress: policy(state_of(4, 1, progress, time))  # noqa: E731
    found = [ask(PERIOD * i, 0.5 * i) for i in range(3)]
    assert found[-1].servers.tolist() == [2]
    assert policy.events[0].time == 2 * PERIOD
    for i in range(3, 10):  # the new server did not come up: the job has one still
        ask(PERIOD * i, 0.5 * i)
    assert len(policy.events) == 1
    ask(PERIOD * 10, 5.0)
    assert len(policy.events) == 2


@pytest.mark.parametrize("left", ["unknown", "learnt", "curve"])
def test_it_grows_where_it_is_not_known_how_much_work_is_left(left: RemainingKnowledge) -> None:
    """What is shown then grows as a job trains: speed is measured by what the job has done."""
    _, events = grown([job()], until=600.0, left=left)
    assert [event.after for event in events[:2]] == [(4, 2), (8, 2)]


def test_jobs_without_servers_grow_by_what_is_shown() -> None:
    base = load_profiles(None)
    found = compile_tables(base, [JobType("cifar10")], 16, 4)
    jobs = [Job("j", 0.0, "cifar10", 50.0, 50_000.0, 2, 1, 16)]
    cluster = SimulatedCluster(NODES, jobs, found, SimulatorSettings(interval=10.0))
    policy = ConfigurationManager()
    record = played(cluster, policy)
    assert record.jobs.peak_gpus[0] > 2
    assert record.jobs.rescales[0] == len(policy.events)


@pytest.mark.parametrize("form", ["sync", "async"])
def test_either_form_of_the_model_comes_to_the_fastest(form: str) -> None:
    _, events = grown([job()], until=300.0, form=form)
    assert events[-1].after[0] >= 12
