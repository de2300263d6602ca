"""The directory of a run: nobody else's, and gone where nothing was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hogwild.run.saved.directory import new_directory


def test_directories_are_never_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "now")
    with new_directory("toy") as one, new_directory("toy") as two, new_directory("toy") as three:
        assert [path.name for path in (one, two, three)] == ["toy-now", "toy-now-2", "toy-now-3"]
        (two / "kept").touch()
    assert [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*"))] == [
        "runs",
        "runs/toy-now-2",
        "runs/toy-now-2/kept",
    ]


def test_a_directory_is_removed_where_the_run_failed_before_it_wrote(tmp_path: Path) -> None:
    with pytest.raises(KeyError), new_directory("toy", tmp_path / "a" / "b"):
        raise KeyError
    assert list(tmp_path.iterdir()) == []
