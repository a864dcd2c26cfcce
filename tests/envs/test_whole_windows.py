"""Whole windows in compiled code are runs of the evaluation, on rented nodes too."""

import numpy as np
import pytest

from rlpto.agents.window_training import gpu_price, priced
from rlpto.envs.whole_windows import WindowPool
from rlpto.experiments.config import load_config
from rlpto.experiments.environments import training_setup
from rlpto.experiments.experiment import Experiment
from rlpto.io.errors import ConfigError, PolicyError
from rlpto.policies.index_weights import WEIGHT_NAMES, IndexWeights, save_index_weights

SMALL = [
    *("agent.learns=windows", "workload.mapping.rigid=false", "workload.windows.hours=4", "workload.windows.limit=3"),
    *("simulator.max_hours=null", "evaluation.reference=index", "policies=[index]"),
]
"""Of configs/rented.yaml, with jobs that may grow."""
TWO_GROUPS = (
    "cluster.nodes=[{gpus: 4, price: 1.0, rented: {most: 30, boot: 120, idle: 60}}, "
    "{gpus: 8, price: 1.5, rented: {most: 60, boot: 300, boot_spread: 0.3, minimum: 600}}, {gpus: 4, count: 2}]"
)


@pytest.mark.parametrize(
    "changes",
    [
        ["provision=average:factor=2"],
        ["provision=spare:gpus=6", TWO_GROUPS],
        ["provision=fixed:share=0.8", "reward.shortfall=8"],
    ],
)
def test_a_window_on_rented_nodes_is_the_evaluation_of_its_index_weights(changes, tmp_path):
    experiment = Experiment(load_config("rented", [*SMALL, *changes]))
    setup = training_setup(experiment, "test")
    weights = priced(IndexWeights().array(), experiment.config.reward, gpu_price(experiment.shape))
    file = tmp_path / "weights.yaml"
    save_index_weights(weights, file)
    windows, pool = np.arange(len(setup.workloads)), WindowPool(setup, threads=2)
    found, ends = pool.play(np.repeat(weights[None], len(windows), axis=0), windows)
    for parts, end, workload in zip(found, ends, setup.workloads, strict=True):
        window, seed = workload.name.split("/")
        run = experiment.run_policy(experiment.policy(f"index:weights={file}"), window, int(seed))
        assert end == run.end
        assert parts == pytest.approx(run.decisions.reward.sum(axis=0))
    again, _ = pool.play(np.repeat(weights[None], len(windows), axis=0), windows)
    assert np.array_equal(again, found)


def test_a_window_whose_jobs_wait_for_ever_under_the_start_is_refused():
    """Without an end of time: 8 of 800 GPUs may be rented, and a job wants more."""
    changes = ["provision=fixed:share=0.01", "workload.mapping.rigid=true", "workload.windows.hours=24"]
    setup = training_setup(Experiment(load_config("rented", [*SMALL, *changes])), "test")
    pool = WindowPool(setup, threads=1)
    with pytest.raises(PolicyError, match=r"window test-.*no job has had GPUs for 30 days.*cluster\.nodes, provision"):
        pool.losses(np.repeat(setup.start[None], len(pool), axis=0), np.arange(len(pool)))


def test_the_price_of_a_rented_gpu_is_the_first_price_of_the_index():
    config = load_config("rented", SMALL)
    shape, price = Experiment(config).shape, WEIGHT_NAMES.index("price")
    start = IndexWeights().array()
    found = priced(start, config.reward, gpu_price(shape))
    assert found[price] == pytest.approx(np.log(0.03 * 1.0 / 1.0 / 3.0))
    assert np.array_equal(priced(start, config.reward, 0.0), start), "nothing costs anything"


def test_a_provisioner_that_compiled_code_does_not_know_is_refused():
    experiment = Experiment(load_config("rented", [*SMALL, "provision=average"]))
    setup = training_setup(experiment, "test")
    provisioner, demand, start = setup.renting[0]

    class Mine:
        name = "mine"

        def __call__(self, state):
            return provisioner(state)

    object.__setattr__(setup, "renting", ((Mine(), demand, start),) * len(setup.workloads))
    with pytest.raises(
        ConfigError, match=r"^provision mine: .* expected fixed, reactive, spare, .* derived from PlannedProvisioner$"
    ):
        WindowPool(setup)
