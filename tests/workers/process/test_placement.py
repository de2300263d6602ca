"""Copies lie in memory as the originals do, for what a kernel rounds to may hang on that."""

from __future__ import annotations

from typing import Any

import numpy as np
import problems
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from traits import KINDS

from hogwild.data.sources import as_source, own_copy
from hogwild.workers.process.package import Package
from hogwild.workers.process.twins import twins_of

TABLE = np.arange(60_000, dtype=np.float32).reshape(6000, 10)  # 240 kB
SMALL = np.arange(700, dtype=np.float32).reshape(100, 7)
VALUES = {
    "a new one": SMALL,
    "a piece": SMALL[3:9],
    "a large piece": TABLE[1001:4000],
    "with gaps": SMALL[:, 1:],
    "with large gaps": TABLE[::2, 1:],
    "one row with gaps": SMALL[:1, 1:],
    "turned": SMALL.T,
    "large and turned": TABLE.T,
    "dense in another order": SMALL.reshape(5, 20, 7).transpose(1, 0, 2),
    "from behind": SMALL[::-2, ::-1],
    "large, from behind": TABLE[::-2, ::-1],
    "broadcast": np.broadcast_to(SMALL[5], (4, 7)),
    "one number": SMALL[5, 3:4].reshape(()),
    "nothing": SMALL[3:3],
    "read only": np.frombuffer(SMALL.tobytes(), np.float32, offset=28),
    "within bytes": np.frombuffer(bytes(4001), np.float64, 400, offset=801),
    "a tensor of a piece": torch.from_numpy(SMALL[3:9]),
    "a tensor with gaps": torch.from_numpy(SMALL[1:9, 1:]),
    "a tensor of a large piece": torch.from_numpy(TABLE[1001:4000]),
    "a piece of a tensor": torch.from_numpy(SMALL.copy())[3:9, 1:],
    "a piece of a tensor of a piece": torch.from_numpy(SMALL[3:])[2:9, 1:],
    "of a dtype that is not pickled": torch.from_numpy(np.arange(40, dtype=np.uint32)[1:])[2:9],
}


def sent(value: Any) -> Any:
    package = Package({"value": value}, {})
    try:
        return package.open({})["value"]
    finally:
        package.close()


def as_twin(value: Any) -> Any:
    twins = twins_of({"value": value}, None, {})
    assert twins is not None
    return twins["value"]


class Holder:
    """A source of batches, which each thread has a copy of."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def batch(self, update: int, generator: torch.Generator) -> Any:
        return self.value


def copied_for_a_thread(value: Any) -> Any:
    return own_copy(Holder({"held": [value]})).value["held"][0]  # type: ignore[attr-defined]


def how_it_lies(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Tensor):
        return value.dtype, value.shape, value.stride(), value.data_ptr() % 16
    return value.dtype, value.shape, *((value.strides, value.ctypes.data % 16) if value.size else ())


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable:UserWarning")
@pytest.mark.parametrize("way", [sent, as_twin, copied_for_a_thread])
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_a_copy_lies_as_the_original(value, way):
    copy = way(value)
    assert type(copy) is type(value)
    assert how_it_lies(copy) == how_it_lies(value)
    assert np.array_equal(np.asarray(copy), np.asarray(value))
    assert not value.size or not np.shares_memory(np.asarray(copy), np.asarray(value))


@pytest.mark.parametrize("begin", range(4))
@pytest.mark.parametrize("table", [SMALL, np.repeat(TABLE, 8, 0)], ids=["small", "large"])
def test_what_is_mostly_gaps_goes_without_them_and_begins_where_it_would(table, begin):
    column = table[begin:, 3]
    copy = sent(column)
    assert np.array_equal(copy, column)
    assert copy.strides == (4,) and copy.ctypes.data % 16 == column.ctypes.data % 16


def test_gaps_are_sent_where_they_are_few():
    package = Package({"columns": list(TABLE.T), "twice": [TABLE[:, 0], TABLE[:, 0]], "x": TABLE[:, 1:]}, {})
    assert package.arena.nbytes < 2.3 * TABLE.nbytes
    package.close()


# --- what hangs on it

NUMBERS = np.random.default_rng(0).normal(size=(60, 5, 34)).astype(np.float32)
PIECES = np.split(NUMBERS[:, :, 1:].copy().reshape(300, 33), range(5, 300, 5))


class Drawn(Holder):
    """The same samples from a source."""

    def batch(self, update: int, generator: torch.Generator) -> Any:
        return [(self.value[(update + i) % len(self.value)], i % 3) for i in range(4)]


def loss(model: nn.Module, batch: Any) -> Tensor:
    """By a product of a matrix and a vector."""
    scores = [model(torch.from_numpy(x) @ torch.linspace(-1, 1, 33)) for x, _ in batch]
    return functional.cross_entropy(torch.stack(scores), torch.tensor([label for _, label in batch]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("data", "collate"),
    [
        ([(piece, i % 3) for i, piece in enumerate(PIECES)], list),
        (Drawn(PIECES), None),
        (Drawn(NUMBERS[..., 1:]), None),
    ],
    ids=["a list of pieces", "a source of pieces", "a source of an array with gaps"],
)
def test_the_bits_are_those_of_a_loop_over_the_callers_own(data, collate, kind):
    torch.manual_seed(0)
    by_hand, model = nn.Linear(5, 3), nn.Linear(5, 3)
    model.load_state_dict(by_hand.state_dict())
    optimizer = problems.SGD(by_hand.parameters())
    source = as_source(data, batch_size=4, shuffle=False, seed=0, collate=collate)
    for update in range(12):
        optimizer.zero_grad()
        loss(by_hand, source.batch(update, torch.Generator())).backward()
        optimizer.step()
    rule: dict[str, Any] = {"update": "ordered", "workers": 1, "staleness": 0, "kind": kind}
    problems.train(model, data=data, loss=loss, updates=12, collate=collate, shuffle=False, batch_size=4, **rule)
    assert model.weight.tolist() == by_hand.weight.tolist()
