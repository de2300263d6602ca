"""How an optimizer is stepped here: what state it keeps, found by trying it, and whether its step is written out.

Invariant: nothing is assumed of an optimizer but what one step on a tensor of its own shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hogwild.errors import ArgumentError, a_type, one_line
from hogwild.optim.compensation import Compensation
from hogwild.optim.factory import group_of, is_watched, try_step, with_parameters
from hogwild.optim.kernels import (
    FLAT_DTYPES,
    is_plain_sgd,
    predicting_sgd,
    takes_sparse,
    written_keys,
    written_step,
)
from hogwild.optim.row_adagrad import RowAdagrad
from hogwild.optim.several import classes_of, optimizers_in, part_of_group
from hogwild.optim.stability import Curvature
from hogwild.optim.step_form import WrittenStep
from hogwild.optim.torch_step import options_kept, refuse_rounding
from hogwild.shared.layout import Layout, is_dense
from hogwild.shared.optimizer_state import PARAMETER, Cell, StateForm
from hogwild.shared.shards import Shard, cut_shards

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
_NOT_FLAT = ("fused", "foreach", "capturable")  # options whose meaning or bits hang on the tensors


# A flat step saves the calls for all tensors of a range but one, and costs a copy of the gradient: this many elements
# are copied in the time that one tensor's calls take (measured; SGD makes one call a tensor, Adam a dozen).
_ELEMENTS_PER_TENSOR: dict[type[Optimizer], int] = {torch.optim.SGD: 50_000}
_ELEMENTS_PER_TENSOR_OTHERS = 120_000
_STAND_IN = 3  # elements, or rows of a table, of the tensor on which an optimizer shows what state it keeps


# Those that step the rows which a sparse gradient names, and no others. Their state is laid out as the parameter is, or
# has one number a row; SparseAdam's begins as zeros.
_BY_ROW = (torch.optim.SGD, torch.optim.SparseAdam, torch.optim.Adagrad, RowAdagrad)

# Those of torch that divide by something they keep of earlier gradients: a step may be of any size where that was lost.
# (Adafactor keeps such a thing too, and clips its steps.)
_ADAPTIVE = (
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.SparseAdam,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    RowAdagrad,
)


def steps_rows(optimizer: Optimizer, layout: Layout, tables: frozenset[int]) -> bool:
    """True where a sparse gradient of these parameters changes the rows that it names, of the parameter and of its
    state, and no others."""
    holders = part_of_group(optimizer)
    parts = [holders[span.group][0] for span in layout.ranges if not tables.isdisjoint(span.members)]
    written = all(written_step(part) is not None for part, _ in holders)
    return written and all(map(takes_sparse, parts)) and not is_watched(optimizer)


@dataclass(frozen=True)
class OptimizerPlan:
    """What the workers need to know of an optimizer: found once, by trying it on tensors of its own.

    `form` is that of its state, and says whether ranges are stepped whole; `written` is the step in each group, where
    none need be torch's; `plain` that all are p ← p − lr g; `by_row` that sparse gradients are taken too; `adaptive`
    that something is divided by what is kept of earlier gradients, which the written step computes privately; `classes`
    are those of the optimizers that step the groups; `shards`
    are there where the step of a version can be made in pieces; `rates` are learning rates, each with the update from
    which on it replaces that of the optimizer; `compensation` is what is done about staleness, if anything; `decay` is
    that of a moving average of the parameters, if one is kept; `rows` has the positions of the parameters whose sparse
    gradients stay so, None: all.
    """

    form: StateForm
    written: tuple[WrittenStep, ...] | None
    plain: bool
    by_row: bool
    adaptive: bool
    classes: tuple[str, ...]
    shards: tuple[Shard, ...] = ()
    rates: tuple[tuple[int, float], ...] = ()
    compensation: Compensation | None = None
    decay: float | None = None
    rows: frozenset[int] | None = None

    def with_rates(self, rates: tuple[tuple[int, float], ...]) -> OptimizerPlan:
        """The same with other learning rates from some updates on."""
        return replace(self, rates=rates)

    def with_average(self, decay: float | None) -> OptimizerPlan:
        """The same with a moving average of the parameters, where a decay is given."""
        return self if decay is None else replace(self, form=self.form.with_average(), decay=decay)

    def with_rows(self, rows: frozenset[int]) -> OptimizerPlan:
        """The same where a sparse gradient of one of these parameters stays so, and that of any other is made dense
        before it is stepped by.

        Under a rule whose gradients may wait that is so where they wait, and whether they do is a matter of time.
        """
        form = replace(self.form, flat=self.form.flat and not rows)  # a flat step, or one in shards, takes dense ones
        return replace(self, rows=rows, form=form, shards=() if rows else self.shards)

    @classmethod
    def under_staleness(
        cls,
        optimizer: Optimizer,
        parameters: Sequence[nn.Parameter],
        layout: Layout,
        sparse: frozenset[int],
        staleness: int,
        curvature: Curvature | None = None,
        rates: Sequence[float] | None = None,
        *,
        varies: bool = False,
    ) -> OptimizerPlan:
        """`of`, with what is known to help against gradients that are so many updates old; the optimizer is given the
        options for that. `curvature`, `rates` and `varies` are those of `Compensation.of`."""
        plan = cls.of(optimizer, parameters, layout, sparse)
        written = plan.written is not None
        compensation = Compensation.of(optimizer, staleness, curvature, rates, varies=varies) if written else None
        if compensation is None:
            return plan
        compensation.apply(optimizer)
        return cls.of(optimizer, parameters, layout, sparse, compensation)

    @classmethod
    def of(
        cls,
        optimizer: Optimizer,
        parameters: Sequence[nn.Parameter],
        layout: Layout,
        sparse: frozenset[int],
        compensation: Compensation | None = None,
    ) -> OptimizerPlan:
        """Plan for the trained parameters, in layout order; those numbered in `sparse` get sparse gradients. The
        optimizer has the options of the compensation, where there is one.

        Raises:
            ArgumentError: an optimizer that keeps state where workers cannot share it.
        """
        options = [group.get(name) for group in optimizer.param_groups for name in _NOT_FLAT]
        watched, kinds = is_watched(optimizer), {type(part) for part in optimizers_in(optimizer)}
        elementwise = kinds <= ELEMENTWISE and not any(options) and not sparse and not watched
        saved = len(layout.entries) - len(layout.ranges)
        worth = min(_ELEMENTS_PER_TENSOR.get(kind, _ELEMENTS_PER_TENSOR_OTHERS) for kind in kinds) * saved
        pays = sum(span.numel for span in layout.ranges) <= worth
        groups = group_of(optimizer)
        numbers, holders = [groups[id(parameter)] for parameter in parameters], part_of_group(optimizer)
        cells = [
            _Try(*holders[number], parameter, i in sparse, elementwise).cells()
            for i, (parameter, number) in enumerate(zip(parameters, numbers, strict=True))
        ]
        vectorised = all(parameter.dtype in FLAT_DTYPES for parameter in parameters)
        same_dtype = all(
            cell.dtype == parameter.dtype
            for parameter, by_key in zip(parameters, cells, strict=True)
            for cell in by_key.values()
            if cell.like
        )
        # Elsewhere state may have other strides than its parameter, and complex numbers are taken for pairs of reals.
        real = all(parameter.dtype.is_floating_point for parameter in parameters)
        rows_or_elements = not kinds.isdisjoint(_BY_ROW) and kinds <= {*_BY_ROW, *ELEMENTWISE}
        alike = elementwise or (rows_or_elements and _laid_out_alike(parameters, cells))
        known = not watched and (not any(cells) or (alike and same_dtype and real))
        flat = elementwise and same_dtype and vectorised and pays
        written = _written_steps(optimizer, numbers, cells) if known else None
        if compensation is not None and compensation.predicts:
            written = (predicting_sgd,) * len(holders)
            cells = [{**own, PARAMETER: _own_cell(one)} for own, one in zip(cells, parameters, strict=True)]
        form = StateForm(layout, flat, tuple(cells))
        taking = frozenset(i for i, number in enumerate(numbers) if takes_sparse(holders[number][0]))
        by_row = written is not None and taking >= (sparse or set(range(len(numbers))))
        return cls(
            form,
            written,
            plain=written is not None and all(map(is_plain_sgd, optimizers_in(optimizer))),
            by_row=by_row,
            adaptive=any(isinstance(part, _ADAPTIVE) for part in optimizers_in(optimizer)),
            classes=classes_of(optimizer),
            shards=cut_shards(form) if written is not None and elementwise and same_dtype and vectorised else (),
            compensation=compensation,
            rows=taking | sparse if taking and len(taking) < len(numbers) else None,
        )


def _written_steps(
    optimizer: Optimizer, numbers: Sequence[int], cells: Sequence[Mapping[str, Cell]]
) -> tuple[WrittenStep, ...] | None:
    """The step of each group; None where one is not written out, or keeps another state than a parameter of that group
    has, of which `numbers` are the groups and `cells` the state: one that was restored may have more."""
    holders = part_of_group(optimizer)
    steps = [step for part, _ in holders if (step := written_step(part)) is not None]
    kept = all(set(by_key) == written_keys(*holders[n]) for n, by_key in zip(numbers, cells, strict=True))
    return tuple(steps) if kept and len(steps) == len(holders) else None


def _own_cell(parameter: Tensor) -> Cell:
    """The cell of a parameter itself."""
    return Cell(parameter.dtype, tuple(parameter.shape), tuple(parameter.stride()), like=True)


def _laid_out_alike(parameters: Sequence[nn.Parameter], cells: Sequence[Mapping[str, Cell]]) -> bool:
    """True where each state that is not one number lies in memory as its parameter does, or has one number a row."""
    return all(
        (cell.dtype, cell.shape, cell.stride) == (parameter.dtype, tuple(parameter.shape), parameter.stride())
        or (cell.dtype, cell.shape) == (parameter.dtype, tuple(parameter.shape[:1]))
        for parameter, by_key in zip(parameters, cells, strict=True)
        for key, cell in by_key.items()
        if key not in _SCALARS
    )


def initial_of(
    optimizer: Optimizer, parameters: Sequence[nn.Parameter], sparse: frozenset[int]
) -> list[dict[str, Any]]:
    """The state that each parameter has before any step (Adagrad's, for instance); empty for most.

    SparseAdam would make a table of zeros at the first step. Shared memory is zero until it is written, so those
    numbered in `sparse` only need to be told that they have begun.
    """
    zeros = {key for part in optimizers_in(optimizer) if type(part) is torch.optim.SparseAdam for key in group_of(part)}
    return [
        _kept(optimizer, parameter) or ({"step": 0} if i in sparse and id(parameter) in zeros else {})
        for i, parameter in enumerate(parameters)
    ]


def _kept(optimizer: Optimizer, parameter: Tensor) -> dict[str, Any]:
    """The state of a parameter; what older versions of torch saved as None is not there."""
    return {key: value for key, value in optimizer.state.get(parameter, {}).items() if value is not None}


class _Try:
    """One step of an optimizer on a tensor of its own, which shows the state that a parameter has from then on.

    Args:
        optimizer: the caller's; it is not stepped.
        group: the number of the parameter's group.
        sparse: the parameter's gradients are sparse.
        elementwise: the tensor may have another shape than the parameter.
    """

    def __init__(
        self, optimizer: Optimizer, group: int, parameter: nn.Parameter, sparse: bool, elementwise: bool
    ) -> None:
        self._name = type(optimizer).__name__
        self._sparse, self._elementwise = sparse, elementwise
        self._by_row = sparse and type(optimizer) in _BY_ROW
        self._parameter = parameter
        self._tensor = self._small(parameter).requires_grad_()  # an optimizer may pass over what does not
        groups: list[list[Tensor]] = [[] for _ in optimizer.param_groups]
        groups[group] = [self._tensor]
        self._trial = with_parameters(optimizer, groups)
        for key, value in _kept(optimizer, parameter).items():
            refuse_rounding(self._name, key, value)
            self._trial.state[self._tensor][key] = self._reduced(key, value)
        self._tensor.grad = self._ones()

    def cells(self) -> dict[str, Cell]:
        """The state by key.

        Raises:
            ArgumentError: the optimizer cannot make the step, or keeps state where workers cannot share it.
        """
        kind = "sparse" if self._sparse else "dense"
        own = _numbers_of(self._trial)
        with options_kept(self._trial):
            try:
                try_step(self._trial)
            except Exception as error:
                both = "; Adagrad, and SGD without momentum, step sparse and dense ones; a list has one for each"
                others = both if kind in str(error) else ""
                raise ArgumentError(f"{self._name} cannot step a {kind} gradient: {one_line(error)}{others}") from error
        if own != _numbers_of(self._trial):
            changed = [key for key, value in _numbers_of(self._trial).items() if value != own.get(key)]
            raise ArgumentError(
                f"{self._name} keeps state in itself ({', '.join(changed)}), which workers cannot share"
            )
        state = self._trial.state[self._tensor]
        return {key: self._cell(key, value) for key, value in state.items() if value is not None}

    def _small(self, like: Tensor) -> Tensor:
        """Zeros in place of the parameter: a few elements, a few rows, or all of it."""
        if self._elementwise:
            return torch.zeros(_STAND_IN, dtype=like.dtype)
        return like.new_zeros(min(len(like), _STAND_IN), *like.shape[1:]) if self._by_row else torch.zeros_like(like)

    def _reduced(self, key: str, value: Any) -> Any:
        if self._elementwise and key not in _SCALARS:
            return value.new_zeros(self._tensor.shape)
        if self._by_row and isinstance(value, Tensor) and _has_rows_of(self._parameter, value):
            value = value[: len(self._tensor)]
        return value.clone() if isinstance(value, Tensor) else value

    def _ones(self) -> Tensor:
        if not self._sparse:
            return torch.ones_like(self._tensor)
        row = self._tensor.new_ones(1, *self._tensor.shape[1:])
        first = torch.zeros(1, 1, dtype=torch.int64)
        return torch.sparse_coo_tensor(first, row, self._tensor.shape, check_invariants=True)

    def _cell(self, key: str, value: Any) -> Cell:
        if isinstance(value, int | float):
            refuse_rounding(self._name, key, value)
            return Cell(torch.float64, (), number=type(value))
        if not isinstance(value, Tensor):
            raise ArgumentError(
                f"the optimizer keeps {a_type(value)} as state, and workers share only tensors and numbers"
            )
        if value.layout is not torch.strided:
            raise ArgumentError(
                f"{self._name} keeps {key!r} as a sparse tensor, which workers cannot share; with sparse gradients "
                f"use SGD without momentum, SparseAdam or Adagrad"
            )
        form = value if is_dense(value) else value.contiguous()
        if self._by_row and value.shape == self._tensor.shape:
            form = self._parameter
        elif self._by_row and _has_rows_of(self._tensor, value):
            form = torch.empty(len(self._parameter), device="meta")
        like = self._elementwise and key not in _SCALARS
        return Cell(value.dtype, tuple(form.shape), tuple(form.stride()), like)


def _has_rows_of(parameter: Tensor, value: Tensor) -> bool:
    """True where a state has the form of the parameter, or one number for each of its rows."""
    return value.dim() > 0 and value.shape in (parameter.shape, parameter.shape[:1])


def _numbers_of(optimizer: Optimizer) -> dict[str, Any]:
    return {k: v for k, v in vars(optimizer).items() if isinstance(v, int | float) and not k.startswith("_")}
