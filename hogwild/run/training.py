"""A training whose settings are a `RunConfig`: what `hogwild.train`, experiments, checks and replays come down to."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutinefunction, isgeneratorfunction, signature
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from hogwild.config import RunConfig
from hogwild.errors import ArgumentError, a_type, one_line, printable
from hogwild.experiment import Training, bound, optimizer_named
from hogwild.kernels.kernel import Kernel
from hogwild.nodes.party import Party, leaving_together
from hogwild.optim.factory import Factory
from hogwild.optim.rates import LRSchedule, SchedulerFactory, schedule_of
from hogwild.rules.base import Rule
from hogwild.rules.registry import make_rule
from hogwild.run.callback import Callback, CallbackList
from hogwild.run.conduct import run_job
from hogwild.run.early_stopping import EarlyStopping
from hogwild.run.job import Evaluate, Job, Loss, source_in
from hogwild.run.kernel_settings import kernel_steps, refuse_rules_without_kernels, refuse_what_kernels_have_not
from hogwild.run.progress import Progress, Stop, Trace
from hogwild.run.result import Run
from hogwild.run.saved.metrics import finite_or_word, json_values
from hogwild.run.tensorboard import TensorBoard
from hogwild.workers.kernel_loop import kernel_loop, step_again
from hogwild.workers.kinds import warm_up
from hogwild.workers.loop import train_loop

_SHOWN = 60  # letters of a value that is no function


def train_config(
    config: RunConfig,
    model: nn.Module,
    data: Any,
    loss: Loss | None,
    *,
    optimizer: Factory | None,
    rule: Rule | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    lr_schedule: LRSchedule | None = None,
    evaluate: Evaluate | None = None,
    stop: Stop | None = None,
    callbacks: Sequence[Callback] = (),
    out: str | Path | None = None,
    resume: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    began: float | None = None,
    trace: Trace | None = None,
    intra_op: int = 1,
    overwrite: bool = False,
    maker: str = "train",
    caller_config: Mapping[str, Any] | None = None,
    refuses_hidden_state: bool = True,
    change: Mapping[str, Any] | None = None,
    party: Party | None = None,
) -> Run:
    """Train as the configuration says. Arguments and errors are those of `train`, and these:

    Args:
        rule: replaces the one that the configuration names.
        began: the time.monotonic() at which the caller asked for the run; None is now.
        trace: is shown versions of the model during the run.
        intra_op: torch threads that each worker computes with.
        maker: the name of the function that was called, for the record.
        caller_config: the argument `config` of `train`, for the record.
        refuses_hidden_state: whether a run that promises the same bits is refused where the code that it is given keeps
            state. The checker turns this off, because it wants to see what differs.
        party: the machines that train together.
    """
    began = time.monotonic() if began is None else began
    with leaving_together(party):
        kernel = data if isinstance(data, Kernel) else None
        if kernel is not None:
            refuse_what_kernels_have_not(config, loss)
            optimizer = kernel_steps
        elif loss is None or optimizer is None:
            missing = "loss" if loss is None else "optimizer"
            raise ArgumentError(f"no {missing} given; data that is no hogwild.Kernel needs one")
        else:
            refuse_swapped(model, data, loss)
            refuse_uncallable(loss=loss)
            _refuse_loss_of_outputs(loss)
        schedule = schedule_of(lr_schedule)
        asked = None if isinstance(schedule, SchedulerFactory) else schedule
        refuse_uncallable(collate=collate, lr_schedule=asked, evaluate=evaluate, stop=stop, progress=progress)
        refuse_wrong_arity(evaluate=evaluate, stop=stop, progress=progress)
        rule = rule or make_rule(config.update, config)
        rule.check(config.workers)
        if kernel is not None:
            refuse_rules_without_kernels(rule, config)
        warm_up(config.kind)
        source = source_in(data, config, collate)
        job = Job(
            config=config,
            rule=rule,
            model=model,
            optimizer=optimizer,
            source=source,
            loss=loss,
            work=train_loop if kernel is None else kernel_loop,
            lr_schedule=schedule,
            evaluate=evaluate,
            callbacks=CallbackList(callbacks, stop, progress, evaluates=evaluate is not None),
            out=checked_out(out, config.checkpoint_every, party),
            resume=checked_folder("resume", resume) if resume is not None else None,
            trace=trace,
            intra_op=intra_op,
            overwrite=overwrite,
            maker=maker,
            caller_config=checked_caller_config(caller_config),
            refuses_hidden_state=refuses_hidden_state,
            change={} if change is None else change,
            again=None if kernel is None else step_again,
            sparse=() if kernel is None else tuple(kernel.tables),
            party=party,
        )
    return run_job(job, began)


def train_experiment(
    training: Training,
    config: RunConfig,
    *,
    out: Path | None = None,
    resume: Path | None = None,
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
    callbacks: Sequence[Callback] = (),
    change: Mapping[str, Any] | None = None,
    party: Party | None = None,
) -> Run:
    """Train an experiment as the configuration says; errors are those of `hogwild.train`. `callbacks` come after those
    of the experiment, and after those that the settings ask for: TensorBoard and early stopping."""
    own: list[Callback] = [TensorBoard()] if config.tensorboard else []
    if config.keep_best is not None and config.patience is not None:
        own.append(EarlyStopping(config.keep_best, config.patience))
    warm_up(config.kind)
    with leaving_together(party):
        problem = bound(training, config).build(config.seed, Path(config.data) if config.data else None)
    return train_config(
        config,
        problem.model,
        problem.data,
        problem.loss,
        optimizer=optimizer_named(config.optimizer or "sgd", config.lr, config.groups),
        evaluate=problem.evaluate,
        callbacks=[*problem.callbacks, *own, *callbacks],
        out=out,
        resume=resume,
        overwrite=overwrite,
        maker="experiment",
        progress=progress,
        change=change,
        party=party,
    )


def refuse_uncallable(**functions: Any) -> None:
    """Refuse what is no function, and functions that do nothing when they are called; None is left out.

    Raises:
        ArgumentError: always where there is one; the message names it.
    """
    for name, value in functions.items():
        if value is not None and not callable(value):
            left_out = "" if name == "loss" else ", or leave it out"
            shown = printable(repr(value), _SHOWN) if isinstance(value, str | int | float) else ""
            told = f"{a_type(value)}{shown and f', {shown}'}"
            raise ArgumentError(f"{name} is {told}; pass a function{left_out}")
        yields = isgeneratorfunction(value) and name != "loss"  # which may give the parts of a mean
        if yields or iscoroutinefunction(value):
            sort = "yields" if yields else "is async"
            raise ArgumentError(f"{name} {sort}, so to call it does nothing; pass a function that works at once")


def refuse_other_arguments(name: str, function: Callable[..., Any] | None, given: str) -> None:
    """Refuse a function that cannot be called with one argument, which is what is `given`; None is left out.

    Raises:
        ArgumentError: its signature says so.
    """
    if function is None:
        return
    try:
        form = signature(function, follow_wrapped=False)  # a decorator may give more
    except (TypeError, ValueError):  # it does not tell, as what is not written in Python
        return
    try:
        form.bind(None)
    except TypeError as error:
        called = f"{name} is called as {name}({given}), and "
        if not form.parameters:
            raise ArgumentError(f"{called}takes no arguments; give it one, {given}") from error
        raise ArgumentError(
            f"{called}its arguments are {printable(str(form), _SHOWN)}: {one_line(error)}; give it what else it needs "
            f"by functools.partial"
        ) from error


def refuse_wrong_arity(*, evaluate: Any, stop: Any, progress: Any) -> None:
    """Refuse those of these functions that could not be called, which would be found out late in a run; None is left
    out. Errors are those of `refuse_other_arguments`."""
    asked = ("evaluate", evaluate, "model"), ("stop", stop, "progress"), ("progress", progress, "progress")
    for name, function, given in asked:
        refuse_other_arguments(name, function, given)


def checked_caller_config(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Settings of the caller's own, as they will be recorded.

    Raises:
        ArgumentError: they are no mapping, or hold what JSON has not.
    """
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise ArgumentError(f"config is {a_type(config)}, {config!r}; pass a mapping of names to plain values")
    try:
        found: dict[str, Any] = json_values(json.loads(json.dumps(dict(config))), finite_or_word)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentError(f"config holds what cannot be recorded as JSON: {error}; pass plain values") from error
    return found


def refuse_swapped(model: Any, data: Any, loss: Any) -> None:
    """Refuse data where the loss or the model should be, and the other in its place.

    Raises:
        ArgumentError: they are in each other's place.
    """
    if callable(data) and not callable(loss) and not hasattr(data, "__getitem__"):
        raise ArgumentError(f"loss is {a_type(loss)}, and data is {a_type(data)}; pass data, then loss")
    if isinstance(data, nn.Module) and not isinstance(model, nn.Module):
        raise ArgumentError(f"model is {a_type(model)}, and data is {a_type(data)}; pass model, then data")


def _refuse_loss_of_outputs(loss: Loss) -> None:
    """Refuse torch's own losses, which are not given a model and a batch."""
    where = (type(loss).__module__, getattr(loss, "__module__", ""))  # of a module, and of a function
    if "torch.nn.modules.loss" in where or "torch.nn.functional" in where:
        name = getattr(loss, "__name__", f"nn.{type(loss).__name__}()")
        raise ArgumentError(
            f"loss is torch's {name}, which compares outputs with targets, and a loss is given a model and a batch; "
            f"write lambda model, batch: {name}(model(batch[0]), batch[1])"
        )


def checked_out(out: str | Path | None, checkpoint_every: int | None, party: Party | None) -> Path | None:
    """The directory to save a run in, if any.

    Raises:
        ArgumentError: it is a file, or there is none for the checkpoints that are wanted of this machine.
    """
    saves = party is None or party.leads
    if out is None and checkpoint_every is not None and saves:
        raise ArgumentError(f"checkpoint_every {checkpoint_every} given without out; name a directory to save them in")
    folder = checked_folder("out", out) if out is not None else None
    if folder is not None and folder.is_file():
        raise ArgumentError(f"out {str(out)!r} is a file; name a directory, which need not exist")
    return folder


def checked_folder(name: str, folder: str | Path) -> Path:
    """The path of a folder, be it there or not.

    Raises:
        ArgumentError: no folder can have that name: it is too long, or has letters that no path has, or is no text.
    """
    if not isinstance(folder, str | PathLike):
        raise ArgumentError(f"{name} {folder!r:.60} is {a_type(folder)}; pass a path, such as 'runs/mine'")
    try:
        Path(folder).stat()
    except ValueError as error:
        raise ArgumentError(f"{name} {str(folder)!r:.60} can be no folder: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            raise ArgumentError(f"{name} {str(folder)!r:.60} can be no folder: {error.strerror}") from error
    return Path(folder)
