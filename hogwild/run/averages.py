"""Machines that train apart and average: what their run cannot have, and its rule as each of them has it."""

from __future__ import annotations

import copy
from dataclasses import replace

from hogwild.errors import ArgumentError, warn_caller
from hogwild.rules.base import Rule
from hogwild.rules.registry import names_where, quoted
from hogwild.run.job import Job
from hogwild.shared.dealing import Averages, Dealing

_EVERY = ("evaluate_every", "checkpoint_every")


def as_one_of_several(job: Job) -> Job:
    """The job as this machine does it, where several train; the same where one does, whose mean is itself.

    Raises:
        ArgumentError: it has settings that do not fit together, or that several machines, or one, cannot have.
    """
    if job.party is None:
        if job.config.outer_lr is not None:
            raise ArgumentError(
                f"outer_lr {job.config.outer_lr} given, and one machine trains, which averages nothing; outer steps "
                f"are for several (--nodes, or torchrun)"
            )
        return job
    averages = job.averages
    if averages is None:
        refuse_to_race_together(job.rule)
        return job
    _refuse_what_is_not_averaged(job, averages)
    rule = copy.copy(job.rule)
    rule.dealing = Dealing(job.party.nodes, job.party.node, averages=averages)
    return replace(job, rule=rule)


def refuse_to_race_together(rule: Rule) -> None:
    """Refuse a rule under which several machines cannot train together.

    Raises:
        ArgumentError: it is one.
    """
    if not rule.combines:
        having = quoted(names_where(lambda one: one.combines), "and")
        raise ArgumentError(
            f"update {rule.name!r} trains on one machine, or on several that average their models "
            f"(average_every=50); {having} train on several together"
        )


def _refuse_what_is_not_averaged(job: Job, averages: Averages) -> None:
    config, nodes = job.config, job.party.nodes if job.party is not None else 1
    for name in _EVERY:
        value = getattr(config, name)
        if value is not None and averages.from_or_after(value) != value:
            raise ArgumentError(
                f"{name} {value} is no multiple of average_every {averages.every}, and between two averages each "
                f"machine has a model of its own; {averages.from_or_after(value)} is one"
            )
    if job.party is not None and job.party.returns:
        raise ArgumentError(
            f"machine {job.party.node} was lost, and a run whose machines average takes nobody back; it ends without it"
        )
    if config.audit:
        raise ArgumentError("audit given with average_every, and an average is no gradient; leave one of them out")
    if job.tickets < 1:
        raise ArgumentError(
            f"{nodes} machines and {job.batches} batches: some would train on none; more epochs, or smaller batches, "
            f"give each its share"
        )
    if job.resume is not None and job.rule.same_bits:
        warn_caller(
            f"{job.rule.name} goes on with average_every {averages.every} from the checkpoint of machine 0, whose "
            f"optimizer state all take, so the bits will be others than those of a run that was never stopped"
        )
