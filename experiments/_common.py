"""What the experiments share: data, names of rows, equality of bits, and a quiet torch to measure in."""

from __future__ import annotations

import gzip
import logging
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import hogwild
from hogwild.errors import ArgumentError
from hogwild.run.saved.directory import writing


@contextmanager
def measuring(seed: int) -> Iterator[None]:
    """One torch thread (its number decides bits) and torch's generator at `seed`; both put back at the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def untold() -> Iterator[None]:
    """Inside, a run does not say that it may not learn, that its loss has left where it began, or that it has more
    workers than there are cores."""
    log = logging.getLogger("hogwild")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for meant in ("staleness .* (may not learn|is likely)", r"\d+ workers share \d+ cores"):
                warnings.filterwarnings("ignore", message=meant, category=UserWarning)
            yield
    finally:
        log.setLevel(level)


def lines_of(path: Path, wanted: str) -> Iterator[str]:
    """The lines of a text file, one after the other; those of a .gz unpacked.

    Raises:
        ArgumentError: it cannot be read, `wanted` is what --data names; or a line is not UTF-8.
    """
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape") as file:
            for number, line in enumerate(file, 1):
                if not (line.isascii() or _is_unicode(line)):
                    told = f"{line.encode(errors='surrogateescape')[:60]!r} is not UTF-8; iconv makes it so"
                    raise ArgumentError(f"{path}:{number}: {told}")
                yield line.removesuffix("\n")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(f"{path} cannot be read ({reason}); --data names {wanted}") from error


def _is_unicode(line: str) -> bool:
    """False where bytes that are none stand in it as surrogates."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_below(least: int, **values: float) -> None:
    """Refuse flags whose value is below the least that works.

    Raises:
        ArgumentError: one is.
    """
    for name, value in values.items():
        if not value >= least:
            raise ArgumentError(f"{name} {value} is below {least}")


def held_of(count: int, every: int, what: str) -> NDArray[np.bool_]:
    """Which of so many are held out, bool [count]: one of `every`, drawn once for all seeds; none where that is 0.

    Raises:
        ArgumentError: all of `what` would be.
    """
    refuse_below(0, held_out=every)
    numbers = np.random.default_rng(0).permutation(count)
    held = numbers % every == 0 if every else np.zeros(count, bool)
    if held.all():
        raise ArgumentError(f"held_out {every} leaves none of {what} to train on; 0 trains on all")
    return held


def spread(values: NDArray[Any], most: int) -> NDArray[Any]:
    """So many of them at most, evenly from the first to the last: a file may be sorted."""
    return values[np.linspace(0, len(values), min(most, len(values)), endpoint=False).astype(np.int64)]


class SavingNames(hogwild.Callback):
    """Writes what the rows of tables are called into the folder of a run: of `user` a line each in user.txt.

    Args:
        names: name of a parameter → the names of its rows; a table that is not among them has no file.
    """

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        self.names = names

    def on_end(self, run: hogwild.Run | None, error: BaseException | None) -> None:  # noqa: ARG002
        """Write them beside what the run came to."""
        if run is None or run.out is None:
            return
        for table, names in self.names.items():
            path = run.out / f"{table}.txt"
            with writing(path):
                path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scikit-learn's digits: images of shape [1500, 1, 8, 8] in 0..1 and labels to train on, 297 to test on."""
    table = torch.from_numpy(_digits_table())
    images = table[:, :-1].to(torch.float32).reshape(-1, 1, 8, 8) / 16
    labels = table[:, -1].to(torch.int64)
    return images[:1500], labels[:1500], images[1500:], labels[1500:]


def _digits_table() -> NDArray[np.float64]:
    """A row an image, (1797, 65): 64 pixels in 0..16, and the digit. Read from scikit-learn's file where it is known to
    lie, for to import scikit-learn takes longer than to train on it."""
    package = find_spec("sklearn")
    for folder in (package.submodule_search_locations if package is not None else None) or ():
        if (file := Path(folder, "datasets", "data", "digits.csv.gz")).is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    found = load_digits()
    return np.column_stack((found.data, found.target))


def same_bits(left: Iterable[Tensor], right: Iterable[Tensor]) -> bool:
    """True when the two have the same tensors to the last bit: −0.0 is not 0.0, and NaN equals itself."""

    def contents(tensors: Iterable[Tensor]) -> list[tuple[torch.dtype, torch.Size, bytes]]:
        return [(one.dtype, one.shape, one.detach().cpu().numpy().tobytes()) for one in tensors]

    return contents(left) == contents(right)


def largest_difference(left: Iterable[Tensor], right: Iterable[Tensor]) -> float:
    """The largest absolute difference between two sequences of tensors of equal shapes."""
    return max(float((a - b).abs().max()) for a, b in zip(left, right, strict=True))


def relative_difference(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """The Euclidean norm of the difference over that of `right`, all tensors taken as one vector, in float64."""
    a = torch.cat([one.detach().double().reshape(-1) for one in left])
    b = torch.cat([one.detach().double().reshape(-1) for one in right])
    return float((a - b).norm() / b.norm())


def crew(kind: str, workers: int) -> str:
    """1 thread, 2 processes, and so on."""
    return f"{workers} {kind}" if workers > 1 else f"1 {'thread' if kind == 'threads' else 'process'}"


def smooth(values: Sequence[float]) -> tuple[list[int], list[float]]:
    """The mean of each 20 values, with the update in the middle of them."""
    starts = range(0, len(values) - 19, 20)
    return [start + 10 for start in starts], [sum(values[start : start + 20]) / 20 for start in starts]
