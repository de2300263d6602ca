"""The loops of the question about `.grad`, by two workers on one model: what is left of each where workers race.

    autograd.grad          worker 0 ── its own list ──► model        nothing of a gradient is shared
                           worker 1 ── its own list ──►
    backward, zeroed       worker 0 ── += ─┐            ┌─► model
                           worker 1 ── += ─┴─► .grad ──┤            the step applies what lies there, then zeroes it
    backward, not zeroed   the same, and .grad is never zeroed

How much of what was computed was applied is the run's audit: ⟨applied, computed⟩ ÷ ⟨computed, computed⟩, 1 where every
gradient was applied once.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import hogwild
from hogwild.experiment import Claim
from hogwild.optim.gradients import Gathered
from hogwild.rules import Gradient, Racing, Rule
from hogwild.run.figures import BLUE, GREEN, GREY, ORANGE, RED, row_of_axes, save_figure
from hogwild.shared.tickets import Ticket

from . import _race
from ._common import smooth

Batch = tuple[Tensor, Tensor]


class NeverZeroed(Racing):
    """`backward()` into one shared `.grad` that nobody zeroes.

    What holds when workers race: as for `racing`. What does not: `.grad` is the sum of everything so far, less
    what two additions at the same instant lost.
    """

    name: ClassVar[str] = "never-zeroed"

    def commit(self, ticket: Ticket, gradient: Gradient) -> bool:
        """Step by whatever the shared `.grad` holds, and leave it there."""
        shared = self.state.gradients[0]
        self._apply(ticket, gradient, Gathered(list(shared.tensors), shared.flats))
        return True


@dataclass(frozen=True)
class Way:
    """How workers train: where the gradient comes from and how it reaches the model."""

    update: str | type[Rule]
    kind: str = "processes"
    workers: int = 2
    gradient: str | None = None


WAYS = {
    "locked": Way("locked", gradient="grad"),
    "ordered, 1 worker": Way("ordered", "threads", workers=1, gradient="grad"),
    "ordered": Way("ordered", gradient="grad"),
    "ordered, backward": Way("ordered", "threads", gradient="backward"),
    "racing, threads": Way("racing", "threads"),
    "racing, processes": Way("racing"),
    "not zeroed": Way(NeverZeroed),
}
"""What is trained, by name. `locked` and `ordered` take gradients privately; the last three share one `.grad`."""

RACING = ("racing, threads", "racing, processes")
"""Those that race for a `.grad` which each of them zeroes."""


@dataclass(frozen=True)
class Trained:
    """One run, with its audit, and the accuracy of what it trained; `runs` is how many it took to see a race."""

    run: hogwild.Run
    accuracy: float
    runs: int = 1

    @property
    def applied(self) -> float:
        """⟨applied, computed⟩ ÷ ⟨computed, computed⟩ over all parameters."""
        audit = self.run.audit
        return float("nan") if audit is None or audit.projection is None else audit.projection

    @property
    def once(self) -> bool:
        """True when every gradient was applied exactly once, up to rounding."""
        return self.run.audit is not None and self.run.audit.whole

    def __str__(self) -> str:
        if self.run.audit is None:
            return "no audit"
        again = f", in the last of {self.runs} runs" if self.runs > 1 else ""
        return f"{self.run.audit.summary()}{again}; accuracy {self.accuracy:.3f}"


@dataclass(frozen=True)
class Setting:
    """What all ways have in common: the data, in batches of `batch`; SGD; the seed of the schedule."""

    data: Batch
    batch: int
    epochs: int
    lr: float
    seed: int


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """The cross-entropy of a batch of images [B, 1, 28, 28] with labels [B]."""
    return cross_entropy(model(batch[0]), batch[1])


def train(start: nn.Module, setting: Setting, way: Way, accuracy: Callable[[nn.Module], float]) -> Trained:
    """A copy of `start`, trained that way."""
    model = deepcopy(start).train()
    run = hogwild.train(
        model,
        setting.data,
        loss,
        optimizer=partial(torch.optim.SGD, lr=setting.lr),
        update=way.update if isinstance(way.update, str) else way.update(),
        compensation="none",
        kind=way.kind,
        workers=way.workers,
        gradient=way.gradient,
        batch_size=setting.batch,
        epochs=setting.epochs,
        seed=setting.seed,
        audit=True,
        on_nonfinite="ignore",
    )
    return Trained(run, accuracy(model))


def train_all(
    start: nn.Module, setting: Setting, accuracy: Callable[[nn.Module], float], runs: int = 4
) -> dict[str, Trained]:
    """Every way, one after another. Where there is a race to see, again until it is seen, `runs` times at most."""
    found = {}
    for name, way in WAYS.items():
        one = train(start, setting, way, accuracy)
        while name in RACING and one.once and one.runs < runs and _race.cores() > 1:
            one = replace(train(start, setting, way, accuracy), runs=one.runs + 1)
        found[name] = one
    return found


def claims(found: dict[str, Trained]) -> list[Claim]:
    """Which of the loops still mean something. On one core workers seldom meet, so no race is claimed there."""
    locked, failed = found["locked"], found["not zeroed"]
    races = [found[name] for name in RACING]
    digests = sorted({found[name].run.digest for name in ("ordered, 1 worker", "ordered", "ordered, backward")})
    made = [
        Claim(
            "2 workers, autograd.grad, one writing at a time (locked): every gradient is applied once",
            str(locked),
            locked.once and locked.accuracy >= 0.85,
        ),
        Claim(
            "2 workers in order (ordered): autograd.grad and zeroed backward() still end with the same bits, "
            "those of 1 worker",
            f"digest {' and '.join(one[:12] for one in digests)}; accuracy {found['ordered'].accuracy:.3f}",
            len(digests) == 1 and found["ordered"].accuracy >= 0.85,
        ),
    ]
    if _race.cores() > 1:
        made += [
            Claim(
                f"2 {kind}, zeroed backward() into one shared .grad (racing): every gradient is applied once",
                str(one),
                one.once,
                expected=False,
            )
            for kind, one in zip(("threads", "processes"), races, strict=True)
        ]
    return [
        *made,
        Claim(
            "it trains all the same: what is lost and what is doubled are few",
            f"accuracy {races[0].accuracy:.3f} and {races[1].accuracy:.3f} against {locked.accuracy:.3f}",
            min(one.accuracy for one in races) >= locked.accuracy - 0.1,
        ),
        Claim(
            "2 workers, backward() without zeroing: it fails as it does with one",
            f"{failed.applied:.0f} × the computed gradient applied; accuracy {failed.accuracy:.3f}",
            failed.accuracy <= locked.accuracy - 0.3 and failed.applied >= 10,
        ),
    ]


COLOURS = {"locked": BLUE, "ordered": GREEN, "racing, threads": GREY, "racing, processes": ORANGE, "not zeroed": RED}
SMALLEST = 1e-7
"""Where the axis of the shares begins."""


def plot(found: dict[str, Trained], path: Path) -> Path:
    """The loss of each way by two workers, and how far what was applied is from what was computed."""
    updates = found["locked"].run.updates
    made, (left, right) = row_of_axes(11, 4.4, 2, f"The same loops by two workers on one model, {updates:,} updates")
    for index, (name, colour) in enumerate(COLOURS.items()):
        one = found[name]
        left.plot(*smooth(list(one.run.losses)), color=colour, lw=1.5, label=f"{name}: accuracy {one.accuracy:.1%}")
        off = abs(one.applied - 1)
        right.bar(index, max(off, SMALLEST), 0.6, color=colour)
        text = "once, up to\nrounding" if one.once else f"× {one.applied:.4g}"
        right.text(index, 1.3 * max(off, SMALLEST), text, ha="center", va="bottom", fontsize=9)
    left.set_yscale("log")
    left.set_xlabel("update (each point the mean of 20)")
    left.set_ylabel("cross-entropy of a batch (nats)")
    left.set_title("Loss", fontsize=10)
    left.legend(fontsize=8)
    right.set_yscale("log")
    right.set_ylim(SMALLEST, 1e5)
    right.set_xticks(range(len(COLOURS)), [name.replace(", ", "\n") for name in COLOURS])
    right.set_ylabel("|gradient applied ÷ gradient computed − 1|")
    right.set_title("What was applied of what was computed", fontsize=10)
    return save_figure(made, path)
