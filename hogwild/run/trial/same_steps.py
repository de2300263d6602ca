"""Does a step depend on anything but the gradient, the values and the state that the optimizer is given?

Torch's own optimizers do not, so only their options are compared, which the factory may have made otherwise the second
time. Any other one makes three steps, and a second one, made anew, the last of them, on copies of the parameters:

    first    from the start by the gradient of batch 0 → from there by that of batch k → from the start by the first
    second                                               from there by that of batch k

Whoever has nothing better to do steps, so each step is made by another worker at another update, with generators of its
own: neither random numbers nor `worker_info()` may have a part in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hogwild.data.seeding import mix, seed_generators
from hogwild.errors import NotReproducible
from hogwild.model.anatomy import Anatomy
from hogwild.optim.factory import Factory, is_plain, made_by
from hogwild.optim.several import kind_of
from hogwild.run.job import Job
from hogwild.shared.hashing import equal_bits
from hogwild.workers.worker_info import WorkerInfo, informed, log_to_no_run

Gradients = Sequence[Tensor | None]
_ADVICE = "docs/same-bits.md says where an optimizer keeps its state"


def refuse_uneven_steps(job: Job, anatomy: Anatomy, factory: Factory, gradients: tuple[Gradients, Gradients]) -> None:
    """Refuse an optimizer whose steps differ: `factory` is another worker's, `gradients` are those of batches 0 and k.

    What raises is left for the run to tell.

    Raises:
        NotReproducible: they differ.
    """
    try:
        first, second = _Stepper(job, anatomy, job.optimizer), _Stepper(job, anatomy, factory)
        if not _alike(first.options, second.options):
            wrong = "the optimizer factory gives other options when it is called again"
        elif first.is_torchs_own or _steps_agree(job, first, second, gradients):
            return
        else:
            wrong = f"a step of {first.name} depends on steps made before, or on who makes it"
    except Exception:
        return
    raise NotReproducible(f"{wrong}, so {job.rule.name} cannot give the same bits; {_ADVICE}")


@dataclass(frozen=True)
class _State:
    """Values of the parameters, and the optimizer's state of each."""

    values: list[Tensor]
    kept: list[dict[str, Any]]


def _steps_agree(job: Job, first: _Stepper, second: _Stepper, gradients: tuple[Gradients, Gradients]) -> bool:
    zero, other = gradients
    start = first.start()
    middle = first.step(start, zero, _worker(job, 0))
    end = first.step(middle, other, _worker(job, 1))
    again = first.step(start, zero, _worker(job, 2))
    others = second.step(middle, other, _worker(job, 3))
    return _alike(middle.values, again.values, middle.kept, again.kept) and _alike(
        end.values, others.values, end.kept, others.kept
    )


def _worker(job: Job, number: int) -> WorkerInfo:
    """The worker of that number, at the update and the batch of that number."""
    info = WorkerInfo(number, job.config.workers, job.config.seed, log_to_no_run)
    info.start(number, number)
    return info


class _Stepper:
    """An optimizer on parameters of its own, stepped from any state."""

    def __init__(self, job: Job, anatomy: Anatomy, factory: Factory) -> None:
        self._own = {
            name: nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
            for name, parameter in job.model.named_parameters()
        }
        self._optimizer: Optimizer = made_by(factory, list(self._own.items()))
        self._stepped = [self._own[name] for name in anatomy.trained]
        self._first = [parameter.detach() for parameter in anatomy.trained.values()]
        self.name = kind_of(self._optimizer)
        self.is_torchs_own = is_plain(self._optimizer)
        self.options = [{k: v for k, v in g.items() if k != "params"} for g in self._optimizer.param_groups]

    def start(self) -> _State:
        return _State(self._first, [_copied(self._optimizer.state.get(p, {})) for p in self._stepped])

    def step(self, state: _State, gradients: Gradients, worker: WorkerInfo) -> _State:
        """One step from that state, which stays as it is, by that worker, with generators seeded for its batch."""
        for parameter, value, kept, gradient in zip(self._stepped, state.values, state.kept, gradients, strict=True):
            parameter.data = value.clone()
            parameter.grad = None if gradient is None else gradient.clone()
            self._optimizer.state.pop(parameter, None)
            if kept:
                self._optimizer.state[parameter] = _copied(kept)
        seed_generators(mix(worker.seed, worker.batch))
        with torch.no_grad(), informed(worker):
            self._optimizer.step()
        values = [parameter.detach().clone() for parameter in self._stepped]
        return _State(values, [_copied(self._optimizer.state.get(p, {})) for p in self._stepped])


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, Tensor) else value for key, value in state.items()}


def _alike(*pairs: Any) -> bool:
    """True where of each two that follow each other all tensors have the same bits, and all else is equal."""
    return all(_same(a, b) for a, b in zip(pairs[::2], pairs[1::2], strict=True))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and equal_bits(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b or (a != a and b != b))  # NaN is NaN
