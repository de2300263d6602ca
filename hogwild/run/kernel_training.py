"""train_kernel(), the way in for a training that is a compiled function."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from hogwild.config import RunConfig
from hogwild.errors import ArgumentError, a_type, short_traceback
from hogwild.kernels.kernel import Kernel
from hogwild.nodes.invitation import refuse_torchrun
from hogwild.rules.base import Rule
from hogwild.rules.registry import make_rule, rule_name
from hogwild.run.callback import Callback
from hogwild.run.job import Evaluate
from hogwild.run.progress import Progress, Stop
from hogwild.run.result import Run
from hogwild.run.training import train_config


@short_traceback
def train_kernel(
    model: nn.Module,
    kernel: Kernel,
    *,
    update: str | Rule = "hogwild",
    workers: int = 2,
    kind: str = "threads",
    staleness: int = 1,
    micro_batches: int = 2,
    epochs: int | None = None,
    updates: int | None = None,
    limit_updates: int | None = None,
    seed: int = 0,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    keep_best: str | None = None,
    stop: Stop | None = None,
    callbacks: Sequence[Callback] = (),
    recheck: float = 0.005,
    on_nonfinite: str = "raise",
    on_worker_failure: str = "replace",
    max_restarts: int = 3,
    worker_timeout: float | None = None,
    out: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    name: str = "run",
    overwrite: bool = False,
    config: Mapping[str, Any] | None = None,
    change: Mapping[str, Any] | None = None,
) -> Run:
    """Train tables of a model, in place, by a compiled function that several workers call at once.

    Under `hogwild` and `locked` the function writes where the model lies. Under `snapshot`, `ordered` and `sync` it
    runs on copies of the rows that its ticket names, at the version that the rule says, and what it changed of them,
    after − before, is added to the next version; under `sync` that of all tickets of an update. So under `ordered` and
    `sync` the bits are the same with any number and kind of workers.

    Args:
        model: any `nn.Module` on the CPU whose tables are parameters of two dimensions.
        kernel: how it is trained.
        kind: "threads", which train at full speed where the function releases the interpreter's lock; or "processes",
            to which both functions are sent.
        epochs: times `kernel.tickets`. Exactly one of `epochs` and `updates` says how long to train.

    Further arguments and errors are those of `hogwild.train`. A learning rate may be changed where a run is resumed,
    `change={"lr": 0.01}`.
    """
    began = time.monotonic()
    given = locals()
    refuse_torchrun("train_kernel", "start it without torchrun")
    if not isinstance(kernel, Kernel):
        raise ArgumentError(f"kernel is {a_type(kernel)}; pass a hogwild.Kernel, or call hogwild.train")
    names = {one.name for one in fields(RunConfig)} - {"update"}
    settings = RunConfig(update=rule_name(update), **{key: value for key, value in given.items() if key in names})
    return train_config(
        settings,
        model,
        kernel,
        None,
        optimizer=None,
        rule=make_rule(update, settings),
        evaluate=evaluate,
        stop=stop,
        callbacks=callbacks,
        out=out,
        resume=resume,
        progress=progress,
        began=began,
        overwrite=overwrite,
        maker="train_kernel",
        caller_config=config,
        change=change,
    )
