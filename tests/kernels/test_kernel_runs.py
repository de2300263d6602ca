"""Runs that a kernel trains: under every rule, by threads and processes, resumed, killed and refused."""

from __future__ import annotations

import dataclasses
import math
from contextlib import nullcontext

import kernels_made as made
import numpy as np
import pytest
import torch
from held_locks import alone
from traits import KINDS

pytest.importorskip("numba")

import hogwild
from hogwild.errors import ArgumentError, NonFiniteError, NotReproducible
from hogwild.kernels import trained_rows
from hogwild.run.trial.try_kernel import try_kernel
from hogwild.testing import Fault, Hook, PlantedFault, planted

SAME_BITS = ("ordered", "sync")


def trained(**settings):
    model = made.Tables()
    run = hogwild.train_kernel(model, settings.pop("kernel", made.kernel()), **{"epochs": 1, **settings})
    return model, run


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", ["hogwild", "locked"])
def test_one_worker_is_the_plain_loop_to_the_bit(update, kind):
    expected = made.by_hand()
    model, run = trained(update=update, workers=1, kind=kind)
    assert hogwild.digest(model) == hogwild.digest(expected)
    assert run.updates == made.TICKETS
    assert len(run.journal) == made.TICKETS


@pytest.mark.parametrize("update", ["ordered", "snapshot"])
def test_without_staleness_a_rule_of_versions_comes_to_the_plain_loop(update):
    """Each version is the one before plus what a ticket changed, to one rounding."""
    expected = made.by_hand()
    model, _ = trained(update=update, workers=1, staleness=0)
    torch.testing.assert_close(model.value, expected.value, rtol=1e-5, atol=1e-6)
    assert torch.equal(model.count, expected.count)
    assert torch.equal(model.bias, expected.bias)


@pytest.mark.parametrize("update", SAME_BITS)
def test_the_same_bits_with_any_number_and_kind_of_workers(update):
    digests = {
        trained(update=update, workers=workers, kind=kind, staleness=3, micro_batches=4, recheck=recheck)[1].digest
        for workers, kind, recheck in [
            (1, "threads", 0),
            (2, "threads", 0.25),
            (4, "threads", 0),
            (3, "processes", 0.25),
        ]
    }
    assert len(digests) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", ["locked", "snapshot", *SAME_BITS])
def test_nothing_is_lost_or_done_twice(update, kind):
    """Every index of `far` adds one; under `sync` the tickets of an update are added up."""
    with planted(alone) if update in ("locked", "snapshot") else nullcontext():
        model, run = trained(update=update, workers=2, kind=kind)
    assert model.count.sum() == made.TICKETS * 2 * made.SIZE
    assert run.failures == ()


@pytest.mark.parametrize("hook", [Hook.CLAIMED, Hook.COMMITTING, Hook.WRITING])
@pytest.mark.parametrize("update", SAME_BITS)
def test_a_killed_process_changes_no_bit(update, hook):
    _, whole = trained(update=update, workers=1, kind="threads")
    with planted(PlantedFault(Fault.KILL, hook, 6)):
        _, run = trained(update=update, workers=2, kind="processes")
    assert len(run.failures) == 1
    assert run.digest == whole.digest


@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_a_run_is_saved_resumed_and_replayed(tmp_path, update):
    settings = {"update": update, "workers": 1, "epochs": 2, "checkpoint_every": 10}
    _, whole = trained(**settings, out=tmp_path / "whole")

    def interrupt(progress):
        if progress.updates >= 20:
            raise KeyboardInterrupt

    out, watched = tmp_path / "part", {"evaluate_every": 10}
    with pytest.raises(KeyboardInterrupt):
        trained(**settings, **watched, out=out, stop=interrupt)
    _, resumed = trained(**settings, **watched, out=out, resume=out)
    assert resumed.digest == whole.digest
    if update == "ordered":
        found = hogwild.replay(tmp_path / "whole", model=made.Tables(), data=made.kernel())
        assert found.equal


def test_a_resumed_run_needs_the_same_kernel(tmp_path):
    trained(out=tmp_path, workers=1, epochs=1, limit_updates=10, checkpoint_every=5)
    with pytest.raises(ArgumentError, match="the kernel's lr × schedule at update 0 is 0.2"):
        trained(out=tmp_path, resume=tmp_path, workers=1, limit_updates=10, kernel=made.kernel(lr=0.2))


def test_the_rate_is_lr_by_the_schedule():
    rates = []

    def noted(tables, drawn, rate):
        rates.append(rate)
        return made.step(tables, drawn, rate)

    trained(workers=1, kernel=made.kernel(step=noted, lr=0.5, schedule=lambda done: 1 - done))
    assert rates[1:] == [0.5 * (1 - ticket / made.TICKETS) for ticket in range(made.TICKETS)]  # the first is the trial


def test_a_limited_run_is_the_beginning_of_the_whole_one_schedule_included(tmp_path):
    settings = {"update": "ordered", "workers": 1, "kernel": made.kernel(schedule=lambda done: 1 - done)}
    _, whole = trained(**settings)
    _, begun = trained(**settings, limit_updates=10, checkpoint_every=5, out=tmp_path)
    assert begun.losses.tolist() == whole.losses[:10].tolist()
    assert hogwild.replay(tmp_path, model=made.Tables(), data=settings["kernel"]).equal
    _, on = trained(**settings, limit_updates=10, resume=tmp_path, change={"limit_updates": None})
    assert on.digest == whole.digest


def test_a_stopped_run_with_a_schedule_is_replayed(tmp_path):
    kernel, stopping = made.kernel(schedule=lambda done: 1 - done), {"evaluate_every": 10}
    settings = {"update": "ordered", "workers": 1, "kernel": kernel, "out": tmp_path, **stopping}
    _, stopped = trained(**settings, stop=lambda progress: progress.updates >= 10)
    assert stopped.stopped == "stop"
    assert hogwild.replay(tmp_path, model=made.Tables(), data=kernel).equal


def test_a_loss_that_is_not_finite_is_told():
    def spoilt(tables, drawn, rate):
        loss = made.step(tables, drawn, rate)
        return math.nan if tables["count"].max() > 20 else loss

    with pytest.raises(NonFiniteError, match="the shared model has been written by it"):
        trained(workers=1, kernel=made.kernel(step=spoilt))
    with pytest.raises(NonFiniteError, match="was not touched by it"):
        trained(workers=1, update="ordered", kernel=made.kernel(step=spoilt_on_copies))


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_that_are_not_finite_are_told_and_none_of_the_ticket_is_written(workers):
    """It is found when half of the rows are written; who reads the version before finds these in the logs."""
    seen = []

    def spoilt(tables, drawn, rate):
        seen.append(made.step(tables, drawn, rate))
        if drawn["last"]:
            tables["count"][-1] = math.inf
        return seen[-1]

    kernel = made.kernel(step=spoilt, draw=lambda ticket, seed: made.draw(ticket, seed) | {"last": ticket == 20})
    model = made.Tables()
    with pytest.raises(NonFiniteError, match="the gradient is not finite at update 20 .* was not touched by it"):
        hogwild.train_kernel(model, kernel, epochs=1, workers=workers, update="ordered", kind="threads")
    whole, _ = trained(limit_updates=20, workers=1, update="ordered")
    assert hogwild.digest(model) == hogwild.digest(whole)


def spoilt_on_copies(tables, drawn, rate):
    return math.nan if drawn["goal"][0, 0] > 1 else 1.0


def drawn_with_near(dtype):
    return lambda ticket, seed: {**(own := made.draw(ticket, seed)), "near": own["near"].astype(dtype)}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"rows": {}}, "rows names no index array"),
        ({"rows": [("near", "value")]}, r"rows is a list, \[\('near', 'value'\)\], and no mapping"),
        ({"rows": {"near": 3}}, "rows has 3 for 'near', where names of parameters go"),
        ({"rows": {"near": ()}}, r"rows has \(\) for 'near'"),
        ({"rows": {"near": {"value": 1}}}, "rows has {'value': 1} for 'near'"),
        ({"rows": {0: "value"}}, "rows has 'value' for 0"),
        ({"rows": {"near": "nothing", "far": "count"}}, "rows names 'nothing'.* it has value, count, bias"),
        ({"rows": {"near": "bias", "far": "count"}}, r"bias has the shape \[3\]"),
        ({"rows": {"near": "value", "else": "count"}}, "rows names 'else'"),
        ({"rows": {"goal": "value"}}, "goal of draw is a float32 array"),
        ({"rows": {"near": ("value", "count"), "far": "count"}}, "all index arrays in common"),
        ({"tickets": 0}, "tickets 0 is below 1"),
        ({"draw": 3}, "draw 3 is no function"),
        ({"draw": lambda ticket, seed: [1]}, "draw returned a list"),
        ({"draw": drawn_with_near(">i4")}, r"near of draw is a >i4 array.* array.astype\('int32'\)"),
        ({"draw": lambda ticket, seed: 1 / 0}, "draw raised at ticket 0: ZeroDivisionError"),
        ({"step": lambda tables, drawn, rate: tables["other"]}, "step raised at ticket 0: KeyError"),
        ({"step": lambda tables, drawn, rate: math.inf}, "step returned the loss inf at ticket 0"),
    ],
)
def test_a_kernel_that_cannot_work_is_refused_before_the_run(changed, message):
    with pytest.raises(ArgumentError, match=message):
        trained(kernel=made.kernel(**changed))


def halves(model):
    model.value = torch.nn.Parameter(model.value.detach().to(torch.bfloat16))


def has_no_rows(model):
    model.value = torch.nn.Parameter(torch.zeros(0, made.WIDTH))


def is_tied(model):
    model.count = model.value


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (halves, "value is a table of bfloat16; a kernel trains float32 and float64"),
        (has_no_rows, "value has no rows"),
        (is_tied, "value and count are one parameter; rows names it once"),
    ],
)
@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_a_table_that_cannot_be_trained_is_refused(update, changes, message):
    model = made.Tables()
    changes(model)
    with pytest.raises(ArgumentError, match=message):
        hogwild.train_kernel(model, made.kernel(), update=update, epochs=1)


@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_tables_of_doubles_are_trained(update):
    model, expected = made.Tables().double(), made.by_hand()
    hogwild.train_kernel(model, made.kernel(), update=update, workers=1, staleness=0, epochs=1)
    torch.testing.assert_close(model.value.float(), expected.value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_a_draw_that_returns_nothing_later_is_told(update):
    def forgets(ticket, seed):
        return made.draw(ticket, seed) if ticket < 5 else None

    with pytest.raises(ArgumentError, match="draw returned a NoneType"):
        trained(update=update, workers=1, kernel=made.kernel(draw=forgets))


@pytest.mark.parametrize("update", ["hogwild", "ordered"])
@pytest.mark.parametrize("index", [-1, made.ROWS])
def test_an_index_outside_is_an_error(update, index):
    def outside(ticket, seed):
        drawn = made.draw(ticket, seed)
        if ticket == 5:
            drawn["near"][3] = index
        return drawn

    with pytest.raises(ArgumentError, match=f"near counts row {index} of value, which has 50: 0 to 49") as raised:
        trained(update=update, workers=1, kernel=made.kernel(draw=outside))
    assert raised.value is not None


def test_a_draw_that_keeps_state_is_refused_where_the_same_bits_are_promised():
    generator = np.random.default_rng(0)
    with pytest.raises(NotReproducible, match="draw gives other arrays"):
        trained(update="ordered", kernel=made.kernel(draw=lambda t, s: made.draw(t, int(generator.integers(1 << 30)))))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"update": "racing"}, "racing races for a shared .grad"),
        ({"on_nonfinite": "skip"}, "on_nonfinite 'skip' given"),
    ],
)
def test_what_a_kernel_has_not_is_refused(settings, message):
    with pytest.raises(ArgumentError, match=message):
        trained(**settings)


def test_without_numba_the_error_names_the_extra(monkeypatch):
    import sys

    from hogwild.kernels.kernel import compiled

    compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delitem(sys.modules, "hogwild.kernels.numbers", raising=False)
    with pytest.raises(ArgumentError, match=r"pip install 'hogwild\[embeddings\]'"):
        trained()
    compiled.cache_clear()


def test_a_kernel_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.kernel().lr = 2.0


# --- rows that are odd, and valid


@pytest.mark.parametrize("update", SAME_BITS)
def test_a_first_ticket_that_names_no_row_of_a_table(update):
    def draw(ticket, seed):
        return {"near": np.arange(5), "far": np.arange(0 if ticket == 0 else 3)}

    def step(tables, drawn, rate):
        for name in ("near", "far"):
            tables[name + ".weight"][drawn[name]] += np.float32(1)
        return 0.5

    model = torch.nn.ModuleDict({name: torch.nn.Embedding(30, 64) for name in ("near", "far")})
    for table in model.values():
        torch.nn.init.zeros_(table.weight)
    kernel = hogwild.Kernel(draw, step, {"near": "near.weight", "far": "far.weight"}, tickets=8)
    hogwild.train_kernel(model, kernel, epochs=1, update=update)
    assert {name: table.weight.sum().item() for name, table in model.items()} == {
        "near": 64 * 5 * 8,
        "far": 64 * 3 * 7,
    }


def test_passes_are_compiled_for_a_table_of_which_no_row_is_at_hand(monkeypatch):
    """Compiled code asks no array how long it is: one without rows was written beyond its end."""
    seen = []

    class Passes:
        def read_rows(self, table, *rest):
            seen.append(table.shape)

        write_rows = read_rows

    monkeypatch.setattr(trained_rows, "compiled", lambda name: Passes())
    trained_rows.compile_passes(np.zeros((0, 4), np.float32))
    assert seen == [(1, 4), (1, 4)]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint64])
@pytest.mark.parametrize("update", ["hogwild", "snapshot", *SAME_BITS])
def test_narrow_indices_name_the_rows_that_they_name(update, dtype):
    """Rows are numbered anew within a ticket, over all arrays of a table: more than a narrow one can count."""

    def draw(ticket, seed):
        random = np.random.default_rng(seed)
        return {"many": random.permutation(1000)[:400], "few": random.integers(100, size=20).astype(dtype)}

    def step(tables, drawn, rate):
        np.add.at(tables["weight"], drawn["few"], np.float32(1))
        return 0.0

    model = torch.nn.Embedding(1000, 4)
    torch.nn.init.zeros_(model.weight)
    kernel = hogwild.Kernel(draw, step, {"many": "weight", "few": "weight"}, tickets=4)
    hogwild.train_kernel(model, kernel, epochs=1, update=update, workers=1, kind="threads")
    counted = model.weight.detach()[:, 0]
    assert counted[:100].sum() == 20 * 4 and not counted[100:].any()


def test_the_ticket_that_is_tried_has_the_rate_of_the_run():
    def step(tables, drawn, rate):
        return math.inf if rate > 0.1 else 0.5

    kernel = hogwild.Kernel(lambda ticket, seed: {"rows": np.arange(3)}, step, {"rows": "weight"}, tickets=4)
    model = torch.nn.Embedding(9, 2)
    found = dict(model.named_parameters())
    assert try_kernel(kernel, model, found, 0.05, 0, 1, same_bits=False).rows == {0: 3}
    with pytest.raises(ArgumentError, match=r"loss inf at ticket 0; lower lr, 0\.5, or"):
        try_kernel(kernel, model, found, 0.5, 0, 1, same_bits=False)


def growing(rows=(0, 1, 2), first=0):
    """A kernel whose rows are infinite from that ticket on, and whose loss says nothing."""

    def step(tables, drawn, rate):
        if drawn["ticket"] >= first:
            tables["weight"][drawn["rows"]] = np.inf
        return 1.0

    def draw(ticket, seed):
        return {"rows": np.array(rows), "ticket": ticket}

    return hogwild.Kernel(draw, step, {"rows": "weight"}, tickets=200)


@pytest.mark.parametrize(("first", "told"), [(1, "at update 32 "), (195, "after 200 updates")])
@pytest.mark.parametrize("update", ["hogwild", "locked"])
def test_tables_that_are_not_finite_end_a_run_in_place(update, first, told):
    model = torch.nn.Embedding(9, 2)
    with pytest.raises(NonFiniteError, match=f"rows of weight are not finite {told}"):
        hogwild.train_kernel(model, growing(first=first), epochs=1, update=update, workers=1)
    run = hogwild.train_kernel(model, growing(), epochs=1, update=update, on_nonfinite="ignore")
    assert run.updates == 200 and not model.weight.isfinite().all()
