"""Which words stand in the same places? word2vec at several times the speed of gensim, at its quality.

    hogwild run word2vec --data corpus.txt          # one sentence a line, words between blanks
    hogwild run word2vec --update ordered           # and the same bits with any number of workers
    hogwild run word2vec --cbow --width 200 --reach 8

Skip-gram, or CBOW, with negative sampling (Mikolov et al. 2013, arXiv 1310.4546), by gensim's rules: vocabulary,
frequent words left out, negatives by frequency to the power 0.75, windows of random size, a learning rate that falls
evenly. A sample is a word, so samples/s are words/s. What comes of it is saved as vectors.txt and vectors.bin in
word2vec's formats. Without --data it trains on sentences about 24 things in 6 forms, and answers which form of one
thing is to the thing as that of another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, normalize

import hogwild
from hogwild.errors import ArgumentError
from hogwild.experiment import Problem, define_experiment
from hogwild.run.saved.notes import write_notes

from ._common import refuse_below
from ._compiled import compiled
from ._vocabulary import Array, Corpus, Lines, Vocabulary, save_vectors

TICKET = 1000  # words
POOL = 4096  # negatives that are drawn for a ticket, and taken in turn
_LEAST = 0.004  # of the learning rate, at the end: gensim's 0.0001 of 0.025
_NEAREST, _SHOWN = 4, 5
THINGS, FORMS = 24, 6
_MOST_JUDGED = 20_000  # words


class Vectors(nn.Module):
    """An input and an output vector for each word, float32 [V, D]; outputs begin at zero."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.input = nn.Parameter((torch.rand(words, width) * 2 - 1) / width)
        self.output = nn.Parameter(torch.zeros(words, width))


@dataclass(frozen=True)
class Draws:
    """(ticket, seed) → the pairs of a thousand words, or the windows; see `_word2vec_kernels`."""

    corpus: Corpus
    cuts: Array
    keep: Array
    odds: Array
    aliases: Array
    window: int
    negative: int
    cbow: bool

    def __call__(self, ticket: int, seed: int) -> Mapping[str, Any]:
        """`contexts` and `targets`, and `sizes`, or of CBOW `offsets`."""
        kernels = compiled("_word2vec_kernels")
        place = ticket % (len(self.cuts) - 1)
        part = slice(self.cuts[place], self.cuts[place + 1])
        words, ends = self.corpus.words[part], self.corpus.ends[part]
        kept, kept_ends, first, last = np.empty((4, len(words)), np.int32)
        n = kernels.subsample(words, ends, self.keep, seed, kept, kept_ends)
        pairs = kernels.windows(kept_ends, n, self.window, seed + 1, first, last)
        most = n if self.cbow else (pairs + n) // 2
        targets = np.empty((most, kernels.TARGETS), np.int32)
        if self.cbow:
            contexts, offsets = np.empty(pairs, np.int32), np.empty(n + 1, np.int32)
            count = kernels.windows_of(kept, n, first, last, contexts, offsets, targets)
            drawn = {"contexts": contexts, "offsets": offsets[: count + 1]}
        else:
            contexts, sizes = np.empty((most, 2), np.int32), np.empty(most, np.int8)
            count = kernels.pairs_of(kept, n, first, last, contexts, sizes, targets)
            drawn = {"contexts": contexts[:count], "sizes": sizes[:count]}
        pool = np.empty(min(POOL, max(1, count * self.negative)), np.int32)
        kernels.negatives(targets[:count], self.negative, self.odds, self.aliases, seed + 2, pool)
        return {**drawn, "targets": targets[:count]}


def step(tables: Mapping[str, Array], drawn: Mapping[str, Any], rate: float) -> float:
    """Train a ticket; the mean loss of a pair, or of a centre."""
    kernels = compiled("_word2vec_kernels")
    train, parts = (kernels.cbow, "offsets") if "offsets" in drawn else (kernels.skipgram, "sizes")
    arrays = (drawn["contexts"], drawn[parts], drawn["targets"])
    return float(train(tables["input"], tables["output"], *arrays, kernels.SIGMOID, kernels.SOFTPLUS, rate))


def falling(done: float) -> float:
    """The factor on the learning rate where that share of the run is done: it falls evenly, ticket by ticket."""
    return max(1 - done, _LEAST)


class Judge:
    """Judges word vectors by words that were held out: `test_loss` of a pair, and `auc`, the chance that a true pair
    has a larger product than one with a word drawn by frequency. `analogies`, where the forms are known, is the share
    of questions answered right."""

    def __init__(
        self, held: Corpus, vocabulary: Vocabulary, window: int, sample: float, questions: Array | None
    ) -> None:
        generator = np.random.default_rng(0)
        words, ends = held.words[:_MOST_JUDGED], held.ends[:_MOST_JUDGED]
        stays = generator.random(len(words)) * (1 << 32) < vocabulary.keep(sample)[words]
        words, ends = words[stays], ends[stays]
        left, right = [], []
        for reach in range(1, window + 1):
            near = (ends[reach:] == ends[:-reach]) & (
                generator.random(max(0, len(words) - reach)) * window <= window + 1 - reach
            )
            left.append(words[:-reach][near])
            right.append(words[reach:][near])
        self.contexts, self.centres = np.concatenate(left + right), np.concatenate(right + left)
        odds = vocabulary.counts**0.75
        self.negatives = generator.choice(len(odds), (len(self.centres), 5), p=odds / odds.sum())
        self.questions = questions

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """The metrics of `Vectors`."""
        assert isinstance(model, Vectors)
        found: dict[str, float] = {}
        if len(self.centres):
            contexts = model.input[torch.from_numpy(self.contexts).long()]
            true = (contexts * model.output[torch.from_numpy(self.centres).long()]).sum(1)
            false = torch.einsum("pd,pkd->pk", contexts, model.output[torch.from_numpy(self.negatives)])
            found["test_loss"] = float(-(logsigmoid(true) + logsigmoid(-false).sum(1)).mean())
            found["auc"] = float(((true[:, None] > false).float() + 0.5 * (true[:, None] == false).float()).mean())
        if self.questions is not None:
            found["analogies"] = float(answered(model.input, self.questions))
        return found


def answered(vectors: Tensor, questions: Array) -> float:
    """The share of questions a : b = c : d, int [Q, 4], of which d is the nearest to b − a + c but for the three."""
    directions = normalize(vectors.detach(), dim=1)
    a, b, c, d = (torch.from_numpy(column).long() for column in questions.T)
    cosines = (directions[b] - directions[a] + directions[c]) @ directions.T
    for known in (a, b, c):
        cosines[torch.arange(len(a)), known] = -torch.inf
    return float((cosines.argmax(1) == d).float().mean())


def sentences(seed: int, number: int) -> list[list[str]]:
    """Sentences about things in forms: thing-form between two words of the thing and two of the form."""
    generator = np.random.default_rng(seed)
    things, forms = generator.integers(THINGS, size=number), generator.integers(FORMS, size=number)
    near, told = generator.integers(5, size=(number, 2)), generator.integers(5, size=(number, 2))
    return [
        [f"near{t}-{n[0]}", f"told{f}-{o[0]}", f"thing{t}-{f}", f"near{t}-{n[1]}", f"told{f}-{o[1]}"]
        for t, f, n, o in zip(things.tolist(), forms.tolist(), near.tolist(), told.tolist(), strict=True)
    ]


def analogies(vocabulary: Vocabulary) -> Array:
    """thing-form : thing-other = other thing-form : other thing-other, in numbers, int [Q, 4]."""
    place = vocabulary.number
    return np.array(
        [
            [place[f"thing{t}-{f}"], place[f"thing{t}-{g}"], place[f"thing{s}-{f}"], place[f"thing{s}-{g}"]]
            for t in range(THINGS)
            for s in ((t + 1) % THINGS, (t + 7) % THINGS)
            for f in range(FORMS)
            for g in ((f + 1) % FORMS, (f + 3) % FORMS)
        ]
    )


class Saving(hogwild.Callback):
    """Writes vectors.txt, vectors.bin and notes.json, the nearest words of a few, into the folder of a run."""

    def __init__(self, vocabulary: Vocabulary, shown: Sequence[int]) -> None:
        self.vocabulary, self.shown = vocabulary, shown

    def on_end(self, run: hogwild.Run | None, error: BaseException | None) -> None:  # noqa: ARG002
        """Save what the run came to."""
        if run is None or run.out is None:
            return
        vectors = run.model_state["input"]
        for name, binary in (("vectors.txt", False), ("vectors.bin", True)):
            save_vectors(run.out / name, self.vocabulary.words, vectors.numpy(), binary=binary)
        write_notes(run.out, nearest(vectors, self.vocabulary, self.shown))


def nearest(vectors: Tensor, vocabulary: Vocabulary, shown: Sequence[int]) -> dict[str, str]:
    """'nearest to WORD' → the words nearest to it by cosine."""
    directions = normalize(vectors, dim=1)
    found = (directions[list(shown)] @ directions.T).topk(min(1 + _NEAREST, len(directions)), dim=1).indices.tolist()
    words = vocabulary.words
    return {
        f"nearest to {words[word]}": ", ".join(words[other] for other in row if other != word)
        for word, row in zip(shown, found, strict=True)
    }


def build(
    seed: int,
    data: Path | None,
    width: int = 100,
    reach: int = 5,
    negative: int = 5,
    min_count: int = 5,
    subsample: float = 1e-3,
    cbow: bool = False,
    held_out: int = 50,
) -> Problem:
    """Which words stand in the same places?

    Args:
        width: numbers in a vector.
        reach: words of the window to either side, at most.
        negative: words drawn for each pair, 1 to 5.
        min_count: how often a word must come to be known.
        subsample: the share of the text above which a word is left out at times; 0 keeps all.
        cbow: predict a word by the mean of its window; otherwise each word of the window predicts it.
        held_out: judge by every N-th sentence, and do not train on it; 0 trains on all.
    """
    if not 1 <= negative <= 5:
        raise ArgumentError(f"negative {negative} is not from 1 to 5")
    refuse_below(1, width=width, reach=reach)
    refuse_below(0, held_out=held_out)
    if not subsample >= 0:
        raise ArgumentError(f"subsample {subsample} is below 0, which keeps all")
    if data is None:
        made = sentences(0, 24_000)
        train, held = made[1000:], made[:1000]
    else:
        train, held = Lines(data, held_out), Lines(data, held_out, True) if held_out else []  # type: ignore[assignment]
        if next(iter(Lines(data)), None) is None:
            raise ArgumentError(f"{data} holds no line; a sentence each is wanted, words between blanks")
        if held_out and next(iter(train), None) is None:
            raise ArgumentError(f"held_out {held_out} leaves no line of {data} to train on; 0 trains on all")
    vocabulary = Vocabulary.of(train, min_count)
    corpus = Corpus.of(train, vocabulary)
    cuts = corpus.cuts(TICKET)
    draws = Draws(corpus, cuts, vocabulary.keep(subsample), *vocabulary.negatives(), reach, negative, cbow)
    rows = {"contexts": "input", "targets": "output"}
    kernel = hogwild.Kernel(draws, step, rows, len(cuts) - 1, TICKET, schedule=falling)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Vectors(len(vocabulary.words), width)
    questions = analogies(vocabulary) if data is None else None
    judge = Judge(Corpus.of(held, vocabulary), vocabulary, reach, subsample, questions)
    frequent = [len(vocabulary.words) * i // (8 * _SHOWN) for i in range(1, 1 + _SHOWN)]
    return Problem(model, kernel, evaluate=judge, callbacks=[Saving(vocabulary, frequent)])


experiment = define_experiment(
    build,
    name="word2vec",
    question="Which words stand in the same places?",
    kind="threads",
    epochs=5,
    lr=0.025,
)
