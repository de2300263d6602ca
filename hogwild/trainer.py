"""train() and launch(): the two ways in. They check the arguments and hand a `Job` to a `Session`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from hogwild.config import RunConfig
from hogwild.errors import ArgumentError
from hogwild.optimizer_state import Factory
from hogwild.rules import Rule, make_rule, rule_name
from hogwild.run import Progress, Run, Stop
from hogwild.schedule import as_source
from hogwild.session import Evaluate, Job, Loss, Session
from hogwild.watcher import Trace
from hogwild.workers.loop import Worker, train_loop
from hogwild.workers.processes import start_server


def train(
    model: nn.Module,
    data: Any,
    loss: Loss,
    *,
    optimizer: Factory,
    update: str | Rule = "hogwild",
    workers: int = 2,
    kind: str = "processes",
    staleness: int = 1,
    micro_batches: int = 2,
    gradient: str | None = None,
    epochs: int | None = None,
    updates: int | None = None,
    batch_size: int = 64,
    shuffle: bool = True,
    collate: Callable[[list[Any]], Any] | None = None,
    seed: int = 0,
    lr_schedule: Callable[[int], float] | None = None,
    clip_grad_norm: float | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    stop: Stop | None = None,
    audit: bool = False,
    on_nonfinite: str = "raise",
    on_worker_failure: str = "replace",
    max_restarts: int = 3,
    worker_timeout: float | None = None,
    out: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    name: str = "run",
) -> Run:
    """Train a model, in place, from several workers at once.

    Args:
        model: any `nn.Module` on the CPU; holds the trained values on return, in its own memory (which is shared where
            the caller made it so, by `model.share_memory()`).
        data: a tensor or array; a tuple or mapping of equally long ones; a map-style data set; or a `Source`.
        loss: (model, batch) → a scalar, a list of scalars (averaged), or a generator of scalars (each backpropagated
            and freed as it comes, their sum divided by the count). The batch has the structure of the data.
        optimizer: called with `list(model.named_parameters())`, as torch.optim takes them:
            `functools.partial(torch.optim.SGD, lr=0.1)`.
        update: the rule: racing, hogwild, locked, snapshot, ordered, sync, or a `Rule` of yours.
        workers: how many train at once.
        kind: "threads" or "processes".
        staleness: `ordered` reads the version that is so many updates old; at most staleness + 1 workers.
        micro_batches: `sync` averages so many batches into one update; at most so many workers.
        gradient: "backward" or "grad"; None is the rule's own way.
        epochs, updates: exactly one says how long to train.
        batch_size, shuffle, collate: how data is made into batches; a `Source` makes its own.
        seed: of the shuffles and of whatever an update draws.
        lr_schedule: number of the update → factor on every learning rate.
        clip_grad_norm: clip each update's gradient to this norm.
        evaluate: model → named floats, called in this process on a copy that no worker writes.
        evaluate_every: updates between evaluations; None is once an epoch.
        stop: called with a `Progress` after each evaluation; True ends the run at that version.
        audit: measure what share of the computed gradient was applied; see `Run.audit` and `hogwild.audit`. Each worker
            needs memory for four more parameters in float32 per parameter, and time: `run.audit.seconds`.
        on_nonfinite: "raise", "skip" (leave the update out) or "ignore".
        on_worker_failure: what to do when a worker raises, dies or hangs: "replace" it, "continue" without it (the last
            one is replaced), or "raise". What it was computing is computed again, so one that always raises ends the
            run all the same. Failures are in `run.failures` and logged as warnings of the logger "hogwild".
        max_restarts: workers to replace in the whole run before giving up.
        worker_timeout: seconds after which a worker that gets no further hangs (its start may take two minutes); a
            step, or saving a checkpoint, must take less. The stacks of its threads are in the report. A process is
            ended and treated as dead; a thread cannot be, and the run fails.
        out: directory to save the run in.
        checkpoint_every: updates between checkpoints in `out`; None is only when the run is interrupted.
        resume: directory of a run that did not end, to go on from its last checkpoint. Under `ordered` and `sync`
            the result has the bits of the run that was never stopped; workers and kind may be others.
        progress: called with a `Progress` several times a second. Must not draw from torch's default generator where
            threads train under `ordered` or `sync`; `evaluate` and `stop` may, and find it put back afterwards.
        name: what the run is called.

    Raises:
        ArgumentError: an argument that cannot work, found before any worker starts.
        WorkerError: a worker raised, died or hung and was not to be replaced, or too often; `worker`, `update` and
            `batch` of the first failure are its attributes, what was raised its cause. Ends with that traceback.
        NonFiniteError: a loss or gradient was not finite, under on_nonfinite="raise".
        NotReproducible: `ordered` or `sync` in threads, and the training draws from a generator that threads share.
    """
    began = time.monotonic()
    config = RunConfig(
        name=name,
        update=rule_name(update),
        workers=workers,
        kind=kind,
        staleness=staleness,
        micro_batches=micro_batches,
        gradient=gradient,
        epochs=epochs,
        updates=updates,
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        clip_grad_norm=clip_grad_norm,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        audit=audit,
        on_nonfinite=on_nonfinite,
        on_worker_failure=on_worker_failure,
        max_restarts=max_restarts,
        worker_timeout=worker_timeout,
    )
    rule = make_rule(update, staleness=staleness, micro_batches=micro_batches, gradient=gradient)
    return train_config(
        config,
        model,
        data,
        loss,
        optimizer=optimizer,
        rule=rule,
        collate=collate,
        lr_schedule=lr_schedule,
        evaluate=evaluate,
        stop=stop,
        out=out,
        resume=resume,
        progress=progress,
        began=began,
    )


def train_config(
    config: RunConfig,
    model: nn.Module,
    data: Any,
    loss: Loss,
    *,
    optimizer: Factory,
    rule: Rule | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    lr_schedule: Callable[[int], float] | None = None,
    evaluate: Evaluate | None = None,
    stop: Stop | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    began: float | None = None,
    trace: Trace | None = None,
    intra_op: int = 1,
) -> Run:
    """Train as the configuration says; arguments and errors are those of `train`.

    `rule` replaces the one that the configuration names; `began` is the time.monotonic() at which the caller asked;
    `trace` is shown versions on the way; `intra_op` is the number of torch threads that each worker computes with.
    """
    began = time.monotonic() if began is None else began
    _refuse_uncallable(loss=loss)
    _refuse_uncallable(collate=collate, lr_schedule=lr_schedule, evaluate=evaluate, stop=stop, progress=progress)
    rule = rule or make_rule(
        config.update, staleness=config.staleness, micro_batches=config.micro_batches, gradient=config.gradient
    )
    rule.check(config.workers)
    if config.kind == "processes":
        start_server()
    source = as_source(data, batch_size=config.batch_size, shuffle=config.shuffle, seed=config.seed, collate=collate)
    job = Job(
        config=config,
        rule=rule,
        model=model,
        optimizer=optimizer,
        source=source,
        loss=loss,
        work=train_loop,
        lr_schedule=lr_schedule,
        evaluate=evaluate,
        stop=stop,
        progress=progress,
        out=_path(out, config.checkpoint_every),
        resume=Path(resume) if resume is not None else None,
        trace=trace,
        intra_op=intra_op,
    )
    return Session(job, began).run()


def launch(
    work: Callable[[Worker], None],
    model: nn.Module,
    *,
    optimizer: Factory,
    updates: int,
    update: str | Rule = "hogwild",
    workers: int = 2,
    kind: str = "processes",
    staleness: int = 1,
    micro_batches: int = 2,
    seed: int = 0,
    lr_schedule: Callable[[int], float] | None = None,
    clip_grad_norm: float | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    stop: Stop | None = None,
    audit: bool = False,
    on_nonfinite: str = "raise",
    on_worker_failure: str = "replace",
    max_restarts: int = 3,
    worker_timeout: float | None = None,
    out: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    name: str = "run",
) -> Run:
    """Run a loop of your own in every worker: `work(worker)`, written in the calls that our own loop is written in.

        def work(worker):
            while (update := worker.claim()) is not None:
                replica = worker.read(update)
                gradient = torch.autograd.grad(my_loss(replica, update), list(replica.parameters()))
                worker.commit(update, gradient)

    Arguments and errors are those of `train`, but `NotReproducible`: nothing is tried before the run, for nobody knows
    what `work` does, and nobody sees whether what it computes draws from a generator that threads share.
    """
    began = time.monotonic()
    config = RunConfig(
        name=name,
        update=rule_name(update),
        workers=workers,
        kind=kind,
        staleness=staleness,
        micro_batches=micro_batches,
        updates=updates,
        seed=seed,
        clip_grad_norm=clip_grad_norm,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        audit=audit,
        on_nonfinite=on_nonfinite,
        on_worker_failure=on_worker_failure,
        max_restarts=max_restarts,
        worker_timeout=worker_timeout,
    )
    rule = make_rule(update, staleness=staleness, micro_batches=micro_batches, gradient=None)
    rule.check(workers)
    if kind == "processes":
        start_server()
    job = Job(
        config=config,
        rule=rule,
        model=model,
        optimizer=optimizer,
        source=None,
        loss=None,
        work=work,
        lr_schedule=lr_schedule,
        evaluate=evaluate,
        stop=stop,
        progress=progress,
        out=_path(out, checkpoint_every),
        resume=Path(resume) if resume is not None else None,
    )
    return Session(job, began).run()


def _refuse_uncallable(**functions: Any) -> None:
    for name, value in functions.items():
        if value is not None and not callable(value):
            raise ArgumentError(f"{name} is a {type(value).__name__}, {value!r}; pass a function, or leave it out")


def _path(out: str | Path | None, checkpoint_every: int | None) -> Path | None:
    if out is None and checkpoint_every is not None:
        raise ArgumentError(f"checkpoint_every {checkpoint_every} given without out; name a directory to save them in")
    if out is not None and Path(out).is_file():
        raise ArgumentError(f"out {str(out)!r} is a file; name a directory, which need not exist")
    return Path(out) if out is not None else None
