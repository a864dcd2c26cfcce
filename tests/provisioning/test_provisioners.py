"""What provisioners want, and what is refused."""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest

from rlpto.core.renting import LOOK, SEEN, NodesState
from rlpto.experiments.config import load_config
from rlpto.experiments.experiment import Experiment
from rlpto.forecasting.minute_averages import HALF_LIVES
from rlpto.io.errors import ConfigError, PolicyError, RlptoError
from rlpto.io.settings import Settings
from rlpto.policies.spec import parse_spec
from rlpto.provisioning.base import BaseProvisioner, checked_gpus
from rlpto.provisioning.demand import Demand, arriving
from rlpto.provisioning.registry import make_provisioner, plugin_files, spec_of

MONDAY_10 = 4 * 86_400.0 + 10 * 3600.0
"""A Monday, 10:00."""


def state(
    used: float = 12.0, waiting: float = 8.0, clock: float = MONDAY_10, forecast: tuple[float, ...] = ()
) -> NodesState:
    """One group of nodes of 4 GPUs that boot in 300 s."""
    seen = {name: np.zeros(1) for name in LOOK.names}
    seen |= {"used": np.array([used]), "waiting": np.array([waiting]), "ready": np.array([16.0])}
    averages = np.zeros((1, 2, len(HALF_LIVES)))
    averages[0, 1] = [5.0, 4.0, 3.0, 2.0, 1.0]  # GPUs a minute
    fixed = {"size": np.array([4.0]), "boot": np.array([300.0]), "most": np.array([80.0])}
    now = np.zeros(1)
    return NodesState(
        now, np.array([clock]), averages=averages, forecast=np.array([forecast]).reshape(1, -1), **fixed, **seen
    )


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ("reactive", 20),
        ("spare:gpus=6", 26),
        ("fixed:share=0.5", 40),
        ("average:factor=2,half_life=5", 20 + 2 * 4 * 5),
        ("average:factor=1,half_life=240", 20 + 5),
        ("scheduled:day=16,night=2", 36),
    ],
)
def test_what_provisioners_want(spec, wanted):
    assert make_provisioner(parse_spec(spec))(state()) == pytest.approx(wanted)


def test_averages_of_jobs_as_they_arrive_are_those_of_a_workload_that_is_known():
    day, minutes = 1440, 90
    counts = np.random.default_rng(0).poisson(0.5, (2, day + minutes, 2)).astype(np.float64)
    demand = Demand(counts[:, day:], counts[:, :day])
    known, online = demand.by_minute(), arriving(lambda first, last: counts[:, day + first : day + last], 0.0, None)
    for minute in (0, 1, 30, minutes):
        assert online(minute, 300.0)[0] == pytest.approx(known(minute, 300.0)[0], rel=0.03)
        assert online(minute, 300.0)[1].shape == known(minute, 300.0)[1].shape == (2, 0)
    assert known(minutes + 5, 300.0)[0] is not None, "the last one stands"


def test_a_forecast_of_jobs_as_they_arrive_reads_a_day_of_them():
    class Said:
        horizons = 5, 10

        def batch(self, counts, start, levels):
            assert counts.shape == (1440, 2)
            assert start == 600.0 + 3 * 60 - 86_400
            ahead = np.full((1441, 2, 2), counts[-2:].sum())
            return SimpleNamespace(mean=ahead, quantiles=np.repeat(2 * ahead[..., None], len(levels), axis=-1))

    def arrived(first, last):
        minutes = np.arange(first, last)
        return np.stack([minutes == 2, 3.0 * (minutes == 2)], axis=-1)[None]

    averages, forecast = arriving(arrived, 600.0, Said())(3, 300.0)
    assert forecast.tolist() == [[4.0, 8.0, 8.0, 8.0, 8.0]]
    assert averages.shape == (1, 2, len(HALF_LIVES))


def test_a_schedule_follows_the_hours_of_the_week():
    scheduled = make_provisioner(parse_spec("scheduled:day=16,night=2,begin=9,end=17"))
    hour, day = 3600.0, 86_400.0
    spare = [scheduled(state(clock=MONDAY_10 + late))[0] - 20 for late in (-2 * hour, 0, 8 * hour, 5 * day)]
    assert spare == [2, 16, 2, 2]
    at_night = make_provisioner(parse_spec("scheduled:day=16,night=2,begin=22,end=6"))
    hours = (-8, 0, 11.9, 12, 16, 4 * 24 + 16, 5 * 24 + 12)
    late = [at_night(state(clock=MONDAY_10 + after * hour))[0] - 20 for after in hours]
    assert late == [2, 2, 2, 16, 16, 16, 2], "before Monday's work, by day, from 22:00 to Saturday's morning"


def test_a_forecast_gives_its_mean_or_a_quantile():
    said = (5.0, 1.0, 9.0, 14.0, 20.0)
    assert make_provisioner(parse_spec("forecast:factor=2"))(state(forecast=said)) == 30
    assert make_provisioner(parse_spec("forecast:level=0.9"))(state(forecast=said)) == 34
    with pytest.raises(PolicyError, match="no forecast of demand"):
        make_provisioner(parse_spec("forecast"))(state())


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nonsense", "no provisioner 'nonsense'"),
        ("spare:gpus=-1", "gpus"),
        ("average:half_life=7", "half_life"),
        ("average:factor=nan", "factor"),
        ("forecast:level=0.42", "expected mean, 0.5, 0.8, 0.9 or 0.95"),
        ("agent:file=missing.safetensors", "missing.safetensors"),
    ],
)
def test_bad_specs_are_refused_in_a_line(spec, said):
    with pytest.raises(RlptoError, match=said) as refused:
        make_provisioner(parse_spec(spec))
    assert "\n" not in str(refused.value)


def test_a_spec_makes_its_provisioner_again():
    for spec in ("reactive", "average:factor=2.5,half_life=60", "spare:gpus=3.0"):
        assert spec_of(make_provisioner(parse_spec(spec))) == spec

    class Limits(Settings):
        most: float | None = None

    class Mine(BaseProvisioner[Limits]):
        name, Options = "mine", Limits

    assert parse_spec(spec_of(Mine())).options == {"most": None}


@pytest.mark.parametrize("wanted", [np.array([np.nan]), np.array([-1.0]), np.array([np.inf]), np.zeros(2), "many"])
def test_what_is_no_number_of_gpus_is_refused(wanted):
    with pytest.raises(PolicyError, match="provisioner mine"):
        checked_gpus("mine", wanted, state())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("cluster.nodes=[{gpus: 4, rented: {least: 5, most: 4}}]", "least 5 is above most 4"),
        ("cluster.nodes=[{gpus: 4, rented: {most: 4, boot: 86400}}]", "boot"),
        ("cluster.nodes=[{gpus: 4, rented: {most: 4, minimum: -1}}]", "minimum"),
        ("cluster.nodes=[{gpus: 4, count: 0}]", "0 nodes, and none rented"),
        ("provision=spare@reactive", "spare@reactive"),
    ],
)
def test_bad_settings_are_refused_by_their_key(change, said):
    with pytest.raises(ConfigError, match=said) as refused:
        Experiment(load_config("rented", [change])).provisioner("")
    assert "\n" not in str(refused.value)


def test_an_agent_cannot_learn_where_nodes_cost_nothing():
    for change in ("reward.money=0", "cluster.nodes=[{gpus: 4, rented: {most: 4}}]"):
        with pytest.raises(ConfigError, match="rented nodes cost nothing"):
            Experiment(load_config("rented", [change])).check_renting()


def test_a_wrong_provisioner_is_refused_before_anything_runs_and_any_where_no_nodes_are_rented():
    with pytest.raises(ConfigError, match="no provisioner 'nonsense'"):
        Experiment(load_config("rented", ["policies=[index@nonsense]"])).check()
    for spec, said in (("fifo@reactive", "no nodes are rented here"), ("fifo@", "expected name or name:option")):
        with pytest.raises(ConfigError, match=said):
            Experiment(load_config("quickstart")).policy(spec)


def test_what_is_seen_of_nodes_goes_by_the_same_names() -> None:
    first = [field.name for field in fields(NodesState)].index(SEEN[0])
    assert tuple(field.name for field in fields(NodesState))[first : first + len(SEEN)] == SEEN


def test_a_job_larger_than_the_first_group_gets_nodes_of_the_next_of_its_type():
    nodes = "{gpus: 4, rented: {most: 1}}, {gpus: 2, gpu: A100, rented: {most: 9}}, {gpus: 4, rented: {most: 2}}"
    jobs = "[{model: cifar10, submit: 0, epochs: 1, gpus: 12, max_gpus: 12}]"
    changes = [f"cluster.nodes=[{nodes}]", "workload.source=jobs", f"workload.jobs={jobs}", "policies=[fifo@reactive]"]
    experiment = Experiment(load_config("rented", [*changes, "evaluation.reference=fifo@reactive"]))
    record = experiment.run_cell(experiment.cells()[0])
    assert np.isfinite(record.jobs.finish_time).all()
    assert record.rented.ready.max() == 12


@pytest.mark.parametrize("name", ["average", "agent", "pretrained", "none"])
def test_provisioners_of_rlpto_are_no_plug_ins(name: str):
    assert plugin_files(name) == []
