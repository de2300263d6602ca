"""Gradients that wait in shared memory, and versions that are made of them by anyone, in shards where large."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from typing import Any

import problems
import pytest
import torch
from sharing import Lays, SharesAll, SharesSome, SharesSomeOfAll
from side_by_side import within
from torch import nn
from traits import KINDS, SAME_BITS

import hogwild
from hogwild.optim.stepping import SharedOptimizer
from hogwild.rules.ordered import Ordered
from hogwild.rules.registry import rule_class
from hogwild.shared import words
from hogwild.shared.alarms import Alarms
from hogwild.shared.layout import Layout
from hogwild.shared.optimizer_state import StateForm
from hogwild.shared.shards import Piece, cut_shards
from hogwild.shared.words import Word
from hogwild.testing import Fault, Hook, PlantedFault, RandomDelays, both, planted

OPTIMIZERS = {
    "sgd": problems.SGD,
    "momentum": problems.MOMENTUM,
    "adam": problems.ADAM,
    "adamw": partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    "adagrad": partial(torch.optim.Adagrad, lr=0.05),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.003, momentum=0.5),
}
SHARDED = pytest.mark.usefixtures("_shards")


@pytest.fixture
def _shards(monkeypatch):
    """Small models are made in shards too: the plan of the run, which travels to the workers, says where."""
    monkeypatch.setattr("hogwild.optim.plan.cut_shards", partial(cut_shards, size=40))


@pytest.fixture(params=["flat", "by tensor"])
def _forms(request, monkeypatch):
    if request.param == "by tensor":
        for name in ("_ELEMENTS_PER_TENSOR_OTHERS", "_ELEMENTS_PER_TENSOR"):
            monkeypatch.setattr(f"hogwild.optim.plan.{name}", 0 if name.endswith("OTHERS") else {torch.optim.SGD: 0})


@pytest.fixture
def stepped(monkeypatch):
    """(shard, version, thread) of every step of a shard."""
    seen: list[tuple[int, int, str]] = []
    step = SharedOptimizer.advance_shard

    def spied(self: SharedOptimizer, shard: int, update: int, *rest: Any) -> None:
        step(self, shard, update, *rest)
        seen.append((shard, update, threading.current_thread().name))

    monkeypatch.setattr(SharedOptimizer, "advance_shard", spied)
    return seen


TAU, M = 2, 3
LAYING: dict[str, Any] = {"ordered": Lays(TAU), "sync": SharesAll(M)}


def settings(update: Any, **more: Any) -> dict[str, Any]:
    return {"update": update, "updates": 24, "micro_batches": M, **more}


def by_reference(model: nn.Module, update: str, **arguments: Any) -> str:
    problems.train_serially(model, **settings(update, staleness=TAU, **arguments))
    return hogwild.digest(model)


def train(model: nn.Module, update: str, **arguments: Any) -> hogwild.Run:
    return problems.train(model, **settings(LAYING[update], **arguments))


# --- where shards are cut


def shards_of(*numels: int, size: int | None = None) -> list[list[Piece]]:
    layout = Layout.of([(str(i), torch.empty(numel)) for i, numel in enumerate(numels)], [0] * len(numels))
    return [list(shard) for shard in cut_shards(StateForm(layout, False, ()), size)]


def test_every_element_is_in_one_shard_and_none_is_much_larger_than_asked():
    shards = shards_of(3, 250, 1, 99, size=100)
    pieces = [piece for shard in shards for piece in shard]
    covered = [(piece.number, i) for piece in pieces for i in range(piece.start, piece.stop)]
    assert covered == [(number, i) for number, numel in enumerate((3, 250, 1, 99)) for i in range(numel)]
    assert max(sum(piece.stop - piece.start for piece in shard) for shard in shards) < 200


@pytest.mark.parametrize("numels", [(200_704, 256, 2560, 10), (1_000_003,), (50_000,) * 9, (3_000_000, 7, 5)])
def test_shards_are_about_as_large_as_each_other_and_no_two_share_a_cache_line(numels):
    sizes = [sum(piece.stop - piece.start for piece in shard) for shard in shards_of(*numels)]
    assert sum(sizes) == sum(numels) and 2 <= len(sizes) <= 8
    assert max(sizes) - min(sizes) <= 16 * len(numels) * len(sizes)
    assert all(piece.start % 16 == 0 for shard in shards_of(*numels) for piece in shard)


def test_small_models_have_no_shards_and_those_of_large_ones_take_about_a_millisecond():
    assert shards_of(1 << 16) == []
    assert [len(shards_of(numel)) for numel in (203_530, 1 << 19, 1 << 22, 1 << 24)] == [4, 8, 8, 32]


def test_what_fits_into_one_shard_has_none():
    assert shards_of(50, 49, size=100) == []


# --- bits


@SHARDED
@pytest.mark.usefixtures("_forms")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("update", SAME_BITS)
def test_shards_leave_the_bits_of_the_reference(update, optimizer, stepped):
    """By three workers; by one, too, with state and without: a step of a shard does not ask how many there are."""
    arguments = {"optimizer": OPTIMIZERS[optimizer]}
    expected = by_reference(problems.conv_bn(), update, **arguments)
    for workers in (1, 3) if optimizer in ("sgd", "adam") else (3,):
        stepped.clear()
        assert train(problems.conv_bn(), update, workers=workers, **arguments).digest == expected
        assert len(stepped) == len({(shard, version) for shard, version, _ in stepped}) > 24, "each once"


@SHARDED
@pytest.mark.parametrize(
    "arguments", [{"clip_grad_norm": 0.5}, {"lr_schedule": lambda u: 1 / (1 + u)}], ids=["clip", "lr"]
)
@pytest.mark.parametrize("update", SAME_BITS)
def test_shards_with_options(update, arguments):
    expected = by_reference(problems.mlp(), update, **arguments)
    assert train(problems.mlp(), update, workers=2, kind="processes", **arguments).digest == expected


@SHARDED
@pytest.mark.parametrize("update", SAME_BITS)
def test_an_update_that_steps_not_all_parameters_is_made_whole(update, stepped):
    """Every fifth batch leaves a layer out: after that the scalars of a flat range differ, and it stays in pieces."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        hidden = x if int(y.sum()) % 5 == 0 else model[0](x)
        return nn.functional.cross_entropy(model[1](hidden), y)

    def model() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))

    arguments = {"loss": loss, "optimizer": problems.ADAM}
    expected = by_reference(model(), update, **arguments)
    assert train(model(), update, workers=2, **arguments).digest == expected
    assert 0 < len({version for _, version, _ in stepped}) < 24


@SHARDED
@pytest.mark.parametrize("update", SAME_BITS)
def test_an_update_that_is_left_out_leaves_everything_as_it_is(update):
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        value = problems.cross_entropy(model, batch)
        return value * float("nan") if hogwild.worker_info().update in (3, 7) else value

    arguments = {"loss": loss, "on_nonfinite": "skip"}
    for rule in (update, LAYING[update]):
        one = problems.train(**settings(rule, staleness=TAU, **arguments))
        assert sum(worker.skipped for worker in one.workers) == 2 * (M if update == "sync" else 1)
        for kind in KINDS:
            assert train(problems.mlp(), update, workers=3, kind=kind, **arguments).digest == one.digest


# --- deaths


@SHARDED
@pytest.mark.parametrize("hook", [Hook.WRITING, Hook.STEPPING, Hook.PUBLISHING, Hook.PUBLISHED])
@pytest.mark.parametrize("update", SAME_BITS)
def test_a_death_while_a_version_is_made_changes_nothing(update, hook):
    """Three deaths of one run, at versions that are far from each other."""
    arguments = {"optimizer": problems.ADAM}
    expected = by_reference(problems.conv_bn(), update, **arguments)
    faults = [PlantedFault(Fault.KILL, hook, ticket) for ticket in (0, 5, 11)]
    with planted(both(*faults)):
        run = train(problems.conv_bn(), update, workers=2, kind="processes", on_worker_failure="replace", **arguments)
    assert all(fault.fired for fault in faults) and len(run.failures) == 3
    assert run.digest == expected


class KillsEveryFifth:
    """Kills whoever has stepped the first shard of every fifth version, or is at another hook there."""

    def __init__(self, seed: int, hook: Hook = Hook.STEPPING) -> None:
        self.seed = seed
        self.hook = hook
        self.killed = torch.zeros(24, dtype=torch.int64).share_memory_()

    def __call__(self, hook: Hook, seat: Any) -> None:
        if hook is not self.hook:
            return
        head = seat.control[Word.HEAD]
        if head % 5 == self.seed and not self.killed[head]:
            self.killed[head] = 1
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)


@SHARDED
@pytest.mark.parametrize("update", SAME_BITS)
def test_several_deaths_in_shards_of_one_run(update):
    arguments = {"optimizer": problems.ADAM}
    expected = by_reference(problems.mlp(), update, **arguments)
    with planted(KillsEveryFifth(seed=3)):
        run = train(
            problems.mlp(),
            update,
            workers=2,
            kind="processes",
            on_worker_failure="replace",
            max_restarts=20,
            **arguments,
        )
    assert len(run.failures) >= 4
    assert run.digest == expected


@SHARDED
@pytest.mark.parametrize("hook", [Hook.WRITING, Hook.STEPPING, Hook.PUBLISHING])
@pytest.mark.parametrize(("update", "rule"), [("ordered", SharesSome(TAU)), ("sync", SharesSomeOfAll(M))])
def test_what_one_began_alone_others_may_make_in_shards_and_the_other_way_round(update, rule, hook):
    arguments = {"optimizer": problems.ADAM}
    expected = by_reference(problems.mlp(), update, **arguments)
    many = {"workers": 2, "kind": "processes", "on_worker_failure": "replace", "max_restarts": 20}
    with planted(KillsEveryFifth(seed=2, hook=hook)):
        run = problems.train(problems.mlp(), **settings(rule, **many, **arguments))
    assert run.failures or hook is Hook.STEPPING
    assert run.digest == expected


# --- nobody waits for a turn, and nothing is left


class Stays:
    """Stays in the lock after version 5 is published, until the other worker has gone on from the gradient of the next
    update to the last one, of 7."""

    def __call__(self, hook: Hook, seat: Any) -> None:
        if hook is Hook.PUBLISHED and seat.control[Word.HEAD] == 5:
            within(60, lambda: seat.control[Word.NEXT] == 7, "it waits for the lock")


@pytest.mark.parametrize("kind", KINDS)
def test_who_finds_the_lock_taken_goes_on_and_its_gradient_is_applied(kind, caplog):
    with planted(Stays()):
        run = train(problems.mlp(), "ordered", updates=7, workers=2, kind=kind)
    assert run.updates == 7 and run.failures == ()
    assert caplog.records == [], "nobody had to be started again for what was left"


@pytest.mark.parametrize("update", SAME_BITS)
def test_delays_at_every_hook(update):
    arguments = {"optimizer": problems.MOMENTUM}
    expected = by_reference(problems.conv_bn(), update, **arguments)
    for seed in range(3):
        with planted(RandomDelays(seed, share=0.5)):
            assert train(problems.conv_bn(), update, workers=3, **arguments).digest == expected
            run = problems.train(problems.conv_bn(), **settings(update, staleness=TAU, workers=3, **arguments))
            assert run.digest == expected


class LaysOnly(Lays):
    """Every gradient waits, and a version is shared where somebody is idle."""

    def _others_are_idle(self) -> bool:
        return Ordered._others_are_idle(self)


@SHARDED
def test_nobody_who_is_alone_makes_shards(stepped):
    train(problems.mlp(), "ordered", workers=1)
    assert stepped
    stepped.clear()
    problems.train(problems.mlp(), **settings(LaysOnly(TAU), workers=1))
    assert stepped == [] or not Alarms.works


@SHARDED
@pytest.mark.skipif(not Alarms.works, reason="who sleeps is not known here")
def test_where_no_core_is_idle_a_version_is_made_by_one_worker(stepped, monkeypatch):
    monkeypatch.setattr("hogwild.rules.in_shards.usable_cores", lambda: 1.0)
    with planted(RandomDelays(seed=1)):
        problems.train(problems.mlp(), **settings(LaysOnly(TAU), workers=2))
    assert stepped == [], "there is one for the two of them, and one is awake"


def made_by_several(stepped: list[Any]) -> int:
    """How many versions several workers have made together."""
    makers: dict[int, set[str]] = {}
    for _, version, thread in stepped:
        makers.setdefault(version, set()).add(thread)
    return sum(len(threads) > 1 for threads in makers.values())


class Meet:
    """Who steps a shard of one of the first versions stays in its lock until another worker steps one of it too."""

    FIRST = 12

    def __init__(self) -> None:
        self.here: dict[int, set[int]] = {version: set() for version in range(self.FIRST)}

    def __call__(self, hook: Hook, seat: Any) -> None:
        here = self.here.get(seat.control[Word.HEAD])
        if hook is Hook.STEPPING and here is not None:
            here.add(seat.index)
            within(60, lambda: len(here) > 1, "nobody comes to help")


@SHARDED
def test_several_workers_make_one_version(stepped):
    """A worker that waits for a version steps shards of it."""
    with planted(Meet()):
        train(problems.mlp(), "ordered", workers=3)
    assert made_by_several(stepped) >= Meet.FIRST


@SHARDED
@pytest.mark.skipif(not Alarms.works, reason="who sleeps is not known here")
def test_where_a_core_is_idle_a_version_is_made_by_several(stepped, monkeypatch):
    """It is published when both of the others sleep, who wait for it and for the next one."""
    monkeypatch.setattr("hogwild.rules.in_shards.usable_cores", lambda: 3.0)

    def published_late(hook: Hook, seat: Any) -> None:
        if hook is Hook.PUBLISHING and seat.control[Word.HEAD] < Meet.FIRST:
            within(60, lambda: seat.control.alarms.asleep() == 2, "the others do not sleep")

    with planted(both(published_late, Meet())):
        problems.train(problems.mlp(), **settings(LaysOnly(TAU), workers=3))
    assert made_by_several(stepped) >= Meet.FIRST - TAU


@pytest.mark.parametrize("update", SAME_BITS)
def test_who_sleeps_is_woken_by_who_makes_its_version(update, monkeypatch):
    """Where a sleep had hardly a limit, the run would go on all the same: nobody who waits is forgotten."""
    monkeypatch.setattr(words, "_LONGEST_FORESEEN", 100.0)

    def slow(model: nn.Module, batch: Any) -> torch.Tensor:
        time.sleep(0.002)
        return problems.cross_entropy(model, batch)

    began = time.monotonic()
    run = train(problems.mlp(), update, workers=3, loss=slow, recheck=0.2, optimizer=problems.ADAM)
    assert run.digest == by_reference(problems.mlp(), update, optimizer=problems.ADAM)
    assert run.rechecked and time.monotonic() - began < 50


# --- memory


@pytest.mark.parametrize("staleness", [1, 4])
def test_a_run_needs_so_much_memory_and_no_more(staleness):
    """(τ + 2) versions, one more to evaluate, twice the optimizer's state, and τ + 1 gradients."""
    needs = rule_class("ordered")(staleness).needs(workers=2)
    assert (needs.slots, needs.state_copies, needs.gradients) == (staleness + 2, 2, staleness + 1)


@pytest.mark.parametrize("policy", ["raise", "skip", "ignore"])
def test_a_mean_that_overflows_is_not_finite_though_each_gradient_is(policy):
    """As of float16, which ends at 65504."""
    model = nn.Linear(1, 1, bias=False, dtype=torch.float16)
    nn.init.zeros_(model.weight)
    settings = {"update": "sync", "micro_batches": 2, "workers": 2, "kind": "threads", "updates": 1, "batch_size": 1}
    sgd = partial(torch.optim.SGD, lr=1e-5)
    train = partial(hogwild.train, model, torch.ones(4), optimizer=sgd, on_nonfinite=policy, **settings)
    if policy == "raise":
        with pytest.raises(hogwild.NonFiniteError, match="the gradient is not finite at update 0"):
            train(lambda model, _: (40_000 * model.weight).sum())
    else:
        run = train(lambda model, _: (40_000 * model.weight).sum())
        assert sum(usage.skipped for usage in run.workers) == (policy == "skip")
    assert bool(model.weight.isfinite().all()) == (policy != "ignore")
