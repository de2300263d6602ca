"""Two records side by side: what differs, and from which update on."""

from __future__ import annotations

import io
import json
import re
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from saved import save_run

from hogwild.determinism.two_runs import RunComparison, compare_runs
from hogwild.errors import RunDirectoryError
from hogwild.report.side_by_side import comparison_report


def drawn(found: RunComparison) -> str:
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(comparison_report(found))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "run"
    save_run(folder)
    return folder


def test_the_same_bits_with_other_workers(base: Path, tmp_path: Path) -> None:
    save_run(tmp_path / "b", workers=1)
    found = compare_runs(base, tmp_path / "b")
    assert found.identical and found.divergence.identical and found.first is None
    assert found.settings == (("workers", 2, 1),) and found.training == () and found.environment == ()
    assert found.verdict == "the same bits; settings differ in workers, environment equal."


def test_another_learning_rate_differs_from_update_0_on(base: Path, tmp_path: Path) -> None:
    """Version 1 has other bits. The loss tells at the first update that was computed on it."""
    save_run(tmp_path / "b", lr=0.2)
    found = compare_runs(base, tmp_path / "b")
    first = found.first
    assert first is not None and (first.after, first.version, first.parameters) == (0, 1, ("bias", "weight"))
    assert (first.update, first.read, first.order) == (2, 1, None)
    assert found.settings == (("lr", 0.1, 0.2),) and found.training == (), "what follows from a setting is told once"
    assert found.verdict == "the runs differ from update 0 on; settings differ in lr, environment equal."
    assert {name: (one, other) for name, one, other in found.metrics()}["accuracy"] == (0.1, 0.2)


def test_a_later_difference_is_found_where_it_is(base: Path, tmp_path: Path) -> None:
    """The learning rate changes at update 7, by a schedule."""
    save_run(tmp_path / "b", lr_schedule=lambda update: 1.0 if update < 7 else 0.5)
    found = compare_runs(base, tmp_path / "b")
    assert found.first is not None
    assert (found.first.after, found.first.version, found.first.update, found.first.read) == (7, 8, 9, 8)
    assert [name for name, *_ in found.training] == ["lr_schedule"]
    assert found.verdict.startswith("the runs differ from update 7 on; settings differ in lr_schedule")


def test_the_journals_narrow_what_the_seals_leave_open(tmp_path: Path) -> None:
    """Not every version is noted: the seals say (0, 5] or so, and the loss of update 2 was computed on version 1."""
    for name, factor in (("a", 1.0), ("b", 0.5)):
        save_run(tmp_path / name, epochs=30, lr_schedule=lambda update, factor=factor: factor)
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    seals = sorted(map(int, json.loads((tmp_path / "a/run.json").read_text())["seals"]))
    assert seals[0] > 2
    assert found.first is not None and (found.first.after, found.first.version) == (0, 1)
    assert found.first.noted_at == seals[0]


def test_another_initial_model_differs_from_the_start(base: Path, tmp_path: Path) -> None:
    save_run(tmp_path / "b", start=1)
    found = compare_runs(base, tmp_path / "b")
    assert found.first is not None and found.first.from_the_start and found.first.update == 0
    assert found.verdict == (
        "the runs differ from the start on; settings equal, environment equal. ordered promises the same bits here: "
        "something differs that is not recorded (hogwild check looks)."
    )


def test_another_model_is_told_in_one_row(base: Path, tmp_path: Path) -> None:
    save_run(tmp_path / "b", width=3)
    found = compare_runs(base, tmp_path / "b")
    assert [name for name, *_ in found.training][:1] == ["model"]
    assert "weight" in found.training[0][1] and "[3, 4]" in found.training[0][2]
    assert [entry.name for entry in found.divergence.reshaped] == ["bias", "weight"]


def test_a_rule_that_races_leaves_no_exact_version(tmp_path: Path) -> None:
    for name, start in (("a", 0), ("b", 1)):
        save_run(tmp_path / name, update="hogwild", workers=1, start=start)
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    assert found.first is not None and not found.first.exact and found.first.from_the_start
    assert found.verdict.endswith("Under hogwild runs differ from each other anyway.")


def test_the_environment_is_told_by_the_names_that_people_use(base: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(base, tmp_path / "b"))
    origin = json.loads((other / "origin.json").read_text())
    origin["environment"]["variables"]["MKL_CBWR"] = "COMPATIBLE"
    origin["environment"]["instruction_sets"]["torch"] = "NEON"
    (other / "origin.json").write_text(json.dumps(origin))
    found = compare_runs(base, other)
    assert found.identical and found.environment is not None
    assert [name for name, *_ in found.environment] == ["torch's instruction set", "MKL_CBWR"]
    assert {name: (one, b) for name, one, b in found.environment}["MKL_CBWR"] == ("unset", "COMPATIBLE")
    assert found.verdict == ("the same bits; settings equal, environment differs in torch's instruction set, MKL_CBWR.")


def test_what_is_compared_is_verified(base: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(base, tmp_path / "b"))
    with (other / "journal.npy").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    with pytest.raises(RunDirectoryError, match=r"journal\.npy is not the file that was saved"):
        compare_runs(base, other)


def test_a_longer_run_of_the_same_is_told_from_one_that_went_another_way(base: Path, tmp_path: Path) -> None:
    longer = save_run(tmp_path / "b", epochs=9)
    found = compare_runs(base, tmp_path / "b")
    assert found.first is not None and found.first.shorter is not None and longer.updates > found.first.shorter
    last = found.first.shorter - 1
    where = f"after update {last}, the last of the shorter one, as far as losses tell"
    assert found.verdict == f"the runs differ {where}; settings differ in epochs, environment equal."
    assert "somewhere on the way" not in drawn(found)
    save_run(tmp_path / "c", epochs=9, lr=0.2)
    assert "from update 0 on" in compare_runs(base, tmp_path / "c").verdict


def test_json_has_all_of_it(base: Path, tmp_path: Path) -> None:
    save_run(tmp_path / "b", lr=0.3, seed=1)
    found = json.loads(json.dumps(compare_runs(base, tmp_path / "b").to_dict()))
    assert found["identical"] is False and found["settings"] == {"seed": [0, 1], "lr": [0.1, 0.3]}
    assert found["first_difference"]["version"] in (0, 1) and found["divergence"]["tensors_differing"]
    assert len(set(found["digests"])) == 2 and found["verdict"].startswith("the runs differ")


def in_environments(folder: Path, first: str, *later: tuple[int, str]) -> Path:
    """A run whose sessions were made with those versions of numpy."""
    origin = json.loads((folder / "origin.json").read_text())
    environment = origin["environment"]
    origin["environment"] = {**environment, "numpy": first}
    origin["resumed"] = [
        {"version": version, "workers": 2, "kind": "threads", "environment": {**environment, "numpy": numpy}}
        for version, numpy in later
    ]
    (folder / "origin.json").write_text(json.dumps(origin))
    return folder


def test_all_sessions_of_a_resumed_run_are_compared(base: Path, tmp_path: Path) -> None:
    one = in_environments(Path(shutil.copytree(base, tmp_path / "a")), "2.0")
    other = Path(shutil.copytree(base, tmp_path / "b"))
    same = compare_runs(one, in_environments(other, "2.0", (5, "2.0")))
    assert (
        same.environment == () and same.verdict == "the same bits; settings equal, environment equal in all 3 sessions."
    )
    text = drawn(same)
    assert "environment: equal in all 3 sessions" in text and "never" in text and "at update 5" in text
    moved = compare_runs(one, in_environments(other, "2.0", (5, "2.1"), (9, "2.1")))
    assert moved.environment == (("numpy", "2.0", "2.0, from update 5 on 2.1"),)
    assert moved.verdict.endswith("environment differs in numpy.")
    both = compare_runs(in_environments(one, "2.0", (7, "2.2")), other)
    assert both.environment == (("numpy", "2.0, from update 7 on 2.2", "2.0, from update 5 on 2.1"),)
    assert both.to_dict()["resumed"] == [1, 2] and both.to_dict()["resumed_from"] == [[7], [5, 9]]


def test_the_moving_average_the_best_version_and_the_compensation_are_told(tmp_path: Path) -> None:
    kept = {"evaluate_every": 5, "keep_best": "accuracy"}
    save_run(tmp_path / "a", ema=0.5, compensation="none", **kept)
    save_run(tmp_path / "b", ema=0.9, compensation="none", **kept)
    save_run(tmp_path / "c", ema=0.5)
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    assert found.identical and found.beside == [("moving average", False), ("best version", True)]
    assert found.verdict.startswith("the same bits, but for the moving average; settings differ in ema")
    told = {name: (one, other) for name, one, other in found.metrics()}
    assert told["best_accuracy"] == (0.1, 0.1) and told["update of best_accuracy"] == (5, 5)
    text = drawn(found)
    assert "digest of average" in text and "digest of best" in text
    assert re.search("moving average +other bits", text) and re.search("best version +the same bits", text)
    compensated = compare_runs(tmp_path / "a", tmp_path / "c")
    line = next(line for line in drawn(compensated).splitlines() if line.startswith("compensated by"))
    assert "–" in line and "momentum 0 → " in line
    assert compensated.to_dict()["compensation"][0] == [] and compensated.to_dict()["compensation"][1]


def test_long_paths_of_one_folder_are_told_by_their_ends(base: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(base, tmp_path / "a-folder-of-runs" / name)
    found = compare_runs(tmp_path / "a-folder-of-runs" / "a", tmp_path / "a-folder-of-runs" / "b")
    assert any(line.split() == ["…/a", "…/b"] for line in drawn(found).splitlines())
    other = compare_runs(base, tmp_path / "a-folder-of-runs" / "b")
    assert "…/" not in drawn(other), "of two folders"
