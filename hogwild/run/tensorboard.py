"""TensorBoard: a callback that writes what a run measures as event files, for `tensorboard --logdir`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hogwild.errors import ArgumentError
from hogwild.run.callback import Callback, RunInfo
from hogwild.run.progress import Progress
from hogwild.run.result import Run
from hogwild.run.saved.metrics import Row

_FLUSH = 5  # seconds that a scalar waits at most before it is in the file
_PLACE = ("update", "batch", "worker")  # of what a worker logged; all else of its row is measured


def refuse_missing_tensorboard() -> None:
    """Refuse to write for TensorBoard where it is not installed.

    Raises:
        ArgumentError: it is not.
    """
    if find_spec("tensorboard") is None:
        raise ArgumentError("tensorboard is not installed; pip install 'hogwild[tensorboard]' installs it")


class TensorBoard(Callback):
    """Writes scalars, by version: how training stands (`train/loss`, `train/samples_per_second`, `train/staleness`),
    each evaluation (`evaluation/NAME`), and what workers logged (`worker/NAME`) at the version that their update makes.

    A run that is resumed in the same folder goes on with the same curves, less what is computed again. Of several
    machines the one that keeps the record writes.

    Args:
        folder: for the event files; None is the directory of the run.

    Raises:
        ArgumentError: TensorBoard is not installed.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        refuse_missing_tensorboard()
        self._folder = folder
        self._writer: Any = None

    def on_begin(self, info: RunInfo) -> None:
        """Open the event file.

        Raises:
            ArgumentError: there is no folder for it.
        """
        self._writer = None
        if info.node:
            return
        folder = self._folder if self._folder is not None else info.out
        if folder is None:
            raise ArgumentError("TensorBoard has no folder, and the run is not saved; give one of them, or out")
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=info.start + 1 if info.start else None, flush_secs=_FLUSH)

    def on_progress(self, progress: Progress) -> None:
        """How training stands."""
        measured = ("loss", "samples_per_second", "staleness")
        self._write("train", {name: getattr(progress, name) for name in measured}, progress.updates)

    def on_log(self, rows: Sequence[Row]) -> None:
        """What workers logged, at the version that their update makes: those after a checkpoint are computed again."""
        for row in rows:
            self._write("worker", {name: row[name] for name in row if name not in _PLACE}, int(row["update"]) + 1)

    def on_evaluation(self, progress: Progress) -> None:
        """The metrics of a version."""
        self._write("evaluation", progress.metrics, progress.updates)
        if self._writer is not None:
            self._writer.flush()

    def on_end(self, run: Run | None, error: BaseException | None) -> None:  # noqa: ARG002
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, group: str, values: Row, update: int) -> None:
        for name, value in values.items() if self._writer is not None else ():
            self._writer.add_scalar(f"{group}/{name}", value, update)
