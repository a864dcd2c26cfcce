"""PPO in one file, in plain torch, on a case of rlpto-bench or on rented nodes."""

from __future__ import annotations

import torch
from _common import compare, make_env, options
from torch import Tensor, nn
from torch.distributions import Normal

ROLLOUT, PASSES, BATCH, DISCOUNT, TRACE, CLIP = 256, 10, 64, 0.99, 0.95, 0.2


def layers(inputs: int, outputs: int) -> nn.Sequential:
    """Two hidden layers and a last layer that starts at zero: the policy starts as the heuristic."""
    last = nn.Linear(64, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), last)


def advantages(rewards: Tensor, values: Tensor, over: Tensor) -> Tensor:
    """Generalised advantage estimates; `values` has one entry more than `rewards`."""
    result, trace = torch.zeros_like(rewards), torch.zeros(())
    for i in reversed(range(len(rewards))):
        error = rewards[i] + DISCOUNT * values[i + 1] * (1 - over[i]) - values[i]
        trace = error + DISCOUNT * TRACE * (1 - over[i]) * trace
        result[i] = trace
    return result


def main() -> None:
    """Train, then compare with action zero."""
    torch.manual_seed(0)
    steps, env = options().steps, make_env()
    inputs, outputs = (env.observation_space.shape or ())[0], (env.action_space.shape or ())[0]
    policy, value, spread = layers(inputs, outputs), layers(inputs, 1), nn.Parameter(torch.full((outputs,), -1.0))
    parameters = [*policy.parameters(), *value.parameters(), spread]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, eps=1e-5)
    seen = torch.as_tensor(env.reset(seed=0)[0])
    for _ in range(max(1, steps // ROLLOUT)):
        states, actions = torch.zeros(ROLLOUT + 1, inputs), torch.zeros(ROLLOUT, outputs)
        rewards, over = torch.zeros(ROLLOUT), torch.zeros(ROLLOUT)
        with torch.no_grad():
            for i in range(ROLLOUT):
                states[i], actions[i] = seen, Normal(policy(seen), spread.exp()).sample()
                after, reward, ended, cut, _ = env.step(actions[i].numpy())
                rewards[i], over[i] = float(reward), float(ended or cut)
                if cut and not ended:  # the episode's length is no end of the work
                    rewards[i] += DISCOUNT * value(torch.as_tensor(after)).item()
                seen = torch.as_tensor(env.reset()[0] if ended or cut else after)
            states[-1] = seen
            values, old = value(states).squeeze(1), Normal(policy(states[:-1]), spread.exp()).log_prob(actions).sum(1)
            gains = advantages(rewards, values, over)
            returns = gains + values[:-1]
        for rows in (rows for _ in range(PASSES) for rows in torch.randperm(ROLLOUT).split(BATCH)):
            ratio = (Normal(policy(states[rows]), spread.exp()).log_prob(actions[rows]).sum(1) - old[rows]).exp()
            gain = (gains[rows] - gains[rows].mean()) / (gains[rows].std() + 1e-8)
            bounded = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
            loss = 0.5 * (value(states[rows]).squeeze(1) - returns[rows]).square().mean() - bounded
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
    compare("one file (CleanRL style)", lambda observation: policy(torch.as_tensor(observation)).detach().numpy())


if __name__ == "__main__":
    main()
