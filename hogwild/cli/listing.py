"""`hogwild list`: what there is to run, and the rules to run it by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from tyro.conf import arg

from hogwild.cli.status import DONE
from hogwild.workers.process.early import import_torch


@dataclass(frozen=True)
class ListCommand:
    """List the experiments, which are trainings and studies, and the rules."""

    more: ClassVar[str] = (
        "A file of yours is not in the list: hogwild run train.py trains what it defines.\n\n"
        "A package of yours adds its own under the entry point group hogwild.experiments."
    )

    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the list as one JSON object, and nothing else, on standard output."""

    def run(self) -> int:
        """Load and list."""
        import_torch()
        from hogwild import experiment
        from hogwild.cli.output import show
        from hogwild.report.tables import list_report
        from hogwild.rules.registry import NAMES, rule_class

        rows = [_row(name) for name in experiment.names()]
        rules = [rule_class(name) for name in NAMES]
        found = {
            "experiments": [{"name": name, "type": what, "question": question} for name, what, question in rows],
            "rules": [
                {
                    "name": rule.name,
                    "summary": rule.summary,
                    "exact": rule.exact,
                    "versioned": rule.versioned,
                    "same_bits": rule.same_bits,
                }
                for rule in rules
            ],
        }
        show(found, list_report(rows, rules), json=self.json)
        return DONE


def _row(name: str) -> tuple[str, str, str]:
    """Name, what it is, and its question; one that cannot be loaded does not hide the others."""
    from hogwild import experiment

    try:
        found = experiment.load(name)
    except Exception as error:
        return name, "broken", f"{type(error).__name__}: {error}"
    return name, "training" if isinstance(found, experiment.Training) else "study", found.question
