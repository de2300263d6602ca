"""The question "In PyTorch, how do I update a neural network via the average gradient from a list of losses?".

Somebody trains with REINFORCE, keeps the loss of each episode in a list, and asks how to update by their average
gradient: is one `backward()` of the mean the same, or should `backward()` run on each loss as it comes? The
answer says that the two are the same, and expects the second to need less memory and perhaps less time.

    hogwild run loss_list

Seen with torch 2.13, seed 0, in 50 s on two busy cores: the two gradients of 64 episodes (5,332 steps) are 3e-15 apart
in float64 and 1e-6 in float32, where the list rounds more. The list keeps 2.88 MB of saved tensors, and the process
grows by 59 MB, for the nodes of so many small operations weigh more than what they save; one backward each keeps
0.12 MB and grows by 0.2 MB, in 0.74 to 0.82 of the time. The answer's third snippet says `b` for `bi`, and is right all
the same.

The same trainer by workers that play and learn at once (`ordered`, staleness 3, 16 episodes an update): CartPole-v1 is
solved after 60 updates, a mean return of 498 over 100 other episodes, with one digest at 1, 2 and 4 workers. Ten
seeds took 30 to 60 updates, and all were solved (485 to 500). Two workers without any lock reached 495 or more in an
evaluation in each of 14 runs, after 17 to 52 updates; in one of them two updates that were still under way undid it
(257).
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import Tensor, nn

from hogwild.autograd import Average, accumulate_average, average_gradients, graph_summary, mean_loss
from hogwild.autograd.graph import leaf_of, walk
from hogwild.experiment import Claim, Findings, Study, StudySettings
from hogwild.run.figures import BLUE, ORANGE, row_of_axes, save_figure

from . import _actors
from ._cartpole import Episode, Policy, environment, episode_loss, episode_losses, play
from ._common import largest_difference, measuring, relative_difference

COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""Episodes in the list."""

LEAD = 6
"""By how many turns one way must be ahead for the two to be ranked: if it is the faster one in 3 turns of 4, the
other gets there first once in 3⁶ = 729 times, in 7 of 8 once in 7⁶ = 117,649 (gambler's ruin)."""

MOST_TURNS = 60
"""Turns after which neither is called faster."""


def one_backward(policy: nn.Module, episodes: list[Episode]) -> Average:
    """A list of all losses, and one backward pass from their mean."""
    return average_gradients([episode_loss(policy, one) for one in episodes], policy.parameters())


def one_each(policy: nn.Module, episodes: list[Episode]) -> Average:
    """A backward pass from each loss as soon as it is there, its graph freed at once."""
    return average_gradients(episode_losses(policy, episodes), policy.parameters())


Way = Callable[[nn.Module, list[Episode]], Average]
WAYS: dict[str, Way] = {"one backward of the mean": one_backward, "one backward each": one_each}


def collect(seed: int) -> tuple[Policy, list[Episode]]:
    """A policy after 20 updates of 4 episodes by REINFORCE, and 64 episodes played with it."""
    policy, env, random = Policy(), environment(), np.random.default_rng(seed)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        played = [play(policy, env, random) for _ in range(4)]
        accumulate_average(episode_losses(policy, played), policy.parameters())
        optimizer.step()
    return policy, [play(policy, env, random) for _ in range(COUNTS[-1])]


def example() -> list[Claim]:
    """The answer's snippets, on its example data."""
    a = torch.randn(1, 4, requires_grad=True)
    b = torch.randn(5, 4)
    of_mean = _gradient(a, lambda: [(a * b).mean(dim=1).mean()])
    of_each = _gradient(a, lambda: [(a * bi / len(b)).mean() for bi in b])
    as_printed = _gradient(a, lambda: [(a * b / len(b)).mean() for bi in b])
    losses = [(a * bi).mean() for bi in b]
    stacked = _gradient(a, lambda: [torch.stack(losses).mean()])
    return [
        _same("the gradient of the mean is the mean of the gradients", of_each, of_mean),
        _same("torch.stack(l_losses).mean(), as the question does it, gives it too", stacked, of_mean),
        _same(
            "so does the third snippet, though it says b where bi is meant: the same loss five times",
            as_printed,
            of_mean,
        ),
        *_statements(a, b),
    ]


def _gradient(a: Tensor, losses: Callable[[], list[Tensor]]) -> Tensor:
    """What `backward()` from one loss after another leaves in `.grad`, cleared before."""
    torch.optim.SGD([a]).zero_grad(set_to_none=True)
    for loss in losses():
        loss.backward()  # type: ignore[no-untyped-call]
    assert a.grad is not None
    return a.grad


def _same(text: str, found: Tensor, wanted: Tensor) -> Claim:
    off = relative_difference([found], [wanted])
    return Claim(text, f"{off:.1e} apart, relative", off <= 1e-6)


def _statements(a: Tensor, b: Tensor) -> list[Claim]:
    """The three numbered statements of the answer."""
    middle = a * b
    loss = middle.mean()
    loss.backward()  # type: ignore[no-untyped-call]
    again = _refused(loss)
    kept = (a * b).mean()
    kept.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    retained = _refused(kept)
    inner = middle.is_leaf or middle.retains_grad
    watched = a * b
    watched.retain_grad()
    watched.mean().backward()  # type: ignore[no-untyped-call]
    losses = [(a * bi / len(b)).mean() for bi in b]
    shared = set.intersection(*(set(walk(one)) for one in losses))
    ends = sum(leaf_of(node) is a for node in shared)
    refused = [_refused(one) for one in losses]
    return [
        Claim(
            "(1) the graph is destroyed by the backward pass, unless retain_graph=True",
            f"a second pass is {'refused' if again else 'allowed'}, with it {'refused' if retained else 'allowed'}",
            again and not retained,
        ),
        Claim(
            "(2) the gradient is kept for leaf tensors only, unless retain_grad()",
            f"inner tensor: {'kept' if inner else 'not kept'}; "
            f"after retain_grad(): {'not kept' if watched.grad is None else 'kept'}; leaf: "
            f"{'not kept' if a.grad is None else 'kept'}",
            not inner and watched.grad is not None and a.grad is not None,
        ),
        Claim(
            "(3) each loss has a graph of its own, whose end does not need the others",
            f"{len(shared)} node in common, {ends} of it the leaf's; {refused.count(True)} of 5 passes refused",
            len(shared) == ends == 1 and not any(refused),
        ),
    ]


def _refused(loss: Tensor) -> bool:
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except RuntimeError:
        return True
    return False


def gradients(policy: nn.Module, episodes: list[Episode]) -> list[Claim]:
    """Both ways on all episodes, in the policy's float32 and in float64, and one update by each."""
    exact = [_whole(way(deepcopy(policy).double(), episodes)) for way in WAYS.values()]
    single = [_whole(way(policy, episodes)) for way in WAYS.values()]
    off = relative_difference(exact[1], exact[0])
    rounding = [relative_difference(found, exact[0]) for found in single]
    updated = []
    for found in single:
        model = deepcopy(policy)
        for parameter, gradient in zip(model.parameters(), found, strict=True):
            parameter.grad = gradient
        torch.optim.SGD(model.parameters(), lr=1e-2).step()
        updated.append([one.detach() for one in model.parameters()])
    apart = largest_difference(*updated)
    return [
        Claim(
            f"REINFORCE, {len(episodes)} episodes: one backward each gives the gradient of one backward of the mean",
            f"{off:.1e} apart in float64, relative; in float32 they round to {rounding[0]:.1e} and "
            f"{rounding[1]:.1e} from it",
            off <= 1e-6 and max(rounding) <= 1e-5,
        ),
        Claim(
            "an update by the average gradient is an update by the average loss",
            f"parameters at most {apart:.1e} apart after a step of SGD 0.01",
            apart <= 1e-6,
        ),
    ]


def _whole(average: Average) -> list[Tensor]:
    return [one for one in average.gradients if one is not None]


@dataclass(frozen=True)
class Costs:
    """What one way costs for each of COUNTS: bytes in saved graphs and in resident memory, and the seconds of each
    turn."""

    graph: list[int]
    resident: list[int]
    seconds: list[list[float]]


def peak_graph(policy: nn.Module, episodes: list[Episode], *, listed: bool) -> int:
    """The most bytes that graphs keep alive at one time: all of them together, or the largest."""
    if listed:
        return graph_summary(mean_loss([episode_loss(policy, one) for one in episodes])).bytes
    return max(graph_summary(loss).bytes for loss in episode_losses(policy, episodes))


def resident(way: str, episodes: list[Episode], counts: Sequence[int]) -> list[int]:
    """Bytes by which the resident memory grew at its peak, for each of the counts. Run in a process of its own.

    The counts ascend in one process: what was freed after a smaller count is used again by a larger one, so
    the growth at each count is the peak of that count.
    """
    torch.set_num_threads(1)
    policy, process = Policy(), psutil.Process()
    peak = 0

    def watched(some: list[Episode]) -> Iterator[Tensor]:
        nonlocal peak
        for one in some:
            loss = episode_loss(policy, one)
            peak = max(peak, process.memory_info().rss)
            yield loss
            del loss

    def average(some: list[Episode]) -> None:
        losses = list(watched(some)) if WAYS[way] is one_backward else watched(some)
        average_gradients(losses, policy.parameters())

    average([max(episodes, key=len)])
    gc.collect()
    start = process.memory_info().rss
    peaks = []
    for count in counts:
        average(episodes[:count])
        peaks.append(max(peak - start, 0))
    return peaks


def resident_of_each(episodes: list[Episode]) -> dict[str, list[int]]:
    """Both ways measured, each in a fresh process, one after the other."""
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    found = {}
    for way in WAYS:
        with ProcessPoolExecutor(1, mp_context=context) as fresh:
            found[way] = fresh.submit(resident, way, episodes, COUNTS).result()
    return found


def time_each(policy: nn.Module, episodes: list[Episode], repeats: int) -> dict[str, list[list[float]]]:
    """Seconds in which this thread builds the graphs and walks them, the two ways in turn: for each count of each turn.

    The time in which it does not run belongs to what else the machine does. That still slows a single turn down, so
    with all episodes turns go on until one way is ahead by LEAD.
    """
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for count in COUNTS:
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(MOST_TURNS):
            if turn >= repeats and (count < COUNTS[-1] or abs(lead(*taken.values())) >= LEAD):
                break
            for name, way in WAYS.items():
                start = time.thread_time()
                way(policy, episodes[:count])
                taken[name].append(time.thread_time() - start)
        for name, seconds in taken.items():
            found[name].append(seconds)
    return found


def lead(listed: Sequence[float], each: Sequence[float]) -> int:
    """In how many more turns `each` was the faster one; below zero, the slower one."""
    return sum((a > b) - (a < b) for a, b in zip(listed, each, strict=True))


def measure(policy: nn.Module, episodes: list[Episode], repeats: int) -> dict[str, Costs]:
    """All costs of both ways."""
    memory, seconds = resident_of_each(episodes), time_each(policy, episodes, repeats)
    return {
        name: Costs(
            [peak_graph(policy, episodes[:count], listed=way is one_backward) for count in COUNTS],
            memory[name],
            seconds[name],
        )
        for name, way in WAYS.items()
    }


def costs(listed: Costs, each: Costs, episodes: list[Episode]) -> list[Claim]:
    """What the answer expects of memory and time, from 1 episode to 64."""
    growth = listed.graph[-1] / listed.graph[0]
    steps = sum(map(len, episodes)) / len(episodes[0])
    saving = listed.resident[-1] - each.resident[-1]
    turns = listed.seconds[-1], each.seconds[-1]
    slow, fast = map(min, turns)
    return [
        Claim(
            "a list keeps all graphs until the one backward pass",
            f"{listed.graph[0] / 1e3:,.1f} kB saved for 1 episode, {listed.graph[-1] / 1e3:,.1f} kB for "
            f"{COUNTS[-1]}: × {growth:.1f} (× {steps:.1f} in steps)",
            abs(growth / steps - 1) <= 0.05,
        ),
        Claim(
            "one backward each keeps one at a time",
            f"at most {each.graph[-1] / 1e3:,.1f} kB, that of the longest episode",
            each.graph[-1] < listed.graph[-1] / 8,
        ),
        Claim(
            "I would expect a memory usage reduction",
            f"resident memory grows by {each.resident[-1] / 1e6:.1f} MB instead of "
            f"{listed.resident[-1] / 1e6:.1f} MB at {COUNTS[-1]} episodes",
            saving > 0.5 * listed.resident[-1] > 0,
        ),
        Claim(
            "potentially even a faster execution",
            f"{fast:.2f} s instead of {slow:.2f} s at {COUNTS[-1]} episodes, {fast / slow:.2f} ×; "
            f"faster in {sum(a > b for a, b in zip(*turns, strict=True))} of {len(turns[0])} turns",
            lead(*turns) >= LEAD,
        ),
    ]


def _plot(found: dict[str, Costs], episodes: list[Episode], path: Path) -> Path:
    steps = sum(map(len, episodes))
    title = f"REINFORCE on CartPole: the average gradient of up to {len(episodes)} episodes, {steps:,} steps"
    made, axes = row_of_axes(13, 4.1, 3, title)
    for (name, one), colour, marker in zip(found.items(), (ORANGE, BLUE), ("o-", "s-"), strict=True):
        axes[0].plot(COUNTS, [value / 1e6 for value in one.graph], marker, color=colour, label=name)
        axes[1].plot(COUNTS, [value / 1e6 for value in one.resident], marker, color=colour, label=name)
        axes[2].plot(COUNTS, [min(turns) for turns in one.seconds], marker, color=colour, label=name)
    for where, label, heading in zip(
        axes,
        ("saved for the backward pass at the peak (MB)", "growth of resident memory (MB)", "forward and backward (s)"),
        ("Tensors the graphs keep alive", "Memory of the process", "Time, one thread"),
        strict=True,
    ):
        where.set_xlabel("episodes averaged")
        where.set_ylabel(label)
        where.set_title(heading, fontsize=10)
        where.set_ylim(bottom=0)
        where.set_xticks([1, *COUNTS[3:]])
        where.legend(fontsize=8)
    return save_figure(made, path)


def run(settings: StudySettings) -> Findings:
    """The answer's snippets and statements, both ways on REINFORCE, then the same trainer with several workers."""
    with measuring(settings.seed):
        policy, episodes = collect(settings.seed)
        found = measure(policy, episodes, 9 if settings.full else 7)
        listed, each = (found[way] for way in WAYS)
        actors = _actors.measure(settings.seed, _actors.CREWS + (_actors.MORE_CREWS if settings.full else ()))
        claims = (
            *example(),
            *gradients(policy, episodes),
            *costs(listed, each, episodes),
            _actors.list_or_generator(settings.seed),
            *_actors.claims(actors),
        )
    answer = (
        "Both are the average gradient. Run backward() on each loss, divided by their number, as soon as its "
        "episode ends: the graph is freed at once, .grad holds the sum, and step() waits until the end. A list "
        "of losses and one backward() of the mean gives the same update and keeps every graph until then."
    )
    figures = (
        _plot(found, episodes, settings.out / "loss_list.png"),
        _actors.plot(actors, settings.out / "loss_list-cartpole.png"),
    )
    return Findings(claims, answer, figures)


experiment = Study("loss_list", "One backward of the mean of many losses, or one backward each?", run)
