"""Runs side by side: which settings differ, which run is best, and which settings are best over seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import nan
from typing import Any

from hogwild.determinism.interval import MeanInterval
from hogwild.errors import ArgumentError, NonFiniteError, some_of
from hogwild.run.saved.best import lowest_is_best
from hogwild.run.saved.found import (
    BEST_OF,
    DEFAULTS,
    FAILED,
    OWN_CODE,
    WATCHING,
    FoundRun,
    best_metric,
    differing_settings,
    setting_names,
    setting_of,
)
from hogwild.run.saved.metrics import json_values
from hogwild.run.saved.setting_words import called, short_value

LOSS = "loss"
_MEASURED: Mapping[str, Callable[[FoundRun], float | None]] = {
    LOSS: lambda run: run.loss,
    "updates": lambda run: run.updates,
    "seconds": lambda run: run.seconds,
    "samples_per_second": lambda run: run.samples_per_second,
}
"""What every run has beside the metrics of its evaluation."""
_TIMED = frozenset({"seconds", "samples_per_second"})  # which are others where a run is made again
_SEED = "seed"


def shared_settings(runs: Sequence[FoundRun]) -> dict[str, Any]:
    """Name → value of the settings that are equal in all runs and are not the defaults."""
    differing = differing_settings(runs)
    names = [name for name in setting_names(runs) if name not in differing and not name.startswith(OWN_CODE)]
    found = {name: setting_of(runs[0], name) for name in names}
    return {name: value for name, value in found.items() if value is not None and value != DEFAULTS.get(name)}


def metric_names(runs: Sequence[FoundRun]) -> list[str]:
    """Of the evaluations of all runs, in the order in which they come."""
    return list(dict.fromkeys(name for run in runs for name in run.metrics))


def one_metric_of_each(runs: Sequence[FoundRun]) -> list[str]:
    """As few metrics as show one of each run that has any, the first that it has."""
    found: list[str] = []
    for run in runs:
        there = [name for name, value in run.metrics.items() if value is not None]
        if there and not any(name in found for name in there):
            found.append(there[0])
    return found


def best_names(runs: Sequence[FoundRun]) -> list[str]:
    """Under what names the values of best versions are listed, of all runs."""
    return [name for name in dict.fromkeys(map(best_metric, runs)) if name]


def value_of(run: FoundRun, name: str) -> Any:
    """A metric, that of the best version, what every run has, or a setting; None where the run has no such thing."""
    if name in run.metrics:
        return run.metrics[name]
    if name in _MEASURED:
        return _MEASURED[name](run)
    return run.best.get("value") if name == best_metric(run) else setting_of(run, name)


def low_is_good(name: str) -> bool:
    """True for losses, errors and seconds, as far as the name tells; and for settings, which are listed from below."""
    return name in DEFAULTS or lowest_is_best(name)


def sorted_runs(runs: Sequence[FoundRun], name: str, *, lowest: bool) -> list[FoundRun]:
    """The runs by a metric or a setting, the lowest or the highest first; those without it last.

    Raises:
        ArgumentError: no run has it.
    """
    if runs and not any(_is_measured(run, name) or name in run.settings for run in runs):
        raise ArgumentError(
            f"{name!r} is in no run; {', '.join(_measured(runs))} are measured, and any setting, such as lr, works too"
        )
    there = [run for run in runs if value_of(run, name) is not None]
    there.sort(key=lambda run: _comparable(value_of(run, name)), reverse=not lowest)
    return [*there, *(run for run in runs if value_of(run, name) is None)]


def _comparable(value: Any) -> tuple[int, float, str]:
    """Numbers before words; a whole number may be one that no float holds."""
    return (0, value, "") if isinstance(value, int | float) else (1, 0.0, str(value))


@dataclass(frozen=True)
class Choice:
    """Settings, and what a metric came to under them, over seeds.

    Attributes:
        settings: those that differ between the runs, the seed left out.
        interval: mean of the metric over the runs, and its interval; NaN of no run.
        least, most: of the metric; NaN of no run.
        seeds: of the runs, sorted; fewer than runs where two runs had the same.
        runs: the runs.
        diverged: runs that should have had that metric, and came to no finite number, or ended by one.
    """

    settings: Mapping[str, Any]
    interval: MeanInterval
    least: float
    most: float
    seeds: tuple[int, ...]
    runs: tuple[FoundRun, ...]
    diverged: tuple[FoundRun, ...] = ()

    @property
    def bits(self) -> frozenset[tuple[Any, str | None]]:
        """(seed, digest) of its runs."""
        return frozenset((setting_of(run, _SEED), run.digest) for run in self.runs)

    @property
    def came_to_one_value(self) -> bool:
        """True where several runs of other bits have the same metric, so that an interval of 0 is no spread."""
        return self.least == self.most and len({run.digest for run in self.runs}) > 1

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        found = {
            "settings": dict(self.settings),
            **asdict(self.interval),
            "min": self.least,
            "max": self.most,
            "seeds": list(self.seeds),
            "runs": [str(run.path) for run in self.runs],
            "diverged": [str(run.path) for run in self.diverged],
        }
        return {name: json_values(value) for name, value in found.items()}


def choices(runs: Sequence[FoundRun], metric: str, *, lowest: bool) -> list[Choice]:
    """The settings by a metric, best first: the mean over all whole runs that differ in nothing but the seed. Settings
    that change nothing of the training do not count, and a run that was made again to the bit counts once. Settings
    some of whose runs diverged come after all others, for their mean is of those that went well.

    Raises:
        ArgumentError: no whole run has that metric.
    """
    measured = [run for run in runs if run.whole and _number(run, metric) is not None]
    if not measured:
        raise ArgumentError(_why_no_choice(runs, metric))
    _refuse_several_experiments(measured, metric)
    lost = [run for run in runs if _name(run) == _name(measured[0]) and _diverged(run, metric)]
    names = [name for name in differing_settings([*measured, *lost]) if name != _SEED and name not in WATCHING]
    groups: dict[tuple[str, ...], tuple[list[FoundRun], list[FoundRun]]] = {}
    for went_well, run in (*((True, run) for run in measured), *((False, run) for run in lost)):
        key = tuple(repr(setting_of(run, name)) for name in names)
        good, bad = groups.setdefault(key, ([], []))
        if not went_well:
            bad.append(run)
        elif not any(_repeats(run, other, metric) for other in good):
            good.append(run)
    found = [_choice(names, good, bad, metric) for good, bad in groups.values()]
    return sorted(found, key=lambda choice: _rank(choice, lowest=lowest))


def _why_no_choice(runs: Sequence[FoundRun], metric: str) -> str:
    """In words, why no run can be selected by that metric, and by what it can be."""
    if not runs:
        return f"{metric!r} can be selected by in no run: there is none"
    whole = [run for run in runs if run.whole]
    came_to_none = any(_diverged(run, metric) for run in whole)
    why = f"{'came to no finite number in any' if came_to_none else 'is measured in no'} run that has ended"
    others = [name for name in _measured(whole) if any(_number(run, name) is not None for run in whole)]
    return f"{metric!r} {why}; {', '.join(others)} can be selected by" if others else f"{metric!r} {why}"


def _rank(choice: Choice, *, lowest: bool) -> tuple[bool, bool, float]:
    mean = choice.interval.mean
    return bool(choice.diverged), not choice.runs, 0.0 if not choice.runs else mean if lowest else -mean


def _diverged(run: FoundRun, metric: str) -> bool:
    """Whether a run should have had a metric, and has no number because it came to none."""
    if run.status == FAILED:
        return run.why.startswith(f"{NonFiniteError.__name__}:")
    wanted = _is_measured(run, metric) or metric == f"{BEST_OF}{setting_of(run, 'keep_best')}"
    return run.whole and wanted and _number(run, metric) is None


def _name(run: FoundRun) -> str:
    return str(setting_of(run, "name"))


def not_ended(runs: Sequence[FoundRun], found: Sequence[Choice]) -> int:
    """How many runs count nowhere, because they have not ended, or not by what they were set to."""
    counted = {run.path for choice in found for run in choice.diverged}
    return sum(not run.whole and run.path not in counted for run in runs)


def _repeats(run: FoundRun, other: FoundRun, metric: str) -> bool:
    """Whether a run is another one made again to the bit, which tells nothing new of a metric but its time."""
    same = run.digest is not None and run.digest == other.digest and run.updates == other.updates
    if not same or setting_of(run, _SEED) != setting_of(other, _SEED):
        return False
    if metric in run.metrics:
        return True
    return run.best == other.best if metric == best_metric(run) else metric not in _TIMED


def _measured(runs: Sequence[FoundRun]) -> list[str]:
    metrics = [*metric_names(runs), *best_names(runs)]
    return [*metrics, *(name for name in _MEASURED if name not in metrics)]


def _is_measured(run: FoundRun, name: str) -> bool:
    return name in run.metrics or name in _MEASURED or name == best_metric(run)


def _refuse_several_experiments(runs: Sequence[FoundRun], metric: str) -> None:
    experiments = list(dict.fromkeys(map(_name, runs)))
    if len(experiments) > 1:
        raise ArgumentError(
            f"{metric!r} of {' and of '.join(experiments[:3])} cannot be compared; name the runs of one of them, as in "
            f"hogwild runs runs/{experiments[0]}-* --select {metric}"
        )


def _choice(names: Sequence[str], runs: Sequence[FoundRun], lost: Sequence[FoundRun], metric: str) -> Choice:
    values = [value for run in runs if (value := _number(run, metric)) is not None]
    interval = MeanInterval.of(values) if values else MeanInterval(nan, None, 0)
    seeds = sorted({seed for run in runs if isinstance(seed := setting_of(run, _SEED), int)})
    settings = {name: setting_of((*runs, *lost)[0], name) for name in names}
    least, most = min(values, default=nan), max(values, default=nan)
    return Choice(settings, interval, least, most, tuple(seeds), tuple(runs), tuple(lost))


def conclusion_of(found: Sequence[Choice], metric: str, *, lowest: bool) -> str:
    """In words, which settings are best, and whether the runs are enough to say so."""
    return f"{_best_in_words(found, metric, lowest=lowest)}{_diverged_in_words(found, metric)}"


def _best_in_words(found: Sequence[Choice], metric: str, *, lowest: bool) -> str:
    found = [choice for choice in found if choice.runs]
    tied, others = tied_for_best(found), found[len(tied_for_best(found)) :]
    best, order = tied[0], "lowest" if lowest else "highest"
    told = f"{order} mean {metric}: {in_words(best.settings) or 'all runs, which differ in the seed alone'}"
    if len(tied) > 1:
        names = some_of([in_words(choice.settings) for choice in tied], between="; ")
        told = f"tied for the {order} mean {metric}: {names}"
        if len({choice.bits for choice in tied}) == 1:
            told += ". Their runs have the same bits"
    rivals = [other for other in others if best.interval.overlaps(other.interval)]
    if not others:
        return f"{told}."
    if any(choice.interval.half is None for choice in (best, *rivals)):
        return f"{told}. There is one run of some settings: more seeds would tell whether that is luck."
    if rivals:
        shared = f"{len(rivals)} of the {len(others)} others"
        return f"{told}. Its interval overlaps with {shared}: these runs do not settle it."
    told += ". Its interval overlaps with none of the others"
    if alike := [choice for choice in (best, *others) if choice.came_to_one_value]:
        names = some_of([in_words(choice.settings) for choice in alike], between="; ")
        return f"{told}, but all runs of {names} came to one value: more seeds would tell how far they spread."
    return f"{told}."


def _diverged_in_words(found: Sequence[Choice], metric: str) -> str:
    """Of which settings some runs count in no mean; empty where all do."""
    lost = [choice for choice in found if choice.diverged]
    if not lost:
        return ""
    told = [f"{in_words(one.settings) or 'all runs'} ({diverged_of(one)})" for one in lost]
    return f" Runs that diverged have no {metric.replace('_', ' ')}, and these come last: {some_of(told)}."


def diverged_of(choice: Choice) -> str:
    """How many of its runs diverged: 2 of 5."""
    return f"{len(choice.diverged)} of {len(choice.runs) + len(choice.diverged)}"


def tied_for_best(found: Sequence[Choice]) -> list[Choice]:
    """Of settings, best first: those whose mean is that of the first, and of as many runs that went well."""
    best = found[0]
    return [
        one for one in found if one.interval.mean == best.interval.mean and bool(one.diverged) == bool(best.diverged)
    ]


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings on one line: lr 0.1, update ordered."""
    return ", ".join(f"{called(name)} {setting_text(short_value(name, value))}" for name, value in settings.items())


def setting_text(value: Any) -> str:
    """The value of a setting as a table has it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else str(value)
    return str(value)


def _number(run: FoundRun, metric: str) -> float | None:
    value = value_of(run, metric) if _is_measured(run, metric) else None
    return None if value is None else float(value)
