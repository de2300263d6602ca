"""Names that no path, no file and no JSON can have are refused in one line, before anything is trained."""

from __future__ import annotations

import problems
import pytest

import hogwild

LONG = "a" * 300


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", [LONG, "a\0b", "a\ud800"], ids=["long", "NUL", "half a letter"])
@pytest.mark.parametrize("argument", ["out", "resume"])
def test_a_folder_of_such_a_name(argument, name, tmp_path):
    with pytest.raises(hogwild.ArgumentError, match=f"{argument} .* can be no folder: ") as caught:
        problems.train(**{argument: name})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200
    for read in (hogwild.load_run, hogwild.replay):
        with pytest.raises(hogwild.ArgumentError, match="run_dir .* can be no folder: "):
            read(name)
    assert list(tmp_path.iterdir()) == []


def test_a_run_of_half_a_letter(tmp_path):
    with pytest.raises(hogwild.ArgumentError, match=r"name '\\ud800' has halves of letters"):
        problems.train(name="\ud800", out="run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("metrics", "why"),
    [
        ({("a", 1): 1.0}, r"a metric named \('a', 1\); its name must be a string"),
        ({3: 1.0}, "a metric named 3; its name must be a string"),
        ({"a": 10**400}, "the metric 'a' as a number that no float holds"),
    ],
)
def test_a_metric_of_such_a_name_or_size(metrics, why):
    with pytest.raises(hogwild.ArgumentError, match=why):
        problems.train(evaluate=lambda model: metrics, evaluate_every=5, out="run")
