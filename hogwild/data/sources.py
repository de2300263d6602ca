"""Where batches come from: tensors, a data set, or a source of one's own."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from hogwild.data.schedule import Schedule
from hogwild.errors import ArgumentError, a_type, one_line
from hogwild.shared.copying import copy_for_worker


@runtime_checkable
class Source(Protocol):
    """Makes batches that are not drawn from a data set: episodes, simulations, streams.

    `batch` must depend on its arguments alone for a run to be reproducible. A source with `__len__` (batches in an
    epoch) may be trained for `epochs`; one without is trained for `updates`. Each worker holds its own copy.
    """

    def batch(self, update: int, generator: torch.Generator) -> Any:
        """The batch of that number, which is that of the update unless updates are made of several (`sync`,
        accumulate); `generator` is seeded by (seed, number)."""
        ...


class TensorSource:
    """Batches of one tensor, or of a tuple, named tuple or mapping of tensors, or of such, that are equally long."""

    def __init__(self, data: Any, schedule: Schedule) -> None:
        self.data = data
        self.schedule = schedule
        self._side_by_side = type(data) is tuple and all(isinstance(part, Tensor) for part in data)

    def __len__(self) -> int:
        return len(self.schedule)

    def batch(self, update: int, generator: torch.Generator) -> Any:  # noqa: ARG002
        """The rows of that update, in the structure of the data."""
        indices = self.schedule.indices(update)
        if self._side_by_side:  # once an update: the form that most data has, without the calls of any other
            return tuple([tensor.index_select(0, indices) for tensor in self.data])
        return _map_tensors(lambda tensor: tensor.index_select(0, indices), self.data)


class DatasetSource:
    """Batches of a map-style data set: `dataset[i]` or `dataset.__getitems__([...])`, then `collate`."""

    def __init__(self, dataset: Any, schedule: Schedule, collate: Callable[[list[Any]], Any]) -> None:
        self.dataset = dataset
        self.schedule = schedule
        self.collate = collate

    def __len__(self) -> int:
        return len(self.schedule)

    def batch(self, update: int, generator: torch.Generator) -> Any:  # noqa: ARG002
        """The collated samples of that update."""
        indices = self.schedule.indices(update).tolist()
        fetch = getattr(self.dataset, "__getitems__", None)
        samples = fetch(indices) if fetch is not None else [self.dataset[i] for i in indices]
        return self.collate(samples)


def own_copy(source: Source) -> Source:
    """A source that one worker may use beside others: our own share their data, which is only read; yours is copied.

    Raises:
        ArgumentError: it cannot be copied.
    """
    if isinstance(source, TensorSource | DatasetSource):
        own = copy.copy(source)
        own.schedule = copy.copy(source.schedule)
        return own
    return copy_for_worker(
        source,
        [source],
        {},
        subject=f"data is {a_type(source)} that",
        advice="give it a __deepcopy__, or make what it holds in its first batch()",
    )


def as_source(
    data: Any,
    *,
    batch_size: int,
    shuffle: bool,
    seed: int,
    collate: Callable[[list[Any]], Any] | None,
    drop_last: bool = False,
) -> Source:
    """The source of the batches of `data`.

    Raises:
        ArgumentError: `data` is of no kind that can be indexed, is empty, is smaller than a batch, or holds
            tensors of different lengths or on another device than the CPU.
    """
    is_data_set = hasattr(data, "__getitem__") and Source not in type(data).__mro__  # and may have a `batch`, too
    if isinstance(data, Source) and not is_data_set:
        if drop_last:
            raise ArgumentError(f"drop_last: data is {a_type(data)}, which makes its own batches; leave them out there")
        return data
    _refuse_iterated(data)
    if collate is None and _is_its_tensors(data):
        data = tuple(data.tensors)
    if type(data) is list and collate is None:
        _refuse_side_by_side(data)
    tensors = _as_tensors(data) if collate is None else None
    if tensors is None and collate is None:
        _refuse_mixed(data)
    samples = _length_of(data, tensors)
    if samples == 0:
        raise ArgumentError("data is empty; training needs at least one sample")
    if batch_size > samples:
        listed = "; a list is taken for its samples, and tensors side by side are a tuple" if type(data) is list else ""
        if _is_tuple(data) and collate is not None:
            listed = "; with collate= a tuple is taken for its samples, and TensorDataset(x, y) for those of x and y"
        raise ArgumentError(
            f"batch_size {batch_size} is over the {samples} samples there are; at most {samples} works{listed}"
        )
    schedule = Schedule(samples, batch_size, shuffle, seed, drop_last)
    if tensors is not None:
        return TensorSource(tensors, schedule)
    return DatasetSource(data, schedule, collate or _stacked)


def _stacked(samples: list[Any]) -> Any:
    """What torch makes of samples where nobody says how: tensors one longer.

    Raises:
        ArgumentError: they are of different lengths, or of a kind that it does not know.
    """
    try:
        return default_collate(samples)
    except Exception as error:
        raise ArgumentError(
            f"data: samples are not of one form ({type(error).__name__}: {one_line(error)}); give "
            f"collate=, a function that makes a batch of a list of samples"
        ) from error


def batches_of(
    source: Source | None, *, epochs: int | None, updates: int | None, per_update: int, limit: int | None = None
) -> int:
    """Batches of a run of so many epochs, or updates of `per_update` batches, but of no more than `limit` updates.

    Raises:
        ArgumentError: epochs are given, and the source does not say how long one is, or that it holds nothing.
    """
    if updates is not None:
        return min(updates, limit or updates) * per_update
    length = getattr(source, "__len__", None)
    if length is None:
        raise ArgumentError(f"epochs {epochs} given, and the source has no __len__; set updates instead")
    batches = int(length())
    if batches < 1:
        raise ArgumentError(f"the source says that an epoch has {batches} batches; it must have one at least")
    whole = (epochs or 0) * batches
    return whole if limit is None else min(whole, limit * per_update)


def _length_of(data: Any, tensors: Any) -> int:
    if tensors is not None:
        leaves: list[Tensor] = []
        _map_tensors(leaves.append, tensors)
        lengths = {len(leaf) for leaf in leaves}
        if len(lengths) != 1:
            raise ArgumentError(
                f"data holds tensors of different lengths, {sorted(lengths)}; they must be equally long"
            )
        for leaf in leaves:
            if leaf.device.type != "cpu":
                raise ArgumentError(f"data lies on {leaf.device}, and workers train on the CPU; pass data.cpu()")
        return lengths.pop()
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise ArgumentError(
            f"data is {a_type(data)}; pass tensors, a data set with __getitem__ and __len__, or an object "
            f"with batch(update, generator)"
        )
    return len(data)


def _refuse_iterated(data: Any) -> None:
    """Refuse what gives its batches one after the other, for a worker asks for one by its number."""
    if getattr(type(data), "__getitem__", None) not in (None, Dataset.__getitem__):
        return
    loads = isinstance(data, DataLoader)
    inner = data.dataset if loads else data
    if isinstance(inner, IterableDataset):
        of = f"a DataLoader of {a_type(inner)}" if loads else a_type(data)
        raise ArgumentError(
            f"data is {of}, which can only be iterated, and workers ask for a batch by its number; pass an object "
            f"with batch(update, generator) (hogwild.Source; docs/your-own.md shows one for a stream), or a data set "
            f"with __getitem__ and __len__"
        )
    if loads:
        raise ArgumentError(f"data is {a_type(data)}, and workers make the batches; {_instead_of(data)}")


def _instead_of(loader: DataLoader[Any]) -> str:
    """What to write in the place of a loader of a map-style data set."""
    batches = loader.batch_sampler
    if batches is None:
        return "pass its dataset, and give batch_size; or pass an object with batch(update, generator) (hogwild.Source)"
    sampler = batches.sampler if type(batches) is BatchSampler else None
    shuffles = isinstance(sampler, RandomSampler)
    if isinstance(sampler, RandomSampler):
        plain = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    else:
        plain = type(sampler) is SequentialSampler
    if not isinstance(batches, BatchSampler) or not plain:
        own = type(batches if sampler is None else sampler).__name__
        return (
            f"its {own} chooses the samples, which is for a source of your own: an object with "
            f"batch(update, generator) (hogwild.Source), which draws them from generator"
        )
    settings = [f"batch_size={batches.batch_size}", f"shuffle={shuffles}"]
    settings += ["drop_last=True"] if batches.drop_last else []
    settings += ["collate=loader.collate_fn"] if loader.collate_fn is not default_collate else []
    return f"pass its dataset: hogwild.train(model, loader.dataset, loss, {', '.join(settings)}, …)"


def _refuse_side_by_side(data: list[Any]) -> None:
    """Refuse a list of tensors that cannot be samples, which must be alike."""
    if not all(isinstance(part, Tensor | np.ndarray) for part in data):
        return
    if len({(tuple(part.shape), str(part.dtype)) for part in data}) > 1:
        raise ArgumentError(
            "data is a list of tensors of different shapes or dtypes; a list is taken for its samples, which must be "
            "alike unless collate= makes a batch of them, and tensors side by side are a tuple, (x, y)"
        )


def _refuse_mixed(data: Any) -> None:
    """Refuse tensors beside what is none, which would be taken for a data set of so many samples."""
    if isinstance(data, Mapping) and all(isinstance(key, str) for key in data):
        parts, form = {f"[{key!r}]": value for key, value in data.items()}, "mapping"
    elif _is_tuple(data):
        parts, form = {f"[{number}]": value for number, value in enumerate(data)}, "tuple"
    else:
        return
    if not any(isinstance(value, Tensor | np.ndarray) for value in parts.values()):
        return
    others = [(place, value) for place, value in parts.items() if _as_tensors(value) is None]
    if others:
        place, value = others[0]
        raise ArgumentError(
            f"data{place} is {a_type(value)}, beside tensors; a {form} is taken for tensors side by side, so "
            f"make it one (torch.as_tensor), or pass a data set with __getitem__ and __len__"
        )


def _is_its_tensors(data: Any) -> bool:
    """True for a TensorDataset; for one of yours, where samples are taken from its tensors as torch does it."""
    if not isinstance(data, TensorDataset) or hasattr(data, "__getitems__"):
        return False
    own: Any = type(data)
    if own.__getitem__ is not TensorDataset.__getitem__ or own.__len__ is not TensorDataset.__len__:
        return False
    tensors = vars(data).get("tensors")  # and no property, which may be others at each sample
    return isinstance(tensors, tuple | list) and all(isinstance(part, Tensor) for part in tensors)


def _is_tuple(data: Any) -> bool:
    """True for a tuple and a named tuple, and for no other sequence that is made of one (a size, a data set)."""
    return type(data) is tuple or (isinstance(data, tuple) and hasattr(data, "_fields"))


def _as_tensors(data: Any) -> Any:
    """`data` with arrays as tensors where it is tensors all through, else None."""
    if isinstance(data, np.ndarray):
        return _as_tensors(_tensor_of(data))
    if isinstance(data, Tensor):
        if data.is_nested:
            raise ArgumentError("data holds a nested tensor; pass the list of its samples, data.unbind(), and collate=")
        if data.dim() == 0:
            raise ArgumentError("data holds a tensor without dimensions; the first dimension must be the samples")
        return data
    if isinstance(data, Mapping):
        values = {key: _as_tensors(value) for key, value in data.items()}
        return values if values and all(value is not None for value in values.values()) else None
    if _is_tuple(data) and any(isinstance(part, Tensor | np.ndarray) for part in data):  # else they are samples
        parts = [_as_tensors(part) for part in data]
        return _like(data, parts) if all(part is not None for part in parts) else None
    return None


def _like(data: Any, parts: list[Any]) -> Any:
    """A tuple of those parts, named as that one is."""
    return tuple(parts) if type(data) is tuple else type(data)._make(parts)


def _tensor_of(array: np.ndarray[Any, Any]) -> Tensor:
    try:
        with warnings.catch_warnings():  # batches are copies, and nobody writes to what is not writable
            warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
            return torch.from_numpy(np.ascontiguousarray(array) if array.ndim else array)
    except (TypeError, ValueError) as error:  # ValueError: its bytes are in the other order
        raise ArgumentError(f"data holds an array of dtype {array.dtype}, which no tensor can hold") from error


def _map_tensors(function: Callable[[Tensor], Any], data: Any) -> Any:
    if isinstance(data, Tensor):
        return function(data)
    if isinstance(data, tuple):
        return _like(data, [_map_tensors(function, part) for part in data])
    return {key: _map_tensors(function, value) for key, value in data.items()}
