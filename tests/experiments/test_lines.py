"""Files of data: what is read of a text, a CSV and a TSV, and which line is refused where one is."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hogwild.experiments import bpr, kg
from hogwild.experiments._vocabulary import Lines

from hogwild.errors import ArgumentError

READERS = {"likes.csv": bpr.read, "facts.tsv": kg.read, "text": lambda path: list(Lines(path))}
GOOD = {"likes.csv": "ann,tea\nbob,milk\n", "facts.tsv": "a\tr\tb\nb\tr\tc\n", "text": "a b\nb c\n"}


def found(path: Path) -> str:
    read = READERS[path.name.removesuffix(".gz")]
    return str(read(path))


@pytest.mark.parametrize("name", READERS)
def test_a_file_may_be_packed_and_may_begin_with_a_byte_order_mark(name: str, tmp_path: Path) -> None:
    text = GOOD[name].encode()
    (tmp_path / name).write_bytes(text)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text))
    plain = found(tmp_path / name)
    assert found(tmp_path / f"{name}.gz") == plain
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text)
    assert found(tmp_path / name) == plain


@pytest.mark.parametrize("name", READERS)
def test_a_line_that_is_not_utf_8_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(GOOD[name].encode() + b"caf\xe9\n")
    with pytest.raises(ArgumentError, match=rf"{name}:3: .*caf\\xe9.* is not UTF-8; iconv"):
        found(tmp_path / name)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(("kept", "told"), [(20, "ended before"), (0, "Not a gzipped file")])
def test_what_is_packed_badly_is_told(name: str, kept: int, told: str, tmp_path: Path) -> None:
    packed = gzip.compress(GOOD[name].encode())[:kept] or b"no gzip"
    (tmp_path / f"{name}.gz").write_bytes(packed)
    with pytest.raises(ArgumentError, match=f"{name}.gz cannot be read .*{told}.*; --data names"):
        found(tmp_path / f"{name}.gz")


def test_names_in_quotes_of_a_csv(tmp_path: Path) -> None:
    lines = ['"ann", "tea, green"', '"ann" ,milk ', 'bob,"say ""x""" ', " \t", '"Big" Joe,milk', "6'2\",tea"]
    (tmp_path / "likes.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    names = bpr.read(tmp_path / "likes.csv").names
    assert names["user"] == ["ann", "bob", "Big Joe", "6'2\""]
    assert names["item"] == ["tea, green", "milk", 'say "x"', "tea"]


@pytest.mark.parametrize("name", ["likes.csv", "facts.tsv"])
def test_blank_lines_are_none_and_a_separator_of_unicode_ends_none(name: str, tmp_path: Path) -> None:
    between = "\n\n" + GOOD[name].replace("a", "a\u2028\x85 a") + "\n"
    (tmp_path / name).write_text(between, encoding="utf-8")
    names = READERS[name](tmp_path / name).names
    assert [len(own) for own in names.values()] == ([2, 2] if name == "likes.csv" else [3, 1])
    assert any("\u2028" in one for own in names.values() for one in own)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("likes.csv", 'ann,tea\n\nann,"black\ntea"\n', r"likes.csv:3: 'ann,\"black' is no pair"),
        ("likes.csv", "ann,tea\n,tea\n", r"likes.csv:2: ',tea' is no pair"),
        ("likes.csv", 'ann,"' + "x" * 200_000 + '"', r"likes.csv:1: 'ann,\"x+\W* is no pair"),
        ("facts.tsv", "a\tr\tb\n\tr\tb\n", r"facts.tsv:2: .* is no triple"),
        ("facts.tsv", "a\tr\tb\n\na\tr\n", r"facts.tsv:3: .* is no triple"),
    ],
)
def test_a_line_that_is_refused_is_named(name: str, text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ArgumentError, match=told) as caught:
        READERS[name](tmp_path / name)
    assert len(str(caught.value)) < 400
