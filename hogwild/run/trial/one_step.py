"""One step on copies of what a worker is given: the loss of the first batch, its gradients, and what they drew.

Where the model and the loss have something in common, it is a step on copies of both, as a process has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from hogwild.data.generators import torch_state
from hogwild.data.seeding import DrawDetector
from hogwild.data.sources import Source, own_copy
from hogwild.errors import ArgumentError, HogwildError, one_line, some_of
from hogwild.model.replica import replicate, stand_ins_of
from hogwild.rules.gradients import gradients_of
from hogwild.rules.rechecks import unequal_losses, unequal_tensors
from hogwild.rules.row_gradients import is_told
from hogwild.run.trial.at_batch import at_batch
from hogwild.run.trial.batch_digest import batch_digest
from hogwild.run.trial.kept_by_loss import KeptByLoss
from hogwild.run.trial.left_out import parameters_beside
from hogwild.shared.hashing import equal_bits
from hogwild.workers.process.twins import twins_of
from hogwild.workers.surroundings.interpreter import Measured, measured
from hogwild.workers.worker_info import WorkerInfo

_SURE = 10  # times as long as was asked: it is long enough, whatever is done only once


@dataclass(frozen=True)
class Trial:
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
    ) -> Trial:
        """With a copy of the model, as a thread has it."""
        stand_ins = stand_ins_of(model)
        for stand_in in stand_ins.values():
            stand_in.data = stand_in.data.clone()
        own = {name: stand_ins[id(parameter)] for name, parameter in trained.items()}
        copies: dict[int, Any] = {}
        replica = replicate(model, stand_ins, copies)
        return cls(own_copy(source), loss, replica, stand_ins, own, trained, copies)

    def with_model_sent(self, model: nn.Module) -> Trial | None:
        """The same with a replica as a process would get it, in which a function that a layer holds has the replica's
        own layers; the loss stays as it is. None where the model cannot be pickled."""
        twins = twins_of({"model": model}, None, self.stand_ins)
        return replace(self, replica=twins["model"]) if twins is not None else None

    def as_sent(self, model: nn.Module, *, together: bool = True) -> Trial | None:
        """The same as a process would get it: what model, loss and data have in common, they have so there, unless they
        are sent one by one. None where one of them cannot be pickled."""
        own = {"replica": model, "loss": self.loss, "source": self.source}
        parts = [own] if together else [{key: value} for key, value in own.items()]
        twins: dict[str, Any] = {}
        for part in parts:
            found = twins_of(part, self.source, self.stand_ins)
            if found is None:
                return None
            twins |= found
        return replace(self, **twins, copies={})

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
        self, batch: Any, by: str = "grad", returned: list[Any] | None = None
    ) -> tuple[float, Sequence[torch.Tensor | None], Sequence[torch.Tensor | None]]:
        """(loss, gradients, gradients of the caller's own parameters) of a batch, by "grad" or "backward"; what the
        loss returned is added to `returned`."""
        own, held = [*self.trained.values()], [parameter.grad for parameter in self.callers.values()]
        output = None
        try:
            output = self.loss(self.replica, batch)
            if returned is not None:
                returned.append(output)
            callers = [] if is_told(output) else [*self.callers.values()]
            value, gradients = gradients_of(output, [*own, *callers], [*self.trained], by)
        except HogwildError:
            raise
        except Exception as error:
            of_grad = by == "grad" and output is not None and self._goes_backward(batch)
            way_out = " (by gradient='backward' it does not)" if of_grad else ""
            kind = type(self.replica).__name__
            swapped = (f"{kind!r} object is not subscriptable", f"cannot unpack non-iterable {kind} object")
            if output is None and isinstance(error, TypeError) and (str(error) in swapped or _is_of_the_call(error)):
                way_out = " (it is called as loss(model, batch))"
            if output is not None and "backward through the graph a second time" in str(error):
                way_out = " (return the loss alone: the run calls backward, and steps, by itself)"
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


def _is_of_the_call(error: TypeError) -> bool:
    """True where no line of what was called here was run, for its arguments are others."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


@dataclass(frozen=True)
class TriedStep:
    """What came of one step of a trial; `beside`: the parameters that the loss computes with and that are neither the
    replica's nor the caller's."""

    trial: Trial
    kept: KeptByLoss
    batch: Any
    digest: str
    value: float
    gradients: Sequence[torch.Tensor | None]
    callers: Sequence[torch.Tensor | None]
    took: Measured | None
    draws: tuple[str, ...]
    counts: Sequence[int]
    beside: Sequence[nn.Parameter]

    @classmethod
    def of(cls, trial: Trial, kept: KeptByLoss, *, seed: int, workers: int, long: float | None, by: str) -> TriedStep:
        """The step of the first batch; a second one where it is to be measured, and the first seemed `long`."""
        with at_batch(seed, workers) as info:
            detector = DrawDetector()
            culprits = _watch_modules(trial.replica)
            batch = trial.batch(info)
            in_data = detector.drawn()
            digest = batch_digest(batch)  # before the loss, which may write to it
            counts = trial.writes()
            returned: list[Any] = []
            step = partial(trial.gradients, batch, by, returned)
            with kept.watched():
                (value, gradients, callers), took = measured(step) if long is not None else (step(), None)
            draws = tuple(f"{_culprit(generator, in_data, culprits)} ({generator})" for generator in detector.drawn())
            if took is not None and long is not None and long <= took.seconds < _SURE * long and math.isfinite(value):
                took = measured(step)[1]
            beside = parameters_beside(returned[0], {*map(id, trial.stand_ins.values()), *trial.stand_ins})
        return cls(trial, kept, batch, digest, value, gradients, callers, took, draws, counts, beside)

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

    def differs(self, other: TriedStep) -> bool:
        """True where another came to another loss, or other gradients."""
        names = [*self.trial.trained]
        return bool(
            unequal_losses(self.value, other.value)
            or unequal_tensors("gradient", names, self.gradients, other.gradients)
        )


StepOf = Callable[[Trial, KeptByLoss], TriedStep]


def first_step(make: Callable[[], Trial], model: nn.Module, step_of: StepOf) -> tuple[TriedStep, str]:
    """(the step, the class of what model and loss have in common). Where they do, and the model leaves there what the
    loss reads, the step is that of copies of both, as a process has them."""
    trial = make()
    kept = KeptByLoss(trial.loss, trial.replica, trial.copies)
    step, failure = _tried(step_of, trial, kept)
    together, sent = _step_together(make, model, step_of) if (common := kept.in_common()) else (None, True)
    named = kept.named() if common and together is None else []
    is_read = together is not None or (bool(named or not sent) and _is_read(make, step_of))
    imported = next((naming.title for naming in named if naming.is_imported), "")
    if is_read and imported:
        raise ArgumentError(
            f"the model holds {imported}, and leaves there what the loss reads of the module; the model of a worker "
            f"holds a copy of it, and its loss goes without; return it from the forward pass, or use {imported} there "
            f"too"
        )
    if together is not None and step is not None:
        trial.let_go()
        together = replace(together, callers=step.callers)  # of copies nobody reaches these
    if (found := together or step) is None:
        assert failure is not None
        raise failure
    return found, common if is_read else ""


def _step_together(make: Callable[[], Trial], model: nn.Module, step_of: StepOf) -> tuple[TriedStep | None, bool]:
    """(the step of copies that have something in common, True), where it is another than that of copies made one by
    one, and that is twice the same: all are of one moment, so that is because the loss reads what the model leaves.
    (None, True) where it is not, and (None, False) where they cannot be sent."""
    sent = [make().as_sent(model, together=together) for together in (False, False, True)]
    steps = [_tried(step_of, one)[0] for one in sent if one is not None]
    if len(steps) < len(sent):
        return None, False
    return steps[-1] if _reads(*steps) else None, True


def _is_read(make: Callable[[], Trial], step_of: StepOf) -> bool:
    """True where the step is another once the functions of the loss find the replica's copies of what model and loss
    have in common, and twice the same while they find the caller's own."""
    steps = [_tried(step_of, trial)[0] for trial in (make(), make())]
    trial = make()
    kept = KeptByLoss(trial.loss, trial.replica, trial.copies)
    with kept.in_its_place():
        steps.append(_tried(step_of, trial, kept)[0])
    return _reads(*steps)


def _reads(one: TriedStep | None, again: TriedStep | None, together: TriedStep | None) -> bool:
    """True where a step was possible with what model and loss have in common and, both times, not without, or was
    another one; so not where two steps differ anyway."""
    if together is None or (one is None) != (again is None):
        return False
    return one is None or again is None or (not one.differs(again) and one.differs(together))


def _tried(step_of: StepOf, trial: Trial, kept: KeptByLoss | None = None) -> tuple[TriedStep | None, Exception | None]:
    """The step of a trial, or what it raised."""
    try:
        return step_of(trial, kept or KeptByLoss(trial.loss, trial.replica, {})), None
    except ArgumentError as error:
        return None, error


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
