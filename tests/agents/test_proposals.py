"""A network that proposes candidates begins at its anchors, and gets better in the states that it learns on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlpto.agents.proposals import Proposals, expert_iteration
from rlpto.agents.proposer import Proposer, load_proposer, save_proposer
from rlpto.core.cluster import Node
from rlpto.core.queues import Queue, QueueSettings
from rlpto.envs.plan_env import PlanEnv
from rlpto.io.arrays import FloatArray
from rlpto.io.errors import CheckpointError, PolicyError
from rlpto.planning.branching import Branch, cost_matrix, drawn_candidates
from rlpto.planning.planner import Planner, PlannerOptions
from rlpto.planning.portfolio import always_tried
from rlpto.policies.registry import make_policy
from rlpto.simulator.cluster import SimulatedCluster
from rlpto.simulator.settings import SimulatorSettings

from ..builders import random_jobs, random_tables
from ..envs.test_plan_env import SEEN, TIME_ONLY, WORK, kept_states


@pytest.fixture(scope="module")
def branches() -> list[Branch]:
    return kept_states()


def test_untrained_it_proposes_its_anchors_and_training_saves_more(branches: list[Branch]) -> None:
    anchors = drawn_candidates(branches[0].base[None], 2, 0.3, seed=2)[1:]
    network = Proposals(lambda: PlanEnv(branches, SEEN, anchors, WORK, TIME_ONLY), anchors, seed=0, envs=1)
    np.testing.assert_array_equal(network(branches), np.repeat(anchors[None], len(branches), axis=0))
    course = expert_iteration(network, branches, 4, 8, WORK, TIME_ONLY, seed=0, epochs=20)
    assert max(course[1:]) > course[0]
    standing = always_tried(branches, WORK, TIME_ONLY)
    best = np.minimum(cost_matrix(branches, network(branches), WORK, TIME_ONLY).min(axis=1), standing)
    assert course[-1] == pytest.approx(100 * (standing - best).mean())
    network.ppo.learn(512)
    assert np.isfinite(network(branches)).all()


def moved(branches: list[Branch]) -> Proposer:
    """A network that does not propose its anchors any more."""
    anchors = drawn_candidates(branches[0].base[None], 2, 0.3, seed=2)[1:]
    learner = Proposals(lambda: PlanEnv(branches, SEEN, anchors, WORK, TIME_ONLY), anchors, seed=0, envs=1)
    learner.ppo.learn(512)
    return Proposer(learner.network, anchors, SEEN)


def crowd() -> SimulatedCluster:
    jobs = [replace(job, submit_time=0.0) for job in random_jobs(3, 8, 8, 8)]
    return SimulatedCluster((Node(4), Node(4)), jobs, random_tables(3, 8, 13.0), SimulatorSettings())


def test_what_is_saved_proposes_the_same_in_a_planner(branches: list[Branch], tmp_path: Path) -> None:
    made = moved(branches)
    save_proposer(made, tmp_path / "net.zip")
    state = Queue(QueueSettings()).order(crowd().state())
    plan = base = branches[0].base
    np.testing.assert_array_equal(made(state, plan, base), load_proposer(tmp_path / "net.zip")(state, plan, base))
    assert not np.array_equal(made(state, plan, base), made.anchors)
    options, asked = PlannerOptions(portfolio=(), perturbations=0), []

    def noted(*known: object) -> FloatArray:
        asked.append(known)
        return made(*known)  # type: ignore[arg-type]

    Planner(options, QueueSettings(), SimulatorSettings(), TIME_ONLY, noted)(state)
    assert len(asked) == 1
    np.testing.assert_array_equal(asked[0][1], asked[0][2])  # at first the base stands


def test_a_planner_without_an_experiment_says_that_it_cannot_load_proposals(tmp_path: Path) -> None:
    planner = make_policy(f"planner:proposals={tmp_path / 'net.zip'}")
    with pytest.raises(PolicyError, match="proposals"):
        planner(Queue(QueueSettings()).order(crowd().state()))


def test_a_file_of_something_else_is_refused(branches: list[Branch], tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_text("no archive")
    with pytest.raises(CheckpointError, match=r"text\.zip"):
        load_proposer(tmp_path / "text.zip")
    made = moved(branches)
    save_proposer(Proposer(made.network, made.anchors[:, :3], SEEN), tmp_path / "short.zip")
    with pytest.raises(CheckpointError, match="anchors: expected rows of"):
        load_proposer(tmp_path / "short.zip")
