"""Any `torch.optim` optimizer over shared parameters, its state in shared memory.

Elementwise optimizers (SGD, Adam, …) step on one flat tensor per range of the parameter layout; the others, and all
of them whenever some parameter received no gradient, step on the tensors one by one. Both see the same memory.

Invariants: state is created at a parameter's first step, as torch does; a parameter without a gradient is not
stepped. What a step reads and writes is the parameters and the state copy it is given, and nothing of the worker's
own, so any worker may make it.
"""

from __future__ import annotations

import inspect
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hogwild.errors import ArgumentError
from hogwild.memory import Arena, Block, Layout, Range, Space

Named = list[tuple[str, nn.Parameter]]
Factory = Callable[[Named], Optimizer]

# Each element of the parameter and of its state depends on that element (and on scalars) alone.
ELEMENTWISE: frozenset[type[Optimizer]] = frozenset(
    getattr(torch.optim, name)
    for name in (
        "SGD",
        "Adam",
        "AdamW",
        "Adamax",
        "NAdam",
        "RAdam",
        "Adagrad",
        "Adadelta",
        "RMSprop",
        "Rprop",
        "ASGD",
    )
)
_SCALARS = frozenset({"step", "mu_product", "eta", "mu"})  # state of an elementwise optimizer that is one number
_NOT_FLAT = (
    "fused",
    "foreach",
    "differentiable",
    "capturable",
)  # options whose meaning or bits hang on the tensors
# A flat step saves the calls for all tensors of a range but one, and costs a copy of the gradient: this many elements
# are copied in the time that one tensor's calls take (measured; SGD makes one call a tensor, Adam a dozen).
_ELEMENTS_PER_TENSOR: dict[type[Optimizer], int] = {torch.optim.SGD: 50_000}
_ELEMENTS_PER_TENSOR_OTHERS = 200_000

_STAND_IN = 3  # elements of the tensor on which an elementwise optimizer shows what state it keeps


@dataclass(frozen=True)
class Cell:
    """One entry of an optimizer's state: its form, and whether it is laid out as the parameter is (`like`)."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    like: bool = False
    number: type[int] | type[float] | None = None


def make_optimizer(factory: Factory, named: Named) -> Optimizer:
    """Call the factory and check what it made.

    Raises:
        ArgumentError: no optimizer, one that ignores its argument, or one that needs a closure.
    """
    optimizer = factory(named)
    if not isinstance(optimizer, Optimizer):
        raise ArgumentError(
            f"optimizer returned a {type(optimizer).__name__}; it must return a torch.optim.Optimizer, "
            f"as functools.partial(torch.optim.SGD, lr=0.1) does"
        )
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if isinstance(optimizer, torch.optim.LBFGS) or (closure and closure.default is inspect.Parameter.empty):
        raise ArgumentError(f"{type(optimizer).__name__} needs a closure, which no worker can call; use SGD or Adam")
    given = {id(parameter) for _, parameter in named}
    chosen = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not chosen or any(id(parameter) not in given for parameter in chosen):
        raise ArgumentError(
            f"the optimizer factory ignored its argument: {type(optimizer).__name__} holds parameters it was not "
            f"given; write lambda named: torch.optim.SGD(named, lr=0.1)"
        )
    return optimizer


def group_of(optimizer: Optimizer) -> dict[int, int]:
    """id of each parameter → number of its parameter group."""
    return {id(p): number for number, group in enumerate(optimizer.param_groups) for p in group["params"]}


def _with_parameters(optimizer: Optimizer, groups: Sequence[Sequence[Tensor]]) -> Optimizer:
    """An optimizer of the same kind and options over other parameters, without state."""
    clone: Optimizer = object.__new__(type(optimizer))
    vars(clone).update(vars(optimizer))
    clone.param_groups = [
        {**{key: value for key, value in group.items() if key != "param_names"}, "params": list(parameters)}
        for group, parameters in zip(optimizer.param_groups, groups, strict=True)
    ]
    clone.state = defaultdict(dict)
    return clone


@dataclass(frozen=True)
class OptimizerPlan:
    """What the workers need to know of an optimizer: found once, by trying it on tensors of its own.

    `flat` says whether ranges are stepped whole; `cells[i]` is the state of parameter i by key; `initial[i]` the
    state it had before any step (Adagrad's, for instance), empty for most.
    """

    layout: Layout
    flat: bool
    cells: tuple[Mapping[str, Cell], ...]
    initial: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(
        cls, optimizer: Optimizer, parameters: Sequence[nn.Parameter], layout: Layout, sparse: frozenset[int]
    ) -> OptimizerPlan:
        """Plan for the trained parameters, in layout order; those numbered in `sparse` get sparse gradients.

        Raises:
            ArgumentError: an optimizer that keeps state where workers cannot share it.
        """
        options = [group.get(name) for group in optimizer.param_groups for name in _NOT_FLAT]
        elementwise = type(optimizer) in ELEMENTWISE and not any(options) and not sparse
        saved = len(layout.entries) - len(layout.ranges)
        worth = _ELEMENTS_PER_TENSOR.get(type(optimizer), _ELEMENTS_PER_TENSOR_OTHERS) * saved
        pays = sum(span.numel for span in layout.ranges) <= worth
        groups = group_of(optimizer)
        cells = []
        for i, parameter in enumerate(parameters):
            stand_in = torch.zeros(_STAND_IN, dtype=parameter.dtype) if elementwise else torch.zeros_like(parameter)
            cells.append(_cells_of(optimizer, groups[id(parameter)], parameter, stand_in, i in sparse, elementwise))
        initial = tuple(dict(optimizer.state[p]) if p in optimizer.state else {} for p in parameters)
        same_dtype = all(
            cell.dtype == parameter.dtype
            for parameter, by_key in zip(parameters, cells, strict=True)
            for cell in by_key.values()
            if cell.like
        )
        return cls(layout, elementwise and same_dtype and pays, tuple(cells), initial)


def _cells_of(
    optimizer: Optimizer, group: int, parameter: nn.Parameter, stand_in: Tensor, sparse: bool, like: bool
) -> dict[str, Cell]:
    """The state that one parameter has after its first step."""
    groups: list[list[Tensor]] = [[] for _ in optimizer.param_groups]
    groups[group] = [stand_in]
    trial = _with_parameters(optimizer, groups)
    for key, value in optimizer.state.get(parameter, {}).items():
        full = like and key not in _SCALARS
        trial.state[stand_in][key] = value.new_zeros(stand_in.shape) if full else _copied(value)
    options = {key: value for key, value in trial.param_groups[group].items() if key != "params"}
    stand_in.grad = torch.ones_like(stand_in)
    if sparse:
        stand_in.grad = stand_in.grad.to_sparse(1)
    trial.step()
    after = {key: value for key, value in trial.param_groups[group].items() if key != "params"}
    if after != options:
        raise ArgumentError(
            f"{type(optimizer).__name__} keeps state in its parameter groups ("
            f"{', '.join(key for key in after if after[key] != options.get(key))}), which workers cannot share"
        )
    state = trial.state[stand_in]
    return {key: _cell(value, like and key not in _SCALARS) for key, value in state.items() if value is not None}


def _cell(value: Any, like: bool) -> Cell:
    if isinstance(value, Tensor):
        return Cell(value.dtype, tuple(value.shape), like=like)
    if isinstance(value, int | float):
        return Cell(torch.float64, (), number=type(value))
    raise ArgumentError(
        f"the optimizer keeps a {type(value).__name__} as state, and workers share only tensors and numbers"
    )


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


@dataclass(frozen=True)
class Gathered:
    """One update's gradients where they may be written to: per parameter in layout order (None: it received none),
    and per range, padding included, where the optimizer is stepped by range (else empty)."""

    tensors: Sequence[Tensor | None]
    flats: Sequence[Tensor]

    def finite(self) -> bool:
        """True when no element is NaN or infinite."""
        dense = self.flats or [t._values() if t.is_sparse else t for t in self.tensors if t is not None]
        # A sum is finite unless an element is not, or it overflowed; only then is every element looked at.
        return all(math.isfinite(t.sum().item()) or bool(t.isfinite().all()) for t in dense)


class _Places:
    """Where each piece of a state copy lies, in bytes from its start."""

    def __init__(self, plan: OptimizerPlan) -> None:
        space = Space()
        self.started = space.reserve(8 * len(plan.layout.entries))
        self.ragged = space.reserve(8 * len(plan.layout.ranges))
        keys = sorted({key for cells in plan.cells for key, cell in cells.items() if cell.like})
        self.laid_out = {key: space.reserve(plan.layout.nbytes) for key in keys}
        self.single = {
            (i, key): space.reserve(torch.Size(cell.shape).numel() * cell.dtype.itemsize)
            for i, cells in enumerate(plan.cells)
            for key, cell in cells.items()
            if not cell.like
        }
        self.nbytes = space.nbytes


class StateCopy:
    """One copy of the optimizer's state in shared memory.

    `started[i]` is 1 once parameter i has been stepped; `ragged[r]` is 1 once range r was stepped in part, after
    which its scalars differ and it is never again stepped whole. Until then the scalars of a range's first member
    hold for all of them.
    """

    def __init__(self, plan: OptimizerPlan, arena: Arena, offset: int) -> None:
        self.plan = plan
        layout = plan.layout
        places = _Places(plan)
        self.started = arena.words(offset + places.started, len(layout.entries))
        self.ragged = arena.words(offset + places.ragged, len(layout.ranges))
        self.tensors: list[dict[str, Tensor]] = [{} for _ in layout.entries]
        self.flats: list[dict[str, Tensor]] = [{} for _ in layout.ranges]
        for key, place in places.laid_out.items():
            block = Block.shared(arena, offset + place)
            views = layout.views(block)
            for i, cells in enumerate(plan.cells):
                if key in cells and cells[key].like:
                    self.tensors[i][key] = views[i]
            for flats, flat in zip(self.flats, layout.flats(block), strict=True):
                flats[key] = flat
        for (i, key), place in places.single.items():
            cell = plan.cells[i][key]
            flat = arena.tensor(offset + place, torch.Size(cell.shape).numel(), cell.dtype)
            self.tensors[i][key] = flat.view(cell.shape)
        self._share_scalars(layout.ranges)
        self.bytes = arena.bytes(offset, places.nbytes)

    @staticmethod
    def size(plan: OptimizerPlan) -> int:
        """Bytes of one copy."""
        return _Places(plan).nbytes

    def _share_scalars(self, ranges: Sequence[Range]) -> None:
        """A flat step reads and writes the scalars of the range's first member."""
        for flats, span in zip(self.flats, ranges, strict=True):
            first = span.members[0]
            wanted = self.plan.cells[first]
            for key in list(flats):
                if key not in wanted:
                    del flats[key]
            flats.update({key: self.tensors[first][key] for key, cell in wanted.items() if not cell.like})

    def prepare(self) -> None:
        """Before any worker starts: the state that the optimizer had before its first step."""
        for i, state in enumerate(self.plan.initial):
            for key, value in state.items():
                self.tensors[i][key].copy_(value) if isinstance(value, Tensor) else self.tensors[i][key].fill_(value)
            self.started[i] = int(bool(state))

    def copy_from(self, other: StateCopy) -> None:
        """Become equal to another copy."""
        self.bytes[:] = other.bytes

    def make_ragged(self, number: int) -> None:
        """Give every member of a range its own scalars, before part of the range is stepped."""
        if self.ragged[number] or not self.plan.flat:
            return
        first, *others = self.plan.layout.ranges[number].members
        for key, cell in self.plan.cells[first].items():
            if not cell.like:
                for i in others:
                    self.tensors[i][key].copy_(self.tensors[first][key])
        self.ragged[number] = 1


class SharedOptimizer:
    """A worker's optimizer: steps whatever parameters and state copy it is given. Called without grad mode.

    Args:
        factory: the caller's; called with the replica's named parameters.
        named: all of them, frozen ones included.
        parameters: the trained ones, in layout order.
        plan: as made by the parent.
        lr_schedule: update → factor on every group's learning rate.
    """

    def __init__(
        self,
        factory: Factory,
        named: Named,
        parameters: Sequence[nn.Parameter],
        plan: OptimizerPlan,
        lr_schedule: Callable[[int], float] | None,
    ) -> None:
        self._plan = plan
        self._parameters = list(parameters)
        self._by_tensor = make_optimizer(factory, named)
        self._by_tensor.state = defaultdict(dict)
        ranges = plan.layout.ranges
        # A parameter that is re-pointed at every step starts as anything of the right dtype.
        self._flat_parameters = [nn.Parameter(torch.empty(0, dtype=span.dtype)) for span in ranges]
        groups = [
            [flat for flat, span in zip(self._flat_parameters, ranges, strict=True) if span.group == number]
            for number in range(len(self._by_tensor.param_groups))
        ]
        self._by_range = _with_parameters(self._by_tensor, groups)
        self._gradient = Block.private(plan.layout.nbytes if plan.flat else 0)
        self._flat_gradients = plan.layout.flats(self._gradient) if plan.flat else []
        self._gradient_views = plan.layout.views(self._gradient) if plan.flat else []
        self._schedule = lr_schedule
        self._rates = [group["lr"] for group in self._by_tensor.param_groups] if lr_schedule else []

    def gather(self, gradients: Sequence[Tensor | None]) -> Gathered:
        """The gradients in private memory of this worker, each with the strides of its parameter.

        What autograd returns may alias another gradient or be expanded; what this returns may be written to, and
        is good until the next call.
        """
        if not self._plan.flat:
            return Gathered(_own(gradients, self._parameters), [])
        if not any(gradient is None for gradient in gradients):
            torch._foreach_copy_(self._gradient_views, cast("list[Tensor]", gradients))
            return Gathered(self._gradient_views, self._flat_gradients)
        tensors: list[Tensor | None] = []
        for view, gradient in zip(self._gradient_views, gradients, strict=True):
            if gradient is None:
                view.zero_()
                tensors.append(None)
            else:
                tensors.append(view.copy_(gradient))
        return Gathered(tensors, self._flat_gradients)

    def step(
        self,
        update: int,
        gradients: Gathered,
        views: Sequence[Tensor],
        flats: Sequence[Tensor],
        state: StateCopy,
    ) -> None:
        """Step the parameters in `views` (the same memory as `flats`) in place; `update` decides the learning rate."""
        if self._schedule is not None:
            self._set_rates(self._schedule(update))
        whole = [
            bool(gradients.flats)
            and not state.ragged[number]
            and all(gradients.tensors[i] is not None for i in span.members)
            for number, span in enumerate(self._plan.layout.ranges)
        ]
        if any(whole):
            self._step_ranges(whole, gradients, flats, state)
        if not all(whole):
            self._step_tensors(whole, gradients, views, state)

    def _set_rates(self, factor: float) -> None:
        for optimizer in (self._by_tensor, self._by_range):
            for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * factor

    def _step_ranges(
        self, whole: Sequence[bool], gradients: Gathered, flats: Sequence[Tensor], state: StateCopy
    ) -> None:
        optimizer = self._by_range
        for number, span in enumerate(self._plan.layout.ranges):
            parameter = self._flat_parameters[number]
            parameter.grad = None
            if whole[number]:
                first = span.members[0]
                parameter.data = flats[number]
                parameter.grad = gradients.flats[number]
                _bind(optimizer, parameter, state.flats[number], self._plan.cells[first], state.started[first])
        optimizer.step()
        for number, span in enumerate(self._plan.layout.ranges):
            if whole[number]:
                _keep(optimizer, self._flat_parameters[number], state.flats[number])
                if not state.started[span.members[0]]:
                    for i in span.members:
                        state.started[i] = 1

    def _step_tensors(
        self, whole: Sequence[bool], gradients: Gathered, views: Sequence[Tensor], state: StateCopy
    ) -> None:
        stepped: list[int] = []
        for number, span in enumerate(self._plan.layout.ranges):
            if not whole[number]:
                state.make_ragged(number)
                stepped.extend(i for i in span.members if gradients.tensors[i] is not None)
        optimizer = self._by_tensor
        for i in stepped:
            parameter = self._parameters[i]
            parameter.data = views[i]
            parameter.grad = gradients.tensors[i]
            _bind(optimizer, parameter, state.tensors[i], self._plan.cells[i], state.started[i])
        optimizer.step()
        for i in stepped:
            _keep(optimizer, self._parameters[i], state.tensors[i])
            state.started[i] = 1
            self._parameters[i].grad = None


def _bind(
    optimizer: Optimizer,
    parameter: nn.Parameter,
    shared: dict[str, Tensor],
    cells: Mapping[str, Cell],
    started: int,
) -> None:
    """Let the optimizer see shared memory as the parameter's state, or no state before the first step."""
    if not started:
        optimizer.state.pop(parameter, None)
        return
    optimizer.state[parameter] = {
        key: value if cells[key].number is None else cells[key].number(value.item())  # type: ignore[misc]
        for key, value in shared.items()
    }


def _keep(optimizer: Optimizer, parameter: nn.Parameter, shared: dict[str, Tensor]) -> None:
    """Put what the step left as the parameter's state into shared memory, where it is not there already."""
    state = optimizer.state.get(parameter, {})
    for key, target in shared.items():
        value = state.get(key)
        if value is target or value is None:
            continue
        if isinstance(value, Tensor):
            target.copy_(value)
        else:
            target.fill_(value)


def _own(gradients: Sequence[Tensor | None], parameters: Sequence[nn.Parameter]) -> list[Tensor | None]:
    """Each gradient in memory that no other one uses, with its parameter's strides; sparse ones as they are."""
    owned: list[Tensor | None] = []
    seen: set[int] = set()
    for gradient, parameter in zip(gradients, parameters, strict=True):
        if gradient is not None and gradient.layout is torch.strided:
            place = gradient.untyped_storage().data_ptr()
            if place in seen or gradient.stride() != parameter.stride():
                gradient = torch.empty_like(parameter).copy_(gradient)
            seen.add(gradient.untyped_storage().data_ptr())
        owned.append(gradient)
    return owned
