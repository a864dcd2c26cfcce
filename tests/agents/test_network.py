"""The network: any order of jobs, any number of them, and a start that is the heuristic."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlpto.agents.network import JobSetPolicy
from rlpto.envs.actions import ACTION_FEATURES
from rlpto.envs.episodes import action_space, observation_space
from rlpto.envs.features import JOB_FEATURES
from rlpto.envs.settings import EnvSettings


def make(jobs: int, trained: bool = True) -> JobSetPolicy:
    """A network; `trained`: with weights that are not zero anywhere."""
    settings = EnvSettings(max_jobs=jobs)
    torch.manual_seed(0)
    network = JobSetPolicy(observation_space(settings), action_space(), lambda _: 1e-3, width=16)
    if trained:
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return network


def see(network: JobSetPolicy, present: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """An observation with `present` jobs."""
    rng = np.random.default_rng(seed)
    space = network.observation_space
    assert isinstance(space, spaces.Dict)
    seen = {name: rng.normal(size=(1, *(part.shape or ()))).astype(np.float32) for name, part in space.items()}
    seen["mask"][:] = 0.0
    seen["mask"][:, :present] = 1.0
    seen["jobs"][:, present:] = 0.0
    return {name: torch.as_tensor(part) for name, part in seen.items()}


def out(network: JobSetPolicy, seen: dict[str, torch.Tensor]) -> tuple[np.ndarray, float]:
    """What the action head says , and the value."""
    with torch.no_grad():
        features = network.extract_features(seen)
        head = network.action_net(network.mlp_extractor.forward_actor(features))[0].numpy()
        value = float(network.predict_values(seen)[0, 0])
    return head, value


def test_the_order_of_jobs_does_not_matter() -> None:
    network = make(8)
    seen = see(network, 6)
    order = np.array([3, 0, 5, 1, 4, 2, 6, 7])
    mixed = {**seen, "jobs": seen["jobs"][:, order], "mask": seen["mask"][:, order]}
    (head, value), (mixed_head, mixed_value) = out(network, seen), out(network, mixed)
    assert mixed_value == pytest.approx(value, abs=1e-5)
    np.testing.assert_allclose(mixed_head, head, atol=1e-5)


def test_the_same_weights_serve_8_and_256_jobs() -> None:
    small, large = make(8), make(256, trained=False)
    large.load_state_dict(small.state_dict())
    seen = see(small, 5)
    wide = see(large, 5)
    wide["jobs"][:, :8], wide["cluster"], wide["forecast"] = seen["jobs"], seen["cluster"], seen["forecast"]
    (head, value), (wide_head, wide_value) = out(small, seen), out(large, wide)
    assert wide_value == pytest.approx(value, abs=1e-5)
    np.testing.assert_allclose(wide_head, head, atol=1e-5)


def test_untrained_it_is_the_heuristic_in_every_state() -> None:
    network = make(8, trained=False)
    for seed in range(3):
        head, _ = out(network, see(network, 4, seed))
        np.testing.assert_array_equal(head, np.zeros(len(ACTION_FEATURES)))


def test_one_job_more_or_less_is_noticed() -> None:
    network = make(8)
    assert not np.allclose(out(network, see(network, 4))[0], out(network, see(network, 5))[0])
    assert see(network, 4)["jobs"].shape[2] == len(JOB_FEATURES)
