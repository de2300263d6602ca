"""A checkpoint: all that a run needs to go on with the same bits, in one safetensors file, written atomically.

It holds the versions that later updates read (c − τ … c under `ordered`, c alone elsewhere), the optimizer's state
after update c − 1, the journal up to there, and the form of it all, by which a file of another run is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

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

    def save(self, state: SharedState, rule: Rule, version: int, slot: int) -> None:
        """Save that version, which lies complete in `slot`.

        Raises:
            RunDirectoryError: the file cannot be written; the checkpoint before it is still there.
        """
        tensors = {f"version {v}": _bytes(state, rule.place(v)) for v in rule.window(version) if v != version}
        tensors[f"version {version}"] = _bytes(state, slot)
        copies = state.optimizer_states
        tensors["optimizer"] = torch.frombuffer(copies[version % len(copies)].bytes, dtype=torch.uint8)
        tensors["journal"] = state.journal.first_rows(version)
        tensors["seals"] = state.journal.first_seals(version)
        metadata = {"version": str(version), "form": form_of(state.plan, rule)}
        staging = self.directory / f".{FILE}.{os.getpid()}"
        try:
            save_file({name: tensor.clone() for name, tensor in tensors.items()}, staging, metadata)
            staging.replace(self.directory / FILE)
        except (OSError, SafetensorError) as error:
            why = printable(str(error))
            raise RunDirectoryError(f"no checkpoint of version {version} in {self.directory}: {why}") from error
        finally:
            staging.unlink(missing_ok=True)


def restore(directory: Path, state: SharedState, rule: Rule) -> int:
    """Fill the shared state from the directory's checkpoint; returns its version.

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
            targets["journal"] = state.journal.first_rows(version)
            targets["seals"] = state.journal.first_seals(version)
            for name, target in targets.items():
                _fill(target, file.get_tensor(name), name, path)
    except RunDirectoryError:
        raise
    except Exception as error:  # what a hostile header may lead to is not known
        raise RunDirectoryError(f"{path} is damaged: {printable(str(error))}") from error
    return version


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


def _bytes(state: SharedState, slot: int) -> Tensor:
    return torch.frombuffer(state.slots[slot].bytes, dtype=torch.uint8)


def _fill(target: Tensor, value: Tensor, name: str, path: Path) -> None:
    if value.dtype != target.dtype or value.shape != target.shape:
        raise RunDirectoryError(f"{path} is damaged: {name} is {value.dtype} {printable(str(list(value.shape)))}")
    target.copy_(value)
