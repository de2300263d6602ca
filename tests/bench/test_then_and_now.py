"""Benches compared: what is slower, what is noise, what fails, and what cannot be compared."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_bench import MACHINE, bench_of
from rich.console import Console

from hogwild.bench.comparison_table import bench_comparison_report
from hogwild.bench.saved import SavedBench, read_bench
from hogwild.bench.then_and_now import BenchComparison, compare_benches, refuse_nothing_in_common
from hogwild.bench.threshold import Threshold
from hogwild.cli import benching, main
from hogwild.errors import ArgumentError

CASE = "mlp · batch 64 · sgd"
TWO = "ordered, 2 processes"


def compared(
    then: Mapping[str, Sequence[float]], now: Mapping[str, Sequence[float]], fail_if: str = "", **of_now: Any
) -> BenchComparison:
    threshold = Threshold.read(fail_if) if fail_if else None
    return compare_benches(SavedBench.of(bench_of(then)), SavedBench.of(bench_of(now, **of_now)), threshold)


def change(found: BenchComparison, contender: str = TWO) -> Any:
    return next(one for one in found.changes if (one.case, one.contender) == (CASE, contender))


def test_now_over_then_with_its_range() -> None:
    found = change(compared({"ordered": [1.9, 2.0, 2.1]}, {"ordered": [1.4, 1.6, 1.5]}))
    assert (found.then.median, found.now.median) == (pytest.approx(2.0), pytest.approx(1.5))
    assert found.ratio == pytest.approx({"median": 0.75, "min": 1.4 / 2.1, "max": 1.6 / 1.9})
    assert found.verdict == "slower"


@pytest.mark.parametrize(
    ("now", "verdict"),
    [([1.8, 1.85, 1.95], "within the noise"), ([2.2, 2.3, 2.4], "faster"), ([1.0, 1.1, 1.2], "slower")],
)
def test_ranges_that_overlap_are_noise(now: list[float], verdict: str) -> None:
    assert change(compared({"ordered": [1.9, 2.0, 2.1]}, {"ordered": now})).verdict == verdict


def test_a_slower_machine_is_not_a_slower_rule() -> None:
    found = compared({"ordered": [2.0, 2.0]}, {"ordered": [2.0, 2.0]}, serial=500.0)
    assert change(found).ratio["median"] == pytest.approx(1.0)
    assert found.serial(CASE) == pytest.approx(0.5)


def test_another_machine_is_said_and_other_versions_too() -> None:
    there = replace(MACHINE, processor="another", cores=8, torch="2.99", load=3.0)
    found = compared({"ordered": [2.0]}, {"ordered": [2.0]}, machine=there)
    assert found.other_machine == {"processor": ("a processor", "another"), "cores": (4, 8)}
    assert found.other_versions == {"torch": ("2", "2.99")}
    shown = text_of(found)
    assert "another machine: processor a processor then, another now, cores 4 then, 8 now" in shown
    assert "otherwise than then: torch 2 then, 2.99 now" in shown
    repeats = compared({"ordered": [2.0]}, {"ordered": [2.0, 2.0]})
    assert repeats.other_versions == {"repeats": (1, 2)} and not repeats.other_machine


def test_what_only_one_measured_is_listed() -> None:
    found = compared({"ordered": [2.0], "locked": [1.5]}, {"ordered": [2.0], "hogwild": [2.5]}).to_dict()
    assert found["only_then"] == [f"{CASE}: locked, {who}" for who in ("1 process", "2 processes")]
    assert found["only_now"] == [f"{CASE}: hogwild, {who}" for who in ("1 process", "2 processes")]


def test_only_rules_fail() -> None:
    """The loops by hand stand beside them, and are nobody's to guard."""
    then, now = bench_of({"ordered": [2.0]}), bench_of({"ordered": [1.8]})
    for row in now["cases"][0]["results"]:
        if row["name"] == "serial, batches cut":
            row["over_serial"] = {"median": 0.1, "min": 0.1, "max": 0.1, "runs": 1}
    found = compare_benches(SavedBench.of(then), SavedBench.of(now), Threshold.read("median<0.95"))
    assert [one.contender for one in found.failed] == [TWO]
    assert found.verdict.endswith(f"median<0.95 holds for {CASE}: {TWO}.")
    calm = compare_benches(SavedBench.of(then), SavedBench.of(now), Threshold.read("median<0.5"))
    assert calm.failed == [] and calm.verdict.endswith("median<0.5 holds for none.")


def text_of(found: BenchComparison, width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(bench_comparison_report(found, "base.json"))
    return captured.get()


def test_the_table_fits_a_terminal() -> None:
    lines = text_of(compared({"ordered": [1.9, 2.0, 2.1]}, {"ordered": [1.5, 1.6]}, "median<0.9"), 80).splitlines()
    row = next(line for line in lines if TWO in line)
    assert all(len(line) <= 80 for line in lines)
    assert row.split() == ["ordered,", "2", "processes", "2.00", "1.55", "0.78", "0.71–0.84", "slower"]


# --- the threshold


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("median<0.95", True),
        ("median<0.9", False),
        ("median<=0.9", True),
        ("  min > 0.7 and max<1.0 ", True),
        ("min>0.7 and max<0.9", False),
        ("max>=1.0e0", False),
    ],
)
def test_a_threshold(text: str, holds: bool) -> None:
    assert Threshold.read(text).holds({"median": 0.9, "min": 0.8, "max": 0.95}) is holds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("mean<0.95", "'mean' is not known; median, min, max"),
        ("median", "'median' is not of the form NAME<NUMBER"),
        ("median=0.9", "not of the form"),
        ("median<fast", "'fast' is not a number"),
        ("median<nan", "nan is not above 0"),
        ("median<inf", "inf is not above 0"),
        ("median<0", "0 is not above 0"),
        ("median<0.9 or max<1", "not of the form"),
        ("median<0.9 and", "a term is missing"),
        ("__import__('os').system('true')<1", "not of the form"),
        ("0.5<median<0.9", "not of the form"),
    ],
)
def test_a_threshold_that_is_none_is_refused_by_name(text: str, told: str) -> None:
    with pytest.raises(ArgumentError) as refused:
        Threshold.read(text)
    assert told in str(refused.value) and "\n" not in str(refused.value)


# --- files


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "is not a bench"),
        ('{"machine": {}, "settings": {}, "results": []}', "is not a bench with a serial loop"),
        ('{"machine": {}, "settings": {}, "cases": [{"name": "x", "results": [{"name": "a"}]}]}', "is not a bench"),
    ],
)
def test_a_file_that_is_no_bench_is_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ArgumentError, match=told):
        read_bench(tmp_path / "x.json")
    with pytest.raises(ArgumentError, match="--save .* makes it"):
        read_bench(tmp_path / "nothing.json")
    with pytest.raises(ArgumentError, match="not a plain file"):
        read_bench(tmp_path)


@pytest.mark.parametrize("median", [0, -1, "fast", None, True, float("inf")])
def test_a_speed_that_is_none_is_refused(median: Any, tmp_path: Path) -> None:
    found = bench_of({"ordered": [2.0]})
    found["cases"][0]["results"][-1]["over_serial"]["median"] = median
    (tmp_path / "x.json").write_text(json.dumps(found))
    with pytest.raises(ArgumentError, match="is not a bench"):
        read_bench(tmp_path / "x.json")


def test_nothing_in_common_is_found_before_measuring() -> None:
    then = SavedBench.of(bench_of({"ordered": [2.0]}))
    refuse_nothing_in_common(then, [CASE, "another"], [TWO], "base.json")
    with pytest.raises(ArgumentError, match="base.json has mlp · batch 64 · sgd, and this bench measures conv"):
        refuse_nothing_in_common(then, ["conv · batch 1 · adam"], [TWO], "base.json")
    with pytest.raises(ArgumentError, match="has no rule that this bench measures; it has ordered, 1 process"):
        refuse_nothing_in_common(then, [CASE], ["serial", "hogwild, 2 processes"], "base.json")


# --- the command


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, list[float]]:
    """Benches take no time, and have these ratios."""
    found = {"ordered": [1.9, 2.0, 2.1]}
    monkeypatch.setattr(benching, "measure_cases", lambda plan, tell: [])
    monkeypatch.setattr(benching, "bench_summary", lambda *_: bench_of(found))
    monkeypatch.chdir(tmp_path)
    return found


BENCH = ["bench", "--quick", "--problems", "mlp", "--contenders", "ordered"]


def test_save_and_compare(speeds: dict[str, list[float]], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*BENCH, "--save", "base.json"]) == 0
    saved = json.loads(Path("base.json").read_text())
    assert saved["saved"].startswith("20") and saved["cases"] == json.loads(json.dumps(bench_of(speeds)))["cases"]
    assert [path.name for path in Path().iterdir()] == ["base.json"]
    capsys.readouterr()
    speeds["ordered"] = [1.5, 1.6, 1.7]
    guard = ["--compare", "base.json", "--fail-if", "median<0.95 and max<1"]
    assert main([*BENCH, *guard, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["comparison"]
    assert found["failed"] == [{"case": CASE, "contender": TWO}] and found["fail_if"] == "median<0.95 and max<1"
    assert main([*BENCH, "--compare", "base.json"]) == 0, "without a threshold nothing fails"
    shown = capsys.readouterr().out
    assert "compared with base.json, saved " in shown and "verdict: of 2 measurements of rules 1 are slower" in shown
    speeds["ordered"] = [1.9, 1.9, 1.9]
    assert main([*BENCH, *guard, "--save", "base.json"]) == 0, "the file may be that which it is compared with"
    assert json.loads(Path("base.json").read_text())["cases"][0]["results"][-1]["over_serial"]["median"] < 1.95


def test_what_was_measured_before_an_interruption_is_shown_and_saved(
    speeds: dict[str, list[float]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(plan: Any, tell: Any, after: int = 1) -> Iterator[str]:
        yield from ["a case"] * after
        raise KeyboardInterrupt

    monkeypatch.setattr(benching, "measure_cases", interrupted)
    assert main([*BENCH, "--save", "base.json"]) == 130
    out, err = capsys.readouterr()
    assert "warning: interrupted: what is missing was not measured" in out and TWO in out
    assert "nothing is saved" not in err
    found = json.loads(Path("base.json").read_text())
    assert found["cases"] and "interrupted: what is missing was not measured" in found["warnings"]
    Path("base.json").unlink()
    monkeypatch.setattr(benching, "measure_cases", lambda plan, tell: interrupted(plan, tell, 0))
    assert main([*BENCH, "--save", "base.json"]) == 130
    out, err = capsys.readouterr()
    assert out == "" and err.endswith("hogwild: interrupted; nothing is saved\n") and not Path("base.json").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--fail-if", "median<1"], "given without --compare FILE"),
        (["--compare", "nothing.json"], "'nothing.json' does not exist"),
        (["--save", "nowhere/x.json"], "is not a file in a folder that exists"),
        (["--compare", "nothing.json", "--pad-ms", "5"], "--pad-ms has none"),
        (["--compare", "nothing.json", "--profile"], "--profile has none"),
        (["--compare", "nothing.json", "--fail-if", "mean<1"], "'mean' is not known"),
    ],
)
def test_what_cannot_be_compared_is_told_first(
    arguments: list[str], told: str, speeds: dict[str, list[float]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == "" and told in err and err.count("\n") == 1
