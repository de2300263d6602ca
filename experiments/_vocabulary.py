"""Text → vocabulary, word numbers and tickets, by the rules of word2vec and gensim; and files of word vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hogwild.errors import ArgumentError

from ._common import lines_of

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Vocabulary:
    """The words of a corpus, the most frequent first.

    `words` [V]; `counts` int64 [V]; `number`: word → its place.
    """

    words: tuple[str, ...]
    counts: Array
    number: dict[str, int]

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]], min_count: int) -> Vocabulary:
        """Those that come at least `min_count` times; equally frequent ones in the order of the text.

        Raises:
            ArgumentError: none does, or only one.
        """
        counter: Counter[str] = Counter()
        for sentence in sentences:
            counter.update(sentence)
        kept = [(word, count) for word, count in counter.most_common() if count >= min_count]
        if len(kept) < 2:
            raise ArgumentError(
                f"{len(kept)} of {len(counter)} words come {min_count} times; a lower min_count or a longer text works"
            )
        words = tuple(word for word, _ in kept)
        counts = np.array([count for _, count in kept], np.int64)
        return cls(words, counts, {word: i for i, word in enumerate(words)})

    def keep(self, sample: float) -> Array:
        """The probability that each word stays when frequent ones are left out, × 2^32, uint64 [V]; `sample` 0 keeps
        all. (√(n / t) + 1) t / n for n of N words and t = sample N, as in word2vec."""
        if not sample:
            return np.full(len(self.counts), 1 << 32, np.uint64)
        ratio = sample * self.counts.sum() / self.counts
        kept: Array = np.minimum((np.sqrt(1 / ratio) + 1) * ratio * (1 << 32), 1 << 32).astype(np.uint64)
        return kept

    def negatives(self, power: float = 0.75) -> tuple[Array, Array]:
        """Walker's alias table of the frequencies to that power: (odds × (2^32 − 1) uint64 [V], aliases int32 [V])."""
        return alias_table(self.counts**power)


def alias_table(weights: Array) -> tuple[Array, Array]:
    """(odds × (2^32 − 1) uint64 [V], aliases int32 [V]): draw a place evenly, keep it by its odds, else its alias."""
    odds = weights * len(weights) / weights.sum()
    aliases = np.arange(len(odds), dtype=np.int32)
    small, large = list(np.flatnonzero(odds < 1)), list(np.flatnonzero(odds >= 1))
    while small and large:
        less, more = small.pop(), large[-1]
        aliases[less] = more
        odds[more] -= 1 - odds[less]
        if odds[more] < 1:
            small.append(large.pop())
    odds[aliases == np.arange(len(odds))] = 1
    return (np.clip(odds, 0, 1) * 0xFFFFFFFF).astype(np.uint64), aliases


@dataclass(frozen=True)
class Corpus:
    """Word numbers, one sentence after the other: `words` int32 [N]; `ends` [N], where each word's sentence ends."""

    words: Array
    ends: Array

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]], vocabulary: Vocabulary) -> Corpus:
        """The known words of sentences."""
        numbers: list[Array] = []
        known = vocabulary.number
        for sentence in sentences:
            found = [known[word] for word in sentence if word in known]
            if found:
                numbers.append(np.array(found, np.int32))
        lengths = np.array([len(one) for one in numbers], np.int64)
        words = np.concatenate(numbers) if numbers else np.empty(0, np.int32)
        return cls(words, np.repeat(lengths.cumsum(), lengths).astype(np.int32))

    def cuts(self, size: int) -> Array:
        """Where tickets of at most `size` words begin and end, int64: at ends of sentences, but for longer ones."""
        cuts = [0]
        while (begin := cuts[-1]) < len(self.words):
            end = min(begin + size, len(self.words))
            if end < len(self.words) and self.ends[end - 1] != end:
                first = begin + int(np.searchsorted(self.ends[begin:end], self.ends[end - 1]))
                end = first if first > begin else end
            cuts.append(end)
        return np.array(cuts, np.int64)


@dataclass(frozen=True)
class Lines:
    """The sentences of a text file, one a line, words between blanks; read anew each time. `part`: every `every`-th
    line (True), or all the others (False)."""

    path: Path
    every: int = 0
    part: bool = False

    def __iter__(self) -> Iterator[list[str]]:
        for number, line in enumerate(lines_of(self.path, "a text file")):
            if (self.every > 0 and number % self.every == 0) == self.part:
                yield line.split()


def save_vectors(path: Path, words: Sequence[str], vectors: Array, *, binary: bool) -> Path:
    """Write word vectors float32 [V, D] as word2vec does; gensim's KeyedVectors.load_word2vec_format reads them."""
    with path.open("wb") as file:
        file.write(f"{len(words)} {vectors.shape[1]}\n".encode())
        for word, vector in zip(words, vectors, strict=True):
            told = vector.astype("<f4").tobytes() if binary else " ".join(f"{x:.6g}" for x in vector.tolist()).encode()
            file.write(word.encode() + b" " + told + b"\n")
    return path
