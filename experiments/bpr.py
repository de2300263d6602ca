"""Which items does a user like that nobody told of? Matrix factorisation by pairs, at the speed of implicit.

    hogwild run bpr --data likes.csv                # user,item in each line; or a scipy sparse matrix, likes.npz
    hogwild run bpr --update ordered                # the same bits with any number of workers

Bayesian personalised ranking (Rendle et al. 2009, arXiv 1205.2618), as implicit has it: pairs drawn evenly, the other
item by how often it comes and left out where the user likes it too, a bias for each item. Judged by pairs that are held
out: `auc`, the chance that such an item is put before one that the user does not know, and `precision`, the share of
the ten first that are among them. What the users and items of a CSV are called is saved beside the model, in user.txt
and item.txt. Without --data it trains on likes that it makes: users and items belong to groups.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import hogwild
from hogwild.errors import ArgumentError
from hogwild.experiment import Problem, define_experiment

from ._common import SavingNames, held_of, lines_of, refuse_below, spread
from ._compiled import compiled
from ._vocabulary import Array

TICKET = 4000  # triples
USERS, ITEMS, GROUPS, LIKES = 1000, 600, 8, 30
_FIRST, _JUDGED = 10, 1000  # items that are looked at, users
_AT_ONCE = 50  # users, whose scores of all items are in memory together


class Tastes(nn.Module):
    """A vector for each user, float32 [U, D], and for each item, with its bias in the last column, [I, D + 1]."""

    def __init__(self, users: int, items: int, width: int) -> None:
        super().__init__()
        self.user = nn.Parameter((torch.rand(users, width) - 0.5) / width)
        self.item = nn.Parameter((torch.rand(items, width + 1) - 0.5) / width)

    def scores(self, users: torch.Tensor) -> torch.Tensor:
        """Of all items for those users, float32 [users, I]."""
        return self.user[users] @ self.item[:, :-1].T + self.item[:, -1]


@dataclass(frozen=True)
class Likes:
    """Pairs, sorted by user and then by item, each once: `users` and `items` int32 [P]; how many there are of each, and
    what they are called, `user` and `item`, where that is known."""

    users: Array
    items: Array
    user_count: int
    item_count: int
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, users: Array, items: Array, user_count: int, item_count: int) -> Likes:
        """The same pairs, sorted."""
        keys = np.unique(users.astype(np.int64) * item_count + items)
        return cls((keys // item_count).astype(np.int32), (keys % item_count).astype(np.int32), user_count, item_count)

    @property
    def starts(self) -> Array:
        """Where the pairs of each user begin, int64 [U + 1]."""
        return np.searchsorted(self.users, np.arange(self.user_count + 1)).astype(np.int64)

    def part(self, chosen: Array) -> Likes:
        """Some of the pairs, bool [P]."""
        return Likes(self.users[chosen], self.items[chosen], self.user_count, self.item_count)


def read(path: Path) -> Likes:
    """Likes from a file: .npz as scipy.sparse.save_npz writes it, or lines of user,item, names of any kind; blank lines
    are left out. A first line of words above columns of numbers is their header.

    Raises:
        ArgumentError: it cannot be read, or a line is no pair.
    """
    if path.suffix == ".npz":
        from scipy.sparse import load_npz

        try:
            with path.open("rb") as file:
                matrix = load_npz(file).tocoo()
        except Exception as error:
            what = f"({type(error).__name__}); --data names a matrix as scipy.sparse.save_npz writes it"
            raise ArgumentError(f"{path} cannot be read {what}") from error
        return Likes.of(matrix.row, matrix.col, *matrix.shape)
    names: tuple[dict[str, int], dict[str, int]] = ({}, {})
    told: list[list[str]] = []
    for number, line in enumerate(lines_of(path, "a .csv or an .npz"), 1):
        parts = _fields(line)
        if parts and (len(parts) != len(names) or not all(parts)):
            raise ArgumentError(f"{path}:{number}: {line!r:.80} is no pair; user,item is one")
        told += [parts] if parts else []
    if len(told) > 1 and _numbers(told[0]) == 0 and all(_numbers(pair) == 2 for pair in told[1:]):
        del told[0]
    pairs = [[known.setdefault(one, len(known)) for known, one in zip(names, pair, strict=True)] for pair in told]
    users, items = np.array(pairs, np.int64).reshape(-1, 2).T
    found = Likes.of(users, items, len(names[0]), len(names[1]))
    return replace(found, names={"user": [*names[0]], "item": [*names[1]]})


def _fields(line: str) -> list[str]:
    """What stands between the commas of one line; a quote that does not end there is in none."""
    if '"' not in line:
        return [part.strip() for part in line.split(",")] if line.strip() else []
    try:
        parts, *others = csv.reader([line + "\n", "."], skipinitialspace=True)
    except csv.Error:
        return [line]
    return [part.strip() for part in parts] if others else [line]  # else a quote goes on in the next line


def _numbers(pair: list[str]) -> int:
    return sum(one.isdecimal() for one in pair)


def made() -> Likes:
    """Likes with known structure: each user and item belongs to a group, and nine of ten likes are inside it."""
    generator = np.random.default_rng(0)
    user_groups, item_groups = generator.integers(GROUPS, size=USERS), generator.integers(GROUPS, size=ITEMS)
    users = np.repeat(np.arange(USERS), LIKES)
    own = generator.random(len(users)) < 0.9
    items = generator.integers(ITEMS, size=len(users))
    for group in range(GROUPS):
        inside = own & (user_groups[users] == group)
        items[inside] = generator.choice(np.flatnonzero(item_groups == group), inside.sum())
    return Likes.of(users, items, USERS, ITEMS)


@dataclass(frozen=True)
class Draws:
    """(ticket, seed) → the triples of a ticket."""

    users: Array
    items: Array
    starts: Array

    @property
    def size(self) -> int:
        """How many triples a ticket is: no more than there are likes, for so many are an epoch."""
        return min(TICKET, len(self.users))

    def __call__(self, ticket: int, seed: int) -> Mapping[str, Any]:  # noqa: ARG002
        """`users`, `liked` and `other`, int32 [T]."""
        users, liked, other = np.empty((3, self.size), np.int32)
        compiled("_bpr_kernels").draw_triples(self.users, self.items, self.starts, seed, users, liked, other)
        return {"users": users, "liked": liked, "other": other}


@dataclass(frozen=True)
class Step:
    """Trains a ticket; `decay` is taken off each row that is stepped."""

    decay: float

    def __call__(self, tables: Mapping[str, Array], drawn: Mapping[str, Any], rate: float) -> float:
        """The mean loss of a triple."""
        triples = (drawn["users"], drawn["liked"], drawn["other"])
        return float(compiled("_bpr_kernels").descend(tables["user"], tables["item"], *triples, rate, self.decay))


class Judge:
    """Judges by pairs that were held out: `auc` and `precision` at 10, means over at most 1,000 users."""

    def __init__(self, train: Likes, held: Likes) -> None:
        self.users = spread(np.unique(held.users), _JUDGED)
        self.known, self.held = self._matrix(train), self._matrix(held)

    def _matrix(self, likes: Likes) -> torch.Tensor:
        found = torch.zeros(len(self.users), likes.item_count, dtype=torch.bool)
        mine = np.isin(likes.users, self.users)
        found[np.searchsorted(self.users, likes.users[mine]), likes.items[mine]] = True
        return found

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """The metrics of `Tastes`; none where nothing is held out."""
        assert isinstance(model, Tastes)
        if not len(self.users):
            return {}
        parts = [slice(first, first + _AT_ONCE) for first in range(0, len(self.users), _AT_ONCE)]
        aucs, right = (torch.cat(found) for found in zip(*(self._of(model, part) for part in parts), strict=True))
        found = {"precision": float(right.mean())}
        if (judged := ~aucs.isnan()).any():
            found = {"auc": float(aucs[judged].mean()), **found}
        return found

    def _of(self, model: Tastes, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """(`auc`, `precision`) of some of the users, float32 each; an `auc` is NaN where all other items are known."""
        is_held, is_known = self.held[part], self.known[part]
        users = torch.from_numpy(self.users[part]).long()
        order = model.scores(users).masked_fill(is_known, -torch.inf).argsort(1)
        ranks = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order))
        held, known = is_held.sum(1), is_known.sum(1)
        others = order.shape[1] - held - known
        above = (ranks * is_held).sum(1) - held * known - held * (held - 1) / 2
        right = is_held.gather(1, order[:, -_FIRST:]).sum(1) / held.clamp(max=_FIRST)
        return (above / held / others).where(others > 0, torch.nan), right


def build(seed: int, data: Path | None, width: int = 64, decay: float = 0.01, held_out: int = 10) -> Problem:
    """Which items does a user like that nobody told of?

    Args:
        width: numbers in a vector.
        decay: taken off each vector at each of its steps, times the learning rate.
        held_out: judge by every N-th pair, and do not train on it; 0 trains on all.
    """
    refuse_below(1, width=width)
    refuse_below(0, decay=decay)
    likes = made() if data is None else read(data)
    if len(likes.users) < 2:
        raise ArgumentError(f"{data} has {len(likes.users)} pairs; at least 2 are needed")
    held = held_of(len(likes.users), held_out, f"{len(likes.users)} pairs")
    train = likes.part(~held)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Tastes(likes.user_count, likes.item_count, width)
    draws = Draws(train.users, train.items, train.starts)
    kernel = hogwild.Kernel(
        draws,
        Step(decay),
        {"users": "user", "liked": "item", "other": "item"},
        tickets=max(1, round(len(train.users) / TICKET)),
        samples=draws.size,
    )
    judge = Judge(train, likes.part(held))
    return Problem(model, kernel, evaluate=judge, callbacks=[SavingNames(likes.names)] if likes.names else [])


experiment = define_experiment(
    build,
    name="bpr",
    question="Which items does a user like that nobody told of?",
    kind="threads",
    epochs=40,
    evaluate_every=100,
    lr=0.05,
)
