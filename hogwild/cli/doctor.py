"""`hogwild doctor`: what will bite on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from tyro.conf import arg

from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.workers.process.early import import_torch


@dataclass(frozen=True)
class DoctorCommand:
    """Look at this machine: cores, memory, torch, and how fast workers start."""

    more: ClassVar[str] = "Ends with status 1 where something will keep training from working."

    fingerprint: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the numerical fingerprint alone: machines that have the same compute the same bits."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the findings as one JSON object, and nothing else, on standard output."""

    def run(self) -> int:
        """Examine and report."""
        import_torch()
        if self.fingerprint:
            return self._fingerprint()
        from hogwild.bench import doctor
        from hogwild.cli.output import show
        from hogwild.report.tables import doctor_report
        from hogwild.report.terminal import terminal

        with terminal(stderr=True).status("looking at this machine, and starting workers twice …"):
            findings = list(doctor.examine())
        summary = doctor.doctor_summary(findings)
        show(summary, doctor_report(findings), json=self.json)
        return FAILED_CHECK if summary["verdict"] == "problem" else DONE

    def _fingerprint(self) -> int:
        from hogwild.cli.output import show
        from hogwild.run.saved.fingerprint import fingerprint

        found = fingerprint()
        show({"fingerprint": found}, found, json=self.json)
        return DONE
