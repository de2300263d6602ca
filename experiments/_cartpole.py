"""REINFORCE (Williams 1992) on CartPole: the policy, one episode, and the loss of an episode.

The loss of an episode is built step by step, one observation at a time, as it must be where the target of a
prediction is known only after the prediction was acted on.

Shapes: `T` steps in an episode; an observation has 4 values, and there are 2 actions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

DISCOUNT = 0.99


class Policy(nn.Module):
    """Logits of the two actions, shape [..., 2], for observations of shape [..., 4]."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, observations: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.layers(observations)
        return logits


@dataclass(frozen=True)
class Episode:
    """What happened: observations float32 [T, 4], actions int64 [T], rewards float32 [T]."""

    observations: NDArray[np.float32]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.actions)


def environment() -> Any:
    """gymnasium's CartPole-v1: a reward of 1 for each of at most 500 steps."""
    import gymnasium

    return gymnasium.make("CartPole-v1")


@torch.no_grad()
def play(policy: nn.Module, env: Any, random: np.random.Generator) -> Episode:
    """One episode, its start and its actions drawn from `random`."""
    observation, _ = env.reset(seed=int(random.integers(2**31)))
    observations, actions, rewards = [], [], []
    done = False
    while not done:
        observations.append(observation)
        chances = policy(torch.from_numpy(observation)).softmax(-1)
        actions.append(int(random.random() >= float(chances[0])))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        rewards.append(reward)
        done = terminated or truncated
    return Episode(np.array(observations, dtype=np.float32), np.array(actions), np.array(rewards, dtype=np.float32))


def returns(episode: Episode) -> Tensor:
    """The discounted sum of the rewards from each step on, less its mean over its deviation: float32 [T]."""
    found = np.zeros(len(episode))
    following = 0.0
    for step in reversed(range(len(episode))):
        found[step] = following = float(episode.rewards[step]) + DISCOUNT * following
    return torch.tensor((found - found.mean()) / (found.std() + 1e-8), dtype=torch.float32)


def episode_loss(policy: nn.Module, episode: Episode) -> Tensor:
    """−Σ log π(action | observation) · return over the episode, shape [], in the policy's dtype.

    Each call makes a graph that has only the parameters in common with others.
    """
    dtype = next(policy.parameters()).dtype
    observations, values = torch.from_numpy(episode.observations).to(dtype), returns(episode).to(dtype)
    terms = []
    for observation, action, value in zip(observations, episode.actions.tolist(), values, strict=True):
        terms.append(-policy(observation).log_softmax(-1)[action] * value)
    return torch.stack(terms).sum()


def episode_losses(policy: nn.Module, episodes: list[Episode]) -> Iterator[Tensor]:
    """The loss of each episode, made when it is asked for and not held here afterwards."""
    for episode in episodes:
        yield episode_loss(policy, episode)
