"""One gradient before the run: does the loss work, what does it draw, which gradients are sparse?

It is made on a copy of the model, parameters included, in the caller's process, and leaves model and random generators
as they were, whatever the loss writes to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from hogwild.data.seeding import preserved_generators
from hogwild.data.sources import Source
from hogwild.errors import ArgumentError, some_of
from hogwild.run.trial.at_batch import at_batch
from hogwild.run.trial.holes import WAYS_OUT, hole_in
from hogwild.run.trial.left_out import left_out
from hogwild.run.trial.one_step import Trial, TriedStep, first_step
from hogwild.run.trial.reached_by_layers import ReachedByLayers
from hogwild.workers.surroundings.blas_threads import blas_threads
from hogwild.workers.surroundings.interpreter import Measured
from hogwild.workers.surroundings.torch_threads import torch_threads
from hogwild.workers.worker_info import WorkerInfo

_STAYS, _LESS = 8, 0.97  # steps of which none took less than this share of the least before
_MOST_TIMED = 2.0  # seconds


@dataclass(frozen=True)
class DryRun:
    """What the trial step showed. It ran on a copy of the caller's model.

    Attributes:
        sparse: positions of the parameters that got sparse gradients.
        samples: in the batch.
        draws: for each generator that threads share and that was drawn from, what drew from it.
        written: names of the parameters that the loss wrote to, frozen ones included.
        batch: digest of the batch.
        rows: position of a parameter → rows that its sparse gradient names.
        measured: the time that a step takes, where that was asked for.
        beyond: names of the caller's parameters that were computed with in place of those of the copy.
        beside: names of the caller's parameters that the loss used together with those of the copy, as a penalty does
            that keeps the copy near them.
        kept: what the loss keeps that threads must not share, in words; or empty.
        apart: class of an object that model and loss share. A copy of the model alone has another one of it, so the
            loss comes out differently. Empty where there is none.
        left_out: parameters that the loss uses and nobody will train, in words; or empty.
        assigned: classes and globals that the loss or the model assigns to.
        made: names of buffers that the first forward pass has made.
    """

    sparse: frozenset[int]
    samples: int
    draws: tuple[str, ...]
    written: tuple[str, ...] = ()
    batch: str = field(default="", compare=False)
    rows: Mapping[int, int] = field(default_factory=dict, compare=False)
    measured: Measured | None = field(default=None, compare=False)
    beyond: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    kept: str = ""
    apart: str = ""
    left_out: str = ""
    assigned: tuple[str, ...] = ()
    made: tuple[str, ...] = ()


def dry_run(
    model: nn.Module,
    trained: Mapping[str, nn.Parameter],
    source: Source,
    loss: Callable[[nn.Module, Any], Any],
    seed: int,
    workers: int,
    long: float | None = None,
    *,
    by: str = "grad",
    refuses_nonfinite: bool = True,
) -> DryRun:
    """Compute the gradient of update 0 once, by "grad" or "backward". Where it is to be measured whether that takes
    `long` seconds, and it seems to, a second time: the first step of a program does some things only once.

    Raises:
        ArgumentError: the loss raised, is no scalar, is not finite where that is refused, or does not depend on the
            model, or on a parameter that `backward()` gives a gradient; or the data raised.
    """
    make = partial(Trial.of, model, trained, source, loss)
    step, apart = first_step(make, model, partial(TriedStep.of, seed=seed, workers=workers, long=long, by=by))
    if not math.isfinite(step.value) and refuses_nonfinite:
        if hole := hole_in(step.batch):
            raise ArgumentError(f"data: the first batch holds {hole}; {WAYS_OUT}")
        raise ArgumentError(f"loss is {step.value} at the first step; scale the data or lower the initial weights")
    if all(gradient is None for gradient in step.gradients):
        raise ArgumentError(
            "loss does not depend on any trained parameter of the model it is given; use that model in it"
        )
    if by == "grad" and (missing := [n for n, g in zip(trained, step.gradients, strict=True) if g is None]):
        with at_batch(seed, workers) as info:
            _refuse_unreached(missing, (make().as_sent(model) if apart else None) or make(), info)
    made = tuple(_made(model, step.trial.replica))
    written = tuple(step.written(model))
    step.trial.let_go()
    beyond = [name for name, gradient in zip(trained, step.callers, strict=False) if gradient is not None]
    both = {name for name, gradient in zip(trained, step.gradients, strict=True) if gradient is not None} & {*beyond}
    if both:
        both &= _reached_by_the_loss(model, make, seed, workers, by)
    return DryRun(
        frozenset(step.rows),
        _samples_in(step.batch),
        step.draws,
        written,
        step.digest,
        step.rows,
        step.took,
        beyond=tuple(name for name in beyond if name not in both),
        beside=tuple(name for name in beyond if name in both),
        kept=step.kept.why_not_shared(),
        apart=apart,
        left_out=left_out(loss, list(filter(step.kept.stays, step.beside)), [*model.parameters()]),
        assigned=tuple(step.kept.set_for_all()),
        made=made,
    )


def _made(model: nn.Module, replica: nn.Module) -> Iterator[str]:
    """The names of the buffers that the forward pass of a replica has made and that are to be saved. Those that are not
    persistent are caches."""
    before = {name for name, _ in model.named_buffers()}
    caches = {
        f"{path}.{name}" if path else name
        for path, module in replica.named_modules()
        for name in module._non_persistent_buffers_set
    }
    yield from (name for name, _ in replica.named_buffers() if name not in before | caches)


def _reached_by_the_loss(model: nn.Module, make: Callable[[], Trial], seed: int, workers: int, by: str) -> set[str]:
    """The names of the caller's parameters that the loss itself computes with, and no layer of a copy: on the same
    batch and with the same draws."""
    sent = make().with_model_sent(model)
    if sent is not None:
        with suppress(ArgumentError), at_batch(seed, workers) as info:
            return _past_the_layers(sent, info, by)
    with at_batch(seed, workers) as info:
        return _past_the_layers(make(), info, by)


def _past_the_layers(trial: Trial, info: WorkerInfo, by: str) -> set[str]:
    """The names of the caller's parameters that are computed with, but for those that a layer shows that it uses."""
    reached = ReachedByLayers(trial.replica)
    try:
        _, _, callers = trial.gradients(trial.batch(info), by)
    finally:
        trial.let_go()
    found = {name for name, gradient in zip(trial.callers, callers, strict=False) if gradient is not None}
    return found - reached.among(trial.callers)


def _refuse_unreached(missing: Sequence[str], trial: Trial, info: WorkerInfo) -> None:
    """Refuse where `torch.autograd.grad` gives no gradient to what `backward()` does, on the same batch and with the
    same draws.
    """
    _, gradients, _ = trial.gradients(trial.batch(info), "backward")
    reached = {name for name, gradient in zip(trial.trained, gradients, strict=True) if gradient is not None}
    if left := [name for name in missing if name in reached]:
        raise ArgumentError(
            f"torch.autograd.grad gives no gradient to {some_of(left)}, and backward() does, as where "
            f"torch.utils.checkpoint is called with use_reentrant=True; use use_reentrant=False, or gradient='backward'"
        )


def seconds_of_a_gradient(
    model: nn.Module,
    trained: Mapping[str, nn.Parameter],
    source: Source,
    loss: Callable[[nn.Module, Any], Any],
    seed: int,
    workers: int,
    *,
    sent: bool = False,
) -> float:
    """The seconds of the fastest of some gradients of update 0, which go on until the least stays, or for two seconds;
    for the first steps of a program take several times as long. `sent`: on copies of model and loss, as a process has
    them."""
    trial = Trial.of(model, trained, source, loss)
    trial = (trial.as_sent(model) if sent else None) or trial
    least, same, began = math.inf, 0, time.perf_counter()
    with at_batch(seed, workers) as info:
        batch = trial.batch(info)
        while same < _STAYS and time.perf_counter() - began < _MOST_TIMED:
            before = time.perf_counter()
            trial.gradients(batch)
            took = time.perf_counter() - before
            same = 0 if took < _LESS * least else same + 1
            least = min(least, took)
    return least


@contextmanager
def as_in_a_worker(intra_op: int) -> Iterator[None]:
    """Inside, torch computes with so many threads, NumPy with one, and torch makes graphs; threads and generators are
    put back."""
    with torch_threads.set_to(intra_op), blas_threads.one(), preserved_generators(), torch.enable_grad():
        yield


def _samples_in(batch: Any) -> int:
    """Samples in a batch: the length of the first tensor in it, or one."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if isinstance(batch, tuple | list) and batch:
        return _samples_in(batch[0])
    return 1
