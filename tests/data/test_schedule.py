"""The schedule is a pure function of (seed, update), and every epoch visits every sample once."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import problems
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import hogwild
from hogwild import ArgumentError, Schedule
from hogwild.data.sources import DatasetSource, TensorSource, as_source, tickets_of

KINDS = ("threads", "processes")
sizes = st.integers(1, 60).flatmap(lambda samples: st.tuples(st.just(samples), st.integers(1, samples)))
GENERATOR = torch.Generator()


def source(data: Any, *, batch_size: int = 4, shuffle: bool = True, seed: int = 0, collate: Any = None) -> Any:
    return as_source(data, batch_size=batch_size, shuffle=shuffle, seed=seed, collate=collate)


@given(sizes, st.booleans(), st.integers(0, 2**40))
def test_every_epoch_visits_every_sample_once(size, shuffle, seed):
    samples, batch_size = size
    schedule = Schedule(samples, batch_size, shuffle, seed)
    for epoch in range(3):
        first = epoch * len(schedule)
        batches = [schedule.indices(u).tolist() for u in range(first, first + len(schedule))]
        assert sorted(i for batch in batches for i in batch) == list(range(samples))
        assert all(len(batch) == batch_size for batch in batches[:-1])
        assert len(batches[-1]) == samples - batch_size * (len(schedule) - 1)


@given(sizes, st.integers(0, 2**40), st.lists(st.integers(0, 500), min_size=1, max_size=20))
def test_a_batch_depends_on_the_seed_and_the_update_alone(size, seed, updates):
    used = Schedule(*size, seed=seed)
    for update in updates:
        assert torch.equal(used.indices(update), Schedule(*size, seed=seed).indices(update))


@given(sizes, st.integers(0, 500))
def test_without_shuffling_samples_come_in_order(size, update):
    samples, batch_size = size
    schedule = Schedule(samples, batch_size, shuffle=False)
    start = update % len(schedule) * batch_size
    assert schedule.indices(update).tolist() == list(range(start, min(start + batch_size, samples)))


def test_epochs_and_seeds_are_shuffled_differently():
    orders = [Schedule(1000, 1000, seed=seed).indices(epoch) for seed in range(5) for epoch in range(5)]
    assert len({tuple(order.tolist()) for order in orders}) == 25
    same = np.mean([(a == b).float().mean().item() for i, a in enumerate(orders) for b in orders[:i]])
    assert same < 0.005, "two shuffles agree in one place of a thousand, by chance"


def test_the_global_generators_have_no_part_in_it():
    torch.manual_seed(1)
    one = Schedule(100, 10).indices(3)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert torch.equal(Schedule(100, 10).indices(3), one)
    assert torch.equal(torch.get_rng_state(), before)


def test_this_schedule_never_changes():
    """Checkpoints and recorded runs rest on it."""
    assert Schedule(10, 4, seed=0).indices(0).tolist() == [0, 6, 4, 5]
    assert Schedule(10, 4, seed=5).indices(7).tolist() == [4, 1, 7, 6]


class Rows(Dataset):
    def __init__(self, length: int = 10) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        assert isinstance(index, int)
        return torch.full((2,), float(index)), index


class ManyAtOnce(Rows):
    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, int]]:
        return [(torch.full((2,), float(i)), -i) for i in indices]


class Endless(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(10))


X, Y = torch.arange(20.0).reshape(10, 2), torch.arange(10)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (X, TensorSource),
        (X.numpy(), TensorSource),
        ((X, Y), TensorSource),
        ((X, Y.numpy()), TensorSource),
        ({"x": X, "y": {"deep": Y.numpy()}}, TensorSource),
        (OrderedDict(x=X), TensorSource),
        (TensorDataset(X, Y), TensorSource),
        (Rows(), DatasetSource),
        (ManyAtOnce(), DatasetSource),
        ([(x, int(y)) for x, y in zip(X, Y, strict=True)], DatasetSource),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_data_may_be(data, kind):
    made = source(data)
    assert type(made) is kind
    assert len(made) == 3
    assert made.schedule.samples == 10


def test_batches_have_the_structure_of_the_data():
    rows = Schedule(10, 4).indices(2)
    assert torch.equal(source(X).batch(2, GENERATOR), X[rows])
    assert torch.equal(source(X.numpy()).batch(2, GENERATOR), X[rows])
    x, y = source((X, Y.numpy())).batch(2, GENERATOR)
    assert torch.equal(x, X[rows])
    assert torch.equal(y, Y[rows])
    batch = source({"x": X, "y": {"deep": Y}}).batch(2, GENERATOR)
    assert batch.keys() == {"x", "y"}
    assert torch.equal(batch["y"]["deep"], Y[rows])
    x, y = source(Rows()).batch(2, GENERATOR)
    assert torch.equal(x[:, 0], rows.float())
    assert torch.equal(y, rows)
    assert torch.equal(source(ManyAtOnce()).batch(2, GENERATOR)[1], -rows)


def test_collate_makes_the_batch():
    rows = Schedule(10, 4).indices(0).tolist()
    made = source(Rows(), collate=lambda samples: [index for _, index in samples])
    assert made.batch(0, GENERATOR) == rows
    made = source((X, Y), batch_size=1, collate=len)
    assert type(made) is DatasetSource, "with a collate, a tuple is a sequence of samples"
    assert source(TensorDataset(X, Y), collate=len).batch(0, GENERATOR) == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, Y[:7]), r"data holds tensors of different lengths, \[7, 10\]; they must be equally long"),
        ({"x": X, "y": Y[:7]}, r"data holds tensors of different lengths, \[7, 10\]"),
        (X[:0], "data is empty; training needs at least one sample"),
        ((X[:0], Y[:0]), "data is empty"),
        ({}, "data is empty"),
        ([], "data is empty"),
        (Rows(0), "data is empty"),
        (X[:3], "batch_size 4 is over the 3 samples there are; at most 3 works"),
        (Rows(3), "batch_size 4 is over the 3 samples there are; at most 3 works"),
        (None, "data is a NoneType; pass tensors"),
        (5, "data is a int; pass tensors"),
        ((n for n in range(10)), "data is a generator; pass tensors"),
        (DataLoader(Rows()), r"data is a DataLoader; .*of a DataLoader: its dataset"),
        (Endless(), "data is a Endless; pass tensors"),
        (torch.zeros(10, device="meta"), r"data lies on meta, .* pass data\.cpu\(\)"),
        (torch.tensor(3.0), "data"),
        (np.array(3.0), "data"),
        ((X, torch.tensor(3.0)), "data"),
        (np.array(["a"] * 10, dtype=object), "data"),
        (np.array(["a"] * 10), "data"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_data_may_not_be(data, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        source(data)
    assert "\n" not in str(caught.value)


def test_an_array_read_backwards():
    assert torch.equal(source(X.numpy()[::-1], shuffle=False).batch(0, GENERATOR), X.flip(0)[:4])


# --- in a run


def seen_in(run: hogwild.Run) -> Counter:
    return Counter(int(value) for row in run.logged for name, value in row.items() if name.startswith("sample"))


class One(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


def noting_loss(model: nn.Module, batch: tuple[Tensor]) -> Tensor:
    hogwild.worker_info().log(**{f"sample {i}": float(value) for i, value in enumerate(batch[0])})
    return model.weight.sum()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", ["racing", "hogwild", "locked", "snapshot", "ordered", "sync"])
def test_all_workers_together_visit_every_sample_once_an_epoch(update, kind):
    run = problems.train(
        One(), data=(torch.arange(23),), loss=noting_loss, update=update, kind=kind, batch_size=4, epochs=3
    )
    assert seen_in(run) == dict.fromkeys(range(23), 3)
    assert run.samples == 69
    assert run.updates == (9 if update == "sync" else 18)


class Stream:
    """Batches without a data set, the last number of which comes from the update's own generator."""

    def batch(self, update: int, generator: torch.Generator) -> Tensor:
        return torch.tensor([float(update), torch.rand((), generator=generator).item()])


class FiniteStream(Stream):
    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_of_ones_own(kind):
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        hogwild.worker_info().log(number=batch[0].item(), drawn=batch[1].item())
        return model.weight.sum()

    runs = [
        problems.train(One(), data=Stream(), loss=loss, kind=kind, workers=workers, updates=7) for workers in (1, 2)
    ]
    drawn = [{row["update"]: (row["number"], row["drawn"]) for row in run.logged} for run in runs]
    assert drawn[0] == drawn[1]
    assert [number for number, _ in (drawn[0][u] for u in range(7))] == list(range(7))
    assert len({value for _, value in drawn[0].values()}) == 7
    finite = problems.train(One(), data=FiniteStream(), loss=loss, kind=kind, epochs=2)
    assert finite.updates == 10


def test_a_source_without_an_end_needs_updates():
    with pytest.raises(ArgumentError, match="epochs 2 given, and the source has no __len__; set updates instead"):
        problems.train(One(), data=Stream(), loss=lambda model, batch: model.weight.sum(), epochs=2)


def test_tickets_of_a_run():
    assert tickets_of(FiniteStream(), epochs=2, updates=None, per_update=3) == 10
    assert tickets_of(Stream(), epochs=None, updates=7, per_update=3) == 21
    with pytest.raises(ArgumentError, match="no __len__"):
        tickets_of(Stream(), epochs=2, updates=None, per_update=1)
    with pytest.raises(ArgumentError, match="an epoch has 0 batches"):
        tickets_of([], epochs=2, updates=None, per_update=1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_source_shares_stays_shared(kind):
    class Counted(Stream):
        def __init__(self) -> None:
            self.count = torch.zeros(1).share_memory_()

        def batch(self, update: int, generator: torch.Generator) -> Tensor:
            self.count.add_(1)
            return super().batch(update, generator)

    counted = Counted()
    problems.train(One(), data=counted, loss=lambda model, batch: model.weight.sum(), kind=kind, workers=1, updates=7)
    assert counted.count >= 7
