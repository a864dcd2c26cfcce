"""What an agent knows before it learns by itself.

In mode index the untrained network's action is zero, which is the heuristic of `env.start`: nothing has to
be learned to be as good. In the other modes the network first imitates that heuristic, from which DL2 (Peng
et al., arXiv:1909.06040) starts as well: from scratch, queues explode before anything is learned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from rlpto.agents.network import JobSetPolicy
from rlpto.agents.settings import AgentSettings
from rlpto.arrays import FloatArray, IntArray
from rlpto.compiled import njit
from rlpto.envs.actions import FEWER, INDEX, LEVELS, MORE, SAME, wishes
from rlpto.envs.batch import EnvBatch
from rlpto.envs.fleet import Fleet, view_of
from rlpto.envs.observation import Observation
from rlpto.envs.setup import EnvSetup
from rlpto.policies.index_weights import INDEX_FEATURES
from rlpto.policies.steering import steering_weights

IGNORED = -1
"""Target of rows without a job."""
EPOCHS = 4
"""Times each step of the heuristic is learned from."""
RATE = 1e-3
"""Step size of Adam."""


def starting_setup(setup: EnvSetup, settings: AgentSettings) -> EnvSetup:
    """The setup an agent starts from.

    Without warm start, action zero of mode index is an index of zero weights, which has no preferences.
    """
    if settings.warm_start != "none" or setup.settings.action != "index":
        return setup
    return replace(setup, start=steering_weights(np.zeros(len(INDEX_FEATURES))))


def imitates(setup: EnvSetup, settings: AgentSettings) -> bool:
    """True if the agent has to imitate the heuristic before it learns."""
    return settings.warm_start != "none" and setup.settings.action != "index" and settings.imitation_steps > 0


def imitate(
    network: JobSetPolicy,
    setup: EnvSetup,
    settings: AgentSettings,
    seed: int,
    told: Callable[[float], None],
) -> float:
    """Teach a network what the start heuristic does, by cross-entropy on its choice for every visible job.

    told: is given the part that is done. Returns the share of jobs for which the network then chooses as the
    heuristic does.
    """
    rng = np.random.default_rng([seed, 7])
    seen, targets = demonstrations(setup, settings, seed)
    steps = len(targets)
    optimizer = torch.optim.Adam(network.parameters(), lr=RATE)
    batch_size = min(settings.ppo.batch_size, steps)
    network.set_training_mode(True)
    for epoch in range(EPOCHS):
        order = rng.permutation(steps)
        for begin in range(0, steps, batch_size):
            rows = order[begin : begin + batch_size]
            loss, _ = _imitation_loss(network, seen, targets, rows)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), settings.ppo.max_grad_norm)
            optimizer.step()
            told((epoch + (begin + len(rows)) / steps) / EPOCHS)
    network.set_training_mode(False)
    with torch.no_grad():
        right = [
            _imitation_loss(network, seen, targets, np.arange(begin, min(begin + batch_size, steps)))[1]
            for begin in range(0, steps, batch_size)
        ]
    return float(np.mean(right))


def demonstrations(setup: EnvSetup, settings: AgentSettings, seed: int) -> tuple[Observation, IntArray]:
    """What the start heuristic sees and does: observations [N, ...] and choices [N, max_jobs], or IGNORED.

    In mode increment the demonstrator itself goes one worker at a time towards what the index wants, since
    no agent can go faster.
    """
    index = replace(setup, settings=setup.settings.model_copy(update={"baseline": "none"}))
    batch = EnvBatch(index, settings.envs, seed)
    rounds = max(settings.imitation_steps // settings.envs, 1)
    levels = np.array(setup.settings.levels, dtype=np.int64)
    seen, targets = [], []
    observation = batch.reset()
    for _ in range(rounds):
        choice = heuristic_choices(batch.fleet, batch.weights, setup.mode, levels, setup.settings.max_jobs)
        seen.append(observation)
        targets.append(choice)
        observation, _ = batch.step(np.maximum(choice, 0))
    stacked = Observation(*(np.concatenate(parts) for parts in zip(*seen, strict=True)))
    return stacked, np.concatenate(targets)


@njit()
def heuristic_choices(f: Fleet, weights: FloatArray, mode: int, levels: IntArray, visible: int) -> IntArray:
    """Choice [B, visible] of mode levels or increment that comes closest to what the index does; IGNORED: no job."""
    clusters = f.world.clusters
    nothing = np.zeros(0, np.int64)
    chosen = np.full((len(clusters), visible), IGNORED)
    for b in range(len(clusters)):
        view = view_of(f, b)
        columns = view.columns
        wish = wishes(INDEX, clusters[b].time, clusters[b].capacity, columns, weights, nothing, nothing)
        for i in range(min(len(wish), visible)):
            if mode == LEVELS:
                chosen[b, i] = nearest(levels, wish[i])
            elif wish[i] > columns.held[i]:
                chosen[b, i] = MORE
            else:
                chosen[b, i] = SAME if wish[i] == columns.held[i] else FEWER
    return chosen


@njit()
def nearest(levels: IntArray, gpus: int) -> int:
    """Number of the largest level that is not above `gpus`."""
    best = 0
    for i in range(len(levels)):
        if levels[i] <= gpus:
            best = i
    return best


def _imitation_loss(
    network: JobSetPolicy, seen: Observation, targets: IntArray, rows: IntArray
) -> tuple[torch.Tensor, float]:
    """Mean cross-entropy over the jobs of some rows, and the share of them that the network has right."""
    device = network.device
    given = {name: torch.as_tensor(part[rows], device=device) for name, part in seen._asdict().items()}
    wanted = torch.as_tensor(targets[rows], device=device)
    features = network.extract_features(given, network.pi_features_extractor)
    assert isinstance(features, torch.Tensor)
    jobs = wanted.shape[1]
    logits = network.action_net(network.mlp_extractor.forward_actor(features))[:, :-jobs].unflatten(1, (jobs, -1))
    real = wanted != IGNORED
    loss = nn.functional.cross_entropy(logits[real], wanted[real])
    right = (logits.argmax(dim=2) == wanted)[real].float().mean()
    return loss, float(right)
