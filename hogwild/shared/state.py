"""What the workers of a run share: slots, frozen parameters, optimizer state, gradients, control and journal.

    arena   ┌─────────┬─────────┬────────┬────────┬─────┬────────┬───────────────────┐
            │ control │ journal │ slot 0 │ slot 1 │ ... │ frozen │ optimizer state …  │
            └─────────┴─────────┴────────┴────────┴─────┴────────┴───────────────────┘

A `StatePlan` says where each lies and travels to the workers; `SharedState` is the same, opened in one process.

Legend: K slots, P parameters, M gradients held at a time (racing: one; ordered and sync: those that wait).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor

from hogwild.shared.arena import ALIGNMENT, Arena, Space
from hogwild.shared.bell import Bell
from hogwild.shared.copying import copy_all
from hogwild.shared.dealing import Dealing
from hogwild.shared.exchange import Exchange
from hogwild.shared.gradient_slots import GradientSlot
from hogwild.shared.journal import ROW, Journal, seal_bytes
from hogwild.shared.layout import Block, Layout
from hogwild.shared.mutex import Mutex
from hogwild.shared.optimizer_state import PARAMETER, OptimizerState, StateForm
from hogwild.shared.process_locks import ProcessLocks
from hogwild.shared.shards import Shard
from hogwild.shared.slots import Slot
from hogwild.shared.tables import RowTable, forms_of
from hogwild.shared.tickets import ALONE, Control
from hogwild.shared.totals import Totals


@dataclass(frozen=True)
class Needs:
    """What a rule needs of shared memory.

    Attributes:
        slots: full copies of the model (K).
        state_copies: copies of the optimizer's state.
        gradients: gradients that are held at a time (M).
        logs: versions of a table that a reader can go back, because what they overwrote is logged. 0: tables are not
            logged, and lie in the slots.
    """

    slots: int = 1
    state_copies: int = 1
    gradients: int = 0
    logs: int = 0


@dataclass(frozen=True)
class _Offsets:
    control: int
    journal: int
    seals: int
    slots: tuple[int, ...]
    constants: int
    states: tuple[int, ...]
    gradients: tuple[int, ...]
    audit: int
    average: int
    tables: tuple[int, ...]
    shards: int
    locks: int
    exchange: int
    nbytes: int
    used: int


@dataclass(frozen=True)
class StatePlan:
    """Where everything lies in the arena, and what it is called.

    Attributes:
        workers: of this machine.
        spares: places for tickets that are to be computed again.
        rows: updates that the journal can hold.
        digest_every: versions between two whose bits the journal notes.
        parameters, constants, buffers: layouts of the trained parameters, of the others, and of the buffers.
        names: entry of the model's state dict → ("parameter", "constant" or "buffer", position in its layout).
        optimizer: what the optimizer keeps for each parameter.
        needs: what the rule needs of shared memory.
        audited: there are accounts of the gradient.
        tables: positions of the parameters that are kept by rows. They lie in no slot.
        sparse: position of a parameter that may get sparse gradients → rows that one may name. In a gradient that names
            more, rows that come twice are added up first.
        shards: the pieces in which several workers make a version together; empty where one worker makes it.
        dealing: which machine computes what, and whether machines average.
        mutexes: the locks that processes take lie in the arena.
    """

    workers: int
    spares: int
    rows: int
    digest_every: int
    parameters: Layout
    constants: Layout
    buffers: Layout
    names: dict[str, tuple[str, int]]
    optimizer: StateForm
    needs: Needs
    audited: bool = False
    tables: tuple[int, ...] = ()
    sparse: Mapping[int, int] = field(default_factory=dict)
    shards: tuple[Shard, ...] = ()
    dealing: Dealing = ALONE
    mutexes: bool = field(default_factory=lambda: Mutex.works())

    @cached_property
    def in_slots(self) -> Layout:
        """The layout of the parameters in a slot."""
        return self.parameters.without(self.tables) if self.tables else self.parameters

    @cached_property
    def trained_names(self) -> list[str]:
        """The names of the trained parameters, in layout order."""
        return [entry.name for entry in self.parameters.entries]

    @property
    def averaged(self) -> tuple[Layout, int, Layout]:
        """What machines average: parameters, how many tensors there are of each, and buffers."""
        form = self.optimizer
        return self.in_slots, 1 + form.holds_parameters + form.averaged, self.buffers

    @cached_property
    def offsets(self) -> _Offsets:
        """Where each piece starts; first asked for by the parent, before there are threads to share it."""
        space = Space()
        slot = self.in_slots.nbytes + self.buffers.nbytes
        observed = self.parameters.nbytes + self.buffers.nbytes
        state = OptimizerState.size(self.optimizer)
        gradient = GradientSlot.size(self.in_slots, self.buffers, self.parameters.entries, self.sparse)
        tables = [
            RowTable.size(form, self.needs.logs) for form in forms_of(self.parameters.entries, self.optimizer).values()
        ]
        return _Offsets(
            control=Control.reserve(space, self.workers, self.spares, self.dealing),
            journal=space.reserve(self.rows * ROW.itemsize),
            seals=space.reserve(seal_bytes(len(self.names)) * (self.rows // self.digest_every)),
            slots=tuple(space.reserve(size) for size in [slot] * self.needs.slots + [observed]),
            constants=space.reserve(self.constants.nbytes),
            states=tuple(space.reserve(state) for _ in range(self.needs.state_copies)),
            gradients=tuple(space.reserve(*gradient) for _ in range(self.needs.gradients)),
            audit=space.reserve(Totals.size(self.parameters) if self.audited else 0),
            average=space.reserve(self.parameters.nbytes if self.optimizer.averaged else 0),
            tables=tuple(space.reserve(*table) for table in tables),
            shards=space.reserve(ALIGNMENT * len(self.shards)),
            locks=ProcessLocks.reserve(space, len(self.shards)),
            exchange=space.reserve(Exchange.size(*self.averaged) if self.dealing.averages is not None else 0),
            nbytes=space.nbytes,
            used=space.used,
        )


class SharedState:
    """The shared state of a run, opened in one process.

    Attributes:
        control, journal: the counters, tickets and rows of the workers; one row per update.
        slots: the versions of the model, as many as the rule needs.
        observed, observed_average: one more slot, into which a version is copied for the parent to evaluate, and its
            moving average, where one is kept.
        tables: the parameters that are kept by rows, by position.
        constants: the parameters that are not trained.
        optimizer_states, gradients: as many as the rule needs.
        shard_versions: `shard_versions[s][0]` is the version that shard s is at, where versions are made in shards.
        locks: those that processes take.
        audit: the accounts of the gradient; None where none are kept.
        exchange: the values that machines average; None where they do not.
    """

    def __init__(self, plan: StatePlan, arena: Arena) -> None:
        self.plan = plan
        self.arena = arena
        at = plan.offsets
        self.control = Control(arena, at.control, plan.workers, plan.spares, plan.dealing)
        self.journal = Journal(arena, at.journal, plan.rows, at.seals, plan.digest_every, len(plan.names))
        self.slots = [Slot(plan.in_slots, plan.buffers, arena, offset) for offset in at.slots[:-1]]
        self.observed = Slot(plan.parameters, plan.buffers, arena, at.slots[-1])
        forms = forms_of(plan.parameters.entries, plan.optimizer)
        self.tables = {
            i: RowTable(form, plan.needs.logs, arena, offset, self.control.ordering)
            for (i, form), offset in zip(forms.items(), at.tables, strict=True)
        }
        for slot in self.slots:
            for i, table in self.tables.items():
                slot.parameters[i] = table.columns[PARAMETER]
        averaged = plan.optimizer.averaged
        self.observed_average = plan.parameters.views(Block.shared(arena, at.average)) if averaged else []
        self.constants = plan.constants.views(Block.shared(arena, at.constants))
        self.optimizer_states = [OptimizerState(plan.optimizer, arena, offset) for offset in at.states]
        self.gradients = [
            GradientSlot(plan.in_slots, plan.buffers, plan.parameters.entries, plan.sparse, arena, offset)
            for offset in at.gradients
        ]
        self.shard_versions = [arena.words(at.shards + ALIGNMENT * shard, 1) for shard in range(len(plan.shards))]
        self.locks = ProcessLocks(arena, at.locks, len(plan.shards), mutexes=plan.mutexes)
        self.audit = Totals(plan.parameters, arena, at.audit) if plan.audited else None
        averages = plan.dealing.averages is not None
        self.exchange = Exchange(*plan.averaged, Block.shared(arena, at.exchange)) if averages else None
        self.exchanged = arena.bytes(at.exchange, Exchange.size(*plan.averaged) if averages else 0)

    @classmethod
    def create(cls, plan: StatePlan) -> SharedState:
        """A new arena for that plan.

        Raises:
            ArgumentError: there is not enough memory for it.
        """
        bell = Bell() if plan.dealing.several else None
        state = cls(plan, Arena(plan.offsets.nbytes, used=plan.offsets.used, bell=bell))
        state.locks.prepare()
        return state

    def map_in(self) -> None:
        """Map versions, optimizer state and gradients into this process, because every worker uses them soon.

        Gradients with room for sparse rows are left out, because most runs use little of that room.
        """
        plan, at = self.plan, self.plan.offsets
        self.arena.map_in(at.slots[0], at.slots[-1] - at.slots[0])
        self.arena.map_in(at.states[0], at.states[-1] + OptimizerState.size(plan.optimizer) - at.states[0])
        if at.gradients and not plan.sparse:
            size, _ = GradientSlot.size(plan.in_slots, plan.buffers, plan.parameters.entries, plan.sparse)
            self.arena.map_in(at.gradients[0], at.gradients[-1] + size - at.gradients[0])

    def prepare(
        self,
        parameters: Sequence[Tensor],
        constants: Sequence[Tensor],
        buffers: Sequence[Tensor],
        initial: Sequence[Mapping[str, Any]],
    ) -> None:
        """Write the initial model into slot 0 and the optimizer's initial state into its first copy."""
        for target, value in (
            *zip(self.slots[0].parameters, parameters, strict=True),
            *zip(self.slots[0].buffers, buffers, strict=True),
            *zip(self.constants, constants, strict=True),
        ):
            target.copy_(value.detach())
        self.optimizer_states[0].prepare(initial)
        if self.plan.optimizer.holds_parameters:
            copy_all(self.optimizer_states[0].parameters(), parameters)
        if self.plan.optimizer.averaged:
            copy_all(self.average(0), parameters)
        for i, table in self.tables.items():
            for key, value in initial[i].items():
                if key in table.columns:
                    table.columns[key].copy_(value)
        self.journal.prepare()

    def parameters(self, version: int, slot: int) -> list[Tensor]:
        """The parameters of a version that lies in that slot.

        Where the optimizer predicts weights, the slot holds the prediction that gradients are computed on, and the
        parameters themselves lie beside the optimizer's state.
        """
        if self.plan.optimizer.holds_parameters:
            return self.optimizer_states[version % len(self.optimizer_states)].parameters()
        return self.slots[slot].parameters

    def give_parameters(self, version: int, slot: int, targets: Sequence[Tensor]) -> None:
        """Copy the parameters of a version that lies in that slot. The next version may have been begun already: of
        tables, whose rows are written in place, the values at this version are taken."""
        for i, (target, value) in enumerate(zip(targets, self.parameters(version, slot), strict=True)):
            if i in self.tables:
                self.tables[i].copy_at(version, target)
            else:
                target.copy_(value)

    def average(self, version: int) -> list[Tensor]:
        """The moving average of each parameter at that version, the newest; none where none is kept."""
        return self.optimizer_states[version % len(self.optimizer_states)].average()

    def values(self, version: int, slot: int) -> list[Tensor]:
        """What machines average of a version that lies in that slot, in the order of `Exchange`."""
        predicted = self.slots[slot].parameters if self.plan.optimizer.holds_parameters else []
        own = [*self.parameters(version, slot), *predicted, *self.average(version)]
        return [*own, *self.slots[slot].buffers]

    def show(self, version: int, slot: int) -> None:
        """Copy a version that lies in that slot, and its moving average, to where the parent looks."""
        if self.tables:
            copy_all(self.observed.buffers, self.slots[slot].buffers)
        else:
            self.observed.copy_from(self.slots[slot])
        if self.tables or self.plan.optimizer.holds_parameters:
            copy_all(self.observed.parameters, self.parameters(version, slot))
        copy_all(self.observed_average, self.average(version))

    def state_dict(self, version: int, slot: int) -> dict[str, Tensor]:
        """The tensors of the model's state dict at a version that lies in that slot, as views."""
        places = {
            "parameter": self.parameters(version, slot),
            "buffer": self.slots[slot].buffers,
            "constant": self.constants,
        }
        return {name: places[kind][position] for name, (kind, position) in self.plan.names.items()}
