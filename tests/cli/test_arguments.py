"""Whatever is wrong with the arguments: one line that names it, exit status 2, nothing left behind."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import sklearn.datasets  # noqa: F401 - it sets environment variables when it is first imported
import torch
import tyro

from hogwild.cli import COMMANDS, main
from hogwild.cli.parsing import parse
from hogwild.config import RunConfig
from hogwild.determinism.check import WINDOW
from hogwild.determinism.probe import SIZE
from hogwild.errors import Terminated
from hogwild.rules.registry import NAMES

FLAGS = [
    "--workers",
    "--kind",
    "--update",
    "--staleness",
    "--micro-batches",
    "--gradient",
    "--optimizer",
    "--lr",
    "--epochs",
    "--updates",
    "--batch-size",
    "--seed",
    "--out",
    "--resume",
    "--json",
    "--quiet",
    "--data",
    "--full",
]

# Arguments → what the line must name: the value, and what would work.
WRONG = {
    "rum digits": ["'rum'", "did you mean run?"],
    "fly digits": ["'fly'", ", ".join(COMMANDS)],
    "run": ["no experiment", "hogwild list"],
    "run digitz": ["'digitz'", "digits"],
    "run .": [". is a folder without a run in it", "hogwild runs . lists"],
    "run nowhere/config.toml": ["nowhere/config.toml", "No such file", "the config.toml of a run"],
    "run digits more": ["'more'", "--help"],
    "run digits --wrokers 2": ["'--wrokers'", "--workers"],
    "run digits --workers": ["--workers given without a value"],
    "run digits --workers two": ["--workers", "'two'", "whole number"],
    "run digits --workers 2.5": ["--workers", "'2.5'", "whole number"],
    "run digits --workers 0": ["workers 0", "1 or more"],
    "run digits --workers -1": ["workers -1", "1 or more"],
    "run digits --lr quick": ["--lr", "'quick'", "number"],
    "run digits --lr 0": ["lr 0", "above 0"],
    "run digits --lr nan": ["lr nan"],
    "run digits --seed 99999999999999999999": ["99999999999999999999", "9223372036854775807"],
    "run digits --update wild": ["'wild'", "hogwild"],
    "run digits --kind fibres": ["'fibres'", "threads"],
    "run digits --gradient up": ["'up'", "backward"],
    "run digits --shuffle maybe": ["--shuffle", "'maybe'", "true nor false"],
    "run digits --on-nonfinite cry": ["'cry'", "skip"],
    "run digits --clip-grad-norm 0": ["clip_grad_norm 0", "above 0"],
    "run digits --update racing --gradient grad": ["'grad'", "backward"],
    "run digits --update ordered --workers 3": ["3 workers", "staleness=2"],
    "run digits --optimizer lbfgs": ["'lbfgs'", "sgd"],
    "run digits --epochs 1 --updates 1": ["both", "epochs", "updates"],
    "run digits --batch-size 1501": ["1501", "1500"],
    "run digits --checkpoint-every 0": ["checkpoint_every 0", "1 or more"],
    "run digits --full": ["--full", "studies"],
    "run digits --data folder": ["folder", "leave it out"],
    "run mnist": ["--data", "train-images-idx3-ubyte"],
    "run mnist --data folder": ["folder", "train-images-idx3-ubyte.gz"],
    "run --resume nowhere": ["--resume nowhere", "there is no such folder", "where it is saved"],
    "run digits --resume nowhere": ["'digits'", "--resume"],
    "list --long": ["'--long'", "its flags are --json"],
    "run digits --tensorbord": ["did you mean --tensorboard?"],
    "run digits --upates=3": ["'--upates=3'", "did you mean --updates?"],
    "run digits --fail-if x": ["'--fail-if' is not a flag of hogwild run; hogwild bench has it (hogwild run --help)"],
    "run digits --frobnicate": ["its help lists those that are"],
    "check digits --keep-best accuracy": ["hogwild run and hogwild sweep have it"],
    "run digits --group * lr=0.1 --group *.bias lr=0.2": ["1.bias, 3.bias are taken by '*' before it"],
    "run digits --group w* lr=0.1": ["matches no parameter; left for it are 1.weight"],
    "run digits --audit --no-audit": ["--audit and --no-audit given; one of them works"],
    "sweep digits --group": ["--group given without a pattern"],
    "replay": ["no run named", "runs/"],
    "replay nowhere": ["nowhere holds no run.json: there is no such folder"],
    "replay /dev/null": ["/dev/null holds no run.json: it is no folder"],
    "run digits --out /dev/null": ["'/dev/null'", "name another"],
    "run a\0b.py": [r"'a\x00b.py' holds a NUL byte"],
    "run digits --out=a\0b": [r"'--out=a\x00b' holds a NUL byte"],
    "bench --workers x": ["--workers", "'x'", "whole number"],
    "bench --batch-size 1 x": ["--batch-size", "'x'", "whole number"],
    "bench --seconds x": ["--seconds", "'x'", "a number"],
    "doctor --json=yes": ["'yes'"],
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("arguments", WRONG)
def test_one_line_exit_2_nothing_left(arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hogwild: ") and err.count("\n") == 1 and err.endswith("\n"), err
    for word in WRONG[arguments]:
        assert word in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "line", "terminal", "encoding"),
    [
        ("run digits --lr fast", "--lr: 'fast' is not a number; 0.05 is one (hogwild run --help)", True, "utf-8"),
        ("run digits --lr fast", "--lr: 'fast' is not a number; 0.05 is one (hogwild run --help)", True, "ascii"),
        ("run --resume", "--resume given without a value (hogwild run --help)", False, "utf-8"),
        ("bench --seconds x", "--seconds: 'x' is not a number; 0.05 is one (hogwild bench --help)", False, "ascii"),
    ],
)
def test_the_whole_line_whatever_the_terminal_is(
    arguments: str,
    line: str,
    terminal: bool,
    encoding: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(stdout, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setenv("COLUMNS", "40")
    assert main(arguments.split()) == 2
    assert capsys.readouterr().err == f"hogwild: {line}\n"


def test_a_config_file_with_a_wrong_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.toml"
    path.write_text('name = "digits"\nepochs = 1\nwrokers = 2\n')
    assert main(["run", str(path)]) == 2
    err = capsys.readouterr().err
    assert "'wrokers'" in err and "workers" in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [path]


def test_out_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("mine")
    assert main(["run", "digits", "--out", "taken"]) == 2
    assert "'taken'" in capsys.readouterr().err
    assert (tmp_path / "taken").read_text() == "mine"


def test_an_out_that_was_there_stays_when_the_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    assert main(["run", "digits", "--out", "mine", "--batch-size", "5000"]) == 2
    assert main(["run", "digits", "--out", "new/deep", "--batch-size", "5000"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["list", "-h"], ["doctor", "--help"]])
def test_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "usage: hogwild" in out and err == ""


def test_help_names_every_flag_and_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    top = capsys.readouterr().out
    assert all(f"• {command} " in top for command in ("run", "list", "replay", "bench", "doctor"))
    main(["run", "--help"])
    out = capsys.readouterr().out
    assert [flag for flag in FLAGS if f"{flag} " not in out] == []


def test_help_is_not_wider_than_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for arguments in (["--help"], *([command, "--help"] for command in COMMANDS if command != "bench")):
        main(arguments)
        assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 84] == []
    monkeypatch.delenv("COLUMNS")


NO_TORCH = """
import sys
from hogwild.cli import main

for line in sys.stdin:
    status = main(line.split())
    print(f"\\n{line.strip()}: status {status}, torch: {'torch' in sys.modules}", file=sys.stderr)
"""


def test_a_help_text_and_a_slip_do_not_wait_for_torch() -> None:
    """In one program, which has torch from the first on that waits for it."""
    helps = ["--help", "--version", *(f"{command} --help" for command in COMMANDS)]
    slips = ["rum digits", "run", "check", "replay", "run digits --wrokers 2", "check digits --runs five"]
    slips.append("run --resume nowhere")
    wanted = [f"{line}: status {0 if line in helps else 2}, torch: False" for line in [*helps, *slips]]
    lines = "\n".join([*helps, *slips])
    done = subprocess.run([sys.executable, "-c", NO_TORCH], input=lines, capture_output=True, text=True, timeout=120)
    assert [line for line in done.stderr.splitlines() if ": status " in line] == wanted, done.stderr


def test_help_says_the_defaults_that_are_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "--help"])
    assert f"(default: {WINDOW})" in capsys.readouterr().out
    main(["probe", "--help"])
    assert f"(default: {SIZE:,})" in capsys.readouterr().out


def test_every_setting_is_a_flag_of_run(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--help"])
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for setting in fields(RunConfig):
        flag = {"groups": "group"}.get(setting.name, setting.name).replace("_", "-")
        assert setting.name in ("name", "changes", "own") or f" --{flag} " in out
    for rule in NAMES:
        assert rule in out
    assert "--staleness T For ordered: a gradient is computed on" in out


def test_a_flag_stands_beside_its_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in COMMANDS:
        main([command, "--help"])
        flags = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│ --")]
        assert [line for line in flags if not line[28:].strip(" │")] == []


def test_settings_that_are_true_or_false() -> None:
    given = parse(COMMANDS, ["run", "digits", "--shuffle", "false", "--audit", "--max-restarts", "0"]).training.given()
    assert given == {"shuffle": False, "audit": True, "max_restarts": 0}
    assert parse(COMMANDS, ["run", "digits"]).training.given() == {}


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("hogwild 0.")


def test_the_generators_of_the_program_stay_as_they_were() -> None:
    before = torch.get_rng_state()
    main(["run", "digits", "--batch-size", "5000"])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("command", "since_314"),  # where no file is there whose name is too long
    [
        ("run", "no experiment is named 'aaa"),
        ("runs", "does not exist"),
        ("replay", "File name too long"),
        ("run --resume", "is not the folder of a run"),
        ("run digits --out", "File name too long"),
    ],
)
def test_a_name_that_is_too_long_for_a_path(
    command: str, since_314: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "a" * 300]) == 2
    err = capsys.readouterr().err
    told = "File name too long" if sys.version_info < (3, 14) else since_314
    assert told in err and err.count("\n") == 1 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["run", "bench", "compare"])
def test_help_fits_a_terminal_of_80_letters(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*command.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 10 and [line for line in lines if len(line) > 80] == []


def test_sigterm_while_arguments_are_parsed_is_none_of_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(*_: object, **__: object) -> None:
        raise Terminated(143)

    monkeypatch.setattr(tyro, "cli", ended)
    assert main(["run", "digits"]) == 143
    assert capsys.readouterr() == ("", "")
