"""A checkpoint: all that a run needs to go on with the same bits, in one safetensors file, written atomically.

It holds the versions that later updates read (c − τ … c under `ordered`, c alone elsewhere), the optimizer's state
after update c − 1, the journal up to there, the tickets that are still to be computed, and the form of it all, by which
a file of another run is refused. Under the rules in place c is how many updates were applied, and one that another
worker was writing just then is in the model in part and is not computed again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hogwild.control import NOBODY, Word
from hogwild.errors import RunDirectoryError, printable
from hogwild.rules import Rule
from hogwild.state import SharedState, StatePlan

FILE = "checkpoint.safetensors"


@dataclass(frozen=True)
class Checkpointer:
    """Saves a checkpoint every so many versions; called by the worker that has just made one."""

    directory: Path
    every: int

    def due(self, version: int) -> bool:
        """True when this version is to be saved."""
        return version % self.every == 0

    def save(self, state: SharedState, rule: Rule, version: int, slot: int, worker: int = NOBODY) -> None:
        """Save that version, which lies complete in `slot` and was made by `worker`, where it is about to be published.

        Raises:
            RunDirectoryError: the file cannot be written; the checkpoint before it is still there.
        """
        if not rule.replayable:
            version, slot = rule.newest(state)
        following, again = _tickets(state, rule, version, worker)
        tensors = {f"version {v}": _bytes(state, rule.place(v)) for v in rule.window(version) if v != version}
        tensors[f"version {version}"] = _bytes(state, slot)
        copies = state.optimizer_states
        tensors["optimizer"] = torch.frombuffer(copies[version % len(copies)].bytes, dtype=torch.uint8)
        tensors["journal"] = _rows(state, rule, version)
        tensors["seals"] = state.journal.first_seals(version)
        tickets = json.dumps({"next": following, "again": again})
        metadata = {"version": str(version), "tickets": tickets, "form": form_of(state.plan, rule)}
        staging = self.directory / f".{FILE}.part"  # one saves at a time, and overwrites what a dead one left
        try:
            save_file({name: tensor.clone() for name, tensor in tensors.items()}, staging, metadata)
            staging.replace(self.directory / FILE)
        except (OSError, SafetensorError) as error:
            why = printable(str(error))
            raise RunDirectoryError(f"no checkpoint of version {version} in {self.directory}: {why}") from error
        finally:
            staging.unlink(missing_ok=True)


@dataclass(frozen=True)
class Restored:
    """Where a run goes on: from that version, with the tickets `again`, then with those from `following` on."""

    version: int
    following: int
    again: tuple[int, ...]

    def check(self, plan: StatePlan, rule: Rule) -> None:
        """Raise a ValueError where no run of that plan can have stopped there."""
        tickets = [-1, *self.again, self.following]
        if not all(type(ticket) is int for ticket in tickets) or sorted({*tickets}) != tickets:
            raise ValueError("its tickets are not in order")
        done = self.following - len(self.again)
        if rule.replayable and done != self.version * rule.tickets_per_update:
            raise ValueError(f"version {self.version} is not made of {done} tickets")
        if self.following > plan.rows * rule.tickets_per_update or len(self.again) > plan.spares:
            raise ValueError(f"it claims {len(self.again)} tickets to do again, and then those from {self.following}")


def restore(directory: Path, state: SharedState, rule: Rule) -> Restored:
    """Fill the shared state from the directory's checkpoint.

    Raises:
        RunDirectoryError: there is none, it is damaged, or it is of a run with another model, optimizer or rule.
    """
    path = directory / FILE
    if not path.is_file():
        raise RunDirectoryError(f"{directory} holds no {FILE}; a run with checkpoint_every, or interrupted, leaves one")
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("form") != form_of(state.plan, rule):
                raise RunDirectoryError(f"{path} is of a run with another model, optimizer, rule or length")
            version = int(metadata["version"])
            if not 0 <= version <= state.plan.rows:
                raise ValueError(f"there is no version {version} in a run of {state.plan.rows} updates")
            targets = {f"version {v}": _bytes(state, rule.place(v)) for v in rule.window(version)}
            copies = state.optimizer_states
            targets["optimizer"] = torch.frombuffer(copies[version % len(copies)].bytes, dtype=torch.uint8)
            targets["journal"] = _rows(state, rule, version)
            targets["seals"] = state.journal.first_seals(version)
            for name, target in targets.items():
                _fill(target, file.get_tensor(name), name, path)
            tickets = json.loads(metadata["tickets"])
            restored = Restored(version, tickets["next"], tuple(tickets["again"]))
            restored.check(state.plan, rule)
    except RunDirectoryError:
        raise
    except Exception as error:  # what a hostile header may lead to is not known
        raise RunDirectoryError(f"{path} is damaged: {printable(str(error))}") from error
    return restored


def form_of(plan: StatePlan, rule: Rule) -> str:
    """SHA-256 over what the bytes of a checkpoint mean: layouts, optimizer state, rule and number of updates."""
    optimizer = [sorted((key, str(cell)) for key, cell in cells.items()) for cells in plan.optimizer.cells]
    parts = [
        [str(entry) for layout in (plan.parameters, plan.constants, plan.buffers) for entry in layout.entries],
        optimizer,
        [rule.name, plan.needs.slots if rule.same_bits else 0, rule.tickets_per_update],
        [plan.rows, plan.digest_every],
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _tickets(state: SharedState, rule: Rule, version: int, worker: int) -> tuple[int, list[int]]:
    """(the next ticket to hand out, those below it that version lacks)."""
    if rule.same_bits:
        return version * rule.tickets_per_update, []
    if not rule.replayable:
        return state.control.unfinished(partial(rule.settle, state), worker)
    following = state.control[Word.NEXT]
    return following, sorted({*range(following)}.difference(state.journal.rows(version)["update"].tolist()))


def _rows(state: SharedState, rule: Rule, version: int) -> Tensor:
    """The journal up to that version; all of it where a row stands at the place of its update."""
    return state.journal.first_rows(version if rule.replayable else state.plan.rows)


def _bytes(state: SharedState, slot: int) -> Tensor:
    return torch.frombuffer(state.slots[slot].bytes, dtype=torch.uint8)


def _fill(target: Tensor, value: Tensor, name: str, path: Path) -> None:
    if value.dtype != target.dtype or value.shape != target.shape:
        raise RunDirectoryError(f"{path} is damaged: {name} is {value.dtype} {printable(str(list(value.shape)))}")
    target.copy_(value)
