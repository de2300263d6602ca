"""`hogwild run` of a study, and `hogwild list`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from offered import Offer

from hogwild import experiment
from hogwild.cli import main
from hogwild.errors import ArgumentError
from hogwild.experiment import Claim, Experiment, Findings, Study, StudySettings
from hogwild.rules.registry import NAMES, rule_class


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _study(*holds: tuple[bool, bool]) -> Study:
    def measure(settings: StudySettings) -> Findings:
        path = settings.out / "drawn.png"
        path.write_bytes(b"drawn")
        claims = tuple(Claim(f"claim {i}", f"{i} apples", held, wanted) for i, (held, wanted) in enumerate(holds))
        return Findings(claims, f"The answer: full is {settings.full}, seed is {settings.seed}.", (path,))

    return Study("apples", "How many apples?", measure)


def test_a_study_whose_claims_come_out_is_0(offer: Offer, capsys: pytest.CaptureFixture[str]) -> None:
    offer(_study((True, True), (False, False)))
    assert main(["run", "apples", "--full", "--seed", "7"]) == 0
    out = capsys.readouterr().out
    for word in ("How many apples?", "claim 1", "0 apples", "no, as shown", "full is True, seed is 7", "all 2 claims"):
        assert word in out


@pytest.mark.parametrize("claim", [(False, True), (True, False)])
def test_a_study_with_a_claim_that_comes_out_otherwise_is_1(
    claim: tuple[bool, bool], offer: Offer, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(_study((True, True), claim))
    assert main(["run", "apples"]) == 1
    assert "unexpectedly" in capsys.readouterr().out
    assert main(["run", "apples", "--json", "--out", "here"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["settled"] and [row["settled"] for row in found["claims"]] == [True, False]
    assert found["figures"] == ["here/drawn.png"] and json.loads(Path("here/findings.json").read_text()) == found


def test_a_study_takes_no_settings_of_trainings(offer: Offer, capsys: pytest.CaptureFixture[str]) -> None:
    offer(_study((True, True)))
    assert main(["run", "apples", "--workers", "2"]) == 2
    assert "--workers" in capsys.readouterr().err


def test_list_names_all_and_hides_none_for_one_that_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = experiment.load

    def load(name: str) -> Experiment:
        if name == "mnist":
            raise ArgumentError("it is broken")
        return real(name)

    monkeypatch.setattr(experiment, "load", load)
    assert main(["list", "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)["experiments"]}
    assert {"digits", "digits-conv", "embeddings", "mnist"} <= found.keys()
    assert found["digits"]["type"] == "training" and found["digits"]["question"].endswith("?")
    assert found["mnist"]["type"] == "broken" and "it is broken" in found["mnist"]["question"]
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert "digits-conv" in out and "embeddings" in out


def test_list_says_what_each_rule_promises(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    rules = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rules"]}
    assert list(rules) == list(NAMES)
    for name, row in rules.items():
        rule = rule_class(name)
        assert row == {
            "name": name,
            "summary": rule.summary,
            "exact": rule.exact,
            "versioned": rule.versioned,
            "same_bits": rule.same_bits,
        }
    assert main(["list"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    promises = [rule for rule in NAMES if "same bits" in lines[rule]]
    assert promises == [rule for rule in NAMES if rules[rule]["same_bits"]]
