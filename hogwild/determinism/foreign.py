"""Trainings that are not ours: any function that trains, and any command. They can be repeated, and not varied."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hogwild.determinism.states import StateLike, digest, opened
from hogwild.determinism.subject import AS_IT_IS, Outcome, Subject, Variation, refuse_incomplete
from hogwild.errors import ArgumentError, RunDirectoryError, WorkerError, a_type, called_by
from hogwild.run.result import Run


class ForeignFunction(Subject):
    """Any function that trains and returns a module, a state dict, a tensor or a `Run`. It knows no variation."""

    def __init__(self, make_run: Callable[[], Any], title: str | None = None) -> None:
        self.title = title or str(getattr(called_by(make_run), "__name__", type(make_run).__name__))
        self._make_run = make_run
        self._seen: list[Any] = []  # held, so that no later result can have the same identity or memory
        self._places: set[int] = set()  # of their tensors

    def remember(self, values: Iterable[Tensor]) -> None:
        """Refuse results in the memory of these: they were there before anything was trained."""
        self._places |= {value.data_ptr() for value in values if value.numel()}

    def repeat(self, variation: Variation = AS_IT_IS) -> Outcome:
        """Call it, and copy what it returns."""
        if variation != AS_IT_IS:
            raise ArgumentError(f"{self.title} is a function that trains by itself, and cannot be varied")
        made = self._make_run()
        self._refuse_seen(made)
        if isinstance(made, Run):
            refuse_incomplete(made)
            return Outcome(made.state, made.digest, made)
        state = _copied(made)
        return Outcome(state, digest(state))

    def _refuse_seen(self, made: Any) -> None:
        if made is None:
            raise ArgumentError(f"the function returned None; {_MUST}")
        places = _places(made)
        if places & self._places or any(made is earlier for earlier in self._seen):
            raise ArgumentError(
                "the function returned an object that was there before, or tensors in the same memory, and a run is "
                "not compared with itself; build the model inside the function"
            )
        self._seen.append(made)
        self._places |= places


_MUST = "it must return a Run, a module, a state dict or a tensor"


def _places(made: Any) -> set[int]:
    """The addresses of the tensors and arrays in a result; of a module of what it trains, if anything, for models may
    share what none changes."""
    if isinstance(made, nn.Module) and (trained := [p for p in made.parameters() if p.requires_grad and p.numel()]):
        return {parameter.data_ptr() for parameter in trained}
    given = _as_state(made.state if isinstance(made, Run) else made)
    with opened(given, "what the function returned") as state:
        values = [state.value(name) for name in state.names]
    strided = (value for value in values if isinstance(value, Tensor) and value.layout is torch.strided)
    tensors = {value.data_ptr() for value in strided if value.numel()}  # what has no address, a digest refuses
    return tensors | {value.ctypes.data for value in values if isinstance(value, np.ndarray) and value.size}


def _as_state(made: Any) -> nn.Module | Mapping[str, object]:
    if isinstance(made, Tensor):
        return {"tensor": made}
    if not isinstance(made, nn.Module | Mapping):
        raise ArgumentError(f"the function returned {a_type(made)}; {_MUST}")
    if isinstance(made, Mapping):
        return {name: one.state_dict() if isinstance(one, nn.Module) else one for name, one in made.items()}
    return made


def _copied(made: Any) -> dict[str, Any]:
    """Every tensor and array of a state, however nested, in memory that later runs do not write to.

    Raises:
        ArgumentError: it is no state, or holds nothing.
    """
    with opened(_as_state(made), "what the function returned") as found:
        values = {name: found.value(name) for name in found.names}
        others = dict.fromkeys(found.unmeasured)  # by name, so that a verdict tells that they are not compared
    state = {name: v.detach().clone() if isinstance(v, Tensor) else np.array(v) for name, v in values.items()}
    _refuse_empty(state, "the function returned")
    return {**state, **others}


def _refuse_empty(state: StateLike, whose: str) -> None:
    with opened(state, "the state") as found:
        if not any(found.entry(name).data.size for name in found.names):
            raise ArgumentError(f"{whose} a state without a single value; there is nothing to compare")


class ForeignCommand(Subject):
    """A command that trains in an interpreter of its own and writes its final state to a file.

    Args:
        command: for the shell; `{out}` in it is replaced by the path of a file that does not exist yet.
    """

    def __init__(self, command: str) -> None:
        if "{out}" not in command:
            raise ArgumentError(
                f"command {command!r} does not say where to save its state; write {{out}} where the path belongs"
            )
        self.title = command
        self._command = command
        self._folder = tempfile.TemporaryDirectory(prefix="hogwild-check-")
        self._repeats = 0

    def repeat(self, variation: Variation = AS_IT_IS) -> Outcome:
        """Run it, and keep a copy of the file it wrote."""
        if variation != AS_IT_IS:
            raise ArgumentError("a command trains by itself, and cannot be varied")
        self._repeats += 1
        which, folder = f"repeat {self._repeats} of the command", Path(self._folder.name)
        out, kept = folder / f"run-{self._repeats}", folder / f"state-{self._repeats}"
        command = self._command.replace("{out}", shlex.quote(str(out)))
        ((status, told),) = in_own_groups([command], folder, [{}], shell=True)
        if status != 0:
            raise WorkerError(f"{which} ended with status {status}" + (f"\n{told}" if told else ", and said nothing"))
        path = out / "model.safetensors" if out.is_dir() else out
        if not path.is_file():
            raise WorkerError(f"{which} ended well but wrote no file to {{out}}")
        shutil.copyfile(path, kept)  # it may be a link to what the next repeat writes
        try:
            _refuse_empty(kept, f"{which} wrote")
            return Outcome(kept, digest(kept))
        except RunDirectoryError as error:
            why = str(error).removeprefix(f"{kept}: ")
            raise RunDirectoryError(f"{which} wrote no state to {{out}}: {why}") from error

    def close(self) -> None:
        """Remove what the command wrote."""
        self._folder.cleanup()


def in_own_groups(
    commands: Sequence[str | list[str]], folder: Path, environments: Sequence[Mapping[str, str]], *, shell: bool = False
) -> list[tuple[int, str]]:
    """(exit status, what it printed, by way of a file in the folder) of each command; they run side by side, with
    these variables in the environment besides.

    Should this call be interrupted, the commands end, and what they started with them.
    """
    files = [folder / f"told-{number}" for number in range(len(commands))]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command, told, own in zip(commands, files, environments, strict=True):
            with told.open("wb") as file:
                how: dict[str, Any] = {"stdout": file, "stderr": file, "env": {**os.environ, **own}}
                processes.append(subprocess.Popen(command, shell=shell, start_new_session=True, **how))
        statuses = [process.wait() for process in processes]
    except BaseException:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        raise
    return [(status, told.read_text(errors="replace").strip()) for status, told in zip(statuses, files, strict=True)]
