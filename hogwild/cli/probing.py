"""`hogwild probe`, at work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.cli.output import show
from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.config import KINDS
from hogwild.determinism.probe import NoProbe, probe
from hogwild.determinism.probe import Probe as Counts
from hogwild.errors import ArgumentError, NotReproducible
from hogwild.experiment import Study, find, settings_of
from hogwild.report.progress import telling
from hogwild.report.tables import probe_report
from hogwild.rules.registry import NAMES, rule_class

if TYPE_CHECKING:
    from hogwild.cli.probe import Probe


def run(flags: Probe) -> int:
    """Probe each rule and kind, and report; returns the exit status."""
    rules = NAMES if flags.update is None else (flags.update,)
    kinds = KINDS if flags.kind is None else (flags.kind,)
    arguments = _arguments(flags)
    probes: list[Counts | NoProbe] = []
    with telling("probe", quiet=flags.quiet) as tell:
        for rule in rules:
            for kind in kinds:
                tell(f"{rule}, {kind}")
                try:
                    probes.append(probe(rule, kind, **arguments))
                except NotReproducible as error:
                    probes.append(NoProbe(rule, kind, str(error)))
    if not any(isinstance(one, Counts) for one in probes):
        raise ArgumentError(next(one.why for one in probes if isinstance(one, NoProbe)))
    found = {"name": flags.experiment or "probe", "probes": [one.to_dict() for one in probes]}
    show(found, probe_report(flags.experiment, probes), json=flags.json)
    broken = any(isinstance(one, Counts) and rule_class(one.update).exact and not one.exact for one in probes)
    return FAILED_CHECK if broken else DONE


def _arguments(flags: Probe) -> dict[str, Any]:
    named = {"workers": flags.workers, "updates": flags.updates, "size": flags.size}
    given: dict[str, Any] = {key: value for key, value in named.items() if value is not None}
    if not flags.experiment:
        return given
    if flags.size is not None:
        raise ArgumentError(f"--size {flags.size} given beside {flags.experiment}, whose model has a size of its own")
    found, saved = find(flags.experiment)
    if isinstance(found, Study):
        raise ArgumentError(f"{found.name} is a study and has no model to probe; hogwild list shows the trainings")
    config = settings_of(found, {"data": str(flags.data.absolute())} if flags.data else {}, saved)
    problem = found.build(config.seed, Path(config.data) if config.data else None)
    return {
        **given,
        "model": problem.model,
        "data": problem.data,
        "loss": problem.loss,
        "batch_size": config.batch_size,
    }
