"""Six ways to train one model from several workers: what does each cost, and what does it do to the result?

    hogwild run rules               # 8 epochs, 3 runs of each of 36 settings
    hogwild run rules --full        # 15 epochs, 6 runs of each

The MLP of `digits` (19,210 parameters), SGD 0.1, batches of 16. `ordered` has staleness 3 and `sync` averages 4
micro-batches, at 4 times the learning rate, whatever the number of workers: that is what gives one result for all.

Seen on 2 cores in 48 s, with 2 processes: speed ÷ plain loop 1.84 hogwild, 1.81 locked, 1.69 racing, 1.56 snapshot,
1.52 ordered, 1.24 sync (19,210 parameters make a step of which copying is a large part); accuracy .946 to .960, plain
.953; one digest in 18 runs each for ordered and sync, as many digests as runs for the others; racing applied 99.9 to
103 % of the computed gradient, hogwild in processes 99.84 to 100 %, the others 100 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from hogwild.config import KINDS
from hogwild.determinism.controls import Controls
from hogwild.experiment import Claim, Findings, Study, StudySettings, Table
from hogwild.rules.registry import LEAST_OVERHEAD, NAMES, SAME_BITS, names_where
from hogwild.run.figures import BLUE, GREEN, GREY, ORANGE, RED, row_of_axes, save_figure

from ._common import crew, measuring
from ._rules import WORKERS, Cell, Field, Setting, distinct

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SAME = names_where(lambda rule: rule.same_bits)
DIFFER = names_where(lambda rule: not rule.same_bits)
EXACT = names_where(lambda rule: rule.exact)
RACING = names_where(lambda rule: rule.shares_gradients)
NEAR = 0.03  # of the serial accuracy
COLOURS = dict(zip(NAMES, cycle((RED, ORANGE, "#b8860b", GREY, BLUE, GREEN)), strict=False))


def cells_of(found: Field, rules: Sequence[str], *, several: bool | None = None) -> list[Cell]:
    """The cells of some rules: with several workers, with one, or all."""
    return [
        cell
        for setting, cell in found.cells.items()
        if setting.rule in rules and (several is None or several != setting.alone)
    ]


def claims(found: Field, controls: Controls) -> list[Claim]:
    """What is promised of the rules, and what came of it."""
    return [
        *(_one_digest(found, rule) for rule in SAME),
        _alone(found),
        *(_differs(found, rule) for rule in DIFFER),
        _audits(found),
        *(_racing(found, rule) for rule in RACING),
        _accuracy(found),
        _chaos(found, controls),
    ]


def _one_digest(found: Field, rule: str) -> Claim:
    cells = cells_of(found, (rule,))
    digests = distinct(cells)
    runs = sum(len(cell.digests) for cell in cells)
    told = f"{len(digests)} digest{'s' * (len(digests) > 1)} in {runs} runs ({min(digests)[:8]}…)"
    workers = ", ".join(str(number) for number in sorted({cell.setting.workers for cell in cells}))
    return Claim(f"{rule}: the same bits with {workers} workers, as threads and as processes", told, len(digests) == 1)


def _alone(found: Field) -> Claim:
    digests = distinct(cells_of(found, DIFFER, several=False))
    told = f"{len(digests)} digest{'s' * (len(digests) > 1)}, and the plain loop's is {found.serial_digest[:8]}…"
    return Claim(
        f"with one worker, {', '.join(DIFFER[:-1])} and {DIFFER[-1]} are the plain loop, to the bit",
        told,
        digests == {found.serial_digest},
    )


def _differs(found: Field, rule: str) -> Claim:
    cells = cells_of(found, (rule,), several=True)
    runs = sum(len(cell.digests) for cell in cells)
    apart = max(cell.apart for cell in cells)
    told = f"{len(distinct(cells))} digests in {runs} runs; relative L2 up to {apart:.2g}"
    return Claim(f"{rule}: runs with several workers end in the same bits", told, len(distinct(cells)) == 1, False)


def _audits(found: Field) -> Claim:
    audits = {cell.setting: cell.audit for cell in cells_of(found, EXACT)}
    whole = sum(audit is not None and audit.whole for audit in audits.values())
    return Claim(
        f"{', '.join(EXACT)}: every gradient is applied exactly once",
        f"{whole} of {len(audits)} audited runs, up to rounding",
        whole == len(audits),
    )


def _racing(found: Field, rule: str) -> Claim:
    audits = [cell.audit for cell in cells_of(found, (rule,), several=True) if cell.audit is not None]
    shares = [audit.projection for audit in audits if audit.projection is not None]
    return Claim(
        f"{rule}: every gradient is applied exactly once",
        f"{100 * min(shares):.4g} to {100 * max(shares):.4g} % of the computed gradient was applied",
        all(audit.whole for audit in audits),
        expected=False,
    )


def _accuracy(found: Field) -> Claim:
    worst = min(
        (median(cell.accuracies), cell.setting.rule, crew(cell.setting.kind, cell.setting.workers))
        for cell in found.cells.values()
    )
    return Claim(
        f"the median run of every setting stays within {NEAR:g} of the accuracy of the plain loop",
        f"plain {found.serial_accuracy:.3f}; the worst median {worst[0]:.3f} ({worst[1]}, {worst[2]})",
        worst[0] >= found.serial_accuracy - NEAR,
    )


def _chaos(found: Field, controls: Controls) -> Claim:
    assert controls.one_ulp is not None
    assert controls.seed is not None
    assert controls.serial is not None
    bit, seed = controls.one_ulp.divergence.relative_l2, controls.seed.divergence.relative_l2
    order = min(cell.apart for cell in cells_of(found, DIFFER, several=True))
    return Claim(
        "the order in which updates land does more to the weights than one flipped bit",
        f"{order:.2g} at least, one bit {bit:.2g}, samples in another order {seed:.2g}; serial again: "
        f"{'identical' if controls.serial.identical else 'DIFFERENT'}",
        controls.serial.identical and bit < order,
    )


def table(found: Field) -> Table:
    """One row per rule, kind and number of workers."""
    rows = [
        (
            cell.setting.rule,
            crew(cell.setting.kind, cell.setting.workers),
            f"{cell.speed:.2f}",
            f"{median(cell.accuracies):.3f}",
            str(len(set(cell.digests))),
            "0" if cell.apart == 0 else f"{cell.apart:.1g}",
            _share(cell),
            f"{sum(cell.ages) / len(cell.ages):.2f}",
        )
        for cell in found.cells.values()
    ]
    headings = ("rule", "workers", "speed", "accuracy", "digests", "apart", "applied", "stale")
    return Table(headings, tuple(rows), left=2)


def _share(cell: Cell) -> str:
    if cell.audit is None or cell.audit.projection is None:
        return "–"
    return "100 %" if cell.audit.whole else f"{100 * cell.audit.projection:.5g} %"


LEGEND = (
    "speed: samples per second ÷ those of the plain loop in the same repeat, median. accuracy: median. "
    "digests: different results. apart: relative L2 between the two runs furthest apart. "
    "applied: of the computed gradient, up to rounding. stale: mean age of the versions read, in updates."
)


def draw(found: Field, controls: Controls, path: Path) -> None:
    """Speed, divergence and audit of every rule, as PNG."""
    drawn, (speed, apart, audit) = row_of_axes(
        16, 4.8, 3, f"{len(NAMES)} rules, one model: digits, SGD, batches of 16, on {found.cores:g} cores"
    )
    _draw_speed(speed, found)
    _draw_apart(apart, found, controls)
    _draw_audit(audit, found)
    save_figure(drawn, path)


def _draw_speed(axes: Axes, found: Field) -> None:
    for rule in NAMES:
        for kind, style in zip(KINDS, ("--", "-"), strict=True):
            speeds = [found.cells[Setting(rule, kind, workers)].speed for workers in WORKERS]
            label = rule if kind == "processes" else None
            axes.plot(WORKERS, speeds, style, marker="o", ms=4, color=COLOURS[rule], label=label)
    axes.axhline(1, color=GREY, linewidth=1)
    axes.set(
        title="Speed: processes ––, threads - -", xlabel="workers", ylabel="samples/s ÷ plain loop", xticks=WORKERS
    )
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=9, framealpha=0.9, edgecolor="none")


def _draw_apart(axes: Axes, found: Field, controls: Controls) -> None:
    assert controls.one_ulp is not None
    assert controls.seed is not None
    floor = controls.one_ulp.divergence.relative_l2 / 10
    for number, rule in enumerate(NAMES):
        for shift, workers in ((-0.2, 2), (0.2, 4)):
            values = [found.cells[Setting(rule, kind, workers)].apart for kind in KINDS]
            for value, kind in zip(values, KINDS, strict=True):
                marker = "o" if kind == "processes" else "s"
                axes.plot(
                    number + shift,
                    max(value, floor),
                    marker,
                    color=COLOURS[rule],
                    ms=7,
                    mfc="none" if not value else None,
                )
    for control, name, colour in (
        (controls.seed, "samples in another order", GREY),
        (controls.one_ulp, "one flipped bit", ORANGE),
    ):
        axes.axhline(control.divergence.relative_l2, color=colour, linestyle="--", linewidth=1.2, label=name)
    axes.set_yscale("log")
    axes.set_xticks(range(len(NAMES)), NAMES)
    axes.set(
        title="Divergence: 2 and 4 processes ●, threads ■; hollow: identical",
        ylabel="relative L2 between the runs furthest apart",
    )
    axes.legend(fontsize=9, framealpha=0.9, edgecolor="none", loc="center right")


def _draw_audit(axes: Axes, found: Field) -> None:
    for number, rule in enumerate(NAMES):
        for cell in cells_of(found, (rule,), several=True):
            if cell.audit is None or cell.audit.projection is None:
                continue
            shift = {2: -0.2, 4: 0.2}[cell.setting.workers]
            marker = "o" if cell.setting.kind == "processes" else "s"
            off = max(abs(cell.audit.projection - 1), 1e-9)
            axes.plot(number + shift, off, marker, color=COLOURS[rule], ms=7, mfc="none" if cell.audit.whole else None)
    bounds = [cell.audit.bound for cell in found.cells.values() if cell.audit is not None]
    axes.axhline(max(bounds), color=GREY, linestyle="--", linewidth=1.2, label="what rounding can do")
    axes.set_yscale("log")
    axes.set_xticks(range(len(NAMES)), NAMES)
    axes.set(title="Audit; hollow: all applied once, up to rounding", ylabel="| share of gradient applied − 1 |")
    axes.legend(fontsize=9, framealpha=0.9, edgecolor="none")


def run(settings: StudySettings) -> Findings:
    """Measure every rule, kind and number of workers."""
    found = Field(15, 5, settings.seed) if settings.full else Field(8, 2, settings.seed)
    with measuring(settings.seed):
        found.measure()
        controls = found.controls()
    path = settings.out / "rules.png"
    draw(found, controls, path)
    two = {rule: found.cells[Setting(rule, "processes", 2)].speed for rule in NAMES}
    answer = (
        f"With 2 processes {LEAST_OVERHEAD} trains at {two[LEAST_OVERHEAD]:.2f} × the speed of a loop written by hand, "
        f"and {SAME_BITS} at {two[SAME_BITS]:.2f} ×, with the same bits on every run; {' and '.join(RACING)} on one "
        f".grad loses and doubles gradients."
    )
    return Findings(tuple(claims(found, controls)), answer, (path,), (table(found),), LEGEND)


experiment = Study("rules", "Six ways to share one model: what does each cost, and do to the result?", run)
