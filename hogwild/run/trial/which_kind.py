"""Threads or processes, where nobody says which (kind="auto"): decided once, from what the trial step showed.

    threads     the GIL is off, or a step is long and leaves the interpreter to others
    processes   else; and wherever threads would share what a run cannot vouch for: a generator that the trial step drew
                from, a data set or an optimizer of the user's own, a layer that is reached past the copy of the model,
                what a loss keeps of a step, or assigns to a class or a global

It decides no bits: what is said of a rule holds for both kinds.
"""

from __future__ import annotations

from dataclasses import replace

from torch.optim import Optimizer

from hogwild.config import AUTO
from hogwild.data.sources import DatasetSource
from hogwild.errors import a_type, some_of
from hogwild.kernels.kernel import Kernel
from hogwild.optim.factory import is_torchs
from hogwild.optim.several import kind_of
from hogwild.run.job import Job
from hogwild.run.trial.dry_run import DryRun
from hogwild.workers.kinds import warm_up
from hogwild.workers.seat import planted_pause
from hogwild.workers.surroundings.interpreter import Measured, has_gil, may_start_processes

LONG = 0.02  # seconds of a step from which on two threads do what two processes do, or more
_FREE = 0.3  # the share of a step for which another thread may wait for the interpreter
_THREADS, _PROCESSES = "threads", "processes"


def is_to_be_measured(job: Job) -> bool:
    """True where the choice may hang on how long a step is."""
    return job.config.kind == AUTO and has_gil()


def with_kind(job: Job, tried: DryRun, optimizer: Optimizer) -> Job:
    """The job with the kind of its workers, why it was chosen where nobody said, and what is reached.

    Raises:
        ArgumentError: no worker of that kind can be started here.
    """
    job = replace(job, copied_together=bool(tried.beyond or tried.apart))
    if job.config.kind != AUTO:
        return replace(job, kind=job.config.kind)
    reason = _against_threads(job, tried, optimizer)
    kind, because = (_PROCESSES, reason) if reason else _by_the_interpreter(job, tried.measured)
    warm_up(kind)
    return replace(job, kind=kind, kind_because=because)


def _against_threads(job: Job, tried: DryRun, optimizer: Optimizer) -> str:
    """Why threads are out of the question, however fast they were; empty where they are not."""
    source = job.source
    if source is None:
        return "nothing of the loop is tried before"
    if tried.draws:
        return f"it draws in {'; '.join(tried.draws)}, which threads share"
    if tried.beyond:
        return f"threads would share {some_of(tried.beyond)}, which is reached past their copies of the model"
    if tried.apart:
        return f"threads would have copies of the {tried.apart} that the model and the loss have in common"
    if tried.kept:
        return f"threads would share {tried.kept}"
    if tried.assigned:
        return f"threads would share {some_of(tried.assigned)}, which the loss or the model assigns to"
    if isinstance(source, DatasetSource) and type(source.dataset) not in (list, tuple):
        return f"threads would share its data set, {a_type(source.dataset)}"
    own = not is_torchs(optimizer) and not isinstance(source, Kernel)
    if own and job.rule.same_bits:
        return f"threads share what {kind_of(optimizer)} may draw from"
    if job.config.worker_timeout is not None:
        return "worker_timeout is set, and a thread that hangs cannot be ended"
    if planted_pause.get() is not None:
        return "something is planted, which may kill a worker, and with a thread the whole program"
    return ""


def _by_the_interpreter(job: Job, step: Measured | None) -> tuple[str, str]:
    """(kind, why) where both would do."""
    if not has_gil():
        return _THREADS, "the GIL is off"
    if not may_start_processes():
        return _THREADS, "a daemonic process may start no other"
    if isinstance(job.source, Kernel):
        return _THREADS, "a kernel is to leave the interpreter to others"
    if step is None or step.seconds < LONG:
        return _PROCESSES, f"a step of less than {1000 * LONG:.0f} ms makes threads wait for the GIL"
    if step.waited > _FREE:
        return _PROCESSES, f"a step keeps the GIL for {step.waited:.0%} of its time"
    return _THREADS, f"a step takes {1000 * step.seconds:.0f} ms, and others have the GIL meanwhile"
