"""`hogwild probe`, at work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hogwild.cli.output import show
from hogwild.cli.status import DONE, FAILED_CHECK
from hogwild.determinism.probe import NoProbe, Probe, probe
from hogwild.errors import ArgumentError, NotReproducible
from hogwild.experiment import Study, bound, find, settings_of
from hogwild.report.progress import telling
from hogwild.report.tables import probe_report
from hogwild.rules.registry import rule_class


def probe_command(
    experiment: str,
    rules: Sequence[str],
    kinds: Sequence[str],
    arguments: Mapping[str, Any],
    *,
    json: bool,
    quiet: bool,
) -> int:
    """Probe each rule and kind, with these arguments of `hogwild.probe`, and report; returns the exit status."""
    probes: list[Probe | NoProbe] = []
    with telling("probe", quiet=quiet) as tell:
        for rule in rules:
            for kind in kinds:
                tell(f"{rule}, {kind}")
                try:
                    probes.append(probe(rule, kind, **arguments))
                except NotReproducible as error:
                    probes.append(NoProbe(rule, kind, str(error)))
    if not any(isinstance(one, Probe) for one in probes):
        raise ArgumentError(next(one.why for one in probes if isinstance(one, NoProbe)))
    found = {"name": experiment or "probe", "probes": [one.to_dict() for one in probes]}
    show(found, probe_report(experiment, probes), json=json)
    broken = any(isinstance(one, Probe) and rule_class(one.update).exact and not one.exact for one in probes)
    return FAILED_CHECK if broken else DONE


def model_of(experiment: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What an experiment trains with these settings and parameters of its own, as arguments of `hogwild.probe`.

    Raises:
        ArgumentError: there is no such training, or its data cannot be read.
    """
    found, saved = find(experiment)
    if isinstance(found, Study):
        raise ArgumentError(f"{found.name} is a study and has no model to probe; hogwild list shows the trainings")
    config = settings_of(found, given, saved)
    problem = bound(found, config).build(config.seed, Path(config.data) if config.data else None)
    return {"model": problem.model, "data": problem.data, "loss": problem.loss, "batch_size": config.batch_size}
