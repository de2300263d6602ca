"""train() and launch(), the two ways in, which check their arguments and hand a `Job` on; load_run(), the way back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch import nn

from hogwild.config import AUTO, RunConfig
from hogwild.errors import short_traceback
from hogwild.nodes.party import leaving_together, party_from_environment
from hogwild.optim.factory import Factory
from hogwild.optim.rates import LRSchedule, schedule_of
from hogwild.rules.base import Rule
from hogwild.rules.registry import make_rule, rule_name
from hogwild.run.callback import Callback, CallbackList
from hogwild.run.conduct import run_job
from hogwild.run.job import Again, Evaluate, Job, Loss
from hogwild.run.progress import Progress, Stop
from hogwild.run.result import Run
from hogwild.run.saved.record import saved_run
from hogwild.run.training import (
    checked_caller_config,
    checked_folder,
    checked_out,
    refuse_other_arguments,
    refuse_uncallable,
    refuse_wrong_arity,
    train_config,
)
from hogwild.workers.kinds import warm_up
from hogwild.workers.worker import Worker

_OBJECTS = ("data", "optimizer")  # of `train` and `launch`; as settings these are names


@short_traceback
def train(
    model: nn.Module,
    data: Any,
    loss: Loss,
    *,
    optimizer: Factory,
    update: str | Rule = "hogwild",
    workers: int = 2,
    kind: str = AUTO,
    staleness: int = 1,
    compensation: str = "auto",
    micro_batches: int = 2,
    accumulate: int = 1,
    gradient: str | None = None,
    average_every: int | None = None,
    outer_lr: float | None = None,
    outer_momentum: float | None = None,
    epochs: int | None = None,
    updates: int | None = None,
    limit_updates: int | None = None,
    batch_size: int = 64,
    drop_last: bool = False,
    shuffle: bool = True,
    collate: Callable[[list[Any]], Any] | None = None,
    seed: int = 0,
    lr_schedule: LRSchedule | None = None,
    clip_grad_norm: float | None = None,
    ema: float | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    keep_best: str | None = None,
    stop: Stop | None = None,
    callbacks: Sequence[Callback] = (),
    audit: bool = False,
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
    token: str | None = None,
    node_timeout: float = 5.0,
) -> Run:
    """Train a model, in place, from several workers at once.

    Args:
        model: any `nn.Module` on the CPU; holds the trained values on return, in its own memory (which is shared where
            the caller made it so, by `model.share_memory()`).
        data: a tensor or array; a tuple, named tuple or mapping of equally long ones; a map-style
            data set; or a `Source`.
        loss: (model, batch) → a scalar, a list of scalars (averaged), or a generator of scalars (each backpropagated
            and freed as it comes, their sum divided by the count); or (value, {name: gradient}), which are told and not
            differentiated, where a gradient is what `Worker.commit` takes. The batch has the structure of the data.
        optimizer: called with `list(model.named_parameters())`, as torch.optim takes them:
            `functools.partial(torch.optim.SGD, lr=0.1)`. It may return a list of them, of parameters of their own.
        update: the rule: racing, hogwild, locked, snapshot, ordered, sync, or a `Rule` of yours.
        workers: how many train at once.
        kind: "threads" or "processes"; or "auto", which takes threads where the GIL is off or a step takes 20 ms and
            leaves the interpreter to others, and processes otherwise: also where the trial step draws from a generator
            that threads share, where the data set, or under `ordered` and `sync` the optimizer, is code of yours, or
            `worker_timeout` is set. `run.kind` and `run.kind_because` tell. No bit hangs on it.
        staleness: `ordered` reads the version that is so many updates old; at most staleness + 1 workers.
        compensation: "auto" changes what `ordered` does with SGD, Adam and AdamW so that staleness costs less accuracy,
            as `hogwild.optim.compensation` says; `run.compensation` tells what it changed. "none" is exact delayed SGD,
            and what is done for other optimizers and for row gradients. "workers" does the same under `hogwild`,
            `locked` and `snapshot`, for gradients that are workers - 1 updates old, as they are on average.
        micro_batches: `sync` averages so many batches into one update; at most so many workers.
        accumulate: a worker averages the gradients of so many batches, computed one after the other on what it has
            read, into one that is applied; the last one of a run has what is left. Each batch draws what it would by
            itself. Under `sync` an update is made of `micro_batches` such gradients.
        gradient: "backward" or "grad"; None is the rule's own way.
        average_every: where several machines train, let each train by itself on every N-th batch, and all take the mean
            of their models after every so many updates of each, and after the last. `updates` are those of each
            machine, `epochs` passes over the data by all together. On one machine it has no effect.
        outer_lr: take what an average moves the model for a gradient, and step by it with this learning rate and
            Nesterov's momentum, as DiLoCo does (arXiv 2311.08105: 0.7); None takes the mean.
        outer_momentum: of these steps; None is 0.9.
        epochs: passes over the data. Exactly one of `epochs` and `updates` says how long to train.
        updates: steps of the model.
        limit_updates: end after so many updates all the same, to try out whether everything works.
        batch_size: samples in a batch; a `Source` makes its own batches.
        drop_last: leave out the last batch of each epoch where it is not a whole one; an epoch visits the others.
        shuffle: visit the samples of each epoch in a new order.
        collate: list of samples → batch, for a data set.
        seed: of the shuffles and of whatever an update draws.
        lr_schedule: number of the update → factor on every learning rate. The first and the last are asked for before
            the run. Or a scheduler of torch that is stepped once an update: its class, a `functools.partial` of it, or
            a function of the optimizer marked by `hogwild.scheduler`.
        clip_grad_norm: clip each update's gradient to this norm.
        ema: decay d of a moving average of the weights, e ← d e + (1 − d) w after each update that is applied, from
            the initial weights on; it ends in `run.ema_state`, and `evaluate` is called on it too.
        evaluate: model → named floats, called in this process on a copy that no worker writes, in eval mode and without
            grad; it may choose otherwise, and the mode is put back.
        evaluate_every: updates between evaluations; None is once an epoch.
        keep_best: the name of a metric of `evaluate`: the version where it was best is kept as `run.best` and in `out`.
            Losses and errors, by their names, are best where they are lowest, others where they are highest; NAME:min
            and NAME:max say it otherwise. With `out` training waits for each evaluation.
        stop: called with a `Progress` after each evaluation; True ends the run at that version.
        callbacks: objects that are told of the run while it is made, and may end it; see `Callback`.
        audit: measure what share of the computed gradient was applied; see `Run.audit` and `hogwild.Audit`. Each worker
            needs memory for four more parameters in float32 per parameter, and time: `run.audit.seconds`.
        recheck: under `ordered` and `sync`, the share of gradients that are computed a second time before they are
            applied, by another worker where there is one, and compared to the bit. The seed chooses which. 0 is none.
        on_nonfinite: "raise", "skip" (leave the update out) or "ignore".
        on_worker_failure: what to do when a worker raises, dies or hangs: "replace" it, "continue" without it (the last
            one is replaced), or "raise". What it was computing is computed again, so one that always raises ends the
            run all the same. Failures are in `run.failures` and logged as warnings of the logger "hogwild".
        max_restarts: workers to replace in the whole run before giving up.
        worker_timeout: seconds after which a worker that gets no further hangs (its start may take two minutes); a
            step, or saving a checkpoint, must take less. The stacks of its threads are in the report. A process is
            ended and treated as dead; a thread cannot be, and the run fails.
        out: directory to save the run in; a new one, or an empty one, or that of `resume`.
        checkpoint_every: updates between checkpoints in `out`; None is only when the run is interrupted.
        resume: directory of a run that did not end, to go on from its last checkpoint. Under `ordered` and `sync`
            the result has the bits of the run that was never stopped; workers and kind may be others. What decides
            bits must be the same. With `out` the same folder, a run that has ended is given back as it is.
        progress: called with a `Progress` several times a second. What it draws from torch's, numpy's or Python's own
            generators is put back, as for `evaluate`, `stop` and callbacks.
        name: what the run is called.
        overwrite: replace the run that is in `out`.
        config: settings of your own to record, plain values by name; see `Run.settings`.
        change: settings that the run of `resume` goes on with, by name: `change={"lr": 0.03}`. All other arguments are
            those it was begun with. lr (of all groups), updates or epochs (more of them), limit_updates,
            clip_grad_norm and on_nonfinite can be changed. Recorded with the update that each holds from, in
            `run.config.changes`.
        token: a secret that all machines must have which torchrun starts; None is HOGWILD_TOKEN in the environment.
        node_timeout: seconds after which a machine that says nothing is taken to be lost.

    Raises:
        ArgumentError: an argument that cannot work, found before any worker starts.
        RunDirectoryError: `out` cannot be written, or another program writes there; `resume` is damaged, or holds
            files of several runs.
        WorkerError: a worker raised, died or hung and was not to be replaced, or too often; `worker`, `update` and
            `batch` of the first failure are its attributes, what was raised its cause. Ends with that traceback.
        NonFiniteError: a loss or gradient was not finite, under on_nonfinite="raise".
        NodeError: a machine was lost, or did not come, or cannot be reached.
        NotReproducible: under `ordered` or `sync`: in threads the training draws from a generator that threads share;
            or model, loss, data, schedule or optimizer keep state of their own, so that computing the first batches in
            another order gives other bits; or, during the run, a gradient that was computed twice differs (`recheck`).
    """
    began = time.monotonic()
    settings = _settings_in(locals())
    __tracebackhide__ = True  # pytest shows the line of the test
    return train_config(
        settings,
        model,
        data,
        loss,
        optimizer=optimizer,
        rule=make_rule(update, settings),
        collate=collate,
        lr_schedule=lr_schedule,
        evaluate=evaluate,
        stop=stop,
        callbacks=callbacks,
        out=out,
        resume=resume,
        progress=progress,
        began=began,
        overwrite=overwrite,
        caller_config=config,
        change=change,
        party=party_from_environment(token, node_timeout),
    )


@short_traceback
def launch(
    work: Callable[[Worker], None],
    model: nn.Module,
    *,
    optimizer: Factory,
    updates: int,
    update: str | Rule = "hogwild",
    workers: int = 2,
    kind: str = AUTO,
    staleness: int = 1,
    compensation: str = "auto",
    micro_batches: int = 2,
    average_every: int | None = None,
    outer_lr: float | None = None,
    outer_momentum: float | None = None,
    seed: int = 0,
    lr_schedule: LRSchedule | None = None,
    clip_grad_norm: float | None = None,
    ema: float | None = None,
    evaluate: Evaluate | None = None,
    evaluate_every: int | None = None,
    keep_best: str | None = None,
    stop: Stop | None = None,
    callbacks: Sequence[Callback] = (),
    audit: bool = False,
    recheck: float = 0.005,
    again: Again | None = None,
    sparse: Sequence[str] = (),
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
    token: str | None = None,
    node_timeout: float = 5.0,
) -> Run:
    """Run a loop of your own in every worker: `work(worker)`, written in the calls that our own loop is written in.

        def work(worker):
            while (ticket := worker.claim()) is not None:
                replica = worker.read(ticket)
                gradient = torch.autograd.grad(my_loss(replica, ticket.batch), list(replica.parameters()))
                worker.commit(ticket, gradient)

    Arguments and errors are those of `train`, but `NotReproducible`: nothing is tried before the run, for nobody knows
    what `work` does, and nobody sees whether what it computes draws from a generator that threads share. So kind="auto"
    is processes here. `recheck`
    needs `again`, a function that computes a gradient as `work` does: `again(worker, ticket, replica)` returns one
    tensor or None for each trainable parameter, as `worker.commit` takes them, and the loss. `sparse` names
    the tables that get row gradients, `worker.commit(ticket, {"words.weight": (rows, values)})`, beside those of layers
    with `sparse=True`; rules that keep versions refuse row gradients of others.
    """
    began = time.monotonic()
    settings = _settings_in(locals())
    __tracebackhide__ = True  # pytest shows the line of the test
    refuse_uncallable(work=work, evaluate=evaluate, stop=stop, again=again, progress=progress)
    refuse_other_arguments("work", work, "worker")
    refuse_wrong_arity(evaluate=evaluate, stop=stop, progress=progress)
    rule = make_rule(update, settings)
    rule.check(workers)
    warm_up(kind)
    party = party_from_environment(token, node_timeout)
    with leaving_together(party):
        job = Job(
            config=settings,
            rule=rule,
            model=model,
            optimizer=optimizer,
            source=None,
            loss=None,
            work=work,
            lr_schedule=schedule_of(lr_schedule),
            evaluate=evaluate,
            callbacks=CallbackList(callbacks, stop, progress, evaluates=evaluate is not None),
            out=checked_out(out, checkpoint_every, party),
            resume=checked_folder("resume", resume) if resume is not None else None,
            overwrite=overwrite,
            maker="launch",
            caller_config=checked_caller_config(config),
            change={} if change is None else change,
            again=again,
            sparse=sparse,
            party=party,
        )
    return run_job(job, began)


@short_traceback
def load_run(run_dir: str | Path) -> Run:
    """The run that was saved in a directory: what `train` gave back, with its settings, environment and journal.

    The trained state is `run.model_state`; `model.load_state_dict(run.model_state)` puts it into a model.

    Raises:
        RunDirectoryError: the directory is not that of a whole run, or one of its files was changed.
        ArgumentError: its config.toml is not a configuration.
    """
    return saved_run(checked_folder("run_dir", run_dir))


def _settings_in(arguments: Mapping[str, Any]) -> RunConfig:
    """Those arguments of `train` or `launch` that are settings of a run."""
    names = {one.name for one in fields(RunConfig)} - set(_OBJECTS)
    given = {name: value for name, value in arguments.items() if name in names}
    return RunConfig(**{**given, "update": rule_name(arguments["update"])})
