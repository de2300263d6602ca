"""The question "Differences between gradient calculated by different reduction methods in PyTorch".

Somebody averages the gradient of one batch in four ways: by one backward pass for each loss of
`reduction="none"`, by `reduction="sum"` over the batch size, by `reduction="mean"`, and "with the data points
fed into the model one at a time". The first and the last agree exactly, so do the middle two, and the two pairs
are 0.0316 apart. Why?

    hogwild run reductions

Seen with torch 2.13, seed 0, in 2 s: the pairs are 0.042 apart and equal within themselves, as in the question.
The column kept for the first sample holds the second sample's gradient, all 2,986 values of it: what was kept is
a view of `.grad`, which `zero_grad()` cleared in place and the next backward pass filled. With a copy, or with
`.grad` set to None, all four agree within 1e-7. `retain_graph` changes no bit. The fourth method does not feed
the samples one at a time: through BatchNorm that gives another gradient, 0.042 away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hogwild.autograd import reduction_gradients, watch_gradients
from hogwild.experiment import Claim, Findings, Study, StudySettings
from hogwild.run.figures import BLUE, GREEN, ORANGE, RED, row_of_axes, save_figure

from ._common import digits, measuring, same_bits

BATCH = 64
AGREE = 1e-6
"""Largest difference between gradients that are the same but for rounding (float32, values up to about 1)."""

PAIRS = tuple(combinations(("none", "sum", "mean", "one-by-one"), 2))
SEEN = (0.0316, 0.0316, 0.0, 0.0, 0.0316, 0.0316)
"""What was printed in the question, in the order of PAIRS."""

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class FourWays:
    """The four averages of the question, each of shape [P], and what they were made of.

    `columns` are the gradients kept from the losses of `reduction="none"`, one column per sample: [P, B].
    """

    none: Tensor
    sum: Tensor
    mean: Tensor
    one_by_one: Tensor
    columns: Tensor

    def discrepancies(self) -> list[float]:
        """The largest absolute differences, in the order of PAIRS."""
        ways = (self.none, self.sum, self.mean, self.one_by_one)
        return [float((a - b).abs().max()) for a, b in combinations(ways, 2)]


def network() -> nn.Module:
    """A convolution, BatchNorm and a linear layer for images of shape [B, 1, 8, 8]; ten classes."""
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 10))


def four_ways(
    model: nn.Module, batch: Batch, *, set_to_none: bool, copy: bool = False, retain_graph: bool = True
) -> FourWays:
    """The loop of the question, which reads every gradient from `.grad` and keeps `.grad.view(...)`.

    Args:
        model: the network.
        batch: images of shape [B, 1, 8, 8] and labels of shape [B].
        set_to_none: how `.grad` is cleared before each backward pass. False is what `zero_grad()` did when the
            question was asked.
        copy: keep a copy of each gradient instead of the view.
        retain_graph: walk the graph of one forward pass again and again, as in the question, or run the forward
            pass anew before each backward pass.
    """
    images, labels = batch
    once: Tensor | None = model(images) if retain_graph else None

    def output() -> Tensor:
        anew: Tensor = model(images) if once is None else once
        return anew

    def gradient(loss: Tensor) -> Iterator[Tensor]:
        model.zero_grad(set_to_none=set_to_none)
        loss.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
        for one in model.parameters():
            assert one.grad is not None
            yield one.grad.clone() if copy else one.grad

    def per_sample(loss: Callable[[int], Tensor]) -> Tensor:
        kept: list[Tensor] = []
        for i in range(len(images)):
            for j, grad in enumerate(gradient(loss(i))):
                if i == 0:
                    kept.append(grad.view(-1, 1))
                else:
                    kept[j] = torch.cat((kept[j], grad.view(-1, 1)), dim=1)
        return torch.cat(kept)

    def whole(loss: Tensor) -> Tensor:
        return torch.cat([grad.view(-1) for grad in gradient(loss)])

    columns = per_sample(lambda i: cross_entropy(output(), labels, reduction="none")[i])
    total = whole(cross_entropy(output(), labels, reduction="sum"))
    mean = whole(cross_entropy(output(), labels))
    rows = per_sample(lambda i: cross_entropy(output()[i].view(1, -1), labels[i].view(1)))
    count = len(images)
    return FourWays(columns.sum(dim=1) / count, total / count, mean, rows.sum(dim=1) / count, columns)


def _as_seen(posted: FourWays) -> list[Claim]:
    """The six lines that the question printed."""
    claims = []
    for (a, b), seen, found in zip(PAIRS, SEEN, posted.discrepancies(), strict=True):
        holds = found == 0 if seen == 0 else 1e-2 <= found <= 1e-1
        text = "equal" if seen == 0 else f"some hundredths apart ({seen} in the question)"
        claims.append(Claim(f"{a} and {b}: {text}", f"{found:.4g}", holds))
    return claims


def _cause(posted: FourWays, true: Tensor) -> list[Claim]:
    """What the first kept column has become. `true` has the gradient of each sample: [P, B]."""
    first, second = posted.columns[:, 0], posted.columns[:, 1]
    of_second = int((first == true[:, 1]).sum())
    predicted = float((true[:, 1] - true[:, 0]).abs().max()) / true.shape[1]
    found = posted.discrepancies()[1]
    return [
        Claim(
            "zeroed in place, the first sample's .grad.view() ends up with the second sample's gradient",
            f"{of_second:,} of {len(first):,} values are the second sample's; "
            f"the two columns are {'equal' if same_bits([first], [second]) else 'not equal'}",
            same_bits([first], [second]) and of_second == len(first),
        ),
        Claim(
            "so the pairs differ by max |g₂ − g₁| / n, the first sample counted as the second",
            f"predicted {predicted:.6f}, found {found:.6f}",
            abs(found - predicted) <= AGREE,
        ),
    ]


def _remedies(copied: FourWays, fresh: FourWays, copied_again: FourWays) -> list[Claim]:
    bits = [
        same_bits([getattr(copied, way)], [getattr(copied_again, way)]) for way in ("none", "sum", "mean", "one_by_one")
    ]
    return [
        Claim(
            "with a copy of each gradient all four agree",
            f"at most {max(copied.discrepancies()):.2g} apart",
            max(copied.discrepancies()) <= AGREE,
        ),
        Claim(
            "with set_to_none=True (the default since torch 2.0) the posted loop gives the same in all four",
            f"at most {max(fresh.discrepancies()):.2g} apart",
            max(fresh.discrepancies()) <= AGREE,
        ),
        Claim(
            "retain_graph=True is to blame, as the question guesses",
            f"{'same bits' if all(bits) else 'other bits'} without it in {sum(bits)} of 4 ways",
            not all(bits),
            expected=False,
        ),
    ]


def _watched(model: nn.Module, batch: Batch) -> Claim:
    """The checker, run on the loop as posted and on both remedies."""
    found = []
    for set_to_none, copy in ((False, False), (False, True), (True, False)):
        with watch_gradients(model) as stale:
            four_ways(model, batch, set_to_none=set_to_none, copy=copy)
        found.append(list(stale))
    posted, copied, fresh = found
    named = {one.parameter for one in posted}
    return Claim(
        "watch_gradients() names the fault in the posted loop, and nothing in the repaired ones",
        f"{len(posted)} stale uses, {len(named)} parameters; {len(copied)} with a copy, {len(fresh)} with None",
        named == {name for name, _ in model.named_parameters()} and not copied and not fresh,
    )


def _instrument(model: nn.Module, batch: Batch) -> list[Claim]:
    """What `reduction_gradients` says, with BatchNorm in training mode and in evaluation mode."""
    training = reduction_gradients(model.train(), cross_entropy, batch)
    evaluating = reduction_gradients(model.eval(), cross_entropy, batch)
    model.train()
    apart = training.discrepancies()
    of_four = max(value for pair, value in apart.items() if "separate" not in pair)
    alone = apart["mean", "separate"]
    alone_evaluating = evaluating.discrepancies()["mean", "separate"]
    return [
        Claim("reduction_gradients(): the four agree", f"at most {of_four:.2g} apart", of_four <= AGREE),
        Claim(
            "indexing the output of one forward pass feeds the samples one at a time",
            f"through BatchNorm in training mode the two gradients are {alone:.3f} apart",
            alone <= AGREE,
            expected=False,
        ),
        Claim(
            "in evaluation mode, where no sample sees the others, it makes no difference",
            f"{alone_evaluating:.2g} apart",
            alone_evaluating <= AGREE,
        ),
    ]


def _power_of_two(model: nn.Module, batch: Batch) -> Claim:
    """sum / n and mean have the same bits where dividing by n is exact."""
    found = {}
    for count in (BATCH, BATCH - 2):
        ways = four_ways(model, (batch[0][:count], batch[1][:count]), set_to_none=True)
        found[count] = int((ways.sum != ways.mean).sum())
    whole, other = found[BATCH], found[BATCH - 2]
    return Claim(
        "sum / n has the bits of mean because n is a power of two; otherwise rounding parts them",
        f"n = {BATCH}: {whole} of {len(ways.sum):,} values differ; n = {BATCH - 2}: {other:,}",
        whole == 0 and other > 0,
    )


def _plot(ways: dict[str, FourWays], true: Tensor, path: Path) -> Path:
    made, (left, right) = row_of_axes(11, 4.6, 2, f"One batch of {BATCH} digits, its average gradient in four ways")
    height = 0.26
    for row, ((label, four), colour) in enumerate(zip(ways.items(), (RED, GREEN, BLUE), strict=True)):
        values = four.discrepancies()
        places = [index + (row - 1) * height for index in range(len(PAIRS))]
        left.barh(places, [max(value, 1e-10) for value in values], height, color=colour, label=label)
        for place, value in zip(places, values, strict=True):
            if value == 0:
                left.text(1.3e-10, place, "0", va="center", fontsize=8, color=colour)
    left.set_xscale("log")
    left.set_xlim(1e-10, 10)
    left.set_yticks(range(len(PAIRS)), [f"{a} – {b}" for a, b in PAIRS])
    left.invert_yaxis()
    left.set_xlabel("largest absolute difference (nats per unit)")
    left.set_title("Differences between the ways", fontsize=10)
    left.legend(title=".grad is", fontsize=8, title_fontsize=8, loc="center right")

    kept = ways["zeroed in place, view kept"].columns[:, 0]
    right.plot(true[:, 0], kept, ".", color=ORANGE, markersize=4, label="true gradient of sample 1")
    right.plot(true[:, 1], kept, ".", color=BLUE, markersize=4, label="true gradient of sample 2")
    right.set_xlabel("true gradient of one value (nats per unit)")
    right.set_ylabel("what was kept for sample 1 (nats per unit)")
    right.set_title("The column kept for sample 1 holds sample 2", fontsize=10)
    right.legend(fontsize=8, markerscale=2.5)
    return save_figure(made, path)


def run(settings: StudySettings) -> Findings:
    """Reproduce what was seen, show its cause, and rule out the other one."""
    images, labels, _, _ = digits()
    with measuring(settings.seed):
        model = network()
        chosen = torch.randperm(len(images))[:BATCH]
        batch = images[chosen], labels[chosen]
        posted = four_ways(model, batch, set_to_none=False)
        copied = four_ways(model, batch, set_to_none=False, copy=True)
        fresh = four_ways(model, batch, set_to_none=True)
        again = four_ways(model, batch, set_to_none=False, copy=True, retain_graph=False)
        claims = (
            *_as_seen(posted),
            *_cause(posted, copied.columns),
            *_remedies(copied, fresh, again),
            _watched(model, batch),
            *_instrument(model, batch),
            _power_of_two(model, batch),
        )
    ways = {"zeroed in place, view kept": posted, "zeroed in place, copied": copied, "set to None": fresh}
    answer = (
        "The four ways compute one gradient. The loop kept a view of .grad, and zero_grad() then cleared that "
        "buffer in place for the next sample, whose gradient the first column has shown ever since. Both loops "
        "over samples make the same mistake, so they agree; sum and mean keep nothing across a backward pass. "
        "retain_graph has no part in it. Keep .grad.clone(), or let zero_grad() set .grad to None, as it does "
        "since torch 2.0."
    )
    return Findings(claims, answer, (_plot(ways, copied.columns, settings.out / "reductions.png"),))


experiment = Study(
    "reductions", "Why do the gradients of reduction none, sum, mean and one-by-one differ by 0.03?", run
)
