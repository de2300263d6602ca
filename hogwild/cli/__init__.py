"""The command line: one module per command, and no logic of its own.

    argv → parsing.parse → a command → command.run() → exit status

A command is a frozen dataclass whose fields are its flags. To add one, write its module and name it in `COMMANDS`.
What it works with is imported when it runs, so that a help text or a mistyped flag does not wait for torch: the larger
commands have a module for their flags and one for their work (`run` and `running`), which knows nothing of the flags.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from hogwild.cli.aside import prints_aside
from hogwild.cli.bench import BenchCommand
from hogwild.cli.check import CheckCommand
from hogwild.cli.compare import CompareCommand
from hogwild.cli.doctor import DoctorCommand
from hogwild.cli.listing import ListCommand
from hogwild.cli.new import NewCommand
from hogwild.cli.parsing import HELP, Command, parse
from hogwild.cli.probe import ProbeCommand
from hogwild.cli.replay import ReplayCommand
from hogwild.cli.report import ReportCommand
from hogwild.cli.run import RunCommand
from hogwild.cli.runs import RunsCommand
from hogwild.cli.show import ShowCommand
from hogwild.cli.status import status_of
from hogwild.cli.sweep import SweepCommand
from hogwild.workers.process.spawn import refuse_removed_folder

COMMANDS: Mapping[str, type[Command]] = {
    "run": RunCommand,
    "new": NewCommand,
    "list": ListCommand,
    "sweep": SweepCommand,
    "runs": RunsCommand,
    "show": ShowCommand,
    "compare": CompareCommand,
    "report": ReportCommand,
    "check": CheckCommand,
    "replay": ReplayCommand,
    "probe": ProbeCommand,
    "bench": BenchCommand,
    "doctor": DoctorCommand,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0 done; 1 a check or a study failed; 2 a wrong argument, told in one line; 3 training failed; 129 SIGHUP; 130
    Ctrl-C; 143 SIGTERM.

    Args:
        argv: the arguments; None is those of this process.
    """
    arguments = sys.argv[1:] if argv is None else argv
    return status_of(lambda: _run(arguments))


def _run(arguments: Sequence[str]) -> int:
    with prints_aside() if _prints_json(arguments) else nullcontext():  # before parsing, which may start a process
        command = parse(COMMANDS, arguments)
        refuse_removed_folder()
        return command.run()


def _prints_json(arguments: Sequence[str]) -> bool:
    return bool({*arguments[:1]} & {*COMMANDS}) and "--json" in arguments and not HELP & {*arguments}
