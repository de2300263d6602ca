"""Gradients that are computed twice: which, by whom, what is seen by it, and what it must not change."""

from __future__ import annotations

import itertools
import re
from collections import Counter

import problems
import pytest
import tables
import torch
from crews import controls_of_runs
from hidden import NOT_SEEN, cache_of_a_later_epoch, name_of
from side_by_side import within
from traits import KINDS, OTHER_BITS, SAME_BITS

import hogwild
from hogwild import NotReproducible
from hogwild.rules import Ordered
from hogwild.rules.rechecks import Chosen
from hogwild.shared.words import LOOKING, Field, Hook
from hogwild.testing import Fault, PlantedFault, RandomDelays, planted
from hogwild.workers.threads import ThreadTeam

# --- which


@pytest.mark.parametrize("share", [0.005, 0.03, 0.25, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_one_of_every_block_is_chosen(share, seed):
    chosen = Chosen(seed, share)
    found, number = [], chosen.first_from(0)
    while number < 4000:
        found.append(number)
        number = chosen.first_from(number + 1)
    assert abs(len(found) - 4000 * share) <= 1
    assert found == sorted(set(found))
    for number in range(0, 4000, 7):
        assert chosen.first_from(number) == next((n for n in found if n >= number), chosen.first_from(4000))


def test_the_seed_chooses():
    assert len({Chosen(seed, 0.01).first_from(0) for seed in range(50)}) > 20


@pytest.mark.parametrize("update", SAME_BITS)
def test_the_same_are_chosen_at_any_number_and_kind_of_workers(update):
    runs = [
        problems.train(update=update, updates=200, recheck=0.02, workers=workers, kind=kind)
        for workers, kind in ((1, "threads"), (2, "threads"), (1, "processes"), (2, "processes"))
    ]
    per_update = 2 if update == "sync" else 1
    assert [run.rechecked for run in runs] == [0.02 * 200 * per_update] * 4
    assert len({run.digest for run in runs}) == 1


# --- what it must not change


CASES = {
    "mlp": {},
    "momentum and clipping": {"optimizer": problems.MOMENTUM, "clip_grad_norm": 0.5},
    "Adam": {"optimizer": problems.ADAM},
    "BatchNorm": {"model": problems.conv_bn},
    "schedule": {"lr_schedule": lambda update: 1 / (1 + update)},
    "backward": {"gradient": "backward"},
}


@pytest.mark.parametrize("update", SAME_BITS)
@pytest.mark.parametrize("case", CASES)
def test_the_bits_are_those_of_a_run_that_computes_nothing_twice(case, update):
    """By two processes; by one thread, and by two. Which of these with which rule is seen above."""

    def train(**named):
        arguments = dict(CASES[case])
        model = arguments.pop("model", problems.mlp)()
        return problems.train(model, update=update, updates=30, **arguments, **named)

    once = train(recheck=0)
    assert once.rechecked == 0
    crews = {"sync": ((1, "threads"), (2, "processes")), "ordered": ((2, "threads"), (2, "processes"))}
    for workers, kind in crews[update]:
        twice = train(recheck=1, workers=workers, kind=kind)
        assert twice.digest == once.digest
        assert (
            twice.rechecked
            == sum(usage.computed for usage in twice.workers)
            == len(twice.losses) * (2 if update == "sync" else 1)
        )


@pytest.mark.parametrize("optimizer", ["sgd", "sparse adam", "adagrad"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sparse_gradient_is_compared_row_by_row(kind, optimizer):
    def train(recheck):
        named = {"update": "ordered", "staleness": 1, "recheck": recheck, "kind": kind, "workers": 2}
        return tables.train(tables.made(), optimizer, **named)

    twice = train(1)
    assert twice.rechecked == tables.UPDATES
    assert twice.digest == train(0).digest


def test_what_is_logged_is_logged_once():
    def loss(model, batch):
        value = problems.cross_entropy(model, batch)
        hogwild.worker_info().log(value=value.item())
        return value

    run = problems.train(loss=loss, update="ordered", updates=20, recheck=1)
    assert [row["update"] for row in run.logged] == list(range(20))


@pytest.mark.parametrize("update", SAME_BITS)
def test_who_draws_random_numbers_draws_the_same_again(update):
    def loss(model, batch):
        inputs, targets = batch
        return torch.nn.functional.cross_entropy(torch.dropout(model(inputs), 0.3, train=True), targets)

    run = problems.train(loss=loss, update=update, updates=20, recheck=1, kind="processes")
    assert run.rechecked == (40 if update == "sync" else 20)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", SAME_BITS)
def test_an_update_that_is_left_out_is_compared_by_its_loss(kind, update):
    def loss(model, batch):
        value = problems.cross_entropy(model, batch)
        return value * float("nan") if hogwild.worker_info().batch % 5 == 3 else value

    runs = [
        problems.train(loss=loss, update=update, updates=20, recheck=recheck, on_nonfinite="skip", kind=kind)
        for recheck in (0, 1)
    ]
    assert runs[0].digest == runs[1].digest
    assert runs[1].rechecked == (40 if update == "sync" else 20)


@pytest.mark.parametrize("update", OTHER_BITS)
def test_rules_that_promise_no_bits_compute_nothing_twice(update):
    assert problems.train(update=update, updates=10, recheck=1).rechecked == 0


# --- what it sees


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("update", SAME_BITS)
@pytest.mark.parametrize("hidden", NOT_SEEN, ids=name_of)
def test_state_that_begins_to_matter_late_stops_the_run(hidden, update, workers, kind):
    if hidden is cache_of_a_later_epoch and kind == "threads":
        pytest.skip("threads share the data set, and its cache")
    arguments = {"updates": 60, **hidden()}
    with pytest.raises(NotReproducible, match=r"update \d+ \(batch \d+\): the .* is another when worker \d computes"):
        problems.train(update=update, workers=workers, kind=kind, recheck=0.4, seed=1, **arguments)


class Counting(Ordered):
    """A rule of one's own that scales a gradient by how many it has seen."""

    seen = 0

    def prepare(self, ticket, gradient):
        self.seen += 1
        gathered = super().prepare(ticket, gradient)
        if gathered is not None:
            gathered.scale(1 + self.seen / 1000)
        return gathered


@pytest.mark.parametrize(("rule", "first"), [(Counting(), "the rule, the model"), ("ordered", "the model")])
def test_a_rule_of_ones_own_may_be_what_keeps_state(rule, first):
    hidden = {} if isinstance(rule, Counting) else {"loss": other_at_the_second_call(0)}
    with pytest.raises(NotReproducible, match=f"same bits; {first}, the loss or the data keeps something"):
        problems.train(update=rule, updates=60, workers=1, kind="threads", recheck=0.4, seed=1, **hidden)


def other_at_the_second_call(begins):
    """A loss that is another when it is asked again, from one update on."""
    asked = Counter()

    def loss(model, batch):
        update = hogwild.worker_info().update
        asked[update] += 1
        return problems.cross_entropy(model, batch) * (asked[update] if update >= begins else 1)

    return loss


@pytest.mark.parametrize(("share", "begins"), [(0.02, 23), (0.05, 35), (0.2, 38)])
def test_a_fault_is_seen_with_at_least_the_probability_that_is_stated(share, begins):
    """Of k updates at fault none is chosen with probability (1 − p)^k at most; blocks of 1 / p make it less."""
    chosen = {seed for seed in range(1000) if Chosen(seed, share).first_from(begins) < 40}
    assert len(chosen) / 1000 > 1 - (1 - share) ** (40 - begins)
    seen, runs = set(), 12
    for seed in range(runs):
        try:
            loss = other_at_the_second_call(begins)
            problems.train(loss=loss, update="ordered", workers=1, updates=40, seed=seed, recheck=share)
        except NotReproducible:
            seen.add(seed)
    assert seen == chosen & {*range(runs)} and 0 < len(seen) < runs


class FlippedBit:
    """Memory that forgets: a bit of a gradient that waits is flipped before it is compared."""

    def __init__(self, name):
        self.name = name

    def __call__(self, hook, seat):
        if hook is Hook.COMPARING and seat.control.row(seat.index)[Field.AGAIN] == 7 + 1:
            slot = next(slot for slot in seat.state.gradients if slot.words[slot.STAMP] == 7 + 1)
            number = [entry.name for entry in seat.state.plan.parameters.entries].index(self.name)
            slot.tensors[number].view(torch.int32).view(-1)[0] ^= 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["0.weight", "2.bias"])
def test_a_flipped_bit_is_seen_and_the_parameter_named(name, kind):
    wanted = rf"update 7 \(batch 7\): the gradient of {re.escape(name)} is another when worker [01] computes it again"
    with planted(FlippedBit(name)), pytest.raises(NotReproducible, match=wanted) as raised:
        problems.train(update="ordered", updates=20, recheck=1, kind=kind)
    first, second = re.findall(r"worker (\d)", str(raised.value))
    assert first != second, "another worker computes it again, where there is one"


def test_a_worker_that_starts_late_is_waited_for(monkeypatch):
    start, controls = ThreadTeam.start, controls_of_runs(monkeypatch)

    def waits(thread):
        row = controls[-1].row(0)
        looks = row[Field.TICKET] == 2 and row[Field.WAITING] == LOOKING and row[Field.LOOKS] > 5
        return looks or not thread.is_alive()

    def late(team, index):
        if index == 1:
            within(60, lambda: waits(team._threads[0]), "the first worker goes on, or stands still")
        start(team, index)

    monkeypatch.setattr(ThreadTeam, "start", late)
    with planted(FlippedBit("0.weight")), pytest.raises(NotReproducible) as raised:
        problems.train(update="ordered", updates=20, recheck=1)
    assert re.findall(r"worker (\d)", str(raised.value)) in (["0", "1"], ["1", "0"])


# --- deaths


MOMENTS = (Hook.COMPARING, Hook.COMPUTING, Hook.WRITING, Hook.CLAIMED, Hook.PUBLISHED)


@pytest.mark.parametrize(
    ("update", "hook", "policy"),
    [
        (update, hook, ("replace", "continue")[(first + second) % 2])
        for first, update in enumerate(SAME_BITS)
        for second, hook in enumerate(MOMENTS)
    ],
)
def test_a_worker_may_die_at_any_moment(update, hook, policy):
    """Under each rule at each, and with either policy at each: a policy begins when the worker is gone."""
    whole = problems.train(update=update, updates=30, recheck=0.5).digest
    fault = PlantedFault(Fault.KILL, hook, 11)
    with planted(fault):
        run = problems.train(
            update=update, updates=30, recheck=0.5, kind="processes", on_worker_failure=policy, max_restarts=3
        )
    assert fault.fired
    assert run.digest == whole
    assert len(run.failures) == 1
    assert run.rechecked >= 0.5 * 30 - 1


@pytest.mark.parametrize("update", SAME_BITS)
def test_delays_change_nothing(update):
    whole = problems.train(update=update, updates=40, recheck=0).digest
    for seed in range(3):
        with planted(RandomDelays(seed, share=0.3)):
            run = problems.train(update=update, updates=40, recheck=0.3, kind="processes")
        assert run.digest == whole


def test_who_is_left_alone_computes_its_own_again():
    """Of two workers one ends for good."""
    fault = PlantedFault(Fault.KILL, Hook.COMPUTING, 3)
    with planted(fault):
        run = problems.train(update="ordered", updates=20, recheck=1, kind="processes", on_worker_failure="continue")
    assert fault.fired
    assert run.rechecked >= 20
    assert run.digest == problems.train(update="ordered", updates=20).digest


def test_a_second_computation_that_hangs_is_found_to():
    fault = PlantedFault(Fault.HANG, Hook.COMPARING, 5)
    with planted(fault):
        run = problems.train(update="ordered", updates=20, recheck=1, kind="processes", worker_timeout=1.0)
    assert fault.fired
    assert run.digest == problems.train(update="ordered", updates=20).digest


@pytest.mark.parametrize("update", SAME_BITS)
def test_a_run_that_is_resumed_computes_the_same_ones_twice(update, tmp_path):
    def train(**named):
        return problems.train(
            update=update, updates=60, recheck=0.25, out=tmp_path / "run", checkpoint_every=10, **named
        )

    with planted(PlantedFault(Fault.RAISE, Hook.COMPUTING, 41)), pytest.raises(hogwild.WorkerError):
        train(on_worker_failure="raise")
    run = train(resume=tmp_path / "run")
    assert run.digest == problems.train(update=update, updates=60).digest
    assert 0 < run.rechecked < 60 * 0.25 * 2


# --- loops of the user's own


def train_by_hand(worker):
    while (ticket := worker.claim()) is not None:
        gradients, loss = by_hand(worker, ticket, worker.read(ticket))
        worker.commit(ticket, gradients, loss)


def by_hand(worker, ticket, replica):
    inputs, targets = problems.data()
    rows = slice(16 * (ticket.batch % 10), 16 * (ticket.batch % 10) + 16)
    loss = torch.nn.functional.cross_entropy(replica(inputs[rows]), targets[rows])
    return torch.autograd.grad(loss, list(replica.parameters())), loss.item()


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_says_how_to_compute_an_update_again_is_rechecked(kind):
    def launch(**named):
        return hogwild.launch(
            train_by_hand, problems.mlp(), optimizer=problems.SGD, updates=30, update="ordered", kind=kind, **named
        )

    with_again = launch(again=by_hand, recheck=1)
    assert with_again.rechecked == 30
    without = launch(recheck=1)
    assert without.rechecked == 0
    assert with_again.digest == without.digest


def test_a_loop_that_remembers_is_seen():
    calls = itertools.count(1)

    def again(worker, ticket, replica):
        gradients, loss = by_hand(worker, ticket, replica)
        call = next(calls)
        return [gradient * call for gradient in gradients], loss

    def work(worker):
        while (ticket := worker.claim()) is not None:
            worker.commit(ticket, *again(worker, ticket, worker.read(ticket)))

    with pytest.raises(NotReproducible, match=r"the gradient of 0\.weight, 0\.bias, 2\.weight and 1 more is another"):
        hogwild.launch(
            work, problems.mlp(), optimizer=problems.SGD, updates=9, update="ordered", kind="threads", again=again,
            recheck=1,
        )  # fmt: skip
