"""Actor learners: workers that play CartPole with one shared policy and update it, by the library's public interface.

    Seeds.batch(update, generator) → a seed           drawn from what (seed, update) decides, whoever computes it
    REINFORCE(policy, seed) → a loss per episode      played by that policy, with all that is drawn from the seed
    Judge(policy) → {"return": …}                     100 episodes, on a copy that no worker writes; `stop` reads it

So an update depends on its number and on the version it reads alone, as `ordered` needs it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import hogwild
from hogwild.experiment import Claim
from hogwild.rules import NAMES
from hogwild.run.figures import BLUE, GREEN, ORANGE, RED, row_of_axes, save_figure

from ._cartpole import SOLVED, Policy, advantages, environment, loss_at_once, play, play_together
from ._common import crew, relative_difference

EPISODES = 16
"""Played for each update."""

UPDATES, EVERY, STALENESS = 300, 5, 3
"""At most so many updates; an evaluation after every so many; `ordered` lets four workers play at a staleness of 3."""

JUDGED = 100
"""Episodes in an evaluation."""

ENOUGH = SOLVED + 15
"""The mean return of an evaluation that ends the training; other episodes judge the result."""

OPTIMIZER = partial(torch.optim.RMSprop, lr=5e-3)
"""Without momentum, for staleness acts as momentum already."""

CREWS = (("threads", 1), ("processes", 2), ("processes", 4))
MORE_CREWS = (("processes", 1), ("threads", 2), ("threads", 4))
"""Worker kinds and numbers of workers whose digests under `ordered` are compared; the second also, at length."""


class Seeds:
    """A source of seeds, one for the episodes of each update."""

    def batch(self, update: int, generator: torch.Generator) -> int:  # noqa: ARG002
        """Below 2⁶²."""
        return int(torch.randint(2**62, (), generator=generator))


@dataclass(frozen=True)
class Reinforce:
    """The loss: play, then one loss for each episode, as a generator or as a list."""

    episodes: int = EPISODES
    listed: bool = False

    def __call__(self, policy: nn.Module, seed: int) -> Iterator[Tensor] | list[Tensor]:
        """What `hogwild.train` calls with a worker's replica and the batch."""
        losses = self._losses(policy, seed)
        return list(losses) if self.listed else losses

    def _losses(self, policy: nn.Module, seed: int) -> Iterator[Tensor]:
        played = play_together(policy, self.episodes, np.random.default_rng(seed))
        info = hogwild.worker_info()
        if info is not None:
            info.log(played=float(np.mean([len(one) for one in played])))
        for episode, values in zip(played, advantages(played), strict=True):
            yield loss_at_once(policy, episode, values)


@dataclass(frozen=True)
class Judge:
    """The mean return over 100 episodes that are the same for every evaluation but for what the policy does."""

    seed: int

    def __call__(self, policy: nn.Module) -> dict[str, float]:
        """What `hogwild.train` calls with a copy of the model."""
        played = play_together(policy, JUDGED, np.random.default_rng((self.seed, JUDGED)))
        return {"return": float(np.mean([one.rewards.sum() for one in played]))}


def enough(progress: hogwild.Progress) -> bool:
    """True once the last evaluation is on the safe side of solved."""
    return progress.metrics["return"] >= ENOUGH


class Same:
    """A source whose every batch is one and the same seed."""

    def batch(self, update: int, generator: torch.Generator) -> int:  # noqa: ARG002
        """7."""
        return 7


def train(seed: int, update: str, kind: str, workers: int, updates: int = UPDATES) -> hogwild.Run:
    """Train a policy until an evaluation says that it is solved; `run.state` has the policy that was judged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = Policy()
    return hogwild.train(
        policy,
        Seeds(),
        Reinforce(),
        optimizer=OPTIMIZER,
        update=update,
        kind=kind,
        workers=workers,
        staleness=STALENESS,
        compensation="none",
        updates=updates,
        seed=seed,
        evaluate=Judge(seed),
        evaluate_every=EVERY,
        stop=enough,
        name="cartpole",
    )


def judged(run: hogwild.Run, seed: int) -> float:
    """The mean return of the trained policy over 100 other episodes, in the plain environment, one after another."""
    policy, env, random = Policy(), environment(), np.random.default_rng((seed, JUDGED, 1))
    policy.load_state_dict(dict(run.state))
    return float(np.mean([play(policy, env, random).rewards.sum() for _ in range(JUDGED)]))


@dataclass(frozen=True)
class Actors:
    """What was trained: `ordered` by each crew, (kind, workers), and `hogwild` by two processes.

    `score` is the mean return of the policy that `ordered` made, over 100 episodes it was not stopped by.
    """

    ordered: dict[tuple[str, int], hogwild.Run]
    free: hogwild.Run
    score: float


def measure(seed: int, crews: tuple[tuple[str, int], ...], updates: int = UPDATES) -> Actors:
    """Train by every crew, one after another."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*workers share .* cores", category=UserWarning)  # bits, not speed
        ordered = {who: train(seed, "ordered", *who, updates) for who in crews}
    free = train(seed, "hogwild", "processes", 2, updates)
    return Actors(ordered, free, judged(next(iter(ordered.values())), seed))


def claims(found: Actors) -> list[Claim]:
    """Several workers solve CartPole, and under `ordered` their number and kind leave no trace."""
    runs = list(found.ordered.values())
    digests = sorted({run.digest for run in runs})
    crews = ", ".join(crew(*one) for one in found.ordered)
    best = max((row["return"] for row in found.free.evaluations), default=0.0)
    return [
        Claim(
            f"asynchronous actor learners (ordered, staleness {STALENESS}) solve CartPole-v1: {SOLVED:.0f} or more",
            f"mean return {found.score:.1f} over {JUDGED} episodes, after {runs[0].updates} updates of "
            f"{EPISODES} episodes",
            found.score >= SOLVED,
        ),
        Claim(
            "under ordered the policy has the same digest at 1, 2 and 4 workers",
            f"{' and '.join(one[:12] for one in digests)} from {crews}",
            len(digests) == 1 and {1, 2, 4} <= {workers for _, workers in found.ordered},
        ),
        Claim(
            "two workers without any lock (hogwild) solve it too",
            f"mean return {best:.1f} in an evaluation of {JUDGED} episodes, within {found.free.updates} updates",
            best >= SOLVED,
        ),
    ]


def one_gradient(policy: nn.Module, update: str, *, listed: bool, episodes: int = 4) -> list[Tensor]:
    """What `hogwild.train` took for the gradient of the losses: the change by one step of SGD with lr = 1, negated."""
    model = deepcopy(policy)
    hogwild.train(
        model,
        Same(),
        Reinforce(episodes, listed),
        optimizer=partial(torch.optim.SGD, lr=1.0),
        update=update,
        compensation="none",
        kind="threads",
        workers=1,
        updates=1,
    )
    return [(a - b).detach() for a, b in zip(policy.parameters(), model.parameters(), strict=True)]


def list_or_generator(seed: int) -> Claim:
    """A list of losses and a generator of them, through every rule, against the gradient made by hand."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = Policy().double()
    losses = Reinforce(4, listed=True)(policy, Same().batch(0, torch.Generator()))
    mean = torch.stack(list(losses)).mean()
    wanted = torch.autograd.grad(mean, list(policy.parameters()))
    off = {
        (rule, listed): relative_difference(one_gradient(policy, rule, listed=listed), wanted)
        for rule in NAMES
        for listed in (True, False)
    }
    worst = max(off, key=lambda which: off[which])
    return Claim(
        "hogwild.train takes a list of losses or a generator of them: the same gradient, under every rule",
        f"at most {off[worst]:.1e} from one backward of the mean, relative, in float64 "
        f"({worst[0]}, {'list' if worst[1] else 'generator'})",
        off[worst] <= 1e-6,
    )


def plot(found: Actors, path: Path) -> Path:
    """Returns by update, where the crews coincide, and by seconds, where they do not."""
    title = f"REINFORCE on CartPole by actor learners: ordered, staleness {STALENESS}, {EPISODES} episodes an update"
    made, (left, right) = row_of_axes(11, 4.3, 2, title)
    styles = zip(found.ordered.items(), (BLUE, ORANGE, GREEN, BLUE, ORANGE, GREEN), strict=False)
    for number, ((who, run), colour) in enumerate(styles):
        dashes = "-" if number < 3 else ":"
        rows = sorted((int(row["update"]), row["played"]) for row in run.logged if row["update"] < run.updates)
        left.plot(*zip(*rows, strict=True), dashes, color=colour, lw=7 - 2 * (number % 3), label=crew(*who))
        times, returns = ([row[key] for row in run.evaluations] for key in ("seconds", "return"))
        right.plot(times, returns, f"o{dashes}", color=colour, markersize=4, lw=1.5, label=crew(*who))
    left.set_xlabel("update")
    left.set_ylabel(f"mean return of the {EPISODES} episodes played (steps)")
    left.set_title("What the workers played: one line, whoever played", fontsize=10)
    right.set_xlabel("time since the first episode (s)")
    right.set_ylabel(f"mean return over {JUDGED} evaluation episodes (steps)")
    right.set_title("What they had learned, and when", fontsize=10)
    for axes in (left, right):
        axes.axhline(SOLVED, color=RED, lw=1, ls="--", label=f"solved: {SOLVED:.0f}")
        axes.set_ylim(0, 520)
    left.legend(fontsize=8, loc="upper left", bbox_to_anchor=(0.0, 0.88))
    right.legend(fontsize=8, loc="lower right")
    return save_figure(made, path)
