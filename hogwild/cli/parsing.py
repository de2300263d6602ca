"""From arguments to a command. Whatever is wrong with them becomes one line, also what tyro finds."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any, ClassVar, Protocol, TextIO

import tyro

from hogwild.cli.own import with_own_flags
from hogwild.errors import ArgumentError, Terminated, flag_of

_ABOUT = """Train one model from many workers at once, and know exactly what that did.

To begin:
  hogwild list          what there is to run
  hogwild run digits    train on images of handwritten digits, in some seconds
  hogwild new train.py  write a file with a training of your own, to start from
  hogwild doctor        what will bite on this machine

Each command tells more: hogwild run --help"""

_CONFIG = (tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes)
_WIDEST_USAGE = 80
_ALIKE = 0.7  # how much of a flag and of a mistyped one is the same
_FEW = 5  # flags that a message names all
_MISSING = re.compile(r"^Missing value for argument '([^']+)'\. Expected \d+ values$")
HELP = frozenset(("-h", "--help"))
_RULE = re.compile(r"^[\s-]*$")  # between the paragraphs of a complaint, where it is no terminal's


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
    for argument in argv:
        if "\0" in argument:
            raise ArgumentError(f"{argument!r} holds a NUL byte, which no path has; leave it out")
    if name in HELP:
        with _short_usage("COMMAND"):
            tyro.extras.subcommand_cli_from_dict(dict(commands), prog="hogwild", description=_ABOUT, args=["--help"])
    if name == "--version":
        from hogwild import __version__

        sys.stdout.write(f"hogwild {__version__}\n")
        raise SystemExit(0)
    if name not in commands:
        close = get_close_matches(name, commands, 1)
        works = f"did you mean {close[0]}?" if close else f"{', '.join(commands)} are"
        raise ArgumentError(f"{name!r} is not a command; {works} (hogwild --help)")
    own = with_own_flags(commands[name], rest)
    return _parse_command(name, own, rest, {**commands, name: own})


class _Page(io.StringIO):
    """Keeps what is printed for a terminal, which says how it is to look."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        """As the terminal says."""
        return self._terminal.isatty()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """That of the terminal."""
        return self._terminal.encoding or "ascii"


@contextmanager
def _short_usage(instead: str) -> Iterator[None]:
    """What is printed inside, with a first line that fits the terminal: `instead` of all flags, or of all commands."""
    terminal = sys.stdout
    page = _Page(terminal)
    try:
        with redirect_stdout(page):
            yield
    finally:
        usage, *rest = page.getvalue().splitlines(keepends=True) or [""]
        if len(usage) > _WIDEST_USAGE:
            usage = f"{usage.split('[-h]')[0]}[-h] {instead}\n"
        terminal.write("".join([usage, *rest]))


def _parse_command(
    name: str, command: type[Command], argv: Sequence[str], commands: Mapping[str, type[Command]]
) -> Command:
    complaint, plain = io.StringIO(), redirect_stdout(io.StringIO())
    about = f"{(command.__doc__ or '').strip()}\n\n{command.more}".strip()
    try:
        with redirect_stderr(complaint), _short_usage("[OPTIONS]") if HELP & {*argv} else plain:
            parsed, unknown = tyro.cli(
                command,
                prog=f"hogwild {name}",
                description=about,
                args=argv,
                return_unknown_args=True,
                config=_CONFIG,
            )
    except SystemExit as end:
        if end.code in (0, None) or isinstance(end, Terminated):
            raise
        raise ArgumentError(f"{_condensed(complaint.getvalue())} (hogwild {name} --help)") from end
    if unknown:
        raise ArgumentError(_unknown(unknown[0], name, commands))
    return parsed


def _condensed(complaint: str) -> str:
    """The first paragraph of a message, on one line, without the rules around it."""
    lines: list[str] = []
    for line in complaint.splitlines()[1:]:  # less its heading
        if not _RULE.match(line):
            lines.append(line.strip())
        elif lines:
            break
    told = " ".join(lines).removeprefix("Error parsing ").rstrip(".")
    return _MISSING.sub(r"\1 given without a value", told)


def _unknown(argument: str, name: str, commands: Mapping[str, type[Command]]) -> str:
    """What to say of an argument that the command of that name does not take."""
    if not argument.startswith("-"):
        return f"{argument!r} is one argument more than hogwild {name} takes (hogwild {name} --help)"
    given = argument.partition("=")[0].lstrip("-").replace("-", "_")
    flags = {other: set(_flags(command)) for other, command in commands.items()}
    having = [f"hogwild {other}" for other in commands if given in flags[other]]
    close = get_close_matches(given, flags[name], 1, _ALIKE)
    if having:
        works = f"{' and '.join(having[:2])} {'has' if len(having) == 1 else 'have'} it"
    elif close:
        works = f"did you mean {flag_of(close[0])}?"
    elif len(flags[name]) <= _FEW:
        works = f"its flags are {', '.join(map(flag_of, sorted(flags[name])))}"
    else:
        works = "its help lists those that are"
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
