"""One step of a job before the run, and what it is refused for."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from hogwild.errors import ArgumentError, NotReproducible, some_of, warn_caller
from hogwild.kernels.kernel import Kernel
from hogwild.model.anatomy import Anatomy
from hogwild.rules.gradients import gradients_of
from hogwild.rules.registry import quoted, stepping_by_row
from hogwild.run.job import Job
from hogwild.run.trial.dry_run import DryRun, as_in_a_worker, dry_run
from hogwild.run.trial.kept_by_loss import LEVELS
from hogwild.run.trial.trainee import Trainee, sent_parts
from hogwild.run.trial.try_kernel import try_kernel
from hogwild.run.trial.which_kind import LONG, is_to_be_measured
from hogwild.workers.kernel_loop import lr_of
from hogwild.workers.kinds import TEAMS
from hogwild.workers.process.named_by import is_importable
from hogwild.workers.surroundings.blas_threads import blas_threads


def try_job(job: Job, anatomy: Anatomy) -> DryRun:
    """What one step of it shows; of what is not tried, what is taken for granted.

    Raises:
        ArgumentError: the step raised, or it does what no worker may do.
    """
    if isinstance(job.source, Kernel):
        same, config, lr = job.rule.same_bits, job.config, lr_of(job.source, job.config, 0)
        with blas_threads.one():
            return try_kernel(job.source, job.model, anatomy.trained, lr, config.seed, config.workers, same_bits=same)
    if job.source is None or job.loss is None:
        return DryRun(frozenset(), 1, ())
    config, long = job.config, LONG if is_to_be_measured(job) else None
    with as_in_a_worker(job.intra_op):  # more threads would spin while this program, and others, start processes
        tried = dry_run(
            *(job.model, anatomy.trained, job.source, job.loss, config.seed, config.workers, long),
            by=job.rule.gradient_by,
            refuses_nonfinite=config.on_nonfinite == "raise",
        )
    if job.data_before is not None:
        job.data_before.note_files()
    _refuse_writes(job, anatomy, tried.written)
    if tried.left_out:
        warn_caller(tried.left_out)
    if tried.made:
        warn_caller(
            f"the first forward pass makes the buffer {some_of(tried.made)}, of which each worker has one of its own, "
            f"and no saved model; run one batch through the model first, or register a cache with persistent=False"
        )
    return tried


def _refuse_writes(job: Job, anatomy: Anatomy, written: Sequence[str]) -> None:
    """Refuse a loss that writes to those parameters, where a write would be lost, or read by who is not to see it."""
    if frozen := [name for name in written if name not in anatomy.trained]:
        raise ArgumentError(
            f"the loss writes to {some_of(frozen)} while it is computed, which is not trained, and workers share it "
            f"as it was; keep what a forward pass changes in buffers (register_buffer)"
        )
    if written and job.rule.needs(job.config.workers).slots > 1:
        raise ArgumentError(
            f"the loss writes to {some_of(written)} while it is computed, as an embedding with max_norm does, and "
            f"{job.rule.name} keeps a version as it was made; compute on tensors of its own, as with "
            f"torch.func.functional_call, or use update={quoted(stepping_by_row(), 'or')}"
        )


def refuse_what_workers_miss(job: Job, anatomy: Anatomy, tried: DryRun) -> None:
    """Refuse what is reached of the caller's model past the copies of it, which would never be trained; what the loss
    computes with beside them, of which it is not known whether the start of the run is meant; and where the same bits
    are promised draws from a generator of all threads."""
    if tried.beside:
        raise ArgumentError(
            f"the loss computes with {some_of(tried.beside)} of the model that was given, by a closure or a global, "
            f"beside those of the model that it is called with; use that one, or where the parameters are meant that "
            f"the run begins with, a copy.deepcopy of the model, or detached clones of them, made before"
        )
    if TEAMS[job.kind].own_processes:
        if tried.beyond and not tried.written:
            _refuse_what_is_imported_anew(job, anatomy)
        return
    if tried.beyond:
        raise ArgumentError(
            f"the model or the loss reaches {some_of(tried.beyond)} of the model that was given, by a closure or a "
            f"global, and not the copy that it is called with, so threads would never train it; make it a method, "
            f"use the model that the loss is called with, or use kind='processes'"
        )
    if tried.apart:
        raise ArgumentError(
            f"the model and the loss have one {tried.apart} in common, where the model leaves what the loss reads; a "
            f"thread's copy of the model has one of its own, which the loss does not see; return it from the forward "
            f"pass, or use kind='processes'"
        )
    if tried.kept and job.config.workers > 1:
        shared = f"threads share {tried.kept}, and compute with that of one another"
        if job.rule.same_bits:
            raise NotReproducible(f"{shared}, so {job.rule.name} cannot give the same bits; use kind='processes'")
        if tried.kept == LEVELS:
            raise ArgumentError(f"threads share {LEVELS}, where two at once fail or crash; use kind='processes'")
        warn_caller(f"{shared}; use kind='processes'")
    if tried.draws and job.rule.same_bits:
        raise NotReproducible(
            f"the training draws random numbers in {'; '.join(tried.draws)}, which all threads share, or another "
            f"thread of the program drew meanwhile, so {job.rule.name} cannot give the same bits; use "
            f"kind='processes', or hogwild.worker_info().generator"
        )


def _refuse_what_is_imported_anew(job: Job, anatomy: Anatomy) -> None:
    """Refuse a loss of a module that can be imported, which reaches the model by a global: in a process the global is
    another. Where classes are sent as they are written, it is not known what they reach there."""
    parts = sent_parts(job) if all(map(is_importable, (job.loss, *map(type, job.model.modules())))) else None
    if parts is None:
        return
    reached: list[str] = []
    with as_in_a_worker(job.intra_op), suppress(Exception):  # of what raises the run tells
        with Trainee(job, anatomy, parts, 0).losing(job.rule.deal(0, job.tickets)) as output:
            _, gradients = gradients_of(output, [*anatomy.trained.values()], [*anatomy.trained], "grad")
        reached = [name for name, gradient in zip(anatomy.trained, gradients, strict=True) if gradient is not None]
    if reached:
        raise ArgumentError(
            f"the loss reaches {some_of(reached)} of the model that was given by a global of {job.loss.__module__}, "
            f"which worker processes import anew, so they would never train it; use the model that the loss is called "
            f"with"
        )
