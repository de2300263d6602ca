"""A checkpoint: all that a run needs to go on with the same bits, in one safetensors file, written atomically.

It holds the versions that later updates read (c − τ … c under `ordered`, c alone elsewhere), the optimizer's state
after update c − 1, the journal up to there, the tickets that are still to be computed, the seconds that it took, the
best version up to there where one is kept, and the identity of its run and the form of it all, by which a file of
another run is refused, and a seal, by which one is refused that has changed since it was written. Under the rules in
place c is how many updates were applied, and it holds which version was evaluated last, for these are numbered by their
tickets. Others write there while it is copied, so it is copied again until nobody has; where they leave no moment for
that, it holds which updates may be in it in part, or not, or be computed twice.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hogwild.errors import RunDirectoryError, printable
from hogwild.rules.base import Rule
from hogwild.run.saved.best import Best, load_best
from hogwild.run.saved.directory import CHECKPOINT, placed
from hogwild.run.saved.saved_tables import restore_tables, tables_at
from hogwild.run.state_dicts import beside_tensors, state_from, tensors_of
from hogwild.shared.arena import as_tensor
from hogwild.shared.hashing import digest_bytes
from hogwild.shared.state import SharedState, StatePlan
from hogwild.shared.tickets import Settled
from hogwild.shared.words import NOBODY, Aborted, Field, Phase, Word

_BEST = "best "  # how the names of the best version's tensors begin
_SEAL = "seal"  # which files of format 2 lack that were written before there was one
_MOST_LEFT = 1024
_MOST_COPIES = 20  # of what others write meanwhile
_MOST_WAITED = 0.25  # seconds for who stands in the middle of a write, as one does that the system has stopped there


@dataclass(frozen=True)
class Checkpointer:
    """Saves a checkpoint every so many versions; called by the worker that has just made one.

    `run` is the identity of the run, and `seconds_before` those that it took before it was resumed; `best` says whether
    it keeps its best version; `evaluate_every` the versions between evaluations, 0 is never.
    """

    directory: Path
    every: int
    run: str = ""
    seconds_before: float = 0.0
    best: bool = False
    evaluate_every: int = 0

    def due(self, version: int) -> bool:
        """True when this version is to be saved."""
        return version % self.every == 0

    def save(
        self, state: SharedState, rule: Rule, version: int, slot: int, worker: int = NOBODY, shown: int | None = None
    ) -> None:
        """Save that version, which lies complete in `slot` and was made by `worker`, where it is about to be published;
        `shown` is the last that was evaluated, where that is not the last that was copied out for it.

        Raises:
            RunDirectoryError: the file cannot be written; the checkpoint before it is still there.
        """
        model, optimizer, start, journal = _copied(state, rule, version, slot, worker)
        version = start.version
        older = {v: state.slots[rule.place(v)] for v in rule.window(version) if v != version}
        tensors = {f"version {v}": as_tensor(place.bytes).clone() for v, place in older.items()}
        tensors |= {f"version {version}": model, "optimizer": optimizer, "journal": journal}
        tensors |= tables_at(state, version, rule.window(version))
        tensors["seals"] = state.journal.first_seals(version).clone()
        tickets = json.dumps({"next": start.following, "again": start.again, "total": start.total})
        metadata = {"version": str(version), "tickets": tickets, "form": form_of(state.plan, rule), "run": self.run}
        metadata |= {"rows": str(state.plan.rows), "digest_every": str(state.plan.digest_every)}
        metadata["seconds"] = repr(self.seconds_before + _seconds(state))
        if start.in_doubt:
            metadata["in_doubt"] = json.dumps(start.in_doubt)
        if not rule.versioned:
            shown = state.control[Word.OBSERVED] if shown is None else shown
            metadata["shown"] = json.dumps([shown, self.evaluate_every])
        best = load_best(self.directory) if self.best else None  # of what the parent has evaluated until now
        if best is not None:
            metadata |= {"best": json.dumps(best.to_metadata()), **beside_tensors(best.state)}
            tensors |= {f"{_BEST}{name}": value for name, value in tensors_of(best.state).items()}
        metadata[_SEAL] = _seal(metadata, tensors)
        try:
            with placed(self.directory, CHECKPOINT) as path:
                save_file(tensors, path, metadata)
                if worker != NOBODY and state.control[Word.ABORT]:  # the parent saves what there is
                    raise Aborted
        except (OSError, SafetensorError) as error:
            why = printable(str(error))
            raise RunDirectoryError(f"no checkpoint of version {version} in {self.directory}: {why}") from error


def _seconds(state: SharedState) -> float:
    """Seconds since the first claim."""
    rows = [state.control.row(worker) for worker in range(state.control.workers)]
    starts = [row[Field.STARTED] for row in rows if row[Field.STARTED]]
    return (time.monotonic_ns() - min(starts)) / 1e9 if starts else 0.0


@dataclass(frozen=True)
class ResumePoint:
    """Where a run goes on: from that version, with the tickets `again`, then with `following` to `total` - 1; `stopped`
    where `stop` has ended it there, and else it may be longer by now. It took `seconds` to get there; `best` is the
    best version up to there, where one is kept. Updates `in_doubt` were written while the model was copied. Under the
    rules in place `shown` is the last version, by its ticket, that was shown to be evaluated, NOBODY where that is not
    known, and one was due every `shown_every`."""

    version: int
    following: int
    again: tuple[int, ...]
    total: int
    seconds: float = 0.0
    best: Best | None = None
    stopped: bool = False
    in_doubt: tuple[int, ...] = ()
    shown: int = NOBODY
    shown_every: int = 0

    def done(self, ticket: int) -> bool:
        """True where that ticket is not computed again."""
        return ticket < self.following and ticket not in self.again

    def check(self, plan: StatePlan, rule: Rule) -> None:
        """Raise a ValueError where no run of that plan can have stopped there."""
        tickets = [-1, *self.again, self.following]
        if not all(type(ticket) is int for ticket in tickets) or sorted({*tickets}) != tickets:
            raise ValueError("its tickets are not in order")
        done = self.following - len(self.again)
        if rule.versioned and done != self.version * rule.tickets_per_update:
            raise ValueError(f"version {self.version} is not made of {done} tickets")
        most = plan.rows * rule.tickets_per_update
        if self.following > most or len(self.again) > plan.spares:
            raise ValueError(f"it claims {len(self.again)} tickets to do again, and then those from {self.following}")
        if type(self.total) is not int or not 0 < self.total <= most:
            raise ValueError(f"it claims {printable(str(self.total))} tickets in all, of {most}")
        if not (NOBODY <= self.shown <= self.following and self.shown_every >= 0):
            raise ValueError(f"it claims that version {self.shown} was evaluated, one in {self.shown_every}")


@dataclass(frozen=True)
class Peek:
    """What a checkpoint says of itself, before anything of it is believed.

    `following` is the first ticket that nobody had taken, `again` how many before it are to be done again, at most
    1,024. `digest_every` is that of its run, 0 where it does not say; `version` is the one that it is of.
    """

    following: int = 0
    again: int = 0
    digest_every: int = 0
    version: int = 0


def peek(directory: Path) -> Peek:
    """What the directory's checkpoint says; nothing where `restore` will raise."""
    try:
        with safe_open(directory / CHECKPOINT, "pt") as file:
            metadata = file.metadata()
            tickets = json.loads(metadata["tickets"])
            following, every = int(tickets["next"]), int(metadata.get("digest_every", 0))
            version = int(metadata["version"])
            following, every, version = (min(max(0, number), (1 << 63) - 1) for number in (following, every, version))
            return Peek(following, min(len(tickets["again"]), _MOST_LEFT), every, version)
    except Exception:  # what a hostile header may lead to is not known
        return Peek()


def restore(directory: Path, state: SharedState, rule: Rule, run: str = "") -> ResumePoint:
    """Fill the shared state from the directory's checkpoint, which must be of that run.

    Raises:
        RunDirectoryError: there is none, it is damaged, or it is of another run, or of one with another model,
            optimizer or rule.
    """
    path = directory / CHECKPOINT
    if not path.is_file():
        why = "a run leaves one with checkpoint_every, or interrupted while it trains; begin it again"
        raise RunDirectoryError(f"{directory} holds no {CHECKPOINT}; {why}")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("run", "") != run:
                raise RunDirectoryError(
                    f"{path} is of another run ({printable(metadata.get('run', '')[:8]) or 'without identity'}) than "
                    f"the rest of {directory} ({run[:8] or 'without identity'}); put its own back, or begin again"
                )
            rows = int(metadata.get("rows", state.plan.rows))
            if metadata.get("form") != form_of(state.plan, rule, rows) or rows > state.plan.rows:
                raise RunDirectoryError(f"{path} is of a run with another model, optimizer, rule or length")
            _refuse_changed(file, metadata)
            version = int(metadata["version"])
            if not 0 <= version <= state.plan.rows:
                raise ValueError(f"there is no version {version} in a run of {state.plan.rows} updates")
            targets = {f"version {v}": as_tensor(state.slots[rule.place(v)].bytes) for v in rule.window(version)}
            copies = state.optimizer_states
            targets["optimizer"] = as_tensor(copies[version % len(copies)].bytes)
            targets["journal"] = _rows(state, rule, version, rows)
            targets["seals"] = state.journal.first_seals(version)
            for name, target in targets.items():
                _fill(target, file.get_tensor(name), name, path)
            restore_tables(state, rule.window(version), file.get_tensor)
            tickets = json.loads(metadata["tickets"])
            seconds = max(0.0, float(metadata.get("seconds", 0.0)))
            best = _best_in(file, metadata)
            start = ResumePoint(version, tickets["next"], tuple(tickets["again"]), tickets["total"], seconds, best)
            shown, shown_every = map(int, json.loads(metadata.get("shown", f"[{NOBODY}, 0]")))
            start = replace(start, shown=shown, shown_every=shown_every)
            start.check(state.plan, rule)
            doubted = tuple(map(int, json.loads(metadata.get("in_doubt", "[]"))))
            start = replace(start, in_doubt=doubted, stopped=-(-start.total // rule.tickets_per_update) < rows)
    except RunDirectoryError:
        raise
    except Exception as error:  # what a hostile header may lead to is not known
        raise RunDirectoryError(f"{path} is damaged: {printable(str(error))}") from error
    return start


def _seal(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over what a checkpoint says and holds, but for the seal itself."""
    said = json.dumps(sorted((key, value) for key, value in metadata.items() if key != _SEAL))
    return hashlib.sha256(said.encode() + digest_bytes(tensors)).hexdigest()


def _refuse_changed(file: Any, metadata: Mapping[str, str]) -> None:
    """Raise a ValueError where an opened checkpoint is not as it was written, to the bit."""
    names = file.keys() if _SEAL in metadata else ()
    if names and metadata[_SEAL] != _seal(metadata, {name: file.get_tensor(name) for name in names}):
        raise ValueError("its bytes are not those that were written")


def _best_in(file: Any, metadata: Mapping[str, str]) -> Best | None:
    """The best version that an opened checkpoint holds, if any."""
    if "best" not in metadata:
        return None
    names = [name for name in file.keys() if name.startswith(_BEST)]  # noqa: SIM118 - the file is no mapping
    tensors = {name.removeprefix(_BEST): file.get_tensor(name) for name in names}
    return Best.of_metadata(metadata["best"], state_from(tensors, metadata))


def form_of(plan: StatePlan, rule: Rule, rows: int | None = None) -> str:
    """SHA-256 over what the bytes of a checkpoint mean: layouts, optimizer state, rule and number of updates.

    `rows` is that number where the run was shorter than it is now.
    """
    optimizer = [sorted((key, str(cell)) for key, cell in cells.items()) for cells in plan.optimizer.cells]
    parts = [
        [str(entry) for layout in (plan.parameters, plan.constants, plan.buffers) for entry in layout.entries],
        optimizer,
        [rule.name, plan.needs.slots if rule.same_bits else 0, rule.tickets_per_update],
        [plan.rows if rows is None else rows, plan.digest_every, *plan.tables],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _copied(
    state: SharedState, rule: Rule, version: int, slot: int, worker: int
) -> tuple[Tensor, Tensor, ResumePoint, Tensor]:
    """(the model, the optimizer's state, where a run goes on from them, the journal up to there).

    Under the rules in place others write meanwhile, so it is copied again until nobody has: a write that falls into the
    copying is one that somebody is at right before or after, or that was finished in between. One that lasts longer
    than the copying is waited for.
    """
    copies = state.optimizer_states
    start, journal = _history(state, rule, version, worker)
    deadline = time.monotonic() + _MOST_WAITED
    for _ in range(_MOST_COPIES):
        before, begun = start, _written_now(state)
        model = as_tensor(state.slots[slot].bytes).clone()
        optimizer = as_tensor(copies[version % len(copies)].bytes).clone()
        unfinished = _written_now(state)
        doubted = begun | unfinished
        start, journal = _history(state, rule, version, worker)
        if rule.versioned or worker == NOBODY:  # the parent, when all have left
            break
        doubted |= {t for t in (*before.again, *range(before.following, start.following)) if start.done(t)}
        if not doubted:
            break
        start = replace(start, in_doubt=tuple(sorted(doubted)))
        while begun & unfinished & _written_now(state) and time.monotonic() < deadline:
            time.sleep(0.001)
    return model, optimizer, start, journal


def _written_now(state: SharedState) -> set[int]:
    """Tickets that a worker is writing in place."""
    return {ticket for _, ticket, phase in state.control.owned() if phase is Phase.WRITING}


def _history(state: SharedState, rule: Rule, version: int, worker: int) -> tuple[ResumePoint, Tensor]:
    """(where a run goes on from a version that `worker` has just made, the journal up to there); under the rules in
    place, from whatever the model is now."""
    rows, total = _rows(state, rule, version), state.control[Word.TOTAL]
    if rule.same_bits:
        return ResumePoint(version, version * rule.tickets_per_update, (), total), rows.clone()
    if rule.versioned:
        left = torch.ones(state.control[Word.NEXT], dtype=torch.bool)
        left[rows[:, 0]] = False
        return ResumePoint(version, len(left), tuple(left.nonzero().flatten().tolist()), total), rows.clone()
    settle = partial(rule.settle, state) if worker == NOBODY else partial(_settled, rule, state)
    following, again = state.control.unfinished(settle, worker)
    journal = rows.clone()
    journal[again, 0] = journal[following:, 0] = -1
    return ResumePoint(int((journal[:, 0] >= 0).sum()), following, tuple(again), total), journal


def _settled(rule: Rule, state: SharedState, ticket: int, phase: Phase) -> Settled:
    """What becomes of a ticket whose owner lives: one that it is writing now is not in the model, or in part, and is
    computed again."""
    settled = rule.settle(state, ticket, phase)
    return Settled.AGAIN if settled is Settled.DOUBTED else settled


def _rows(state: SharedState, rule: Rule, version: int, rows: int | None = None) -> Tensor:
    """The journal up to that version; all of it, or `rows`, where a row stands at the place of its update."""
    return state.journal.first_rows(version if rule.versioned else rows or state.plan.rows)


def _fill(target: Tensor, value: Tensor, name: str, path: Path) -> None:
    if value.dtype != target.dtype or value.shape != target.shape:
        raise RunDirectoryError(f"{path} is damaged: {name} is {value.dtype} {printable(str(list(value.shape)))}")
    target.copy_(value)
