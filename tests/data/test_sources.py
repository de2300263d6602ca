"""What data may be, and the batches made of it; in a run, every sample once an epoch."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any, NamedTuple

import numpy as np
import problems
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
)
from traits import KINDS, NAMES

import hogwild
from hogwild import ArgumentError, Schedule
from hogwild.data.sources import DatasetSource, TensorSource, as_source, batches_of

GENERATOR = torch.Generator()


def source(data: Any, *, batch_size: int = 4, shuffle: bool = True, seed: int = 0, collate: Any = None) -> Any:
    return as_source(data, batch_size=batch_size, shuffle=shuffle, seed=seed, collate=collate)


class Pair(NamedTuple):
    x: Any
    target: Any


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


class Ending(Endless):
    def __len__(self) -> int:
        return 10


X, Y = torch.arange(20.0).reshape(10, 2), torch.arange(10)


class Doubled(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return 2 * x, y


class Named(TensorDataset):
    """Takes its samples as torch does."""

    classes = ("a", "b", "c")


class ManyDoubled(TensorDataset):
    def __getitems__(self, indices):
        return [(2 * self.tensors[0][i], self.tensors[1][i]) for i in indices]


class Half(TensorDataset):
    def __len__(self):
        return 5


class Listed(TensorDataset):
    def __init__(self) -> None:
        self.tensors = (X, Y.tolist())


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
        (Named(X, Y), TensorSource),
        (Doubled(X, Y), DatasetSource),
        (ManyDoubled(X, Y), DatasetSource),
        (Listed(), DatasetSource),
        ((X, (X, {"y": Y})), TensorSource),
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
    pair = source(Pair(X, Y)).batch(2, GENERATOR)
    assert type(pair) is Pair and torch.equal(pair.target, Y[rows])
    batch = source({"x": X, "y": {"deep": Y}}).batch(2, GENERATOR)
    assert batch.keys() == {"x", "y"}
    assert torch.equal(batch["y"]["deep"], Y[rows])
    x, y = source(Rows()).batch(2, GENERATOR)
    assert torch.equal(x[:, 0], rows.float())
    assert torch.equal(y, rows)
    assert torch.equal(source(ManyAtOnce()).batch(2, GENERATOR)[1], -rows)


def test_a_tuple_beside_tensors_is_one_of_tensors_too():
    rows = Schedule(10, 4).indices(2)
    x, (again, deep) = source((X, (X.numpy(), {"y": Y}))).batch(2, GENERATOR)
    assert torch.equal(x, X[rows]) and torch.equal(again, X[rows]) and torch.equal(deep["y"], Y[rows])
    with pytest.raises(hogwild.ArgumentError, match=r"data\[1\] is a tuple, beside tensors"):
        source((X, (X, "y")))
    pairs = tuple((x, y) for x, y in zip(X, Y, strict=True))
    assert type(source(pairs)) is DatasetSource and torch.equal(source(pairs).batch(2, GENERATOR)[1], Y[rows])


def test_a_data_set_that_is_made_of_tensors_keeps_what_it_makes_of_them():
    rows = Schedule(10, 4).indices(2)
    for data in (Doubled(X, Y), ManyDoubled(X, Y)):
        assert torch.equal(source(data).batch(2, GENERATOR)[0], 2 * X[rows])
    assert torch.equal(source(Listed()).batch(2, GENERATOR)[1], Y[rows])
    assert source(Half(X, Y)).schedule.samples == 5


def test_one_that_makes_nothing_of_them_has_the_batches_of_its_tensors():
    batch = source(Named(X, Y)).batch(2, GENERATOR)
    assert type(batch) is tuple and torch.equal(batch[0], X[Schedule(10, 4).indices(2)])


def test_collate_makes_the_batch():
    rows = Schedule(10, 4).indices(0).tolist()
    made = source(Rows(), collate=lambda samples: [index for _, index in samples])
    assert made.batch(0, GENERATOR) == rows
    made = source((X, Y), batch_size=1, collate=len)
    assert type(made) is DatasetSource, "with a collate, a tuple is a sequence of samples"
    with pytest.raises(hogwild.ArgumentError, match=r"with collate= a tuple is taken .* and TensorDataset"):
        source((X, Y), collate=len)
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
        (5, "data is an int; pass tensors"),
        ((n for n in range(10)), "data is a generator; pass tensors"),
        (
            DataLoader(Rows(), 3),
            r"is a DataLoader, .*: hogwild\.train\(model, loader\.dataset, loss, batch_size=3, shuffle=False, …\)$",
        ),
        (
            DataLoader(Rows(), 3, shuffle=True, drop_last=True, collate_fn=list),
            r"loss, batch_size=3, shuffle=True, drop_last=True, collate=loader\.collate_fn, …\)$",
        ),
        (DataLoader(Rows(), batch_sampler=BatchSampler(range(5), 2, True)), "its range chooses the samples"),
        (
            DataLoader(Rows(), batch_sampler=BatchSampler(RandomSampler(Rows()), 2, True)),
            r"loss, batch_size=2, shuffle=True, drop_last=True, …\)$",
        ),
        (DataLoader(Rows(), 3, sampler=RandomSampler(Rows(), True)), "its RandomSampler chooses the samples, which is"),
        (DataLoader(Rows(), 3, sampler=RandomSampler(Rows(), num_samples=5)), "its RandomSampler chooses the samples"),
        (DataLoader(Rows(), 3, sampler=SubsetRandomSampler([1, 2])), "its SubsetRandomSampler chooses the samples"),
        (DataLoader(Rows(), batch_sampler=[[1], [2, 3]]), r"its list chooses the samples.*batch\(update, generator\)"),
        (
            DataLoader(Rows(), None),
            "data is a DataLoader, .*; pass its dataset, and give batch_size; or pass an",
        ),
        (
            Endless(),
            r"data is an Endless, which can only be iterated, .*; pass .* batch\(update, generator\) \(hogwild.Source;",
        ),
        (Ending(), "data is an Ending, which can only be iterated"),
        (DataLoader(Endless()), "data is a DataLoader of an Endless, which can only be iterated"),
        (torch.zeros(10, device="meta"), r"data lies on meta, .* pass data\.cpu\(\)"),
        ((X, Y.tolist()), r"data\[1\] is a list, beside tensors; a tuple is taken for tensors side by side"),
        (Pair(X, None), r"data\[1\] is a NoneType, beside tensors; a tuple is taken"),
        ({"x": X, "y": Y.tolist()}, r"data\['y'\] is a list, beside tensors; a mapping is taken"),
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
@pytest.mark.parametrize("update", NAMES)
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


def test_batches_of_a_run():
    assert batches_of(FiniteStream(), epochs=2, updates=None, per_update=3) == 10
    assert batches_of(Stream(), epochs=None, updates=7, per_update=3) == 21
    with pytest.raises(ArgumentError, match="no __len__"):
        batches_of(Stream(), epochs=2, updates=None, per_update=1)
    with pytest.raises(ArgumentError, match="an epoch has 0 batches"):
        batches_of([], epochs=2, updates=None, per_update=1)


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


class WithABatch(torch.utils.data.Dataset):
    """As of Hugging Face: `batch` makes another data set, of batches."""

    def __len__(self):
        return 40

    def __getitem__(self, i):
        return torch.tensor([float(i)])

    def batch(self, batch_size, drop_last_batch=False):
        raise AssertionError("nobody wants that")


def test_a_data_set_that_has_a_batch_is_a_data_set():
    source = as_source(WithABatch(), batch_size=10, shuffle=False, seed=0, collate=None)
    assert len(source) == 4 and torch.equal(source.batch(1, torch.Generator())[:, 0], torch.arange(10.0, 20.0))


def test_a_source_that_can_be_indexed_says_that_it_is_a_source():
    class Indexed(hogwild.Source):
        def __getitem__(self, i):
            raise AssertionError("nobody wants that")

        def batch(self, update, generator):
            return torch.zeros(1)

    source = Indexed()
    assert as_source(source, batch_size=1, shuffle=False, seed=0, collate=None) is source


def test_numbers_in_the_other_order_of_bytes_are_refused():
    with pytest.raises(ArgumentError, match="which no tensor can hold"):
        as_source(np.zeros(4, ">f4"), batch_size=2, shuffle=False, seed=0, collate=None)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_are_refused():
    nested = torch.nested.nested_tensor([X, X[:2]])
    with pytest.raises(hogwild.ArgumentError, match="data holds a nested tensor; pass the list of its samples"):
        source(nested)
