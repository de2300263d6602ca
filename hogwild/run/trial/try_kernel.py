"""One ticket before the run: does the kernel work, what does it draw, and which rows? It also compiles it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import nn

from hogwild.errors import ArgumentError, HogwildError, NotReproducible, one_line
from hogwild.kernels.kernel import Kernel
from hogwild.kernels.overlay import Numbering
from hogwild.kernels.trained_rows import compile_passes
from hogwild.run.trial.at_batch import at_batch
from hogwild.run.trial.batch_digest import batch_digest
from hogwild.run.trial.dry_run import DryRun
from hogwild.workers.kernel_loop import run_on_copies

T = TypeVar("T")


def try_kernel(
    kernel: Kernel,
    model: nn.Module,
    trained: Mapping[str, nn.Parameter],
    lr: float,
    seed: int,
    workers: int,
    *,
    same_bits: bool,
) -> DryRun:
    """Draw ticket 0 and step copies of the rows it names at the rate `lr` × the kernel's schedule, as it will be done
    in the run.

    Raises:
        ArgumentError: draw or step raised, names what the model has not, or its loss is not finite.
        NotReproducible: draw gives something else when it is asked again, and the rule promises the same bits.
    """
    tables = kernel.parameters_in(model)
    counts = {name: len(table) for name, table in tables.items()}
    with at_batch(seed, workers) as info:
        drawn = _named("draw", lambda: kernel.batch(0, info.generator))
        rows, renumbered = Numbering(kernel, counts).number(drawn)
        digest = batch_digest(drawn)
        before = {name: table.detach().index_select(0, torch.from_numpy(rows[name])) for name, table in tables.items()}
        if same_bits:
            for rows_of_one in before.values():
                compile_passes(rows_of_one.numpy())
        _, loss = _named("step", lambda: run_on_copies(kernel, before, renumbered, lr * kernel.schedule(0.0)))
        again = batch_digest(_named("draw", lambda: kernel.batch(0, info.generator)))
    if not math.isfinite(loss):
        raise ArgumentError(f"step returned the loss {loss} at ticket 0; lower lr, {lr:g}, or the initial weights")
    if same_bits and again != digest:
        raise NotReproducible(
            "draw gives other arrays when it is asked for ticket 0 again; all it draws must follow from ticket and seed"
        )
    places = {id(parameter): i for i, parameter in enumerate(trained.values())}
    named = {places[id(table)]: len(rows[name]) for name, table in tables.items() if id(table) in places}
    return DryRun(frozenset(named), kernel.samples, (), (), digest, named)


def _named(name: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except HogwildError:
        raise
    except Exception as error:
        raise ArgumentError(f"{name} raised at ticket 0: {type(error).__name__}: {one_line(error)}") from error
