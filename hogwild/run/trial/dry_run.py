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
from hogwild.rules.rechecks import unequal_losses, unequal_tensors
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
    these near where they began. `kept`: what threads must not share of the loss, in words. `apart`: the class of what
    the model and the loss have in common, by which the loss is another where the model alone is copied.
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


@dataclass(frozen=True)
class _Trial:
    """What one who tries a step has: a source, a loss, and a replica with memory of its own, which a loss may write to.

    `stand_ins` are by the id of the caller's parameter, and the `trained` ones by name, as those of the `callers` are.
    `copies`: of what the model holds, those in the replica, by the id of the model's own.
    """

    source: Source
    loss: Callable[[nn.Module, Any], Any]
    replica: nn.Module
    stand_ins: Mapping[int, nn.Parameter]
    trained: Mapping[str, nn.Parameter]
    callers: Mapping[str, nn.Parameter]
    copies: Mapping[int, Any] = field(default_factory=dict)

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
        copies: dict[int, Any] = {}
        replica = replicate(model, stand_ins, copies)
        return cls(own_copy(source), loss, replica, stand_ins, own, trained, copies)

    def with_model_sent(self, model: nn.Module) -> _Trial | None:
        """The same with a replica as a process would get it, in which a function that a layer holds has the replica's
        own layers; the loss stays as it is. None where the model cannot be pickled."""
        twins = twins_of({"model": model}, None, self.stand_ins)
        return replace(self, replica=twins["model"]) if twins is not None else None

    def as_sent(self, model: nn.Module) -> _Trial | None:
        """The same as a process would get it: what model, loss and data have in common, they have so there. None where
        one of them cannot be pickled."""
        twins = twins_of({"replica": model, "loss": self.loss, "source": self.source}, self.source, self.stand_ins)
        return replace(self, **twins, copies={}) if twins is not None else None

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
        output = None
        try:
            output = self.loss(self.replica, batch)
            callers = [] if is_told(output) else [*self.callers.values()]
            value, gradients = gradients_of(output, [*own, *callers], [*self.trained], by)
        except HogwildError:
            raise
        except Exception as error:
            of_grad = by == "grad" and output is not None and self._goes_backward(batch)
            way_out = " (by gradient='backward' it does not)" if of_grad else ""
            raise ArgumentError(
                f"loss raised at the first step: {type(error).__name__}: {one_line(error)}{way_out}"
            ) from error
        finally:
            for parameter, gradient in zip(self.callers.values(), held, strict=True):
                parameter.grad = gradient
        return value, gradients[: len(own)], gradients[len(own) :]

    def _goes_backward(self, batch: Any) -> bool:
        """True where `backward()` computes what `torch.autograd.grad` cannot, as with some hooks and checkpoints."""
        try:
            self.gradients(batch, "backward")
        except HogwildError:
            return False
        return True

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
    make = partial(_Trial.of, model, trained, source, loss)
    step, apart = _first_step(make, model, partial(_Step.of, seed=seed, workers=workers, long=long, by=by))
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
    )


@dataclass(frozen=True)
class _Step:
    """What came of one step of a trial."""

    trial: _Trial
    kept: KeptByLoss
    batch: Any
    digest: str
    value: float
    gradients: Sequence[torch.Tensor | None]
    callers: Sequence[torch.Tensor | None]
    took: Measured | None
    draws: tuple[str, ...]
    counts: Sequence[int]

    @classmethod
    def of(cls, trial: _Trial, kept: KeptByLoss, *, seed: int, workers: int, long: float | None, by: str) -> _Step:
        with at_batch(seed, workers) as info:
            detector = DrawDetector()
            culprits = _watch_modules(trial.replica)
            batch = trial.batch(info)
            in_data = detector.drawn()
            digest = batch_digest(batch)  # before the loss, which may write to it
            counts = trial.writes()
            step = partial(trial.gradients, batch, by)
            with kept.watched():
                (value, gradients, callers), took = measured(step) if long is not None else (step(), None)
            draws = tuple(f"{_culprit(generator, in_data, culprits)} ({generator})" for generator in detector.drawn())
            if took is not None and long is not None and long <= took.seconds < _SURE * long and math.isfinite(value):
                took = measured(step)[1]
        return cls(trial, kept, batch, digest, value, gradients, callers, took, draws, counts)

    @property
    def rows(self) -> dict[int, int]:
        """How many rows each sparse gradient names, by position."""
        return {i: g._nnz() for i, g in enumerate(self.gradients) if g is not None and g.is_sparse}

    def written(self, model: nn.Module) -> Iterator[str]:
        """The names of the parameters that the loss wrote to."""
        own = model.named_parameters()
        for (name, parameter), count, now in zip(own, self.counts, self.trial.writes(), strict=True):
            stand_in = self.trial.stand_ins[id(parameter)]
            if now != count or not equal_bits(stand_in.detach(), parameter.detach()):
                yield name

    def differs(self, other: _Step) -> bool:
        """True where another came to another loss, or other gradients."""
        names = [*self.trial.trained]
        return bool(
            unequal_losses(self.value, other.value)
            or unequal_tensors("gradient", names, self.gradients, other.gradients)
        )


def _first_step(
    make: Callable[[], _Trial], model: nn.Module, step_of: Callable[[_Trial, KeptByLoss], _Step]
) -> tuple[_Step, str]:
    """(the step, the class of what model and loss have in common). Where they do, and a copy of the model alone gives
    another loss, or none, the step is that of copies of both, as a process has them."""
    trial, step, failure = make(), None, None
    kept = KeptByLoss(trial.loss, trial.replica, trial.copies)
    try:
        step = step_of(trial, kept)
    except ArgumentError as error:
        failure = error
    if (common := kept.in_common()) and (sent := make().as_sent(model)) is not None:
        with suppress(ArgumentError):
            again = step_of(sent, KeptByLoss(sent.loss, sent.replica, {}))
            if step is None or step.differs(again):
                trial.let_go()
                return again, common
        sent.let_go()
    if step is None:
        assert failure is not None
        raise failure
    return step, ""


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
    *,
    sent: bool = False,
) -> float:
    """The seconds of the fastest of some gradients of update 0, which go on until the least stays, or for two seconds;
    for the first steps of a program take several times as long. `sent`: on copies of model and loss, as a process has
    them."""
    trial = _Trial.of(model, trained, source, loss)
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
