"""The programs of docs/embeddings.md that use what a run has saved, without hogwild: neighbours, items, facts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytest.importorskip("numba")

from hogwild.experiments import kg, word2vec
from safetensors.torch import load_file

from hogwild.cli import main

PAGE = Path(__file__).parents[2] / "docs/embeddings.md"


def told(folder, capsys, *replaced):
    """What the page's program prints that reads that folder."""
    programs = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (program,) = (one for one in programs if folder in one)
    for old, new in replaced:
        assert old in program
        program = program.replace(old, new)
    capsys.readouterr()
    exec(program, {})
    return ast.literal_eval(capsys.readouterr().out)


def test_whom_the_rows_belong_to_is_saved_and_the_pages_program_recommends(tmp_path, capsys, undrawn, monkeypatch):
    """Those of two camps like the tea, or the coffee, of their own."""
    monkeypatch.chdir(tmp_path)
    camps = {"tea": ["ann", *(f"t{n}" for n in range(30))], "coffee": [f"c{n}" for n in range(30)]}
    likes = [(one, f"{kind}{n}") for kind, own in camps.items() for one in own for n in range(6)]
    kept = [like for like in likes if like != ("ann", "tea3")]
    (tmp_path / "likes.csv").write_text("".join(f"{one},{item}\n" for one, item in kept))
    flags = ["--data", "likes.csv", "--width", "8", "--epochs", "300", "--held-out", "0", "--out", "runs/likes"]
    assert main(["run", "bpr", *flags, "--quiet"]) == 0
    capsys.readouterr()
    assert sorted(told("runs/likes", capsys, ("topk(3)", "topk(6)"))) == [f"tea{n}" for n in range(6)]


def test_the_pages_program_finds_the_words_nearest_to_one(tmp_path, capsys, undrawn, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "\n".join(" ".join(words) for words in word2vec.sentences(0, 3000))
    Path("corpus.txt").write_text(text)
    flags = ["--data", "corpus.txt", "--width", "16", "--epochs", "2", "--out", "runs/words", "--quiet"]
    assert main(["run", "word2vec", *flags]) == 0
    found = told("runs/words", capsys, ('"tea"', '"thing3-1"'))
    vocabulary = word2vec.Vocabulary.of([line.split() for n, line in enumerate(text.split("\n")) if n % 50], 5)
    vectors = load_file("runs/words/model.safetensors")["input"]
    nearest = word2vec.nearest(vectors, vocabulary, [vocabulary.number["thing3-1"]])
    assert ", ".join(found) == nearest["nearest to thing3-1"].rsplit(", ", 1)[0]


def test_the_pages_program_scores_facts(tmp_path, capsys, undrawn, monkeypatch):
    monkeypatch.chdir(tmp_path)
    facts = [(f"a{n}", "knows", f"b{n % 3}") for n in range(60)] + [("ann", "knows", "b1\u2028x"), ("ann", "is", "b")]
    Path("facts.tsv").write_text("".join("\t".join(fact) + "\n" for fact in facts), encoding="utf-8")
    flags = [
        "--data",
        "facts.tsv",
        "--width",
        "8",
        "--epochs",
        "3",
        "--held-out",
        "0",
        "--out",
        "runs/facts",
        "--quiet",
    ]
    assert main(["run", "kg", *flags]) == 0
    read = kg.read(Path("facts.tsv"))
    entities, relations = read.names["entity"], read.names["relation"]
    own = kg.Graph(read.entities, read.relations, 8, "complex")
    own.load_state_dict(load_file("runs/facts/model.safetensors"))
    one = (
        own.entity.new_tensor([entities.index("ann")]).long(),
        own.entity.new_tensor([relations.index("knows")]).long(),
    )
    best = own.scores(*one, 1)[0].topk(3).indices.tolist()
    assert told("runs/facts", capsys) == [entities[i] for i in best]
