"""word2vec: its kernels against slow twins, its rules, its files, and a run from the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("numba")

from hogwild.experiments import _word2vec_kernels as kernels
from hogwild.experiments import word2vec
from hogwild.experiments._vocabulary import Corpus, Lines, Vocabulary, alias_table, save_vectors

import hogwild
from hogwild.cli import main
from hogwild.errors import ArgumentError

TEXT = "a b c d\nb c d e\nz z\na a a b"


def tables(seed=0, words=30, width=12):
    generator = np.random.default_rng(seed)
    return generator.random((2, words, width), np.float32) - np.float32(0.5)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def skipgram_by_hand(inputs, outputs, contexts, sizes, targets, rate):
    """The same sums in float64 and plain Python; both pairs of a group are computed on what the group began with."""
    for group, size, row in zip(contexts, sizes, targets, strict=True):
        x, y = inputs[group[:size]].astype(float), outputs[row].astype(float)
        errors = -sigmoid(x @ y.T) * rate
        errors[:, 0] += rate
        errors[:, 1:][:, row[1:] == row[0]] = 0
        for context, change in zip(group[:size], errors @ y, strict=True):
            inputs[context] += change
        for target, change in zip(row, errors.T @ x, strict=True):
            outputs[target] += change


def test_skipgram_is_its_slow_twin():
    inputs, outputs = tables()
    generator = np.random.default_rng(1)
    contexts = np.array([generator.choice(30, 2, replace=False) for _ in range(50)], np.int32)
    targets = np.array([generator.choice(30, 6, replace=False) for _ in range(50)], np.int32)
    targets[::5, 3:] = targets[::5, :1]  # no negatives
    sizes = np.array([1 if group % 3 == 0 else 2 for group in range(50)], np.int8)
    contexts[::3, 1] = contexts[::3, 0]
    expected = inputs.copy(), outputs.copy()
    skipgram_by_hand(*expected, contexts, sizes, targets, 0.05)
    before = inputs.copy()
    kernels.skipgram(inputs, outputs, contexts, sizes, targets, kernels.SIGMOID, kernels.SOFTPLUS, 0.05)
    assert np.abs(inputs - before).max() > 0.01
    for found, wanted in zip((inputs, outputs), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=0.005)  # the table has steps of 0.003


def test_cbow_is_its_slow_twin():
    inputs, outputs = tables()
    contexts, offsets = np.array([1, 2, 3, 4, 5, 1], np.int32), np.array([0, 2, 6], np.int32)
    targets = np.array([[7, 8, 9, 10, 11, 7], [8, 12, 13, 14, 15, 16]], np.int32)
    wanted = inputs.astype(float), outputs.astype(float)
    for c, row in enumerate(targets):
        window = contexts[offsets[c] : offsets[c + 1]]
        hidden, y = wanted[0][window].mean(0), wanted[1][row]
        errors = 0.05 * ((np.arange(6) == 0) - sigmoid(y @ hidden)) * ((np.arange(6) == 0) | (row != row[0]))
        change = errors @ y
        for target, error in zip(row, errors, strict=True):
            wanted[1][target] += error * hidden
        for word in window:
            wanted[0][word] += change
    kernels.cbow(inputs, outputs, contexts, offsets, targets, kernels.SIGMOID, kernels.SOFTPLUS, 0.05)
    for found, twin in zip((inputs, outputs), wanted, strict=True):
        np.testing.assert_allclose(found, twin, atol=0.002)


def test_a_vocabulary_is_gensims(tmp_path):
    path = tmp_path / "text"
    path.write_text(TEXT)
    vocabulary = Vocabulary.of(Lines(path), 2)
    assert vocabulary.words == ("a", "b", "c", "d", "z")
    assert vocabulary.counts.tolist() == [4, 3, 2, 2, 2]
    corpus = Corpus.of(Lines(path), vocabulary)
    assert corpus.words.tolist() == [0, 1, 2, 3, 1, 2, 3, 4, 4, 0, 0, 0, 1]
    assert corpus.ends.tolist() == [4] * 4 + [7] * 3 + [9] * 2 + [13] * 4
    assert corpus.cuts(5).tolist() == [0, 4, 9, 13]
    assert corpus.cuts(3).tolist() == [0, 3, 4, 7, 9, 12, 13]
    gensim = pytest.importorskip("gensim.models")
    theirs = gensim.Word2Vec(min_count=2, sample=1e-3)
    theirs.build_vocab(corpus_file=str(path))
    for word, keep in zip(vocabulary.words, vocabulary.keep(1e-3), strict=True):
        assert theirs.wv.get_vecattr(word, "sample_int") == pytest.approx(int(keep), rel=1e-6)


def test_negatives_come_by_their_weights():
    weights = np.array([1.0, 2.0, 3.0, 10.0])
    odds, aliases = alias_table(weights)
    targets = np.zeros((20_000, 6), np.int32)
    kernels.negatives(targets, 5, odds, aliases, 7, np.empty(10_000, np.int32))
    shares = np.bincount(targets[:, 1:].reshape(-1), minlength=4) / 100_000
    np.testing.assert_allclose(shares, weights / 16, atol=0.01)
    kernels.negatives(targets, 2, odds, aliases, 7, np.empty(10_000, np.int32))
    assert (targets[:, 3:] == 0).all()


def test_windows_stay_in_their_sentence_and_differ_in_size():
    ends = np.repeat(np.array([100, 103, 200], np.int32), [100, 3, 97])
    first, last = np.empty((2, 200), np.int32)
    pairs = kernels.windows(ends, 200, 5, 3, first, last)
    assert pairs == (last - first - 1).sum()
    assert first[100] == 100 and last[102] == 103
    reach = last[50:90] - 1 - np.arange(50, 90)
    assert set(reach.tolist()) == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("binary", [True, False])
def test_gensim_loads_what_is_saved(tmp_path, binary):
    gensim = pytest.importorskip("gensim.models")
    vectors = tables()[0][:3]
    path = save_vectors(tmp_path / "v", ("one", "zwei", "três"), vectors, binary=binary)
    found = gensim.KeyedVectors.load_word2vec_format(str(path), binary=binary)
    assert found.index_to_key == ["one", "zwei", "três"]
    np.testing.assert_allclose(found.vectors, vectors, rtol=1e-5)


@pytest.mark.parametrize("flags", [[], ["--cbow"]])
def test_it_finds_what_stands_in_the_same_places(tmp_path, flags, capsys, fonts):
    out = tmp_path / "run"
    assert main(["run", "word2vec", "--quiet", "--json", "--width", "40", "--out", str(out), *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metrics"]["analogies"] > 0.9
    assert found["metrics"]["auc"] > 0.85
    assert found["parameters"]["width"] == 40
    assert (
        len((out / "vectors.txt").read_text().splitlines())
        == 1 + len(json.loads((out / "notes.json").read_text())) - 5 + 294
    )
    assert hogwild.load_run(out).model_state["input"].shape == (294, 40)


def test_the_same_bits_from_the_command_line(tmp_path, capsys, undrawn):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(" ".join(words) for words in word2vec.sentences(0, 1500)))
    digests = set()
    for more in (["--workers", "1"], ["--workers", "2"], ["--kind", "processes"]):
        flags = ["--data", str(path), "--update", "ordered", "--epochs", "1", "--width", "8", "--quiet", "--json"]
        assert main(["run", "word2vec", *flags, "--out", str(tmp_path / more[1]), *more]) == 0
        digests.add(json.loads(capsys.readouterr().out)["digest"])
    assert len(digests) == 1
    assert main(["replay", str(tmp_path / "2")]) == 0


@pytest.mark.parametrize("words", [3_000, 30_000])
def test_the_rate_falls_evenly_however_short_the_text_is(words):
    shares = [word2vec.falling(ticket * 1000 / words) for ticket in range(words // 1000)]
    assert shares == pytest.approx([1 - ticket * 1000 / words for ticket in range(words // 1000)])
    assert word2vec.falling(0.9999) == pytest.approx(0.0001 / 0.025)


def test_a_text_that_is_not_there_is_told(tmp_path):
    with pytest.raises(ArgumentError, match="--data names a text file"):
        word2vec.build(0, tmp_path / "nothing")
    (tmp_path / "few").write_text("a b c")
    with pytest.raises(ArgumentError, match="0 of 3 words come 5 times"):
        word2vec.build(0, tmp_path / "few", held_out=0)


def test_a_text_of_one_line_has_none_to_hold_out(tmp_path):
    (tmp_path / "line").write_text("a b " * 50)
    with pytest.raises(ArgumentError, match="held_out 50 leaves no line of .* to train on; 0 trains on all"):
        word2vec.build(0, tmp_path / "line", min_count=1)
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ArgumentError, match="empty.txt holds no line; a sentence each is wanted"):
        word2vec.build(0, tmp_path / "empty.txt")
    problem = word2vec.build(0, tmp_path / "line", min_count=1, held_out=0)
    (saving,) = problem.callbacks
    assert word2vec.nearest(problem.model.input, saving.vocabulary, saving.shown) == {"nearest to a": "b"}


@pytest.mark.parametrize(("name", "value"), [("width", 0), ("reach", 0), ("held_out", -1), ("subsample", -1.0)])
def test_parameters_that_mean_nothing_are_refused(name, value):
    with pytest.raises(ArgumentError, match=f"{name} {value} is below"):
        word2vec.build(0, None, **{name: value})
