"""What `ordered` and `sync` share: gradients wait in shared memory, and versions are made of them by anyone.

    ticket u M + m    wait for version u − τ → gradient of a micro-batch on that version → gradient slot of the ticket
    any worker        all M gradients of update `head` are there → version head + 1 → head = head + 1
    short cut         M = 1 and u is `head` already: its worker makes version u + 1 at once. No stamp is set, so nobody
                      else can make that version, and no lock is needed

    ring of τ + 2 slots    … │ u − τ │ … │ u − 1 │  u  │ u + 1 │      slot of version v: v mod (τ + 2)
                               read by update u      newest  being written, over a version that no update reads from
                                                             the newest on
    gradient slots         (τ + 1) M, that of ticket uM + m at (u mod (τ + 1)) M + m: free for update u once version
                           u − τ is there, for update u − τ − 1 made it; twice as many where several machines train,
                           for one may be τ updates ahead of another

A version is made under one lock. A worker tries the lock and does not wait for it. Where others would be idle meanwhile
the version is made in shards first, by several workers (`hogwild.rules.in_shards`); the worker that finds all shards
stepped does the rest.

Invariants, whichever worker is fast, slow or killed:
  - Version u + 1 is a function of version u, of the optimizer's state at u, and of gradients computed on version
    max(0, u − τ) from the update's own batches. None of them depends on which worker computed it, or made which shard.
  - A gradient is stamped as there once it is written whole. Before that, the gradient of a worker that died is computed
    again.
  - Nobody writes the slot, the state and the gradients of the newest version. So a next version that was left half done
    is done again. The head moves last, by one store.
  - No gradient is left lying because the lock was taken. A worker stamps its gradient first and tries the lock after
    that; the holder of the lock lets it go first and looks for gradients after that. Between the two steps of either
    lies a system call or a locked instruction (a worker that ends has claimed a ticket in vain between them). So on
    every processor at least one of the two sees the other's step. Where the holder dies before it looks, a worker that
    waits for a version looks, or the last worker before it ends, or the worker that replaces the dead one.

What does not hold: the model is τ updates older where a gradient is computed than where it is applied
(Langford et al. 2009). That costs accuracy as τ and the momentum grow (Mitliagkas et al. 2016).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum
from typing import ClassVar

import torch
from torch import Tensor, nn

from hogwild.optim.gradients import Gathered, added_in_order, mean_gradient
from hogwild.rules.base import Gradient, Seat
from hogwild.rules.gradients import fitting
from hogwild.rules.in_shards import InShards
from hogwild.rules.rechecks import Rechecks, unequal_losses, unequal_tensors
from hogwild.shared.gradient_ring import GradientRing
from hogwild.shared.gradient_slots import GradientSlot
from hogwild.shared.state import Needs, SharedState
from hogwild.shared.tickets import Settled, Ticket
from hogwild.shared.words import Field, Hook, Phase, Word


class _For(Enum):
    """What a gradient is prepared for."""

    SLOT = "to wait in its slot"
    STEP = "to be applied at once"
    LOOK = "to be compared with the one in its slot"


class Combining(InShards):
    """A rule whose update u is made of `tickets_per_update` gradients on version u − `staleness`."""

    combines: ClassVar[bool] = True
    same_bits: ClassVar[bool] = True
    staleness: int
    _purpose = _For.SLOT

    def needs(self, workers: int) -> Needs:  # noqa: ARG002
        """τ + 2 versions, two copies of the optimizer's state, and gradients of τ + 1 updates, for any workers; of
        tables what the last τ + 1 updates overwrote."""
        waiting = (self.staleness + 1) * self.tickets_per_update
        return Needs(slots=self.staleness + 2, state_copies=2, gradients=waiting, logs=self.staleness + 1)

    def attach(self, seat: Seat) -> None:
        """Versions are made in shards unless their gradients have to be seen whole before."""
        super().attach(seat)
        members = self.tickets_per_update
        self._ring = GradientRing(self.control, self.state.gradients, members)
        self._slot, self._sets = self._ring.slot, self._ring.sets
        self._several = self.control.dealing.several
        dense_where_laid = self.dense_gradients  # so each has to be laid there
        self._at_once = members == 1 and not dense_where_laid and not self._several
        self._keeps_more = seat.audited or bool(self.state.slots[0].buffers)  # than parameters and their state
        self._rung = 0  # about the version at which this worker last rang for the courier
        self._number = self.control.numbers[seat.index]
        self.control.is_there = self._ring.is_there
        self.set_shards(len(self.state.shard_versions) if members == 1 or not seat.clips else 0)
        halves = any(entry.dtype is torch.float16 for entry in self.state.plan.parameters.entries)  # never in shards
        self._mean_may_overflow = members > 1 and halves
        if seat.chosen is not None:
            self.rechecks = Rechecks(
                seat.chosen,
                self.control,
                seat.index,
                self._slot,
                number=self._number,
                staleness=self.staleness,
                per_update=members,
            )

    def detach(self) -> None:
        """Let go of the gradients too."""
        del self.control.is_there
        super().detach()
        self.rechecks = None
        del self._sets, self._slot, self._ring

    def ticket(self, number: int, total: int) -> Ticket:
        """A micro-batch: update u is made of those numbered uM to uM + M − 1, or to the last of the run."""
        update = number // self.tickets_per_update
        return Ticket(number, update, number, share=1.0 / max(1, self._members(update, total)))

    def ready(self, ticket: Ticket) -> bool:
        """Version u − τ exists. Whoever looks in vain makes what versions can be made."""
        needed = self.awaits(ticket)
        if self.control.observe(Word.HEAD) < needed:
            self.combine()
            if self.control.observe(Word.HEAD) < needed:
                return False
        # and what lay in this ticket's slot before has been taken to be sent to other machines
        return not self._several or self.control.observe(Word.SENT) > ticket - len(self.state.gradients)

    def awaits(self, ticket: Ticket) -> int:
        """Version u − τ."""
        return ticket.update - self.staleness

    def read(self, ticket: Ticket) -> nn.Module:
        """The replica on version max(0, u − τ)."""
        version = self._read_by(ticket.update)
        return self.replica_at(version, self.place(version))

    def commit(self, ticket: Ticket, gradient: Gradient) -> bool:
        """Apply the gradient if its turn has come, else lay it where it waits, and make what versions can be made."""
        if not self._apply_at_once(ticket, gradient):
            self._store(ticket, gradient)
        self.combine()
        self.control.ring()  # last, for the courier, which listens, may be given this core
        return True

    def over(self) -> bool:
        """True unless gradients of other machines are still to come, and versions to be made of them."""
        if not self._several or self.control[Word.STOP]:
            return True
        self.combine()
        return self.control.observe(Word.HEAD) * self.tickets_per_update >= self.control[Word.TOTAL]

    def close(self) -> None:
        """Make the last version, should the worker that was about to have died."""
        self.combine()

    def prepare(self, ticket: Ticket, gradient: Gradient) -> Gathered | None:
        """Gather the gradient where `_purpose` wants it, check it, and clip it where it is the whole of its update.

        None where it is to wait and is not finite: it is left out, or an error, when its turn comes.
        """
        purpose, optimizer = self._purpose, self.seat.optimizer
        if room := self.state.plan.sparse:
            gradient.values = fitting(gradient.values, room)
        if purpose is _For.STEP:
            return super().prepare(ticket, gradient)
        slot = self._slot(ticket)
        gather = optimizer.gather_into if purpose is _For.SLOT else optimizer.gather_beside
        gathered = gather(slot, gradient.values)
        if purpose is _For.SLOT and not self.seat.finite(ticket.update, gradient.loss, gathered):
            slot.words[slot.STATUS] = slot.NOT_FINITE
            return None
        if self.tickets_per_update == 1:
            self.seat.clip(ticket.update, gathered)
        return gathered

    def _apply_at_once(self, ticket: Ticket, gradient: Gradient) -> bool:
        """Make a version of a gradient whose turn has come, without laying it in its slot. False: it has not come.

        The gradient is not stamped, so nobody else can make that version or move the head. So no lock is needed.
        """
        update, seat = ticket.update, self.seat
        if not self._at_once or self.control.observe(Word.HEAD) != update or not self._is_checked(update):
            return False
        if update >= self.control[Word.TOTAL]:  # the run was stopped at this version
            return True
        gathered = self._prepared(ticket, gradient, _For.STEP)
        source, target = self.place(update), self.place(update + 1)
        self.write_version(update, update, source, target, gathered)
        if gathered is not None and self._keeps_more:
            self.write_buffers(gradient.version == update, source, target)
            seat.enter(update, gathered.tensors, 1.0)
        self._publish(update, self._number, gradient.version, gradient.loss)
        return True

    def _store(self, ticket: Ticket, gradient: Gradient) -> None:
        """Write the gradient, then say that it is there."""
        seat, slot = self.seat, self._slot(ticket)
        words = slot.words
        seat.pause(Hook.WRITING)
        words[slot.STATUS] = slot.LEFT_OUT  # unless what follows says otherwise
        gathered = self.prepare(ticket, gradient)
        if gathered is not None:
            slot.hold(gathered.tensors, whole=gathered is seat.optimizer.whole_in(slot))
            words[slot.STATUS] = slot.USABLE
        for target, value in zip(slot.buffers, seat.binding.changed_buffers(), strict=True):
            target.copy_(value)
        self._stamp(ticket, gradient.loss, gradient.version)

    def _stamp(self, ticket: Ticket, loss: float, version: int) -> None:
        """Stamp the slot of that ticket: what lies in it is whole, and anyone may use it."""
        slot = self._slot(ticket)
        words = slot.words
        slot.loss = loss
        if self.rechecks is not None and self.rechecks.holds(ticket):
            slot.factor = self.seat.optimizer.factor(ticket.update)
        words[slot.WORKER], words[slot.VERSION] = self._number, version
        with self.control.ordering():
            words[slot.STAMP] = ticket.update + 1
        self._rung = ticket.update

    def _prepared(self, ticket: Ticket, gradient: Gradient, purpose: _For) -> Gathered | None:
        """The gradient, prepared for another purpose than to wait in its slot."""
        self._purpose = purpose
        try:
            return self.prepare(ticket, gradient)
        finally:
            self._purpose = _For.SLOT

    # --- what is computed a second time

    def _is_checked(self, update: int) -> bool:
        """True where that update, whose turn it is, may be applied: no second computation of it is still missing."""
        return self.rechecks is None or self.rechecks.passed(update)

    def compare(self, ticket: Ticket, gradient: Gradient) -> str | None:
        """What differs between a second computation and the gradient that waits, in words; None where nothing does."""
        slot, optimizer = self._slot(ticket), self.seat.optimizer
        found = unequal_losses(slot.loss, gradient.loss)
        if found is None and slot.factor != (factor := optimizer.factor(ticket.update)):
            found = f"factor of lr_schedule ({slot.factor!r} and {factor!r})"
        if found is not None or slot.words[slot.STATUS] not in (slot.USABLE, slot.TRAINED):
            return found
        again = self._prepared(ticket, gradient, _For.LOOK)
        names = [entry.name for entry in self.state.plan.parameters.entries]
        tensors = again.tensors if again is not None else [None] * len(names)
        return unequal_tensors("gradient", names, slot.gradients(), tensors)

    def worker_of(self, ticket: Ticket) -> int:
        """Who computed the gradient that waits."""
        return self._slot(ticket).words[GradientSlot.WORKER]

    # --- what waits

    def _members(self, update: int, total: int) -> int:
        """Micro-batches of that update: M, or what is left at the end of a run of so many; 0 or less beyond it."""
        return min(self.tickets_per_update, total - update * self.tickets_per_update)

    def _read_by(self, update: int) -> int:
        return max(0, update - self.staleness)

    def _waiting(self, update: int) -> Sequence[GradientSlot]:
        """The gradients of that update once all are there; else nothing."""
        slots, says = self._sets[update % len(self._sets)], self.control.says
        if not says(slots[0].words, GradientSlot.STAMP, update + 1):  # mostly, and nothing more is looked at then
            return ()
        members = self._members(update, self.control[Word.TOTAL])
        slots = slots if members >= len(slots) else slots[: max(0, members)]
        there = [slot for slot in slots[1:] if says(slot.words, GradientSlot.STAMP, update + 1)]
        return slots if len(there) + 1 == len(slots) and self._is_checked(update) else ()

    # --- versions

    def combine(self) -> None:
        """Make every version that can be made, together with other workers. Return when the next one has no gradients
        yet, or other workers are at all that is left of it."""
        while (parts := self._waiting(version := self.control.observe(Word.HEAD))) and self._work_on(version, parts):
            pass

    def _work_on(self, version: int, parts: Sequence[GradientSlot]) -> bool:
        """Do one piece of the work that makes the version after this one. False: other workers are at all of it."""
        if self._is_shared(version) and (left := self._unstepped(version)):
            return any(self._step_shard(shard, version, parts) for shard in self._in_own_order(left))
        return self._complete(version)

    def _complete(self, version: int) -> bool:
        """Make the version after this one, or what its shards leave to be done, and publish it. False: another worker
        has the lock."""
        lock = self.control.commit_lock
        if not lock.acquire(blocking=False):
            return False
        try:
            if self.control.observe(Word.HEAD) == version and (parts := self._waiting(version)):
                if self._leaves_to_all(version, parts):
                    return True
                self._make_version(version, parts)
        finally:
            lock.release()
        if self._several and version - self._rung >= self._ring.told_every:
            self._rung = version
            self.control.ring()
        return True

    def _make_version(self, version: int, parts: Sequence[GradientSlot]) -> None:
        seat, source, target = self.seat, self.place(version), self.place(version + 1)
        if applied := self._is_shared(version):
            self.give_up_if_aborted()
        else:
            gathered = self._gathered(version, parts)
            self.write_version(version, version, source, target, gathered)
            applied = gathered is not None
        if applied:
            self._commit_buffers(version, parts)
            for part in parts if seat.audited else ():
                seat.enter(version, part.gradients(), 1.0 / len(parts))
        loss = added_in_order([part.loss for part in parts]) / len(parts)
        words = parts[-1].words
        self._publish(version, words[GradientSlot.WORKER], words[GradientSlot.VERSION], loss)

    def _publish(self, version: int, worker: int, read: int, loss: float) -> None:
        """Publish the version after this one, which is complete."""
        seat, control = self.seat, self.control
        if self.averaging is not None:
            self.averaging.whole(version + 1, self.place(version + 1))
        self.state.journal.write(version, version, worker, read, version + 1, loss)
        seat.observe(version + 1, self.place(version + 1))
        seat.pause(Hook.PUBLISHING)
        self.publish(version + 1)
        control.alarms.wake(version + 1)
        control.row(seat.index)[Field.ENDED] = time.monotonic_ns()
        seat.pause(Hook.PUBLISHED)

    def _gathered(self, update: int, parts: Sequence[GradientSlot]) -> Gathered | None:
        """The gradient of an update; None where the update is left out, as when a part of it is not finite."""
        for m, part in enumerate(parts):
            if part.words[part.STATUS] == part.NOT_FINITE:
                self._skip(update, m, part, part.loss)
        if any(part.words[part.STATUS] != part.USABLE for part in parts):
            return None
        optimizer = self.seat.optimizer
        if self.tickets_per_update == 1:
            return optimizer.waiting_in(parts[0])
        gradients = [part.gradients() for part in parts]
        mean = optimizer.gather([mean_gradient(own) for own in zip(*gradients, strict=True)])
        if self._mean_may_overflow and not self.seat.finite(update, 0.0, mean):
            self._skip(update, 0, parts[0], 0.0)
            return None
        self.seat.clip(update, mean)
        return mean

    def _skip(self, update: int, m: int, part: GradientSlot, loss: float) -> None:
        """Leave out an update because of its m-th gradient, or of their mean."""
        ticket = self.deal(update * self.tickets_per_update + m, self.control[Word.TOTAL])
        self.seat.skip(ticket, loss, part.words[part.WORKER])

    def _commit_buffers(self, version: int, parts: Sequence[GradientSlot]) -> None:
        """Commit the buffers of each forward pass, in order. Those of a pass on the newest version itself are taken as
        they are; others are moved onto the newest."""
        read = self._read_by(version)
        before, base = (self.state.slots[self.place(v)].buffers for v in (read, version))
        newest: Sequence[Tensor] = base
        for number, part in enumerate(parts):
            unchanged = read == version and number == 0
            newest = part.buffers if unchanged else self.seat.binding.rebase(before, part.buffers, newest)
        for target, value in zip(self.state.slots[self.place(version + 1)].buffers, newest, strict=True):
            target.copy_(value)

    # --- what the parent asks

    def settle(self, state: SharedState, ticket: int, phase: Phase) -> Settled:  # noqa: ARG002
        """A ticket is done once its gradient waits, or its version is published."""
        ring = GradientRing(state.control, state.gradients, self.tickets_per_update)
        return Settled.DONE if ring.is_there(ticket) else Settled.AGAIN

    def newest(self, state: SharedState) -> tuple[int, int]:
        """The head."""
        version = state.control.observe(Word.HEAD)
        return version, self.place(version)

    def place(self, version: int) -> int:
        """Its slot in the ring."""
        return version % (self.staleness + 2)

    def window(self, version: int) -> range:
        """Versions v − τ to v."""
        return range(max(0, version - self.staleness), version + 1)
