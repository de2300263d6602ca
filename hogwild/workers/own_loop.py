"""What a loop of the user's own did, looked at before anything of it is used: what it commits and what it wrote to.

A wrong form is an error and never another gradient, and a version that others read stays as it was made.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hogwild.errors import ArgumentError, HogwildError, a_type, one_line, some_of
from hogwild.model.row_parameter import RowParameter
from hogwild.optim.sparse import refuse_undeclared
from hogwild.rules.base import Rule
from hogwild.rules.registry import quoted, stepping_by_row
from hogwild.rules.row_gradients import listed_gradients, named_gradients
from hogwild.shared.state import StatePlan
from hogwild.shared.tickets import Ticket
from hogwild.shared.words import NOBODY, Word, Words
from hogwild.workers.late_buffers import LateBuffers
from hogwild.workers.worker_info import as_number

_FEWEST, _AGAIN = 8, 50  # gradients without, after which what was frozen once is not about to be again
_log = logging.getLogger("hogwild")

OfLoop = Sequence[Tensor | None] | Mapping[str, Any]
"""The gradients that a loop may commit: one for each trained parameter in order, or by name."""
LossTold = float | Tensor | None
NOT_GIVEN: Any = None  # a ticket or a gradient that was left out, and is refused in words


def as_ticket(given: object) -> Ticket:
    """A ticket as it is.

    Raises:
        ArgumentError: it is none.
    """
    if isinstance(given, Ticket):
        return given
    if given is NOT_GIVEN:
        raise ArgumentError("no ticket given; pass what claim() gave: read(ticket), commit(ticket, gradient, loss)")
    shown = f" {given!r}" if isinstance(given, int) else ""
    raise ArgumentError(f"ticket{shown} is {a_type(given)}; pass what claim() gave, as it is")


def loss_of(told: Any) -> float:
    """The loss that a loop tells; NaN where it tells none.

    Raises:
        ArgumentError: it is no number.
    """
    try:
        return math.nan if told is None else as_number(told)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"loss is {a_type(told)} that is no number: {one_line(error)}") from error


def refuse_ticket(ticket: Ticket, worker: int, *, has: int, read: Ticket | None) -> None:
    """Refuse a commit of another ticket than the one that the worker has, or than the one that it has read.

    Raises:
        ArgumentError: always.
    """
    if as_ticket(ticket) != has:
        holds = "has none" if has < 0 else f"has ticket {has}"
        raise ArgumentError(
            f"ticket {int(ticket)} was committed by worker {worker}, which {holds}; commit what claim() gave, once"
        )
    what = "before it was read" if read is None else f"after ticket {read.number} was read"
    raise ArgumentError(f"ticket {int(ticket)} was committed {what}; compute its gradient on what read(ticket) gives")


class Unheard(BaseException):
    """Carries an error out of a loop that caught it and went on as if nothing had been."""

    def __init__(self, error: HogwildError) -> None:
        self.error = error


class Mistakes:
    """What `commit` and `claim` raised in a loop of the user's own, which may have caught it and gone on.

    The first one is told in the end, whatever came of it: a ticket that is never committed would end the run by some
    other error, or never.
    """

    def __init__(self) -> None:
        self._ticket = NOBODY
        self._first: HogwildError | None = None
        self._claimed = False  # in vain, since then

    def note(self, ticket: int, error: HogwildError) -> None:
        """That error was raised by a commit of the worker that owns this ticket."""
        if ticket != self._ticket or self._first is None:
            self._ticket, self._first, self._claimed = ticket, error, False

    def of_claim(self, ticket: int, error: ArgumentError) -> BaseException:
        """What to raise where `claim` failed by that error because the worker still owns this ticket."""
        if ticket == NOBODY:  # it is of what claim did itself
            return error
        claimed = self._claimed and ticket == self._ticket
        self.note(ticket, error)
        self._claimed = True
        first = self._first or error
        return Unheard(first) if claimed else first

    def refuse_left(self, ticket: int) -> None:
        """Called when a loop has ended, and its worker still owns this ticket, or NOBODY.

        Raises:
            HogwildError: that is because its commit raised this.
        """
        if self._first is not None and ticket == self._ticket != NOBODY:
            raise self._first


class OwnGradients:
    """Takes the gradients that a loop computed, for one worker.

    Args:
        plan: of the shared state; knows the tables that were declared.
        rule: of the run.
        parameters: the replica's trained ones, in layout order.
        order: for each of them in the model's own order, its position in the layout.
    """

    def __init__(self, plan: StatePlan, rule: Rule, parameters: Sequence[nn.Parameter], order: Sequence[int]) -> None:
        self._plan = plan
        self._rule = rule
        self._parameters = parameters
        self._order = order
        self._seen: set[int] = set()

    def taken(self, gradients: Sequence[Tensor | None] | Mapping[str, Any]) -> list[Tensor | None]:
        """One tensor or None for each parameter in layout order, of those given by name, or in the model's own order.

        Raises:
            ArgumentError: a name, a number or a form does not fit; or there are rows of a table that was not declared,
                and is copied whole, or zeroed.
        """
        names = self._plan.trained_names
        if not isinstance(gradients, Iterable):
            raise ArgumentError(
                f"gradient is {a_type(gradients)}; pass one tensor or None for each parameter, as commit(ticket, "
                f"torch.autograd.grad(loss, list(replica.parameters())))"
            )
        if isinstance(gradients, Mapping):
            values = named_gradients(gradients, names, self._parameters)
        else:
            values = listed_gradients(gradients, self._order, names, self._parameters)
        self._refuse_undeclared(values)
        return values

    def _refuse_undeclared(self, values: Sequence[Tensor | None]) -> None:
        plan, rule = self._plan, self._rule
        tables = {i for i, value in enumerate(values) if value is not None and value.is_sparse} - {*plan.sparse}
        if tables - self._seen and (plan.needs.slots > 1 or rule.dense_gradients):
            self._seen |= tables
            entries = [plan.parameters.entries[i] for i in sorted(tables)]
            refuse_undeclared(entries, rule.name, by_row=quoted(stepping_by_row(), "and"), shared=rule.dense_gradients)


class Writes:
    """Sees what is written to the parameters of a replica between a read and a commit, by torch's own count of writes.

    Frozen ones are shared by all; trained ones are so too, where the rule keeps versions.

    Args:
        replica: the worker's.
        trained: those of its parameters that are trained.
        rule: of the run.
        control: of the run, where it is told, once, of what was frozen for one gradient alone.
        of_loop: whether a loop of the user's own computes the gradients. It finds no `.grad` of an earlier ticket, and
            is told, once, that what it writes to the one model of a rule in place is there besides what it commits.
    """

    def __init__(
        self,
        replica: nn.Module,
        trained: Sequence[nn.Parameter],
        rule: Rule,
        control: Words | None = None,
        *,
        of_loop: bool = False,
    ) -> None:
        own = {id(parameter) for parameter in trained}
        named = replica.named_parameters()
        self._named = [(name, p) for name, p in named if rule.versioned or id(p) not in own]
        with torch._C.DisableTorchFunctionSubclass():  # of a table too what is counted is a tensor's own
            self._counted = [parameter.detach() for _, parameter in self._named]  # which shares the count
        self._of_loop = of_loop
        self._in_place = _without_max_norm(replica, trained) if of_loop and not rule.versioned else []
        self._in_place_counts: list[int] = []
        self._left_over: list[weakref.ref[Tensor]] = []
        self._rule = rule.name
        self._replica = replica
        self._all = dict(replica.named_parameters())
        self._homes = _places(replica, "_parameters")
        self._layers = _places(replica, "_modules")
        self._modes: list[tuple[nn.Module, bool]] = []
        self._flags: list[tuple[nn.Parameter, bool]] = []
        self._tables = any(isinstance(parameter, RowParameter) for parameter in trained)
        self._counts: list[int] = []
        self._control = control
        self._late = LateBuffers(replica, control) if control is not None else None
        self._update = -1
        self._thawed: dict[int, tuple[int, int]] = {}  # id → the update that froze it, gradients since that did not

    def begin(self, update: int, *, again: bool = False) -> None:
        """What is written from here on, for that update, is not to be. Layers get the modes that they had the first
        time, and parameters are frozen that were. `again`: the ticket has been read before."""
        self._modes = self._modes or [(layer, layer.training) for layer in self._replica.modules()]
        for layer, mode in self._modes:
            if layer.training is not mode:
                layer.training = mode
        self._flags = self._flags or [(p, p.requires_grad) for p in self._all.values()]
        if self._tables:
            with torch._C.DisableTorchFunctionSubclass():  # by which a table would take as long as ten others
                self._put_flags_back()
        else:
            self._put_flags_back()
        self._counts = [tensor._version for tensor in self._counted]
        if self._of_loop and not again:
            self._begin_of_loop()
        self._update = update

    def _begin_of_loop(self) -> None:
        """No gradient of an earlier ticket is left, but for those that lie in a buffer of the loop's own."""
        with torch._C.DisableTorchFunctionSubclass():
            left = [(p, p.grad) for p in self._all.values() if p.grad is not None]
            if left:
                own = [(p, grad) for p, grad in left if not grad._is_view()]
                self._left_over = [weakref.ref(grad) for _, grad in own]
                for parameter, _ in own:
                    parameter.grad = None
            self._in_place_counts = [parameter._version for _, parameter in self._in_place]

    def refuse_left_over(self, gradients: Any) -> None:
        """Refuse a gradient that was `.grad` when an earlier ticket was committed, and is not any more.

        Raises:
            ArgumentError: there is one.
        """
        if self._left_over and isinstance(gradients, list | tuple):
            left = {id(found) for one in self._left_over if (found := one()) is not None}
            if any(id(gradient) in left for gradient in gradients):
                raise ArgumentError(
                    "gradient was .grad at an earlier ticket; read() leaves none of that, so take what .grad is after "
                    "backward()"
                )

    def end(self) -> None:
        """No more is computed."""
        if self._control is not None and self._thawed:
            self._put_flags_back()
            self._tell_of_thawed(since=_FEWEST)

    def _put_flags_back(self) -> None:
        frozen: set[int] = set()
        for parameter, flag in self._flags:
            if parameter.requires_grad is not flag:
                parameter.requires_grad_(flag)
                if flag:
                    frozen.add(id(parameter))
        if self._control is not None and (frozen or self._thawed):
            self._note_thawed(self._control, frozen)

    def _note_thawed(self, control: Words, frozen: set[int]) -> None:
        """Note what the last gradient left frozen. A loss that freezes it at another update too, as at each of the
        first, at every other, or at each from some on, knows that it has to: nothing is told then, by any worker."""
        others = {key: (ticket, since + 1) for key, (ticket, since) in self._thawed.items()}
        if [key for key in frozen if others.get(key, (self._update, 0))[0] != self._update]:
            control.first_to_set(Word.THAWED)
        if control[Word.THAWED]:
            self._control, self._thawed = None, {}
            return
        self._thawed = {**others, **dict.fromkeys(frozen, (self._update, 0))}  # of which there may be several gradients
        self._tell_of_thawed(since=_AGAIN)

    def _tell_of_thawed(self, since: int) -> None:
        """Tell, once in a run, of what has been free again for so many gradients."""
        lasting = {key for key, (_, number) in self._thawed.items() if number >= since}
        if lasting and self._control is not None and self._control.first_to_set(Word.THAWED):
            _log.warning(
                "%s: frozen for one gradient, and trained again from the next; what is to stay frozen is frozen before "
                "the run, or anew at each gradient",
                some_of([name for name, parameter in self._all.items() if id(parameter) in lasting]),
            )

    def refuse(self) -> None:
        """Refuse what was written since, and a parameter or a layer in the place of another.

        Raises:
            ArgumentError: there is one; the message names it.
        """
        if [1 for of, key, p in self._homes if of.get(key) is not p] or self._other_layers():
            now = {id(p) for p in self._replica.parameters()}
            replaced = [name for name, p in self._all.items() if id(p) not in now]
            raise ArgumentError(
                f"{some_of(replaced) or 'a parameter'} of the replica was replaced before the commit, and what is "
                f"trained is what was there; change the model before the run, and compute on tensors of its own, as "
                f"with torch.func.functional_call"
            )
        if self._late is not None:
            self._late.tell()
        if self._in_place:
            self._tell_of_writes()
        if [tensor._version for tensor in self._counted] == self._counts:
            return
        written = [name for (name, p), count in zip(self._named, self._counts, strict=True) if p._version != count]
        raise ArgumentError(
            f"{some_of(written)} of the replica was written to before the commit, and under {self._rule} others read "
            f"what it shows; compute on tensors of its own, as with torch.func.functional_call, and keep what a "
            f"forward pass changes in buffers"
        )

    def _tell_of_writes(self) -> None:
        """Tell, once in a run, of writes to the one model that there is."""
        counts = zip(self._in_place, self._in_place_counts, strict=True)
        written = [name for (name, parameter), count in counts if parameter._version != count]
        if not written:
            return
        self._in_place = []
        if self._control is None or self._control.first_to_set(Word.WRITTEN):
            _log.warning(
                "%s of the replica was written to before the commit: under %s that changes the shared model at once, "
                "and what is committed changes it as well; where it was a step, leave that to commit",
                some_of(written),
                self._rule,
            )

    def _other_layers(self) -> bool:
        """True where a layer was put in the place of another, and with it other parameters in the place of these."""
        if not [1 for of, key, layer in self._layers if of.get(key) is not layer]:
            return False
        self._layers = _places(self._replica, "_modules")
        return {id(p) for p in self._replica.parameters()} != {id(p) for p in self._all.values()}


def _without_max_norm(replica: nn.Module, trained: Sequence[nn.Parameter]) -> list[tuple[str, nn.Parameter]]:
    """Those that are trained, by name, but for the weight of an embedding that its forward pass renormalises."""
    own = {id(parameter) for parameter in trained if not isinstance(parameter, RowParameter)}
    own -= {id(p) for layer in replica.modules() if getattr(layer, "max_norm", None) for p in layer.parameters(False)}
    return [(name, parameter) for name, parameter in replica.named_parameters() if id(parameter) in own]


def _places(replica: nn.Module, within: str) -> list[tuple[Mapping[str, Any], str, object]]:
    """Where each of its "_parameters" or its layers, "_modules", is to be found: in which mapping, and by which key."""
    return [
        (of, key, it)
        for of in (getattr(module, within) for module in replica.modules())
        for key, it in of.items()
        if it is not None
    ]
