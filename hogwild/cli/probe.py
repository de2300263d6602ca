"""`hogwild probe`, its flags: lost and doubled updates, counted, for each rule and kind on this machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from tyro.conf import Positional, arg

from hogwild.cli.own import NoOwnFlags
from hogwild.cli.settings import SettingFlags
from hogwild.cli.values import folder, whole
from hogwild.config import KINDS
from hogwild.errors import ArgumentError
from hogwild.rules.registry import NAMES
from hogwild.workers.process.early import start_server_early

_MORE = """How it counts:
  Every gradient is exactly one and every value begins at zero, so each value
  ends at the number of updates that were applied to it. One lost and one
  doubled in the same value are seen as none.

Examples:
  hogwild probe                  a model that takes no time, so workers meet as
                                 often as they can
  hogwild probe digits-conv      at the size and step time of an experiment
  hogwild probe train.py --hidden 64
                                 of a file of yours, with its own flags
  hogwild probe --update racing --workers 4

Exit status:
  1      a rule that promises to lose no step did (hogwild list: exact)"""


@dataclass(frozen=True)
class ProbeCommand:
    """Count the updates that each rule loses or applies twice on this machine."""

    more: ClassVar[str] = _MORE
    without_experiment: ClassVar[tuple[str, ...]] = ("size",)

    experiment: Annotated[Positional[str], arg(metavar="EXPERIMENT", help_behavior_hint="")] = ""
    """Probe at the size and step time of the model of this experiment, or of a file of yours that defines one."""
    update: Annotated[str | None, arg(metavar="RULE", help_behavior_hint="(default: every rule)")] = None
    """The rule to probe."""
    kind: Annotated[str | None, arg(metavar="|".join(KINDS), help_behavior_hint="(default: both)")] = None
    """What a worker is."""
    workers: Annotated[int | None, whole("N"), arg(help_behavior_hint="(default: 2)")] = None
    """Workers that update one model at once."""
    updates: Annotated[int | None, whole("N"), arg(help_behavior_hint="(default: 2,000)")] = None
    """Updates to count."""
    own: Annotated[SettingFlags, arg(constructor=NoOwnFlags, name="")] = field(default_factory=NoOwnFlags)
    size: Annotated[int | None, whole("V"), arg(help_behavior_hint="(default: 2,410)")] = None
    """Values of the model, where no experiment is named."""
    data: Annotated[str | None, folder("FOLDER"), arg(help_behavior_hint="")] = None
    """Folder of the data, for experiments that do not bring their own."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the result as one JSON object, and nothing else, on standard output."""
    quiet: Annotated[bool, arg(help_behavior_hint="")] = False
    """Show no progress, only the result."""

    def run(self) -> int:
        """Probe each rule and kind, and report."""
        if self.experiment and self.size is not None:
            raise ArgumentError(f"--size {self.size} given beside {self.experiment}, whose model has a size of its own")
        rules = NAMES if self.update is None else (self.update,)
        kinds = KINDS if self.kind is None else (self.kind,)
        named = {"workers": self.workers, "updates": self.updates, "size": self.size}
        start_server_early("processes" if "processes" in kinds else "threads")
        from hogwild.cli.probing import model_of, probe_command

        arguments = {key: value for key, value in named.items() if value is not None}
        if self.experiment:
            arguments |= model_of(self.experiment, self.own.given() | ({"data": self.data} if self.data else {}))
        return probe_command(self.experiment, rules, kinds, arguments, json=self.json, quiet=self.quiet)
