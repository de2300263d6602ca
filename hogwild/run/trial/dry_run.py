"""One gradient before the run: does the loss work, what does it draw, which gradients are sparse?

It is made on a copy of the model, parameters included, in the caller's process, and leaves model and random generators
as they were, whatever the loss writes to.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from hogwild.data.generators import torch_state
from hogwild.data.seeding import DrawDetector, preserved_generators
from hogwild.data.sources import Source, own_copy
from hogwild.errors import ArgumentError, HogwildError, one_line, some_of
from hogwild.model.replica import replicate, stand_ins_of
from hogwild.rules.gradients import gradients_of
from hogwild.rules.row_gradients import is_told
from hogwild.run.trial.at_batch import at_batch
from hogwild.run.trial.batch_digest import batch_digest
from hogwild.run.trial.holes import WAYS_OUT, hole_in
from hogwild.run.trial.kept_by_loss import KeptByLoss
from hogwild.run.trial.reached_by_layers import ReachedByLayers
from hogwild.shared.hashing import equal_bits
from hogwild.workers.interpreter import Measured, measured
from hogwild.workers.package import twins_of
from hogwild.workers.torch_threads import torch_threads
from hogwild.workers.worker_info import WorkerInfo

_STAYS, _LESS = 8, 0.97  # steps of which none took less than this share of the least before
_MOST_TIMED = 2.0  # seconds
_SURE = 10  # times as long as was asked: it is long enough, whatever is done only once


@dataclass(frozen=True)
class DryRun:
    """What one step showed: positions of parameters with sparse gradients, samples in the batch, for each shared
    generator that it drew from, what drew, the names of the parameters that the loss wrote to, frozen ones included,
    the digest of the batch, how many rows each sparse gradient names, and what a step takes, where that was asked for.
    `beyond`: the names of those that are computed with in the model that was copied, in place of those of the copy, or
    by a layer of it; `beside`: of those that the loss computes with beside those of the copy, as where a penalty keeps
    these near where they began. `kept`: what threads must not share of the loss, in words.
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


@dataclass(frozen=True)
class _Trial:
    """What one who tries a step has: a source, a loss, and a replica with memory of its own, which a loss may write to.

    `stand_ins` are by the id of the caller's parameter, and the `trained` ones by name, as those of the `callers` are.
    """

    source: Source
    loss: Callable[[nn.Module, Any], Any]
    replica: nn.Module
    stand_ins: Mapping[int, nn.Parameter]
    trained: Mapping[str, nn.Parameter]
    callers: Mapping[str, nn.Parameter]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        trained: Mapping[str, nn.Parameter],
        source: Source,
        loss: Callable[[nn.Module, Any], Any],
    ) -> _Trial:
        stand_ins = stand_ins_of(model)
        for stand_in in stand_ins.values():
            stand_in.data = stand_in.data.clone()
        own = {name: stand_ins[id(parameter)] for name, parameter in trained.items()}
        return cls(own_copy(source), loss, replicate(model, stand_ins), stand_ins, own, trained)

    def with_model_sent(self, model: nn.Module) -> _Trial | None:
        """The same with a replica as a process would get it, in which a function that a layer holds has the replica's
        own layers; the loss stays as it is. None where the model cannot be pickled."""
        twins = twins_of({"model": model}, None, self.stand_ins)
        return replace(self, replica=twins["model"]) if twins is not None else None

    def batch(self, info: WorkerInfo) -> Any:
        """The first one."""
        try:
            return self.source.batch(0, info.generator)
        except HogwildError:
            raise
        except Exception as error:
            raise ArgumentError(
                f"data could not give its first batch: {type(error).__name__}: {one_line(error)}"
            ) from error

    def gradients(
        self, batch: Any, by: str = "grad"
    ) -> tuple[float, Sequence[torch.Tensor | None], Sequence[torch.Tensor | None]]:
        """(loss, gradients, gradients of the caller's own parameters) of a batch, by "grad" or "backward"."""
        own, held = [*self.trained.values()], [parameter.grad for parameter in self.callers.values()]
        try:
            output = self.loss(self.replica, batch)
            callers = [] if is_told(output) else [*self.callers.values()]
            value, gradients = gradients_of(output, [*own, *callers], [*self.trained], by)
        except HogwildError:
            raise
        except Exception as error:
            raise ArgumentError(f"loss raised at the first step: {type(error).__name__}: {one_line(error)}") from error
        finally:
            for parameter, gradient in zip(self.callers.values(), held, strict=True):
                parameter.grad = gradient
        return value, gradients[: len(own)], gradients[len(own) :]

    def writes(self) -> list[int]:
        """How often each parameter has been written to, in the model's order."""
        return [stand_in._version for stand_in in self.stand_ins.values()]

    def let_go(self) -> None:
        """Give the memory back now, and not with the garbage."""
        for stand_in in self.stand_ins.values():
            stand_in.data = stand_in.data.new_empty(0)


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
    trial = _Trial.of(model, trained, source, loss)
    with at_batch(seed, workers) as info:
        detector = DrawDetector()
        culprits = _watch_modules(trial.replica)
        batch = trial.batch(info)
        in_data = detector.drawn()
        digest = batch_digest(batch)  # before the loss, which may write to it
        counts = trial.writes()
        step = partial(trial.gradients, batch, by)
        kept = KeptByLoss(loss, trial.replica)
        with kept.watched():
            (value, gradients, callers), took = measured(step) if long is not None else (step(), None)
        kept_by_loss = kept.why_not_shared()
        draws = tuple(f"{_culprit(generator, in_data, culprits)} ({generator})" for generator in detector.drawn())
        if took is not None and long is not None and long <= took.seconds < _SURE * long and math.isfinite(value):
            took = measured(step)[1]
    if not math.isfinite(value) and refuses_nonfinite:
        if hole := hole_in(batch):
            raise ArgumentError(f"data: the first batch holds {hole}; {WAYS_OUT}")
        raise ArgumentError(f"loss is {value} at the first step; scale the data or lower the initial weights")
    if all(gradient is None for gradient in gradients):
        raise ArgumentError(
            "loss does not depend on any trained parameter of the model it is given; use that model in it"
        )
    if by == "grad" and (missing := [n for n, g in zip(trained, gradients, strict=True) if g is None]):
        with at_batch(seed, workers) as info:
            _refuse_unreached(missing, _Trial.of(model, trained, source, loss), info)
    written = tuple(
        name
        for (name, own), count, now in zip(model.named_parameters(), counts, trial.writes(), strict=True)
        if now != count or not equal_bits(trial.stand_ins[id(own)].detach(), own.detach())
    )
    trial.let_go()
    beyond = [name for name, gradient in zip(trained, callers, strict=False) if gradient is not None]
    both = {name for name, gradient in zip(trained, gradients, strict=True) if gradient is not None} & {*beyond}
    if both:
        both &= _reached_by_the_loss(model, partial(_Trial.of, model, trained, source, loss), seed, workers, by)
    beside = tuple(name for name in beyond if name in both)
    beyond = [name for name in beyond if name not in both]
    rows = {i: g._nnz() for i, g in enumerate(gradients) if g is not None and g.is_sparse}
    return DryRun(
        frozenset(rows), _samples_in(batch), draws, written, digest, rows, took, tuple(beyond), beside, kept_by_loss
    )


def _reached_by_the_loss(model: nn.Module, make: Callable[[], _Trial], seed: int, workers: int, by: str) -> set[str]:
    """The names of the caller's parameters that the loss itself computes with, and no layer of a copy: on the same
    batch and with the same draws."""
    sent = make().with_model_sent(model)
    if sent is not None:
        with suppress(ArgumentError), at_batch(seed, workers) as info:
            return _past_the_layers(sent, info, by)
    with at_batch(seed, workers) as info:
        return _past_the_layers(make(), info, by)


def _past_the_layers(trial: _Trial, info: WorkerInfo, by: str) -> set[str]:
    """The names of the caller's parameters that are computed with, but for those that a layer shows that it uses."""
    reached = ReachedByLayers(trial.replica)
    try:
        _, _, callers = trial.gradients(trial.batch(info), by)
    finally:
        trial.let_go()
    found = {name for name, gradient in zip(trial.callers, callers, strict=False) if gradient is not None}
    return found - reached.among(trial.callers)


def _refuse_unreached(missing: Sequence[str], trial: _Trial, info: WorkerInfo) -> None:
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
) -> float:
    """The seconds of the fastest of some gradients of update 0, which go on until the least stays, or for two seconds;
    for the first steps of a program take several times as long."""
    trial = _Trial.of(model, trained, source, loss)
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
    """Inside, torch computes with so many threads, and makes graphs; threads and generators are put back."""
    with torch_threads.set_to(intra_op), preserved_generators(), torch.enable_grad():
        yield


def _watch_modules(model: nn.Module) -> list[str]:
    """The innermost modules whose forward pass moves torch's default generator, by name, as the pass finds them."""
    found: list[str] = []
    stack: list[torch.Tensor] = []

    def before(module: nn.Module, args: Any) -> None:  # noqa: ARG001
        stack.append(torch_state())

    def after(module: nn.Module, args: Any, output: Any) -> None:  # noqa: ARG001
        moved = not torch.equal(stack.pop(), torch_state())
        path = paths[module]
        if moved and not any(inner == path or not path or inner.startswith(f"{path}.") for inner in drew):
            drew.append(path)
            found.append(f"{path or 'the model'} ({type(module).__name__})")

    paths = {module: path for path, module in model.named_modules()}
    drew: list[str] = []
    for module in model.modules():
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)
    return found


def _culprit(generator: str, in_data: Sequence[str], modules: Sequence[str]) -> str:
    if generator in in_data:
        return "fetching a batch"
    return some_of(modules) if modules and generator.startswith("torch") else "the loss"


def _samples_in(batch: Any) -> int:
    """Samples in a batch: the length of the first tensor in it, or one."""
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if isinstance(batch, tuple | list) and batch:
        return _samples_in(batch[0])
    return 1
