"""From arguments to a command. Whatever is wrong with them becomes one line, also what tyro finds."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, Protocol

import tyro

from hogwild.cli.own import with_own_flags
from hogwild.errors import ArgumentError

_ABOUT = """Train one model from many workers at once, and know exactly what that did.

To begin:
  hogwild list          what there is to run
  hogwild run digits    train on images of handwritten digits, in some seconds
  hogwild new train.py  write a file with a training of your own, to start from
  hogwild doctor        what will bite on this machine

Each command tells more: hogwild run --help"""

_CONFIG = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
_WIDEST_USAGE = 80
_BORDER = re.compile(r"[╭╮╰╯│]")
_RULE = re.compile(r"^\s*─+\s*$")


class Command(Protocol):
    """A command: its fields are its flags, its docstring says in one line what it does, `more` says the rest."""

    more: ClassVar[str]

    def run(self) -> int:
        """Do it; returns the exit status."""
        ...


def parse(commands: Mapping[str, type[Command]], argv: Sequence[str]) -> Command:
    """The command that the arguments ask for.

    Raises:
        ArgumentError: they ask for none, or for one in a wrong way.
        SystemExit: with 0, after help was printed.
    """
    name, *rest = argv or ["--help"]
    if name in ("-h", "--help"):
        with _short_usage("COMMAND"):
            tyro.extras.subcommand_cli_from_dict(dict(commands), prog="hogwild", description=_ABOUT, args=["--help"])
    if name == "--version":
        from hogwild import __version__

        sys.stdout.write(f"hogwild {__version__}\n")
        raise SystemExit(0)
    if name not in commands:
        raise ArgumentError(f"{name!r} is not a command; {', '.join(commands)} are (hogwild --help)")
    return _parse_command(name, with_own_flags(commands[name], rest), rest)


@contextmanager
def _short_usage(instead: str) -> Iterator[None]:
    """What is printed inside, with a first line that fits the terminal: `instead` of all flags, or of all commands."""
    page, terminal = io.StringIO(), sys.stdout
    page.isatty = terminal.isatty  # type: ignore[method-assign]
    try:
        with redirect_stdout(page):
            yield
    finally:
        usage, *rest = page.getvalue().splitlines(keepends=True) or [""]
        if len(usage) > _WIDEST_USAGE:
            usage = f"{usage.split('[-h]')[0]}[-h] {instead}\n"
        terminal.write("".join([usage, *rest]))


def _parse_command(name: str, command: type[Command], argv: Sequence[str]) -> Command:
    complaint = io.StringIO()
    about = f"{(command.__doc__ or '').strip()}\n\n{command.more}".strip()
    try:
        with redirect_stderr(complaint), _short_usage("[OPTIONS]"):
            parsed, unknown = tyro.cli(
                command,
                prog=f"hogwild {name}",
                description=about,
                args=argv,
                return_unknown_args=True,
                config=_CONFIG,
            )
    except SystemExit as end:
        if end.code in (0, None):
            raise
        raise ArgumentError(f"{_condensed(complaint.getvalue())} (hogwild {name} --help)") from end
    if unknown:
        raise ArgumentError(_unknown(unknown[0], name, command))
    return parsed


def _condensed(complaint: str) -> str:
    """The first paragraph of a boxed message, on one line and without its box."""
    lines: list[str] = []
    for line in complaint.splitlines()[1:]:
        text = _BORDER.sub(" ", line).strip()
        if lines and (not text or _RULE.match(text)):
            break
        lines.append(text)
    return " ".join(lines).removeprefix("Error parsing ").rstrip(".")


def _unknown(argument: str, name: str, command: type[Command]) -> str:
    if not argument.startswith("-"):
        return f"{argument!r} is one argument more than hogwild {name} takes (hogwild {name} --help)"
    flags = [f"--{flag.replace('_', '-')}" for flag in _flags(command)]
    close = get_close_matches(argument, flags, 1)
    known = close or flags
    works = f"{', '.join(known)} {'is' if len(known) == 1 else 'are'}"
    return f"{argument!r} is not a flag of hogwild {name}; {works} (hogwild {name} --help)"


def _flags(command: Any) -> list[str]:
    """The flags of a command, those of the groups in it included."""
    found: list[str] = []
    for field in fields(command):
        made: Any = field.default_factory
        if is_dataclass(made):
            found.extend(_flags(made))
        elif "Positional" not in str(field.type):
            found.append(field.name)
    return found
