"""`hogwild doctor`: what will bite on this machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, ClassVar

from rich.console import Console
from tyro.conf import arg

from hogwild import doctor
from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.report.objects import to_json
from hogwild.report.tables import doctor_report


@dataclass(frozen=True)
class Doctor:
    """Look at this machine: cores, memory, interpreter, torch, and how fast workers start."""

    more: ClassVar[str] = "Ends with status 1 where something will keep training from working."

    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the findings as one JSON object, and nothing else, on standard output."""

    def run(self) -> int:
        """Examine and report."""
        with Console(stderr=True).status("looking at this machine, and starting workers twice …"):
            findings = list(doctor.examine())
        summary = doctor.summary(findings)
        if self.json:
            sys.stdout.write(to_json(summary) + "\n")
        else:
            Console().print(doctor_report(findings))
        return FAILED_CHECK if summary["verdict"] == "problem" else DONE
