"""Before a run that promises the same bits: does anything depend on what was computed before, or on who computes it?

    first    the caller's own model, loss, data and schedule, after the trial step        batches 0, k, 0
    second   copies made before the trial step, as another worker would have them         batches k, 0

A batch has to have one loss, one gradient and one set of buffers, to the bit, whoever computes it and when. Batch k is
computed on other parameters, as after a step, for what the loss keeps of the model, as a teacher that follows it, may
be equal to it at first. The same holds for the factors of the schedule, and for the steps of an optimizer that is not
one of torch's own. Five gradients are computed, with the threads and the generators of a worker. State that shows in
none of them is not seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

from hogwild.errors import NotReproducible, printable, with_type
from hogwild.model.anatomy import Anatomy
from hogwild.rules.rechecks import STATE_ADVICE, unequal_losses, unequal_tensors
from hogwild.run.job import Job
from hogwild.run.trial.same_steps import refuse_uneven_steps
from hogwild.run.trial.trainee import Computed, Copies, Factors, Trainee, own_parts, sent_parts, shared_parts


def copies_for_another(job: Job) -> Copies | None:
    """Copies as a worker process is given them. What cannot be pickled is copied and shared as for a thread.

    None where nothing is promised, nothing is to be refused, or there is no loss to look at.
    """
    if not (job.rule.same_bits and job.refuses_hidden_state) or job.source is None or job.loss is None:
        return None
    return sent_parts(job) or shared_parts(job)


def look_again(job: Job, anatomy: Anatomy, copies: Copies) -> None:
    """Compute the first batches in two orders and compare. Called with the threads and generators of a worker.

    What raises is left for the run to tell, which names worker, update and batch; but for what could be computed once.

    Raises:
        NotReproducible: they differ; the message names what. Or batch 0 cannot be computed again.
    """
    _refuse_uneven_schedule(job, copies.lr_schedule)
    k = min(1, job.batches - 1)
    try:
        first = Trainee(job, anatomy, own_parts(job), 0)
        second = Trainee(job, anatomy, copies, min(1, job.config.workers - 1))
        zero = first.compute(0)
    except Exception:
        return
    try:
        other, again, others_other, others_zero = _looked(first, second, k)
    except Exception:
        _refuse_what_works_once(job, first)
        return
    names = list(anatomy.trained), list(anatomy.buffers)
    _refuse(job, 0, _difference(zero, again, *names), "is another when it is computed again, after another batch")
    for number, mine, theirs in ((k, other, others_other), (0, zero, others_zero)):
        _refuse(job, number, _difference(mine, theirs, *names), "hangs on who computes it, and on what came before")
    refuse_uneven_steps(job, anatomy, copies.optimizer, (zero.gradients, other.gradients))


def _looked(first: Trainee, second: Trainee, k: int) -> tuple[Computed, ...]:
    """What both compute, with other parameters for batch k; with the same where the loss is not made for such: it
    raises, or is not finite."""
    with suppress(Exception):
        found = _computed(first, second, k, moved=True)
        if math.isfinite(found[0].loss):
            return found
    return _computed(first, second, k, moved=False)


def _computed(first: Trainee, second: Trainee, k: int, *, moved: bool) -> tuple[Computed, ...]:
    """Batches k, 0 of the first, which has computed batch 0, and of the second."""
    return tuple(found for one in (first, second) for found in (one.compute(k, moved=moved), one.compute(0)))


def _refuse_what_works_once(job: Job, first: Trainee) -> None:
    """Refuse a loss that raises at batch 0, which it has computed before: in a run every worker would."""
    try:
        first.compute(0)
    except Exception as error:
        raise NotReproducible(
            f"batch 0 could be computed once, and cannot be again ({printable(with_type(error))}), so {job.rule.name} "
            f"cannot give the same bits; the model, the loss or the data keeps something from call to call; "
            f"{STATE_ADVICE}"
        ) from error


def _difference(a: Computed, b: Computed, trained: Sequence[str], buffers: Sequence[str]) -> str | None:
    """What differs, in words; None where nothing does."""
    return (
        unequal_losses(a.loss, b.loss)
        or unequal_tensors("gradient", trained, a.gradients, b.gradients)
        or unequal_tensors("buffer", buffers, a.buffers, b.buffers)
    )


def _refuse(job: Job, number: int, difference: str | None, how: str) -> None:
    if difference is not None:
        raise NotReproducible(
            f"batch {number}: the {difference} {how}, so {job.rule.name} cannot give the same bits; the model, the "
            f"loss or the data keeps something from call to call, or reads by a closure the model that was given; "
            f"{STATE_ADVICE}"
        )


def _refuse_uneven_schedule(job: Job, theirs: Factors | None) -> None:
    """Refuse a schedule whose factors depend on what it was asked before."""
    own = job.factors
    if own is None or theirs is None:
        return
    last = job.updates - 1
    k = min(1, last)
    try:
        first = {"0": own(0), "k": own(k), "last": own(last)}
        others = {"last": theirs(last), "k": theirs(k), "0": theirs(0)}
        again = {"0": own(0), "k": own(k), "last": own(last)}
    except Exception:
        return
    if first == others == again or any(value != value for value in first.values()):
        return
    raise NotReproducible(
        f"lr_schedule gives another factor when it is asked again, or in another order, so {job.rule.name} cannot give "
        f"the same bits; it must be a function of the update's number alone; {STATE_ADVICE}"
    )
