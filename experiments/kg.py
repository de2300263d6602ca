"""Which facts of a knowledge graph are missing? ComplEx, DistMult and TransE, with row-wise Adagrad.

    hogwild run kg --data triples.tsv               # head, relation, tail between tabs, names of any kind
    hogwild run kg --model transe --update ordered  # the same bits with any number of workers

ComplEx (Trouillon et al. 2016, arXiv 1606.06357), DistMult (Yang et al. 2015, arXiv 1412.6575), TransE (Bordes et al.
2013) with squared distances; a softmax against entities drawn evenly. Judged by triples that are held out, tail and
head: `mrr`, the mean of one over the rank of the true entity among all that make no other known fact, and `hits`, how
often it is among the first ten. What entities and relations are called is saved beside the model, in entity.txt and
relation.txt. Without --data it trains on a graph that it makes: entities stand in groups in a row, and each relation
leads so many groups on. Two entities of a group are alike, so `mrr` is 0.2 at best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

import hogwild
from hogwild.errors import ArgumentError
from hogwild.experiment import Problem, define_experiment

from ._common import SavingNames, held_of, lines_of, spread
from ._compiled import compiled
from ._vocabulary import Array

TICKET = 1000  # triples
ENTITIES, GROUPS, FACTS = 400, 20, 14_000
LEADS = (1, 2, 3, -1, 5, -4)
_JUDGED, _FIRST = 500, 10
_AT_ONCE = 50  # facts, of which the scores of all entities are in memory together


class Graph(nn.Module):
    """Vectors of N entities and R relations, float32, and the sums of row-wise Adagrad, (N, 1) and (R, 1)."""

    def __init__(self, entities: int, relations: int, width: int, form: str) -> None:
        super().__init__()
        self.form = form
        self.entity = nn.Parameter(torch.randn(entities, width) * (0.5 / width**0.5))
        self.relation = nn.Parameter(torch.randn(relations, width) * (0.5 if form != "transe" else 0.5 / width**0.5))
        self.entity_sum = nn.Parameter(torch.zeros(entities, 1))
        self.relation_sum = nn.Parameter(torch.zeros(relations, 1))

    def scores(self, known: Tensor, relations: Tensor, side: int) -> Tensor:
        """Of all entities as the other end of those, float32 [B, N]; `side` 1 seeks the tail, −1 the head."""
        a, r = self.entity[known], self.relation[relations]
        if self.form == "transe":
            return -(torch.cdist(a + side * r, self.entity) ** 2)
        if self.form == "distmult":
            return (a * r) @ self.entity.T
        (a, b), (r, s) = a.chunk(2, 1), r.chunk(2, 1)
        return torch.cat((a * r - b * s * side, a * s * side + b * r), 1) @ self.entity.T


@dataclass(frozen=True)
class Facts:
    """Triples int32 [P, 3] of head, relation and tail; how many entities and relations there are, and what they are
    called, `entity` and `relation`, where that is known."""

    triples: Array
    entities: int
    relations: int
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)


def read(path: Path) -> Facts:
    """Facts from lines of head, relation and tail with tabs between, each once; blank lines are left out.

    Raises:
        ArgumentError: the file cannot be read, or a line is no triple.
    """
    ends: dict[str, int] = {}
    relations: dict[str, int] = {}
    found: dict[tuple[int, int, int], None] = {}
    for number, line in enumerate(lines_of(path, "a file of triples"), 1):
        if not line.strip():
            continue
        parts = line.split("\t")
        if len(parts) != 3 or not all(parts):
            what = f"{line!r:.80} is no triple; head, relation and tail stand between tabs"
            raise ArgumentError(f"{path}:{number}: {what}")
        head, relation, tail = parts
        numbers = ends.setdefault(head, len(ends)), relations.setdefault(relation, len(relations))
        found[(*numbers, ends.setdefault(tail, len(ends)))] = None
    names = {"entity": [*ends], "relation": [*relations]}
    return Facts(np.array([*found], np.int32).reshape(-1, 3), len(ends), len(relations), names)


def made() -> Facts:
    """A graph with known structure: entities stand in groups in a row, and a relation leads so many groups on."""
    generator = np.random.default_rng(0)
    heads, relations = generator.integers(ENTITIES, size=FACTS), generator.integers(len(LEADS), size=FACTS)
    groups = heads % GROUPS + np.array(LEADS)[relations]
    tails = groups + GROUPS * generator.integers(ENTITIES // GROUPS, size=FACTS)
    facts = np.stack((heads, relations, tails), 1)[(groups >= 0) & (groups < GROUPS)]
    return Facts(np.unique(facts, axis=0).astype(np.int32), ENTITIES, len(LEADS))


@dataclass(frozen=True)
class Draws:
    """(ticket, seed) → the triples of a ticket; every epoch has each of them once, in another order."""

    facts: Facts
    negatives: int

    @property
    def tickets(self) -> int:
        """How many make an epoch."""
        return -(-len(self.facts.triples) // TICKET)

    def __call__(self, ticket: int, seed: int) -> Mapping[str, Any]:
        """`known`, `relations`, `sides` [T] and `candidates` [T, 1 + K]."""
        count, (epoch, place) = len(self.facts.triples), divmod(ticket, self.tickets)
        size = min(TICKET, count - place * TICKET)
        known, relations = np.empty((2, size), np.int32)
        sides, candidates = np.empty(size, np.int8), np.empty((size, 1 + self.negatives), np.int32)
        own = (self.facts.triples, order_of(epoch, count), place * TICKET, self.facts.entities, seed)
        compiled("_kg_kernels").draw_triples(*own, known, relations, sides, candidates)
        return {"known": known, "relations": relations, "sides": sides, "candidates": candidates}


@lru_cache(maxsize=2)
def order_of(epoch: int, count: int) -> Array:
    """The order of an epoch, int64 [count]."""
    order: Array = np.random.default_rng(epoch).permutation(count)
    return order


@dataclass(frozen=True)
class Step:
    """Trains a ticket of the model of that form."""

    form: str

    def __call__(self, tables: Mapping[str, Array], drawn: Mapping[str, Any], rate: float) -> float:
        """The mean loss of a triple."""
        kernels = compiled("_kg_kernels")
        own = [tables[name] for name in ("entity", "relation", "entity_sum", "relation_sum")]
        arrays = (drawn["known"], drawn["relations"], drawn["sides"], drawn["candidates"])
        return float(kernels.descend(kernels.MODELS.index(self.form), *own, *arrays, rate))


class Judge:
    """Judges by facts that were held out: `mrr` and `hits`, filtered, of both ends."""

    def __init__(self, held: Array, facts: Facts) -> None:
        self.held = torch.from_numpy(spread(held, _JUDGED)).long()
        known: dict[tuple[int, int, int], list[int]] = {}
        for head, relation, tail in facts.triples.tolist():
            known.setdefault((1, head, relation), []).append(tail)
            known.setdefault((-1, tail, relation), []).append(head)
        self.known = known

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """The metrics of a `Graph`; none where nothing is held out."""
        assert isinstance(model, Graph)
        if not len(self.held):
            return {}
        found = []
        for first in range(0, len(self.held), _AT_ONCE):
            heads, relations, tails = self.held[first : first + _AT_ONCE].T
            found.append(self._ranks(model, heads, relations, tails, 1))
            found.append(self._ranks(model, tails, relations, heads, -1))
        ranks = torch.cat(found)
        return {"mrr": float((1 / ranks).mean()), "hits": float((ranks <= _FIRST).float().mean())}

    def _ranks(self, model: Graph, known: Tensor, relations: Tensor, sought: Tensor, side: int) -> Tensor:
        scores = model.scores(known, relations, side)
        true = scores.gather(1, sought[:, None])
        for row, (one, relation) in enumerate(zip(known.tolist(), relations.tolist(), strict=True)):
            scores[row, self.known[side, one, relation]] = -torch.inf
        return 1 + (~(scores <= true)).sum(1) + 0.5 * (scores == true).sum(1)  # what is NaN itself is last


def build(
    seed: int,
    data: Path | None,
    model: Literal["complex", "distmult", "transe"] = "complex",
    width: int = 100,
    negatives: int = 20,
    held_out: int = 20,
) -> Problem:
    """Which facts of a knowledge graph are missing?

    Args:
        model: how a fact is scored.
        width: numbers in a vector; of ComplEx, half of them imaginary.
        negatives: entities drawn against each fact.
        held_out: judge by every N-th fact, and do not train on it; 0 trains on all.
    """
    if width < 2 or width % 2:
        raise ArgumentError(f"width {width} is odd or below 2; an even one works, as 100")
    if negatives < 1:
        raise ArgumentError(f"negatives {negatives} is below 1; 20 is a common number")
    facts = made() if data is None else read(data)
    if not len(facts.triples):
        raise ArgumentError(f"{data} holds no triple")
    held = held_of(len(facts.triples), held_out, f"{len(facts.triples)} facts")
    draws = Draws(Facts(facts.triples[~held], facts.entities, facts.relations), negatives)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        graph = Graph(facts.entities, facts.relations, width, model)
    ends, kinds = ("entity", "entity_sum"), ("relation", "relation_sum")
    rows = {"known": ends, "candidates": ends, "relations": kinds}
    kernel = hogwild.Kernel(draws, Step(model), rows, draws.tickets, TICKET)
    saving = [SavingNames(facts.names)] if facts.names else []
    return Problem(graph, kernel, evaluate=Judge(facts.triples[held], facts), callbacks=saving)


experiment = define_experiment(
    build,
    name="kg",
    question="Which facts of a knowledge graph are missing?",
    kind="threads",
    epochs=30,
    evaluate_every=100,
    lr=0.1,
)
