"""Any `torch.optim` optimizer over shared parameters, its state in shared memory.

Elementwise optimizers (SGD, Adam, …) step on one flat tensor per range of the parameter layout where that pays; the
others, and all of them whenever some parameter received no gradient, step on the tensors one by one. Both see the
same memory.

Invariants: state is created at a parameter's first step, as torch does; a parameter without a gradient is not
stepped. What a step reads and writes is the parameters and the state copy it is given, and nothing of the worker's
own, so any worker may make it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from hogwild.optim.copies import CopyRoom
from hogwild.optim.factory import Factory, Named, made_by, refuse_other_groups, with_parameters
from hogwild.optim.gradients import Gathered
from hogwild.optim.kernels import FLAT_DTYPES
from hogwild.optim.plan import OptimizerPlan
from hogwild.optim.rates import RateTable, as_given, factor_of
from hogwild.optim.several import optimizers_in
from hogwild.optim.sharded import ShardedStep
from hogwild.optim.step_form import ROOMS, Rooms
from hogwild.optim.torch_step import Untrained, bind_state, bring_home, keep_state, options_kept
from hogwild.shared.arena import aligned
from hogwild.shared.gradient_slots import GradientSlot
from hogwild.shared.layout import Block, Entry, Layout, Range
from hogwild.shared.optimizer_state import AVERAGE, PARAMETER, OptimizerState
from hogwild.shared.slots import Slot


class SharedOptimizer:
    """A worker's optimizer: steps whatever parameters and state copy it is given. Called without grad mode.

    Args:
        factory: the caller's; called with the replica's named parameters.
        named: all of them, frozen ones included.
        parameters: the trained ones, in layout order.
        plan: as made by the parent.
        lr_schedule: update → factor on every group's learning rate, or the rates themselves.
        races: others may step the same parameters and state at the same time.
    """

    def __init__(
        self,
        factory: Factory,
        named: Named,
        parameters: Sequence[nn.Parameter],
        plan: OptimizerPlan,
        lr_schedule: Callable[[int], float] | RateTable | None,
        *,
        races: bool = False,
    ) -> None:
        self._plan = plan
        self.clips = False  # gradients, once they are gathered
        self._form = form = plan.form
        self._parameters = list(parameters)
        self._copies = [CopyRoom() for _ in self._parameters]
        ranges = form.layout.ranges
        self._group = [span.group for i in range(len(parameters)) for span in ranges if i in span.members]
        self._by_tensor = made_by(factory, named)
        refuse_other_groups(self._by_tensor, parameters, self._group, plan.classes)
        if plan.compensation is not None:
            plan.compensation.apply(self._by_tensor)
        for part in optimizers_in(self._by_tensor):
            part.state = defaultdict(dict)
        # A parameter that is re-pointed at every step starts as anything of the right dtype.
        self._flat_parameters = [nn.Parameter(torch.empty(0, dtype=span.dtype)) for span in ranges]
        groups = [
            [flat for flat, span in zip(self._flat_parameters, ranges, strict=True) if span.group == number]
            for number in range(len(self._by_tensor.param_groups))
        ]
        self._by_range = with_parameters(self._by_tensor, groups)
        self._gradient = Block.private(form.layout.nbytes if form.flat else 0)
        self._flat_gradients = form.layout.flats(self._gradient) if form.flat else []
        self._gradient_views = form.layout.views(self._gradient) if form.flat else []
        self._dense = Gathered([*self._gradient_views], self._flat_gradients, whole=True)  # what most updates gather
        self._in_slots: dict[int, Gathered] = {}  # likewise, by the slot's id
        self._rooms, self._flat_rooms = _rooms(form.layout, races)
        written = plan.written
        self._sharded = ShardedStep(form, plan.shards, written, plan.decay) if plan.shards and written else None
        self._table = lr_schedule if isinstance(lr_schedule, RateTable) else None
        self._schedule = None if isinstance(lr_schedule, RateTable) else lr_schedule
        trained = {id(parameter) for parameter in parameters}
        others = [(name, own) for name, own in named if id(own) not in trained]
        self._untrained = Untrained(self._by_tensor, others)
        self._rates = [group["lr"] for group in self._by_tensor.param_groups] if lr_schedule or plan.rates else []

    def gather_shared(self, tensors: Sequence[Tensor], flats: Sequence[Tensor]) -> Gathered:
        """Gradients that others write to meanwhile. An adaptive optimizer steps by the gradient that it has squared, so
        it is given a copy; others what is there."""
        if not self._plan.adaptive:
            return Gathered(list(tensors), flats if self._form.flat else [])
        return self.gather(tensors) if self._form.flat else self._gathered(tensors, copies=True)

    def gather(self, gradients: Sequence[Tensor | None]) -> Gathered:
        """The gradients in private memory of this worker, each with the strides of its parameter.

        What autograd returns may alias another gradient, be expanded or belong to the user. It is copied where it is
        written to, by clipping or by a step that is not ours; what this returns is good until the next call.
        """
        if not self._form.flat:
            return self._gathered(gradients, copies=self.clips or self._plan.written is None)
        if not _all_dense(gradients):
            return Gathered(_fill(self._gradient_views, gradients), self._flat_gradients)
        torch._foreach_copy_(self._gradient_views, cast("list[Tensor]", gradients))
        return self._dense

    def _gathered(self, gradients: Sequence[Tensor | None], *, copies: bool) -> Gathered:
        """Each gradient: a sparse one as it is, or one of the plan's rows alone, any other with its parameter's
        strides; copies of them, where they are written to.

        What autograd or the user gave may be kept by the user, or be a parameter itself.
        """
        rows, owned = self._plan.rows, list(gradients)
        for i, (gradient, parameter) in enumerate(zip(gradients, self._parameters, strict=True)):
            if gradient is not None and gradient.is_sparse and (rows is None or i in rows):
                owned[i] = gradient.clone() if copies else gradient
            elif gradient is not None and (copies or gradient.is_sparse or gradient.stride() != parameter.stride()):
                owned[i] = self._copies[i].copy_of(gradient, parameter.stride())
        return Gathered(owned, [])

    def gather_into(self, slot: GradientSlot, gradients: Sequence[Tensor | None]) -> Gathered:
        """The gradients in a slot of shared memory; of sparse ones, where the slot takes their rows, copies as they
        are."""
        if not slot.holds_all or not _all_dense(gradients):
            tensors = _fill(slot.tensors, gradients, slot.takes_rows)
            return Gathered(tensors, slot.flats if self._form.flat else [])
        torch._foreach_copy_(slot.tensors, cast("list[Tensor]", gradients))
        return self.whole_in(slot)

    def gather_beside(self, slot: GradientSlot, gradients: Sequence[Tensor | None]) -> Gathered:
        """What `gather_into` would put there, in memory of its own."""
        return Gathered(_fill([torch.empty_like(t) for t in slot.tensors], gradients, slot.takes_rows), [])

    def factor(self, update: int) -> float:
        """The factor on learning rates at that update; 1 where no function is asked for one."""
        return factor_of(self._schedule, update) if self._schedule is not None else 1.0

    def whole_in(self, slot: GradientSlot) -> Gathered:
        """All of a slot, where every parameter has a dense gradient in it: one object for each slot."""
        gathered = self._in_slots.get(id(slot))
        if gathered is None:
            flats = slot.flats if self._form.flat else []
            gathered = self._in_slots[id(slot)] = Gathered([*slot.tensors], flats, whole=True)
        return gathered

    def waiting_in(self, slot: GradientSlot) -> Gathered:
        """What `gather_into` put there. A step of torch's, which might write to it, is given a copy."""
        if self._plan.written is None:
            return self.gather(slot.gradients())
        if slot.words[slot.WHOLE]:
            return self.whole_in(slot)
        return Gathered(slot.gradients(), slot.flats if self._form.flat else [])

    def advance_shard(
        self,
        shard: int,
        update: int,
        parts: Sequence[GradientSlot],
        old: Slot,
        new: Slot,
        before: OptimizerState,
        after: OptimizerState,
    ) -> None:
        """`advance` in one shard, by the mean of gradients that lie whole in slots."""
        assert self._sharded is not None
        self._set_options(update)
        self._sharded.advance(shard, self._by_tensor.param_groups, parts, old, new, before, after)

    def advance(
        self, update: int, gradients: Gathered, old: Slot, new: Slot, before: OptimizerState, after: OptimizerState
    ) -> None:
        """Make parameters and state of the next version out of those of the newest, which stay as they are."""
        whole = self._whole(gradients, before)
        all_new = all(whole) if self._form.flat else gradients.dense
        if self._plan.written is None or not all_new:
            after.copy_from(before)
            new.copy_parameters(old)
            self.rest(new, after)
            self.step(update, gradients, new, after)
            return
        self._set_options(update)
        after.started[:] = before.started
        after.ragged[:] = before.ragged
        self._write(whole, gradients, old, new, before, after)
        self._average(new, before, after)

    def rest(self, new: Slot, after: OptimizerState) -> None:
        """Predict of parameters and state that were copied that they stay where they are."""
        if self._form.holds_parameters:
            for target, value in zip(new.parameters, after.parameters(), strict=True):
                target.copy_(value)

    def step(self, update: int, gradients: Gathered, slot: Slot, state: OptimizerState) -> None:
        """Step the parameters in a slot in place; `update` decides the learning rate."""
        self._set_options(update)
        whole = self._whole(gradients, state)
        if self._plan.written is not None and (self._plan.by_row or not gradients.sparse):
            self._write(whole, gradients, slot, slot, state, state)
        else:
            if any(whole):
                self._step_ranges(whole, gradients, slot.flats, state)
            if not all(whole):
                self._step_tensors(whole, gradients, slot.parameters, state)
        self._average(slot, state, state)

    def _average(self, slot: Slot, before: OptimizerState, after: OptimizerState) -> None:
        """Take all parameters, as they were stepped, into the moving average, if one is kept."""
        decay = self._plan.decay
        if decay is None:
            return
        for number, span in enumerate(self._form.layout.ranges):
            pieces = [(before.tensors[i], slot.parameters[i], after.tensors[i]) for i in span.members]
            if span.dtype in FLAT_DTYPES:
                pieces = [(before.flats[number], slot.flats[number], after.flats[number])]
            for old, shown, new in pieces:  # the slot may hold what is predicted
                torch.lerp(old[AVERAGE], new.get(PARAMETER, shown), 1 - decay, out=new[AVERAGE])

    def _whole(self, gradients: Gathered, state: OptimizerState) -> list[bool]:
        """Which ranges are stepped as one tensor."""
        if gradients.whole and gradients.flats:
            return [not ragged for ragged in state.ragged]
        ragged, tensors, flat = state.ragged, gradients.tensors, bool(gradients.flats)
        return [
            flat and not ragged[number] and not any(tensors[i] is None for i in span.members)
            for number, span in enumerate(self._form.layout.ranges)
        ]

    def _write(
        self,
        whole: Sequence[bool],
        gradients: Gathered,
        old: Slot,
        new: Slot,
        before: OptimizerState,
        after: OptimizerState,
    ) -> None:
        """Step from one slot and state copy into another, or into the same."""
        written = self._plan.written
        assert written is not None
        for number, span in enumerate(self._form.layout.ranges):
            options, step = self._by_tensor.param_groups[span.group], written[span.group]
            if whole[number]:
                begun = bool(before.started[span.members[0]])
                source, target, gradient = old.flats[number], new.flats[number], gradients.flats[number]
                states = before.flats[number], after.flats[number]
                step(options, source, gradient, *states, target, self._flat_rooms[number], begun)
                if not begun:
                    after.begin(span.members)
                continue
            after.make_ragged(number)
            for i in span.members:
                own = gradients.tensors[i]
                if own is not None:
                    source, target, states = old.parameters[i], new.parameters[i], (before.tensors[i], after.tensors[i])
                    step(options, source, own, *states, target, self._rooms[i], bool(before.started[i]))
                    after.begin([i])

    def rates(self, update: int) -> list[float]:
        """The learning rate of each trained parameter, in layout order, at that update."""
        self._set_options(update)
        return [self._by_tensor.param_groups[number]["lr"] for number in self._group]

    def _set_options(self, update: int) -> None:
        compensation = self._plan.compensation
        if compensation is not None:
            compensation.set_for(update, self._by_tensor)
            compensation.set_for(update, self._by_range)
        if not self._rates:
            return
        later = [rate for begin, rate in self._plan.rates if begin <= update]
        scales = compensation.scales if compensation is not None else (1.0,) * len(self._rates)
        rates = [later[-1] * scale for scale in scales] if later else self._rates
        if self._schedule is not None:
            factor = factor_of(self._schedule, update)
            rates = [rate * factor for rate in rates]
        if self._table is not None:
            rates = [rate * scale for rate, scale in zip(self._table.at(update), scales, strict=True)]
        rates = [as_given(rate, given) for rate, given in zip(rates, self._rates, strict=True)]
        for optimizer in (self._by_tensor, self._by_range):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def _step_ranges(
        self, whole: Sequence[bool], gradients: Gathered, flats: Sequence[Tensor], state: OptimizerState
    ) -> None:
        optimizer = self._by_range
        for number, span in enumerate(self._form.layout.ranges):
            parameter = self._flat_parameters[number]
            parameter.grad = None
            if whole[number]:
                first = span.members[0]
                parameter.data = flats[number]
                parameter.grad = gradients.flats[number]
                bind_state(optimizer, parameter, state.flats[number], self._form.cells[first], state.started[first])
        optimizer.step()
        for number, span in enumerate(self._form.layout.ranges):
            if whole[number]:
                keep_state(optimizer, self._flat_parameters[number], state.flats[number])
                if not state.started[span.members[0]]:
                    state.begin(span.members)

    def _step_tensors(
        self, whole: Sequence[bool], gradients: Gathered, views: Sequence[Tensor], state: OptimizerState
    ) -> None:
        held: list[int] = []
        for number, span in enumerate(self._form.layout.ranges):
            if not whole[number]:
                state.make_ragged(number)
                held.extend(span.members)
        optimizer = self._by_tensor
        for i in held:  # those without a gradient too, which a step or a hook of the user's may change
            parameter = self._parameters[i]
            parameter.data = views[i]
            parameter.grad = gradients.tensors[i]
            bind_state(optimizer, parameter, state.tensors[i], self._form.cells[i], state.started[i])
        with options_kept(optimizer), self._untrained.left_alone():
            optimizer.step()
        for i in held:
            parameter = self._parameters[i]
            bring_home(optimizer, parameter, views[i])
            if gradients.tensors[i] is not None or optimizer.state.get(parameter):
                keep_state(optimizer, parameter, state.tensors[i])
                state.started[i] = 1
            parameter.grad = None


def _all_dense(gradients: Sequence[Tensor | None]) -> bool:
    return not [g for g in gradients if g is None or g.is_sparse]  # once an update; any() takes as long as the copy


def _fill(
    views: Sequence[Tensor], gradients: Sequence[Tensor | None], keeps: Callable[[int, Tensor], bool] | None = None
) -> list[Tensor | None]:
    """Gradients of which some are missing or sparse, made dense in the views; copies as they are of those that `keeps`
    says so of."""
    tensors: list[Tensor | None] = []
    for i, (view, gradient) in enumerate(zip(views, gradients, strict=True)):
        if gradient is None:
            view.zero_()
        elif keeps is not None and keeps(i, gradient):
            gradient = gradient.clone()
        else:
            gradient = view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
        tensors.append(gradient)
    return tensors


def _rooms(layout: Layout, races: bool) -> tuple[list[Rooms], list[Rooms]]:
    """Per tensor and per range of a layout, private memory of that form; the same for all, for one is stepped at a
    time."""
    pieces: list[Entry | Range] = [*layout.entries, *layout.ranges]
    largest = aligned(max((piece.numel * piece.dtype.itemsize for piece in pieces), default=0))
    memory = torch.empty(ROOMS * largest, dtype=torch.uint8)  # no page of it exists before it is used

    def flats(piece: Entry | Range) -> list[Tensor]:
        nbytes = piece.numel * piece.dtype.itemsize
        return [memory[i * largest : i * largest + nbytes].view(piece.dtype) for i in range(ROOMS)]

    tensors = [Rooms([flat.as_strided(e.shape, e.stride) for flat in flats(e)], races) for e in layout.entries]
    return tensors, [Rooms(flats(span), races) for span in layout.ranges]
