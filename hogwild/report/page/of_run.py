"""One run as a section: its learning curves, how stale its gradients were, and who computed them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hogwild.report.page.figures import ACCENT, OTHER, SERIES, SOFT, Bar, Curve, ages, bars, curves
from hogwild.report.page.parts import DataTable, Drawing, Section, paired
from hogwild.report.ranking import low_is_good, setting_text
from hogwild.report.run_words import optimizer_in_words, resumed_in_words, usage_cells
from hogwild.report.smoothed import finite_losses, smoothed_loss
from hogwild.report.words import count, duration, figure, is_loss, plural
from hogwild.rules.registry import RULES, gives_same_bits
from hogwild.run.result import INTERRUPTED, Run
from hogwild.run.saved.found import DEFAULTS, FoundRun, going_on_by
from hogwild.run.saved.setting_words import called

_UPDATES, _SECONDS = "updates", "seconds of training"
_METRICS = 3  # that are drawn


def run_section(found: FoundRun, run: Run) -> Section:
    """A run, at length."""
    return Section(
        kind="run",
        title=run.config.name,
        about=f"{run.title.partition(' · ')[2]} · {found.path}",
        verdict=_verdict(run),
        good=None if run.stopped is None and not run.failures and not run.diverged else False,
        facts=_facts(run),
        lines=list(_lines(run)),
        drawings=paired([*_losses(run), *_metric_drawings(run), _staleness(run), _work(run)]),
        tables=[_workers(run), _settings(found), *_environment(run)],
        notes=[*(failure.splitlines()[0] for failure in run.failures), *_not_finite(run)],
    )


def _lines(run: Run) -> Iterator[tuple[str, str]]:
    """What was trained with, and when it was gone on with."""
    for name, told in {
        "optimizer": optimizer_in_words(run),
        "compensated by": ", ".join(run.compensation),
        "resumed": resumed_in_words(run),
        "changed": "; ".join(map(str, run.config.changes)),
    }.items():
        if told:
            yield name, told


def _not_finite(run: Run) -> Iterator[str]:
    number = int((~np.isfinite(run.losses)).sum())
    if number:
        yield f"The loss of {plural(number, 'update')} is not finite; the curves leave them out."


def _verdict(run: Run) -> str:
    metrics = [f"{name.replace('_', ' ')} {figure(value)}" for name, value in run.metrics.items()][:2]
    told = " and ".join(metrics) or f"a training loss of {figure(run.loss)}"
    text = f"{plural(run.updates, 'update')} in {duration(run.seconds)} led to {told}."
    if run.diverged:
        text += f" But {run.diverged}."
    if run.best is not None:
        name, value = run.best.metric.replace("_", " "), figure(run.best.value)
        text += f" The best {name} was {value} at update {count(run.best.update)}, and that version is kept."
    if run.stopped == INTERRUPTED and run.out is not None:
        text += f" The run was interrupted; {going_on_by(run.out, run.origin)} goes on."
    elif run.stopped:
        text += f" It ended early: {run.stopped}."
    if run.failures:
        text += (
            f" {plural(len(run.failures), 'worker')} failed on the way; {plural(len(run.in_doubt), 'update')} in doubt."
        )
    if run.config.update in RULES:
        same = gives_same_bits(run.config.update)
        text += (
            f" Under {run.config.update} these bits are the same in every run, with any number of workers."
            if same
            else f" Under {run.config.update} runs differ from each other; hogwild check says how far."
        )
    return text


def _facts(run: Run) -> list[tuple[str, str]]:
    found = [(name.replace("_", " "), figure(value)) for name, value in list(run.metrics.items())[:_METRICS]]
    found.append(("training loss", figure(run.loss)))
    found.append(("updates", count(run.updates)))
    found.append(("time", duration(run.seconds)))
    found.append((f"{run.unit} per second", count(run.samples_per_second)))
    return found


# --- learning curves


def seconds_of(run: Run, updates: NDArray[Any]) -> NDArray[np.float64]:
    """When those updates were made, in seconds since the first claim: known at evaluations and at the end, and
    interpolated between them."""
    known = {0.0: 0.0}
    known |= {float(row["update"]): float(row["seconds"]) for row in run.evaluations if "seconds" in row}
    known[float(max(run.updates, 1))] = max(run.seconds, *known.values())
    places = sorted(known)
    found: NDArray[np.float64] = np.interp(updates, places, [known[place] for place in places])
    return found


def _losses(run: Run) -> Iterator[Drawing]:
    losses, versions = finite_losses(run)
    if not len(losses):
        return
    at, means, width = smoothed_loss(run)
    evaluated = [name for name in run.metrics if is_loss(name)][:2]
    mean = f"mean of {width} batches" if width > 1 else "each batch"
    fell = "fell" if means[-1] <= means[0] else "rose"
    way = f"{fell} from {figure(means[0])} to {figure(means[-1])}"
    if run.diverged:
        way = "diverged" if np.isfinite(run.losses[-1]) else "diverged, and is not finite any more"
    beside = f" In orange: {evaluated[0].replace('_', ' ')}, as evaluated." if evaluated else ""
    told = f"The loss, {mean}, {way}.{beside}"
    for axis, what in ((_UPDATES, told), (_SECONDS, "The same over time. Between evaluations, time is interpolated.")):

        def x(updates: NDArray[Any], axis: str = axis) -> NDArray[Any]:
            return updates if axis == _UPDATES else seconds_of(run, updates)

        found = [Curve(mean, x(at), means, ACCENT)]
        for name, colour in zip(evaluated, SERIES[1:], strict=False):
            where, values = evaluations_of(run, name)
            found.append(Curve(name.replace("_", " "), x(where), values, colour, "points"))
        if width > 1:
            found.append(Curve("each batch", x(versions), losses, SOFT, "dots"))
        yield Drawing(f"Loss over {axis.partition(' ')[0]}", what, curves(found, axis, ""))


def evaluations_of(run: Run, name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The updates at which a metric was measured, and what it was."""
    rows = [(row["update"], row[name]) for row in run.evaluations if name in row]
    return np.array([row[0] for row in rows], float), np.array([row[1] for row in rows], float)


def _metric_drawings(run: Run) -> Iterator[Drawing]:
    names = [name for name in run.metrics if not is_loss(name)][:_METRICS]
    for name in names:
        at, values = evaluations_of(run, name)
        finite = values[np.isfinite(values)]
        if len(finite) < 2:
            continue
        told = _metric_in_words(name, at, values)
        word = name.replace("_", " ")
        for axis, what in ((_UPDATES, told), (_SECONDS, f"The same over time: {duration(run.seconds)} in all.")):
            x = at if axis == _UPDATES else seconds_of(run, at)
            plot = curves([Curve(word, x, values, SERIES[2], "points")], axis, "", log_y=False)
            yield Drawing(f"{word[:1].upper()}{word[1:]} over {axis.partition(' ')[0]}", what, plot)


def _metric_in_words(name: str, at: NDArray[np.float64], values: NDArray[np.float64]) -> str:
    best = int(np.nanargmin(values) if low_is_good(name) else np.nanargmax(values))
    told = f"Evaluated {len(values)} times: from {figure(values[0])} to {figure(values[-1])}"
    if values[best] == values[-1]:
        return f"{told}, which is its best."
    return f"{told}; its best was {figure(values[best])}, after {count(at[best])} updates."


# --- what the parallelism did


def age_counts(run: Run) -> NDArray[np.int64]:
    """`counts[a]`: updates whose gradient was computed on a version that was a updates old."""
    found = run.journal["version"] - 1 - run.journal["version_read"]
    return np.bincount(found) if len(found) else np.zeros(1, int)


def _staleness(run: Run) -> Drawing:
    counts = age_counts(run)
    total = max(int(counts.sum()), 1)
    usual = int(counts.argmax())
    share = 100 * counts[usual] / total
    told = (
        f"{share:.3g} % of the gradients were computed on a model that was {plural(usual, 'update')} old when they "
        f"were applied; the mean is {run.staleness.mean:.2f} and the oldest was {run.staleness.max}."
    )
    if run.staleness.set is not None and run.config.update in RULES and gives_same_bits(run.config.update):
        told += " This rule sets the age, whatever the workers do."
    return Drawing("Staleness", told, ages({"": counts}))


def _work(run: Run) -> Drawing:
    computed = [usage.computed for usage in run.workers]
    total = max(sum(computed), 1)
    found = [
        Bar(
            f"worker {usage.worker}",
            usage.computed,
            ACCENT if usage.computed else OTHER,
            told=f"{plural(usage.computed, 'gradient')}, {duration(usage.cpu_seconds)} of CPU, "
            f"{duration(usage.waited_seconds)} waiting",
        )
        for usage in run.workers
    ]
    least = 100 * min(computed, default=0) / total
    most = 100 * max(computed, default=0) / total
    told = (
        f"{plural(len(computed), 'worker')} computed {plural(total, 'gradient')}: "
        + (f"each {most:.3g} %." if f"{least:.3g}" == f"{most:.3g}" else f"between {least:.3g} and {most:.3g} % each.")
        + f" They waited for each other for {duration(sum(usage.waited_seconds for usage in run.workers))} in all."
    )
    if run.rechecked:
        were = "was" if run.rechecked == 1 else "were"
        told += f" {plural(run.rechecked, 'gradient')} {were} computed a second time, and had the same bits."
    return Drawing("Work per worker", told, bars(found, "gradients computed"))


# --- tables


def _workers(run: Run) -> DataTable:
    headings = ("worker", "gradients", "CPU time", "waited", "memory")
    return DataTable("Workers", headings, [usage_cells(usage) for usage in run.workers], folded=True)


def _settings(found: FoundRun) -> DataTable:
    rows = [(called(name), setting_text(value)) for name, value in found.settings.items()]
    own = [place for place, name in enumerate(found.settings) if found.settings[name] != DEFAULTS.get(name)]
    return DataTable("Settings", ("setting", "value"), rows, strong=own, folded=True, note="Bold: not the default.")


def _environment(run: Run) -> Iterator[DataTable]:
    where: Mapping[str, Any] = run.environment
    if where:
        rows = [(name, _in_words(value)) for name, value in where.items() if name != "flags"]
        rows.append(("digest", run.digest))
        yield DataTable("Where it was made", ("what", "value"), rows, folded=True)


def _in_words(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {inner}" for name, inner in value.items()) or "–"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "–" if value is None else str(value)
