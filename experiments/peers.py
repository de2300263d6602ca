"""Are compiled kernels as fast as the libraries made for it, gensim and implicit, and as good after equal epochs?

    hogwild run peers                               # needs pip install 'hogwild[embeddings,peers]'
    hogwild run peers --data corpus.txt --full

Each peer and each of ours trains in turn, one epoch of word2vec or twenty of BPR, with the same data, width, learning
rate and number of workers; a ratio is that of one turn, and the table has the median and the range. Ratios of processor
time are told beside those of the clock: other programs disturb them less. gensim's rate falls to half with two workers
and `corpus_file`, for each of its threads counts its own sentences against all of them, and so its loss is another.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

import hogwild
from hogwild.errors import ArgumentError
from hogwild.experiment import Claim, Findings, Problem, Study, StudySettings, Table

from . import bpr, word2vec

RULES = ("hogwild", "ordered")
WORKERS = (1, 2)
_EPOCHS = {"word2vec": 1, "bpr": 20}
_GOALS = {"word2vec": 2.2, "bpr": 1.0}
_REPEATS = {False: 5, True: 9}
_WORDS = {False: 200_000, True: 1_500_000}
_SENTENCE, _KNOWN = 20, 3_000  # words of one that is made, and of them all
_HEADINGS = ("samples/s", "÷ peer", "range", "CPU", "auc")
_LEGEND = (
    "÷ peer: the peer's seconds ÷ its own, the median of the turns; CPU: the same of processor time. auc: of what was "
    "held out, in the last turn."
)
_ANSWER = "The compiled kernels train the same from the same data; how fast, and how well, stands in the table."


@dataclass(frozen=True)
class Turn:
    """One training: seconds by the clock, seconds of processors, and the metrics of what it came to."""

    clock: float
    processor: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Rivalry:
    """A training of ours and the peer that does the same.

    Attributes:
        name: of the training.
        peer: the name of the library.
        problem: seed → the problem.
        other: (problem, workers, seed) → the peer's turn.
    """

    name: str
    peer: str
    problem: Callable[[int], Problem]
    other: Callable[[Problem, int, int], Turn]


def library(name: str) -> Any:
    """A peer, imported.

    Raises:
        ArgumentError: it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise ArgumentError(f"{name} is not installed; pip install 'hogwild[peers]'") from error


def ours(rivalry: Rivalry, rule: str, workers: int, seed: int) -> Turn:
    """A turn of ours."""
    problem = rivalry.problem(seed)
    run = hogwild.train_kernel(
        problem.model, problem.data, update=rule, workers=workers, epochs=_EPOCHS[rivalry.name], seed=seed
    )
    processor = sum(worker.cpu_seconds for worker in run.workers)
    return Turn(run.seconds, processor, judged(problem, problem.model))


def judged(problem: Problem, model: nn.Module) -> dict[str, float]:
    """The metrics of a model by the judge of the problem."""
    assert problem.evaluate is not None
    with torch.no_grad():
        return problem.evaluate(model)


def gensim_turn(problem: Problem, workers: int, seed: int) -> Turn:
    """gensim on the same words, from a file."""
    models, draws = library("gensim.models"), problem.data.draw
    words = problem.callbacks[0].vocabulary.words  # type: ignore[attr-defined]
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        for sentence in np.split(draws.corpus.words, np.unique(draws.corpus.ends)[:-1]):
            file.write(" ".join(words[word] for word in sentence) + "\n")
        file.flush()
        assert isinstance(problem.model, word2vec.Vectors)
        width = problem.model.input.shape[1]
        made = models.Word2Vec(
            vector_size=width,
            window=5,
            negative=5,
            sg=1,
            min_count=1,
            sample=1e-3,
            workers=workers,
            epochs=1,
            seed=seed,
        )
        made.build_vocab(corpus_file=file.name)
        clock, processor = time.monotonic(), time.process_time()
        size, lines = made.corpus_total_words, made.corpus_count
        made.train(corpus_file=file.name, total_words=size, total_examples=lines, epochs=1)
        spent = time.monotonic() - clock, time.process_time() - processor
    rows = [made.wv.key_to_index[word] for word in words]
    model = word2vec.Vectors(len(words), width)
    with torch.no_grad():
        model.input.copy_(torch.from_numpy(made.wv.vectors[rows]))
        model.output.copy_(torch.from_numpy(made.syn1neg[rows]))
    return Turn(*spent, judged(problem, model))


def implicit_turn(problem: Problem, workers: int, seed: int) -> Turn:
    """implicit on the same pairs."""
    library("implicit")
    from implicit.cpu.bpr import BayesianPersonalizedRanking
    from scipy.sparse import csr_matrix

    draws, own = problem.data.draw, problem.model
    assert isinstance(own, bpr.Tastes)
    (users, width), items = own.user.shape, len(own.item)
    pairs = csr_matrix((np.ones(len(draws.users), np.float32), (draws.users, draws.items)), (users, items))
    made = BayesianPersonalizedRanking(
        factors=width,
        learning_rate=problem.data.lr,
        regularization=problem.data.step.decay,
        iterations=_EPOCHS["bpr"],
        num_threads=workers,
        random_state=seed,
    )
    clock, processor = time.monotonic(), time.process_time()
    made.fit(pairs, show_progress=False)
    spent = time.monotonic() - clock, time.process_time() - processor
    model = bpr.Tastes(users, items, width)
    with torch.no_grad():
        model.user.copy_(torch.from_numpy(made.user_factors[:, :width]))
        model.item.copy_(torch.from_numpy(made.item_factors))
    return Turn(*spent, judged(problem, model))


def text(path: Path, size: int) -> Path:
    """Write so many words with known structure: each sentence has one of 50 topics, whose words come by Zipf's law."""
    generator = np.random.default_rng(0)
    topics = generator.integers(50, size=size // _SENTENCE)[:, None]
    ranks = (_KNOWN ** generator.random((len(topics), _SENTENCE))).astype(int)
    with path.open("w", encoding="utf-8") as file:
        for sentence in ((ranks + _KNOWN // 50 * topics) % _KNOWN).tolist():
            file.write(" ".join(f"w{word}" for word in sentence) + "\n")
    return path


def rivalries(corpus: Path) -> list[Rivalry]:
    """word2vec on a text and gensim, BPR on likes that are made and implicit."""

    def words(seed: int) -> Problem:
        return at_rate(word2vec.build(seed, corpus), 0.025)

    def likes(seed: int) -> Problem:
        return at_rate(bpr.build(seed, None), 0.05)

    return [Rivalry("word2vec", "gensim", words, gensim_turn), Rivalry("bpr", "implicit", likes, implicit_turn)]


def at_rate(problem: Problem, lr: float) -> Problem:
    """The problem with that learning rate."""
    return replace(problem, data=replace(problem.data, lr=lr))


def turns(rivalry: Rivalry, workers: int, repeats: int) -> dict[str, list[Turn]]:
    """Who → a turn for each repeat, the peer first in each."""
    found: dict[str, list[Turn]] = {rivalry.peer: [], **{rule: [] for rule in RULES}}
    for seed in range(repeats):
        found[rivalry.peer].append(rivalry.other(rivalry.problem(seed), workers, seed))
        for rule in RULES:
            found[rule].append(ours(rivalry, rule, workers, seed))
    return found


def rows_of(rivalry: Rivalry, workers: int, found: Mapping[str, Sequence[Turn]]) -> Iterator[tuple[str, ...]]:
    """A row of the table for each who."""
    draws = rivalry.problem(0).data
    samples = draws.tickets * draws.samples * _EPOCHS[rivalry.name]
    for who, own in found.items():
        clock, processor = ratios(found[rivalry.peer], own)
        yield (
            f"{who}, {workers}",
            f"{samples / median(turn.clock for turn in own):,.0f}",
            f"{median(clock):.2f}",
            f"{min(clock):.2f}–{max(clock):.2f}",
            f"{median(processor):.2f}",
            f"{own[-1].metrics['auc']:.4f}",
        )


def ratios(peer: Sequence[Turn], own: Sequence[Turn]) -> tuple[list[float], list[float]]:
    """(the peer's seconds ÷ one's own in each turn, by the clock; the same of processors)."""
    pairs = list(zip(peer, own, strict=True))
    return [a.clock / b.clock for a, b in pairs], [a.processor / b.processor for a, b in pairs]


def compare(settings: StudySettings) -> Findings:
    """Measure all of them in turn."""
    for name in ("gensim.models", "implicit"):
        library(name)
    tables: list[Table] = []
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory() as folder:
        corpus = settings.data or text(Path(folder) / "text", _WORDS[settings.full])
        for rivalry in rivalries(corpus):
            rows: list[tuple[str, ...]] = []
            for workers in WORKERS:
                found = turns(rivalry, workers, _REPEATS[settings.full])
                rows += rows_of(rivalry, workers, found)
                claims.append(_claim(rivalry, workers, found))
            tables.append(Table((f"{rivalry.name}, workers", *_HEADINGS), tuple(rows)))
    return Findings(tuple(claims), _ANSWER, tables=tuple(tables), legend=_LEGEND)


def _claim(rivalry: Rivalry, workers: int, found: Mapping[str, Sequence[Turn]]) -> Claim:
    clock, processor = ratios(found[rivalry.peer], found[RULES[0]])
    goal, crew = _GOALS[rivalry.name], f"{workers} thread{'s' if workers > 1 else ''}"
    return Claim(
        f"{rivalry.name} with {crew}: at least {goal} × as fast as {rivalry.peer}, by processor time",
        f"{median(processor):.2f} × ({median(clock):.2f} × by the clock)",
        median(processor) >= goal,
    )


experiment = Study(
    "peers", "Are compiled kernels as fast as gensim and implicit, and as good after equal epochs?", compare
)
