"""A disk that is full when a result is written: it is named, and what was measured is shown all the same."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest
import sklearn.datasets  # noqa: F401 - it sets environment variables when it is first imported
from offered import Offer
from warm_pythons import warm_python

import hogwild
from hogwild.cli import main
from hogwild.experiment import Claim, Findings, Study, StudySettings

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="there is no such device")
SHORT = ["--updates", "10", "--kind", "threads", "--quiet"]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def said(capsys: pytest.CaptureFixture[str], file: Path) -> str:
    """What was shown, where the file is all that was missing."""
    shown, told = capsys.readouterr()
    assert told == f"hogwild: {file} cannot be written: No space left on device\n"
    return shown


def test_under_the_figure_of_a_run(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, figures: None
) -> None:
    canvas = pytest.importorskip("matplotlib.backends.backend_agg").FigureCanvasAgg
    save = canvas.print_png
    monkeypatch.setattr(canvas, "print_png", lambda self, path: save(self, FULL))
    assert main(["run", "digits", *SHORT, "--out", str(out)]) == 3
    assert "10 updates" in said(capsys, out / "run.png")
    assert hogwild.load_run(out).updates == 10


def test_under_a_check(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (out / "check.json").symlink_to(FULL)
    arguments = ["check", "digits", "--update", "ordered", "--runs", "2", *SHORT, "--out", str(out)]
    assert main(arguments) == 3
    assert "verdict: all runs have the same bits." in said(capsys, out / "check.json")


def test_under_the_findings_of_a_study(out: Path, offer: Offer, capsys: pytest.CaptureFixture[str]) -> None:
    def run(settings: StudySettings) -> Findings:
        return Findings((Claim("there are apples", "2", holds=True),), "The answer: two.", ())

    offer(Study("apples", "How many apples?", run))
    (out / "findings.json").symlink_to(FULL)
    assert main(["run", "apples", "--quiet", "--out", str(out)]) == 3
    assert "The answer: two." in said(capsys, out / "findings.json")


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of a file's size is as a full disk, there")
def test_under_a_checkpoint(tmp_path: Path) -> None:
    """Nor is a module's compiled text written, of which the import system would leave a part for all programs."""
    limited = "import resource, signal, sys; sys.dont_write_bytecode = True; "
    limited += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000)); from hogwild.cli import main; sys.exit(main())"
    command = ["-c", limited, "run", "digits", *SHORT, "--checkpoint-every", "5", "--out", "out"]
    done = warm_python(command, tmp_path)
    assert done.returncode == 3 and "File too large" in done.stderr, done.stderr


def test_under_standard_error(out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As where it is a log, or the terminal is gone: a training goes on, told or not."""
    monkeypatch.setattr("hogwild.report.progress._LINE_EVERY", 0.0)
    with suppress(OSError), FULL.open("w", buffering=1) as full:  # it is flushed once more when it is closed
        monkeypatch.setattr(sys, "stderr", full)
        assert main(["run", "digits", "--updates", "400", "--kind", "threads", "--out", str(out)]) == 0
        with pytest.raises(OSError, match="No space left"):
            full.flush()
    assert "400 updates" in capsys.readouterr().out
    assert hogwild.load_run(out).updates == 400
