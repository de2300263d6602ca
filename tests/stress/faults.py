"""Random faults, planted one to a run, and what each run must come to.

A `Case` is drawn from a generator: a fault, a rule, a kind, workers, a model, an optimizer, a policy and the moment.
`attempt` runs it and returns a `Verdict`: whether the run completed, or ended, as it should, and what was lost.
"""

from __future__ import annotations

import gc
import multiprocessing
import random
import re
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import problems
import psutil
import pytest
import torch
from crews import Hanging, said_to_hang
from killer import Killer
from traits import KINDS, NAMES, SAME_BITS, VERSIONED, hooks_of

import hogwild
from hogwild.testing import Fault, Hook, PlantedFault, RandomDelays, both, planted

UPDATES = 16
MICRO_BATCHES = 3
TIMEOUT = 1.0  # seconds after which a worker hangs
MODELS = {"mlp": problems.mlp, "conv_bn": problems.conv_bn, "dropout": problems.dropout}
OPTIMIZERS = {"sgd": problems.SGD, "momentum": problems.MOMENTUM, "adam": problems.ADAM}
DEATHS = {
    "SIGKILL at a named moment": Fault.KILL,
    "SIGTERM": Fault.TERMINATE,
    "SIGSEGV": Fault.SEGFAULT,
    "os._exit(0)": Fault.EXIT,
}
KILL_ANY_TIME = "SIGKILL at any instant"
RAISE_ANYWHERE = "an exception at a named moment"
HANG = "hangs in the loss"
HANG_ANYWHERE = "hangs at a named moment"
RAISES = {
    "the loss raises": "PlantedError",
    "the loss raises what cannot be pickled": "StubbornError",
    "the data source raises": "OSError",
    "the data source ends early": "StopIteration",
}
RAISES_ONCE = {f"{fault}, once": name for fault, name in RAISES.items() if fault != "the data source ends early"}
NONFINITE = {
    f"NaN {what}, on_nonfinite={policy!r}": (what, policy)
    for what in ("loss", "gradient")
    for policy in ("raise", "skip")
}
SOUND_SOURCE = "the data source is sound"
NEVER = -1  # the ticket of nobody
FAULTS = [*DEATHS, KILL_ANY_TIME, RAISE_ANYWHERE, HANG, HANG_ANYWHERE, *RAISES, *RAISES_ONCE, *NONFINITE]


class PlantedError(RuntimeError):
    """What a loss raises."""


class StubbornError(RuntimeError):
    """An exception that pickle cannot read back."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


@dataclass(frozen=True)
class Case:
    """One run and the fault in it."""

    fault: str
    rule: str
    kind: str
    workers: int
    model: str
    optimizer: str
    policy: str
    ticket: int
    hook: Hook
    seed: int


@dataclass
class Verdict:
    """What became of a case. `met` is false where the run was over before the fault could meet anybody."""

    met: bool = True
    wrong: str = ""
    lost: int = 0
    in_doubt: int = 0
    leaks: int = 0


def draw(choices: random.Random, fault: str) -> Case:
    """A random run for that fault, among those in which it can happen."""
    while True:
        rule = choices.choice(NAMES)
        tickets = UPDATES * (MICRO_BATCHES if rule == "sync" else 1)
        case = Case(
            fault=fault,
            rule=rule,
            kind=choices.choice(KINDS),
            workers=choices.randint(1, 3),
            model=choices.choice([*MODELS]),
            optimizer=choices.choice([*OPTIMIZERS]),
            policy=choices.choice(["replace", "replace", "continue", "raise"]),
            ticket=choices.randrange(tickets),
            hook=choices.choice([*Hook]),
            seed=choices.randrange(1 << 30),
        )
        if possible(case):
            return case


def possible(case: Case) -> bool:
    """A thread cannot be killed, nor draw under rules that promise bits; only versions are published.

    A thread that hangs at a named moment would be there for an hour.
    """
    if case.kind == "threads" and (case.fault in DEATHS or case.fault in (KILL_ANY_TIME, HANG_ANYWHERE)):
        return False
    if case.kind == "threads" and case.model == "dropout" and case.rule in SAME_BITS:
        return False
    if case.rule == "racing" and case.fault.startswith("NaN gradient"):
        return False  # it lies in the shared .grad before anybody can look; its module says so
    return case.hook in hooks_of(case.rule)


# --- what is planted


def at_the_ticket(ticket: int) -> bool:
    """True in the worker that computes it; the dry run is none."""
    in_worker = threading.current_thread() is not threading.main_thread() or multiprocessing.parent_process()
    info = hogwild.worker_info()
    return bool(in_worker) and info is not None and info.batch == ticket


def open_once(fault: str, gate: torch.Tensor) -> bool:
    """True, but for a fault that happens once only the first time."""
    passed = bool(gate[0])
    gate[0] = 1
    return not (passed and fault in RAISES_ONCE)


def loss_of(
    case: Case, gate: torch.Tensor, release: threading.Event, hanging: torch.Tensor | None = None
) -> Callable[..., torch.Tensor]:
    """The loss with the case's fault in it; `gate` lets it happen once, `release` lets a thread go, and `hanging` is
    told who hangs."""
    ticket, fault = case.ticket, case.fault
    hang = release.wait if case.kind == "threads" else time.sleep

    def loss(model: Any, batch: Any) -> torch.Tensor:
        value = problems.cross_entropy(model, batch)
        if fault == KILL_ANY_TIME:
            time.sleep(0.01)
        if not at_the_ticket(ticket):
            return value
        if fault.startswith("the loss raises") and open_once(fault, gate):
            raise StubbornError(1, 2) if "pickled" in fault else PlantedError("planted")
        if fault.startswith("NaN loss"):
            return value * float("nan")
        if fault.startswith("NaN gradient"):
            return value + (0 * next(model.parameters()).sum()).abs().sqrt()
        if fault == HANG and not gate[0]:
            gate[0] = 1
            assert hanging is not None
            hanging[hogwild.worker_info().index] = 1
            hang(600)
        return value

    return loss


class Samples:
    """A source of our own that fails at one batch."""

    def __init__(self, ticket: int, fault: str, gate: torch.Tensor) -> None:
        self.ticket, self.fault, self.gate = ticket, fault, gate
        self.x, self.y = problems.data()

    def batch(self, update: int, generator: torch.Generator) -> Any:
        if at_the_ticket(self.ticket) and update == self.ticket and open_once(self.fault, self.gate):
            raise StopIteration if self.fault == "the data source ends early" else OSError("planted")
        rows = torch.randint(0, len(self.x), (16,), generator=generator)
        return self.x[rows], self.y[rows]


# --- one run


def train(case: Case, **arguments: Any) -> hogwild.Run:
    settings: dict[str, Any] = {
        "update": case.rule,
        "workers": case.workers,
        "kind": case.kind,
        "optimizer": OPTIMIZERS[case.optimizer],
        "staleness": 2,
        "micro_batches": MICRO_BATCHES,
        "updates": UPDATES,
        "on_worker_failure": case.policy,
        "max_restarts": 5,
    }
    return problems.train(MODELS[case.model](), **settings | arguments)


@cache
def undisturbed(case: Case) -> str:
    """The digest of one worker to which nothing happens but that an update is not finite and is left out."""
    skipped = case.fault in NONFINITE
    loss = loss_of(case, torch.zeros(1), threading.Event()) if skipped else problems.cross_entropy
    data = Samples(NEVER, "", torch.zeros(1)) if case.fault == SOUND_SOURCE else None
    return train(case, workers=1, loss=loss, data=data, on_nonfinite="skip" if skipped else "raise").digest


def reference(case: Case) -> str:
    kind = "processes" if case.model == "dropout" else "threads"
    skips = case.fault in NONFINITE
    sound = SOUND_SOURCE if case.fault.startswith("the data source") else "none"
    return undisturbed(
        replace(
            case,
            fault=case.fault.replace("'raise'", "'skip'") if skips else sound,
            ticket=case.ticket if skips else 0,
            kind=kind,
            workers=1,
            policy="raise",
            hook=Hook.CLAIMED,
            seed=0,
        )
    )


def attempt(case: Case) -> Verdict:
    """Run the case and judge it."""
    before = held()
    verdict = tried(case)
    deadline = time.monotonic() + 5
    while (left := held() - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    verdict.leaks = len(left)
    if left:
        verdict.wrong += f" left behind: {sorted(left)}"
    return verdict


def tried(case: Case) -> Verdict:
    """Run the case and judge how it ended."""
    gate = torch.zeros(1, dtype=torch.int64).share_memory_()
    release = threading.Event()
    fault = plant = planted_fault(case)
    killer = Killer(random.Random(case.seed), longest=0.1) if case.fault == KILL_ANY_TIME else None
    patch = pytest.MonkeyPatch()
    hanging = said_to_hang(patch)
    arguments: dict[str, Any] = {"loss": loss_of(case, gate, release, hanging)}
    if case.fault.startswith("the data source"):
        arguments["data"] = Samples(case.ticket, case.fault, gate)
    if case.fault in NONFINITE:
        arguments["on_nonfinite"] = NONFINITE[case.fault][1]
    if case.fault in (HANG, HANG_ANYWHERE):
        arguments["worker_timeout"] = TIMEOUT
    if case.fault == HANG_ANYWHERE:
        plant = Hanging(plant, hanging)
    delays = RandomDelays(case.seed, share=0.05)
    run, error = None, None
    try:
        with planted(both(plant, delays) if plant is not None else delays), killer or nullcontext():
            run = train(case, **arguments)
    except hogwild.HogwildError as raised:
        error = f"{type(raised).__name__}: {raised}"
    finally:
        release.set()
        patch.undo()
    unmet = (fault is not None and not fault.fired) or (killer is not None and run is not None and not run.failures)
    return Verdict(met=False) if unmet and error is None else judge(case, run, error)


def planted_fault(case: Case) -> PlantedFault | None:
    if case.fault in DEATHS:
        return PlantedFault(DEATHS[case.fault], case.hook, case.ticket)
    if case.fault in (RAISE_ANYWHERE, HANG_ANYWHERE):
        return PlantedFault(Fault.RAISE if case.fault == RAISE_ANYWHERE else Fault.HANG, case.hook, case.ticket)
    return None


# --- what must come of it


def judge(case: Case, run: hogwild.Run | None, error: str | None) -> Verdict:
    wanted = expected_error(case)
    if wanted is not None:
        if error is None:
            return Verdict(wrong="the run completed, and should have failed")
        return Verdict(wrong="" if re.search(wanted, error, re.DOTALL) else f"another error: {error}")
    if run is None:
        return Verdict(wrong=f"the run failed: {error}")
    verdict = Verdict(in_doubt=len(run.in_doubt))
    done = run.journal["update"].tolist()
    left_out = {case.ticket} if case.fault in NONFINITE and case.rule not in VERSIONED else set()
    verdict.lost = len(set(range(UPDATES)) - {*done, *run.in_doubt} - left_out)
    verdict.wrong = "; ".join(complaints(case, run, done))
    return verdict


def complaints(case: Case, run: hogwild.Run, done: list[int]) -> list[str]:
    """What is wrong with a run that completed."""
    found = []
    if len(set(done)) < len(done):
        found.append(f"an update stands twice in the journal: {sorted(done)}")
    if case.rule in VERSIONED and (sorted(done) != list(range(UPDATES)) or run.updates != UPDATES or run.in_doubt):
        found.append(f"not every update exactly once: {sorted(done)}, in doubt {run.in_doubt}")
    if len(run.in_doubt) > len(run.failures):
        found.append(f"more in doubt than failures: {run.in_doubt}, {run.failures}")
    recovered = case.fault in {*DEATHS, *RAISES_ONCE, KILL_ANY_TIME, RAISE_ANYWHERE, HANG, HANG_ANYWHERE}
    if recovered and not run.failures:
        found.append("the failure is not in the report")
    if case.fault in NONFINITE and sum(worker.skipped for worker in run.workers) != 1:
        found.append(f"{sum(worker.skipped for worker in run.workers)} updates were skipped")
    if not all(value.isfinite().all() for value in run.state.values()):
        found.append("the model is not finite")
    if case.rule in SAME_BITS and run.digest != reference(case):
        found.append("other bits than the run of one worker to which nothing happened")
    return found


def expected_error(case: Case) -> str | None:
    """A pattern that the error must match; None where the run must complete."""
    where = rf"at update {case.ticket // (MICRO_BATCHES if case.rule == 'sync' else 1)} \(batch {case.ticket}\)"
    if case.fault in RAISES or (case.fault in RAISES_ONCE and case.policy == "raise"):
        name = (RAISES | RAISES_ONCE)[case.fault]
        return rf"^WorkerError: worker \d raised {name} {where}.*\n\nTraceback.*{name}"
    if case.fault == RAISE_ANYWHERE and case.policy == "raise":
        return rf"^WorkerError: worker \d raised PlantedError .*planted at {case.hook}"
    if case.fault in NONFINITE:
        what, policy = NONFINITE[case.fault]
        said = "the loss is nan" if what == "loss" else "the gradient is not finite"
        return rf"^NonFiniteError: {said} {where}, worker \d" if policy == "raise" else None
    if case.fault == HANG:
        if case.policy == "raise" or case.kind == "threads":
            return rf"^WorkerError: worker \d hung for 1 s {where}.*in loss"
        return None
    if case.fault == HANG_ANYWHERE and case.policy == "raise":
        return r"^WorkerError: worker \d hung for 1 s .*in __call__"
    if case.policy == "raise" and (case.fault in DEATHS or case.fault == KILL_ANY_TIME):
        died = {Fault.EXIT: "exit code 0", None: "SIGKILL"}
        fault = DEATHS.get(case.fault)
        cause = died.get(fault) or f"SIG{ {Fault.KILL: 'KILL', Fault.TERMINATE: 'TERM'}.get(fault, 'SEGV') }"
        return rf"^WorkerError: worker \d died of {cause}"
    return None


def held() -> set[str]:
    """Threads, worker processes, descriptors and files in shared memory that are there now."""
    gc.collect()
    me = psutil.Process()
    found = {f"thread {thread.name}" for thread in threading.enumerate() if thread.name.startswith(("hogwild", "kill"))}
    for server in me.children():
        found |= {f"process {worker.pid}" for worker in server.children()}
    found |= {f"descriptor {number}" for number in range(me.num_fds())}
    return found
