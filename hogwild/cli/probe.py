"""`hogwild probe`: lost and doubled updates, counted, for each rule and kind on this machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from rich.console import Console
from tyro.conf import Positional, arg

from hogwild import recipe
from hogwild.cli.numbers import whole
from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.config import KINDS
from hogwild.determinism.probe import SIZE, probe
from hogwild.determinism.probe import Probe as Counts
from hogwild.errors import ArgumentError
from hogwild.experiment import Study
from hogwild.report.objects import to_json
from hogwild.report.progress import telling
from hogwild.report.tables import probe_report
from hogwild.rules import NAMES

_MORE = """Every gradient is exactly one and every value begins at zero, so each value ends at the number of
updates that were applied to it: nothing is estimated.

  hogwild probe                          a model that takes no time, so workers meet as often as they can
  hogwild probe digits-conv              at the size and step time of an experiment's model
  hogwild probe --update racing --workers 4

Exit status 1: a rule that promises to lose nothing (locked, snapshot, ordered, sync) did."""

_PROMISE = ("locked", "snapshot", "ordered", "sync")


@dataclass(frozen=True)
class Probe:
    """Count exactly how many updates each rule loses or applies twice on this machine."""

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
    size: Annotated[int | None, whole("V"), arg(help_behavior_hint=f"(default: {SIZE:,})")] = None
    """Values of the model, where no experiment is named."""
    data: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None
    """Folder of the data, for experiments that do not bring their own."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the result as one JSON object, and nothing else, on standard output."""
    quiet: Annotated[bool, arg(help_behavior_hint="")] = False
    """Show no progress, only the result."""

    def run(self) -> int:
        """Probe each rule and kind, and report."""
        rules = NAMES if self.update is None else (self.update,)
        kinds = KINDS if self.kind is None else (self.kind,)
        arguments = self._arguments()
        probes: list[Counts] = []
        with telling("probe", quiet=self.quiet) as tell:
            for rule in rules:
                for kind in kinds:
                    tell(f"{rule}, {kind}")
                    probes.append(probe(rule, kind, **arguments))
        if self.json:
            name = self.experiment or "probe"
            sys.stdout.write(to_json({"name": name, "probes": [one.to_dict() for one in probes]}) + "\n")
        else:
            Console().print(probe_report(self.experiment, probes))
        broken = any(one.update in _PROMISE and not one.exact for one in probes)
        return FAILED_CHECK if broken else DONE

    def _arguments(self) -> dict[str, Any]:
        named = {"workers": self.workers, "updates": self.updates, "size": self.size}
        given: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
        if not self.experiment:
            return given
        if self.size is not None:
            raise ArgumentError(f"--size {self.size} given beside {self.experiment}, whose model has a size of its own")
        found, saved = recipe.find(self.experiment)
        if isinstance(found, Study):
            raise ArgumentError(f"{found.name} is a study and has no model to probe; hogwild list shows the trainings")
        config = recipe.settle(found, {"data": str(self.data.absolute())} if self.data else {}, saved)
        problem = found.build(config.seed, Path(config.data) if config.data else None)
        return {
            **given,
            "model": problem.model,
            "data": problem.data,
            "loss": problem.loss,
            "batch_size": config.batch_size,
        }
