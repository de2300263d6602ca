"""REINFORCE (Williams 1992) on CartPole: the policy, one episode, and the loss of an episode.

The loss of an episode is built step by step, one observation at a time, as it must be where the target of a
prediction is known only after the prediction was acted on. Whoever keeps the observations may compute it anew from
all of them at once; it is the same sum, in a graph of a few nodes.

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
SOLVED = 475.0
"""The mean return over 100 episodes from which CartPole-v1 counts as solved."""


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
def chances_of(policy: nn.Module, observations: NDArray[np.float32]) -> NDArray[Any]:
    """The probability of each action, shape [..., 2], for observations of shape [..., 4]."""
    dtype = next(policy.parameters()).dtype
    found: NDArray[Any] = policy(torch.from_numpy(observations).to(dtype)).softmax(-1).numpy()
    return found


def play(policy: nn.Module, env: Any, random: np.random.Generator) -> Episode:
    """One episode, its start and its actions drawn from `random`."""
    observation, _ = env.reset(seed=int(random.integers(2**31)))
    observations, actions, rewards = [], [], []
    done = False
    while not done:
        observations.append(observation)
        chances = chances_of(policy, observation)
        actions.append(int(random.random() >= float(chances[0])))
        observation, reward, terminated, truncated, _ = env.step(actions[-1])
        rewards.append(reward)
        done = terminated or truncated
    return Episode(np.array(observations, dtype=np.float32), np.array(actions), np.array(rewards, dtype=np.float32))


def play_together(policy: nn.Module, count: int, random: np.random.Generator) -> list[Episode]:
    """`count` episodes at once, one forward pass for all that are not over, drawn from `random`."""
    import gymnasium

    env = gymnasium.make_vec("CartPole-v1", num_envs=count, vectorization_mode="vector_entry_point")
    observations, _ = env.reset(seed=int(random.integers(2**31)))
    lengths, going = np.zeros(count, dtype=np.int64), np.ones(count, dtype=bool)
    seen, acted, rewarded = [], [], []
    while going.any():
        seen.append(observations.copy())
        acted.append((random.random(count) >= chances_of(policy, observations)[:, 0]).astype(np.int64))
        observations, rewards, terminated, truncated, _ = env.step(acted[-1])
        rewarded.append(rewards.astype(np.float32))
        lengths += going
        going &= ~(terminated | truncated)
    env.close()
    rows = [np.stack(parts, axis=1) for parts in (seen, acted, rewarded)]
    return [Episode(*(part[one, :length] for part in rows)) for one, length in enumerate(lengths)]


def returns(episode: Episode) -> Tensor:
    """The discounted sum of the rewards from each step on, less its mean over its deviation: float32 [T]."""
    found = _discounted(episode)
    return torch.tensor((found - found.mean()) / (found.std() + 1e-8), dtype=torch.float32)


def _discounted(episode: Episode) -> NDArray[np.float64]:
    found = np.zeros(len(episode))
    following = 0.0
    for step in reversed(range(len(episode))):
        found[step] = following = float(episode.rewards[step]) + DISCOUNT * following
    return found


def advantages(episodes: list[Episode]) -> list[Tensor]:
    """For each episode float32 [T]: by how much its return from each step on is over the episodes' mean at that step.

    An episode that is over has a return of zero. Divided by the root mean square over all steps, or by one reward
    where that is less; zero but for rounding where no episode did better than another.
    """
    together = np.zeros((len(episodes), max(map(len, episodes))))
    for row, episode in zip(together, episodes, strict=True):
        row[: len(episode)] = _discounted(episode)
    together -= together.mean(axis=0)
    rows = [row[: len(episode)] for row, episode in zip(together, episodes, strict=True)]
    scale = max(1.0, float(np.sqrt(np.mean(np.concatenate(rows) ** 2))))
    return [torch.tensor(row / scale, dtype=torch.float32) for row in rows]


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


def loss_at_once(policy: nn.Module, episode: Episode, values: Tensor) -> Tensor:
    """−Σ log π(action | observation) · value over the episode, shape [], from one forward pass; values of shape [T]."""
    dtype = next(policy.parameters()).dtype
    chosen = torch.from_numpy(episode.actions).unsqueeze(1)
    logs = policy(torch.from_numpy(episode.observations).to(dtype)).log_softmax(-1).gather(1, chosen).squeeze(1)
    loss: Tensor = -(logs * values.to(dtype)).sum()
    return loss


def episode_losses(policy: nn.Module, episodes: list[Episode]) -> Iterator[Tensor]:
    """The loss of each episode, made when it is asked for and not held here afterwards."""
    for episode in episodes:
        yield episode_loss(policy, episode)
