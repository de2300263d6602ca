"""`hogwild list`: what there is to run."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, ClassVar

from rich.console import Console
from tyro.conf import arg

from hogwild import experiment
from hogwild.cli.status import DONE
from hogwild.experiment import Training
from hogwild.report.objects import to_json
from hogwild.report.tables import experiments_report


@dataclass(frozen=True)
class List:
    """List the experiments: trainings, and studies that settle claims by measurement."""

    more: ClassVar[str] = "A package of yours adds its own under the entry point group hogwild.experiments."

    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the list as one JSON object, and nothing else, on standard output."""

    def run(self) -> int:
        """Load and list."""
        rows = [_row(name) for name in experiment.names()]
        if self.json:
            found = [{"name": name, "type": what, "question": question} for name, what, question in rows]
            sys.stdout.write(to_json({"experiments": found}) + "\n")
        else:
            Console().print(experiments_report(rows))
        return DONE


def _row(name: str) -> tuple[str, str, str]:
    """Name, what it is, and its question; one that cannot be loaded does not hide the others."""
    try:
        found = experiment.load(name)
    except Exception as error:
        return name, "broken", f"{type(error).__name__}: {error}"
    return name, "training" if isinstance(found, Training) else "study", found.question
