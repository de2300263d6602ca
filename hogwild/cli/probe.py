"""`hogwild probe`, its flags: lost and doubled updates, counted, for each rule and kind on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from hogwild.cli.numbers import whole

_MORE = """Every gradient is exactly one and every value begins at zero, so each value ends at the number of
updates that were applied to it. One lost and one doubled in the same value are seen as none.

  hogwild probe                          a model that takes no time, so workers meet as often as they can
  hogwild probe digits-conv              at the size and step time of an experiment's model
  hogwild probe --update racing --workers 4

Exit status 1: a rule that promises to lose nothing (locked, snapshot, ordered, sync) did."""


@dataclass(frozen=True)
class Probe:
    """Count the updates that each rule loses or applies twice on this machine."""

    more: ClassVar[str] = _MORE

    experiment: Annotated[Positional[str], arg(metavar="EXPERIMENT", help_behavior_hint="")] = ""
    """Probe at the size and step time of this experiment's model."""
    update: Annotated[str | None, arg(metavar="RULE", help_behavior_hint="(default: every rule)")] = None
    """The rule to probe."""
    kind: Annotated[str | None, arg(metavar="threads|processes", help_behavior_hint="(default: both)")] = None
    """What a worker is."""
    workers: Annotated[int | None, whole("N"), arg(help_behavior_hint="(default: 2)")] = None
    """Workers that update one model at once."""
    updates: Annotated[int | None, whole("N"), arg(help_behavior_hint="(default: 2,000)")] = None
    """Updates to count."""
    size: Annotated[int | None, whole("V"), arg(help_behavior_hint="(default: 2,410)")] = None
    """Values of the model, where no experiment is named."""
    data: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder of the data, for experiments that do not bring their own."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the result as one JSON object, and nothing else, on standard output."""
    quiet: Annotated[bool, arg(help_behavior_hint="")] = False
    """Show no progress, only the result."""

    def run(self) -> int:
        """Probe each rule and kind, and report."""
        from hogwild.cli.probing import run

        return run(self)
