"""kind="auto": what is chosen, why, where it is told, and that no bit hangs on it."""

from __future__ import annotations

import json
import multiprocessing
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import problems
import pytest
import torch
from torch import nn
from torch.func import functional_call, jvp
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import hogwild
from hogwild.config import RunConfig
from hogwild.data.sources import as_source
from hogwild.model.anatomy import Anatomy
from hogwild.run.trial import one_step as trial
from hogwild.run.trial import which_kind
from hogwild.run.trial.dry_run import dry_run
from hogwild.run.trial.kept_by_loss import LEVELS
from hogwild.run.trial.which_kind import LONG
from hogwild.testing import Fault, Hook, PlantedFault, planted
from hogwild.workers.surroundings import interpreter
from hogwild.workers.surroundings.interpreter import Measured, has_gil, measured

SHORT, FREE, HELD = Measured(LONG / 2, 0.0), Measured(2 * LONG, 0.1), Measured(2 * LONG, 0.8)
MOST = 0.3  # of a step for which another thread may wait


@pytest.fixture
def gil(monkeypatch, request):
    """The interpreter is said to have the lock, or to have none."""
    for module in (which_kind, interpreter):
        monkeypatch.setattr(module, "has_gil", lambda: request.param)


@pytest.fixture
def step(monkeypatch, request):
    """Every step is said to have taken that; returns what was measured."""
    calls: list[Measured] = []

    def told(work: Any) -> Any:
        calls.append(request.param)
        return work(), request.param

    monkeypatch.setattr(trial, "measured", told)
    return calls


with_gil = pytest.mark.parametrize("gil", [True], indirect=True)
without_gil = pytest.mark.parametrize("gil", [False], indirect=True)
either = pytest.mark.parametrize("gil", [True, False], indirect=True)


def chosen(**arguments: Any) -> tuple[str, str]:
    run = problems.train(kind="auto", updates=2, **arguments)
    assert run.config.kind == "auto"
    return run.kind, run.kind_because


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, i: int) -> Any:
        x, y = problems.data()
        return x[i], y[i]


class Step(torch.optim.SGD):
    """No code of torch's own."""


def made(parameters: Any) -> Step:
    return Step(parameters, lr=0.1)


# --- what is chosen


@without_gil
def test_threads_where_the_gil_is_off(gil):
    assert chosen() == ("threads", "the GIL is off")


@with_gil
@pytest.mark.parametrize(
    ("step", "kind", "because"),
    [
        (SHORT, "processes", "a step of less than 20 ms makes threads wait for the GIL"),
        (FREE, "threads", "a step takes 40 ms, and others have the GIL meanwhile"),
        (HELD, "processes", "a step keeps the GIL for 80% of its time"),
    ],
    indirect=["step"],
)
def test_with_the_gil_a_step_is_to_be_long_and_to_leave_it_to_others(gil, step, kind, because):
    assert chosen() == (kind, because)


@either
@pytest.mark.parametrize("step", [FREE], indirect=True)
@pytest.mark.parametrize(
    ("arguments", "because"),
    [
        (
            {"model": problems.dropout()},
            r"it draws in 2 \(Dropout\) \(torch's default generator\), which threads share",
        ),
        ({"data": Rows()}, "threads would share its data set, a Rows"),
        ({"optimizer": made, "update": "ordered"}, "threads share what Step may draw from"),
        ({"worker_timeout": 60.0}, "worker_timeout is set, and a thread that hangs cannot be ended"),
    ],
)
def test_processes_where_threads_would_share_what_nobody_can_vouch_for(gil, step, arguments, because):
    kind, told = chosen(**arguments)
    assert kind == "processes"
    assert told == because.replace("\\", "")


def by_template(template: nn.Module) -> Any:
    return lambda model, batch: cross_entropy(
        functional_call(template, dict(model.named_parameters()), batch[0]), batch[1]
    )


def by_hook(kept: dict[str, Any], other: nn.Module) -> Any:
    other.register_forward_hook(lambda module, args, output: kept.update(last=output))
    return lambda model, batch: problems.cross_entropy(model, batch) + (other(model(batch[0])), kept["last"].mean())[1]


def by_global(model: nn.Module, batch: Any) -> torch.Tensor:
    global LAST
    LAST = model(batch[0])
    return cross_entropy(LAST, batch[1])


LAST = torch.zeros(())


def by_jvp(model: nn.Module, batch: Any) -> torch.Tensor:
    return problems.cross_entropy(model, batch) + jvp(model, batch[:1], (torch.ones_like(batch[0]),))[1].square().mean()


def by_teacher(teacher: nn.Module, told: list[float]) -> Any:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        own = problems.cross_entropy(model, batch) + (model(batch[0]) - teacher(batch[0])).square().mean()
        told.append(own.item())
        return own

    return loss


SHARED = {
    "a module beside the model, whose parameters the loss replaces": lambda: by_template(problems.mlp()),
    "a tensor that the loss or a hook keeps of a step": lambda: by_hook({}, nn.Identity()),
    LEVELS: lambda: by_jvp,
}


@either
@pytest.mark.parametrize("step", [FREE], indirect=True)
@pytest.mark.parametrize("what", SHARED)
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_processes_where_threads_would_share_what_a_loss_keeps(gil, step, what):
    """Threads are one loss: one of them computes with what another has put there."""
    assert chosen(loss=SHARED[what](), workers=1) == ("processes", f"threads would share {what}")


@pytest.mark.parametrize("what", [what for what in SHARED if what != LEVELS])
def test_what_a_loss_keeps_changes_no_bit_then_and_threads_are_warned_of_it(what):
    loss = SHARED[what]()
    train = partial(problems.train, loss=loss, update="ordered", kind="auto", updates=12)
    one, two = (train(workers=workers).digest for workers in (1, 2))
    assert one == two
    told = pytest.warns(UserWarning, match=f"threads share {re.escape(what)}, and compute with that of one another")
    with told, suppress(hogwild.HogwildError):  # it may fail, as may the bits
        problems.train(loss=loss, kind="threads", workers=2, updates=4)


@either
@pytest.mark.parametrize("step", [FREE], indirect=True)
def test_what_a_loss_keeps_in_a_global_is_seen(gil, step):
    assert (
        chosen(loss=by_global, workers=1)[1] == "threads would share a tensor that the loss or a hook keeps of a step"
    )


class Reverse(torch.autograd.Function):
    """Turns a gradient around, by as much as the class says."""

    share = 0.0

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return -Reverse.share * gradient


class Reversing(nn.Module):
    def forward(self, x: Any) -> Any:
        Reverse.share = hogwild.worker_info().update / 60
        return Reverse.apply(x)


FACTOR = 1.0


def by_factor(model: nn.Module, batch: Any) -> Any:
    global FACTOR
    FACTOR = 1.0 + hogwild.worker_info().update
    return problems.cross_entropy(model, batch) * FACTOR


@without_gil
@pytest.mark.parametrize(
    ("given", "assigned"),
    [
        ({"model": nn.Sequential(nn.Linear(8, 3), Reversing())}, "Reverse.share"),
        ({"loss": by_factor}, "FACTOR"),
        ({"loss": lambda model, batch: by_factor(model, batch)}, "FACTOR"),
    ],
    ids=["a layer", "a loss", "what a loss calls"],
)
def test_what_is_assigned_to_a_class_or_a_global_is_seen(gil, given, assigned):
    """Code is looked at, and no step."""
    because = f"threads would share {assigned}, which the loss or the model assigns to"
    assert chosen(**given) == ("processes", because)


@either
@pytest.mark.parametrize("step", [FREE], indirect=True)
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripted_modules_beside_the_model_are_not_looked_into(gil, step):
    teacher = torch.jit.script(problems.mlp().requires_grad_(False))
    assert chosen(loss=by_teacher(teacher, []))[0] == "threads"


@either
@pytest.mark.parametrize("step", [FREE], indirect=True)
def test_threads_where_a_loss_reads_another_model_or_keeps_numbers(gil, step, recwarn):
    loss = by_teacher(problems.mlp().requires_grad_(False), [])
    assert chosen(loss=loss)[0] == "threads"
    assert not recwarn.list


@with_gil
@pytest.mark.parametrize("step", [SHORT], indirect=True)
def test_threads_where_no_process_can_be_started(gil, step, monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_config", {"daemon": True})
    assert chosen() == ("threads", "a daemonic process may start no other")


@without_gil
def test_processes_where_something_is_planted(gil):
    kill = PlantedFault(Fault.KILL, Hook.COMPUTING, 1)
    with planted(kill):
        kind, because = chosen(update="ordered")
    assert (kind, because[:20]) == ("processes", "something is planted")
    assert kill.fired


@without_gil
def test_samples_in_a_list_and_steps_of_ones_own_where_nothing_is_promised_are_for_threads(gil):
    x, y = problems.data()
    assert chosen(data=list(zip(x, y, strict=True)))[0] == "threads"
    assert chosen(optimizer=made)[0] == "threads"


def work(worker: hogwild.Worker) -> None:
    while (ticket := worker.claim()) is not None:
        loss = worker.read(ticket)(torch.ones(1, 8)).sum()
        worker.commit(ticket, torch.autograd.grad(loss, list(worker.replica.parameters())))


@without_gil
def test_a_loop_of_ones_own_is_not_tried_and_so_is_for_processes(gil):
    run = hogwild.launch(work, problems.mlp(), optimizer=problems.SGD, updates=2)
    assert (run.kind, run.kind_because) == ("processes", "nothing of the loop is tried before")


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_kind_that_was_given_is_the_kind_and_needs_no_reason(kind):
    run = problems.train(kind=kind, updates=2)
    assert (run.kind, run.kind_because) == (kind, "")


# --- what it costs


@dataclass
class Counted:
    calls: int = 0

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        self.calls += 1
        return problems.cross_entropy(model, batch)


@pytest.mark.parametrize(
    ("long", "step", "steps"),
    [(None, FREE, 1), (LONG, SHORT, 1), (LONG, FREE, 2), (LONG, Measured(1.0, 0.0), 1)],
    indirect=["step"],
)
def test_the_trial_is_one_step_unless_it_seems_long(long, step, steps):
    """The first step of a program may be long because it is the first; one of a second is long in any case."""
    model, loss = problems.mlp(), Counted()
    source = as_source(problems.data(), batch_size=16, shuffle=True, seed=0, collate=None)
    found = dry_run(model, Anatomy.of(model).trained, source, loss, 0, 2, long)
    assert loss.calls == steps
    assert len(step) == (0 if long is None else steps)
    assert found.measured == (step[-1] if step else None)


@pytest.mark.skipif(not has_gil(), reason="nothing keeps the interpreter from others here")
def test_python_keeps_the_interpreter_from_others():
    def busy() -> int:
        return sum(i * i for i in range(1_000_000))

    result, found = measured(busy)
    assert result == busy()
    assert found.seconds > 0
    found = [found, *(measured(busy)[1] for _ in range(4))]  # what a busy machine takes away counts as waited less
    assert max(one.waited for one in found) > MOST == which_kind._FREE


def test_what_is_measured_may_raise():
    with pytest.raises(ZeroDivisionError):
        measured(lambda: 1 / 0)


def test_an_interpreter_that_does_not_say_has_the_lock(monkeypatch):
    monkeypatch.delattr(interpreter.sys, "_is_gil_enabled", raising=False)
    assert has_gil()


# --- where it is told


@either
def test_the_run_its_record_and_its_line_say_what_was_asked_and_chosen(gil, tmp_path):
    run = problems.train(kind="auto", updates=4, out=tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    asked = [record[key] for key in ("kind", "kind_asked", "kind_because")]
    assert asked == [run.kind, "auto", run.kind_because]
    assert run.kind_because
    assert f"2 {run.kind} (auto)" in str(run)
    saved = hogwild.load_run(tmp_path / "run")
    assert (saved.kind, saved.kind_because, saved.config.kind) == (run.kind, run.kind_because, "auto")


@without_gil
def test_who_is_told_of_the_run_is_told_its_kind(gil):
    told: list[str] = []

    class Ear(hogwild.Callback):
        def on_begin(self, info: Any) -> None:
            told.append(info.kind)

        def on_progress(self, progress: hogwild.Progress) -> None:
            told.append(progress.kind)

    problems.train(kind="auto", updates=4, callbacks=[Ear()])
    assert set(told) == {"threads"} and len(told) > 1


@without_gil
def test_a_check_repeats_by_the_kind_of_its_first_run(gil):
    arguments = {"optimizer": problems.SGD, "updates": 4, "batch_size": 16, "runs": 2, "controls": False}
    verdict = hogwild.check(problems.mlp(), problems.data(), problems.cross_entropy, **arguments)
    assert "2 threads" in verdict.title


# --- what it does not change


@pytest.mark.parametrize("update", ["ordered", "sync"])
def test_no_bit_hangs_on_it(update, monkeypatch):
    digests = {problems.train(kind="processes", update=update).digest}
    for lock in (True, False):
        for module in (which_kind, interpreter):
            monkeypatch.setattr(module, "has_gil", lambda lock=lock: lock)
        digests.add(problems.train(kind="auto", update=update).digest)
    assert len(digests) == 1


def test_it_is_not_among_what_decides_bits():
    assert RunConfig(epochs=1).kind == "auto"
    assert "kind" not in hogwild.config.DECIDE_BITS
