"""What does staleness cost, and what makes up for it?

    hogwild run staleness               # 3 seeds, 2 minutes
    hogwild run staleness --full        # 10 seeds, 5 minutes

Digits, an MLP 64-32-10 with tanh, 15 epochs of batches of 16, rule `ordered`, one worker: more give the same bits,
as the study verifies once. Each setting as it is, and with compensation="auto". Seen with torch 2.13, 10 seeds, median
accuracy on 297 held-out digits [all seeds]:

    τ                      0                  1                  3                  7                  15
    SGD 0.1                .960 [.953–.973]   .960 [.953–.973]   .961 [.949–.973]   .963 [.946–.966]   .953 [.936–.956]
      compensated                             .960 [.953–.973]   .961 [.949–.973]   .958 [.946–.963]   .956 [.953–.966]
    SGD 0.5                .970 [.960–.980]   .973 [.963–.983]   .924 [.700–.943]   .096 [.088–.118]   .094 [.088–.118]
      compensated                             .973 [.970–.980]   .976 [.963–.983]   .973 [.963–.976]   .965 [.956–.976]
    SGD 0.1, momentum 0.9  .978 [.966–.983]   .973 [.963–.980]   .098 [.088–.118]   .094 [.088–.118]   .093 [.088–.118]
      compensated                             .978 [.966–.980]   .978 [.966–.983]   .976 [.963–.980]   .965 [.956–.976]
    the same with ReLU     .971 [.939–.983]   .386 [.088–.953]
      compensated                             .975 [.963–.980]   .978 [.966–.983]   .973 [.966–.983]   .970 [.949–.973]
    Adam 0.01              .971 [.963–.980]   .973 [.943–.980]   .970 [.956–.980]   .939 [.832–.973]   .734 [.451–.815]
      compensated                             .971 [.960–.980]   .973 [.963–.980]   .973 [.963–.980]   .966 [.963–.980]

By hand, lr / (τ + 1) comes within .017 of serial where something was lost up to τ = 7, and a momentum of
1 − (1 − μ)(τ + 1) within .015. Momentum is not what fails, the step is: SGD as set learned in each of 160 runs where
lr / (1 − momentum) × (τ + 1) was at most 1, and in none of 50 where it was 4 or more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hogwild.experiment import Claim, Findings, Study, StudySettings
from hogwild.run.figures import BLUE, GREEN, GREY, ORANGE, RED, row_of_axes, save_figure

from ._common import measuring
from ._staleness import Bench, Cell, Setting, accuracy_axis, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SGD = Setting("SGD", 0.1)
LARGE = Setting("SGD", 0.5)
MOMENTUM = Setting("SGD", 0.1, 0.9)
ADAM = Setting("Adam", 0.01, 0.9)
SETTINGS = (SGD, LARGE, MOMENTUM, ADAM)
RELU = replace(MOMENTUM, activation="ReLU")

LOST = 0.01  # three of the 297 held-out digits, and the standard error of an accuracy near .97
CLOSE = 0.02  # of the serial accuracy: what compensation may cost in a training of fixed length
NEAR = 0.03  # likewise, what a smaller step may cost
BY_HAND = 7  # the largest τ that a smaller step is asked to make up for
LEARNS, GUESSES = 0.9, 0.2  # one class in ten is right by guessing
EXAMPLE = 3  # the τ of the check with several workers, and of the answer


def lost(bench: Bench, setting: Setting, tau: int) -> bool:
    """True when the median is `LOST` under that of τ = 0, or the worst seed twice as much under the worst."""
    serial, stale = bench.cell(setting, 0), bench.cell(setting, tau)
    return stale.median < serial.median - LOST or stale.worst < serial.worst - 2 * LOST


def losses(bench: Bench) -> list[tuple[Setting, int]]:
    """The settings and delays that lost accuracy, of those that a smaller step is asked to make up for."""
    return [(one, tau) for one in SETTINGS for tau in bench.delays if 0 < tau <= BY_HAND and lost(bench, one, tau)]


def same_bits(bench: Bench) -> list[Claim]:
    """The instrument: `ordered` is the loop written by hand, and worker counts and kinds do not matter."""
    last = bench.delays[-1]
    return [
        _by_hand(bench, 0, "τ = 0 is serial training: the bits of the plain loop"),
        _by_hand(
            bench, last, f"τ = {last} is the plain loop with gradients of the model {last} updates ago, to the bit"
        ),
        _any_workers(bench),
    ]


def _by_hand(bench: Bench, tau: int, text: str) -> Claim:
    seed = bench.seeds[0]
    equal = [one for one in SETTINGS if bench.by_hand(one, tau, seed) == bench.cell(one, tau).digests[0]]
    return Claim(text, f"same digest for {len(equal)} of {len(SETTINGS)} settings", len(equal) == len(SETTINGS))


def _any_workers(bench: Bench) -> Claim:
    tau, seed = EXAMPLE, bench.seeds[0]
    found = {"1 thread": bench.cell(MOMENTUM, tau).digests[0]}
    for workers, kind in ((tau + 1, "threads"), (2, "processes")):
        run = bench.train(MOMENTUM.network(seed), MOMENTUM, tau, seed, workers, kind)
        found[f"{workers} {kind}"] = run.digest
    distinct = sorted(set(found.values()))
    return Claim(
        f"one worker gives the same bits as more, up to τ + 1 = {tau + 1}",
        f"{', '.join(found)}: {', '.join(one[:8] for one in distinct)}",
        len(distinct) == 1,
    )


def costs(bench: Bench) -> list[Claim]:
    """The table: a row per optimizer, a column per τ."""
    rows = {setting: [bench.cell(setting, tau) for tau in bench.delays] for setting in SETTINGS}
    drop = max(rows[SGD][0].median - cell.median for cell in rows[SGD] if cell.tau <= BY_HAND)
    return [
        Claim(f"{SGD} loses at most {short(LOST)} up to τ = {BY_HAND}", _row(rows[SGD]), drop <= LOST),
        Claim("SGD without momentum learns at any lr that serial training takes", *_learn(rows[LARGE]), expected=False),
        Claim(f"{MOMENTUM} learns at every τ", *_learn(rows[MOMENTUM]), expected=False),
        Claim(
            f"{ADAM} learns up to τ = {BY_HAND}",
            _row(rows[ADAM]),
            all(cell.median > LEARNS for cell in rows[ADAM] if cell.tau <= BY_HAND),
        ),
        _hopeless([cell for cell in rows[MOMENTUM] if cell.tau >= 3]),
        _relu(bench),
    ]


def _row(cells: Sequence[Cell]) -> str:
    return f"{cells[0].setting}: " + "; ".join(f"τ {cell.tau} {cell}" for cell in cells)


def _learn(cells: Sequence[Cell]) -> tuple[str, bool]:
    return _row(cells), all(cell.median > LEARNS for cell in cells)


def _hopeless(cells: Sequence[Cell]) -> Claim:
    best = max(cell.best for cell in cells)
    runs = sum(len(cell.accuracies) for cell in cells)
    return Claim(
        f"{MOMENTUM} with τ ≥ 3 does not learn at all",
        f"the best of {runs} runs reaches {short(best)}; guessing, .1",
        best < GUESSES,
    )


def _relu(bench: Bench) -> Claim:
    """τ = 1 is the default; whether momentum survives it depends on the network."""
    serial, stale = bench.cell(RELU, 0), bench.cell(RELU, 1)
    return Claim(
        f"{MOMENTUM} is safe at τ = 1, whatever the network",
        f"ReLU for tanh: τ 0 {serial}; τ 1 {stale}",
        stale.median > serial.median - NEAR,
        expected=False,
    )


def compensated(bench: Bench) -> list[Claim]:
    """What `compensation="auto"` does to each setting, with nothing else changed."""
    claims = []
    for setting in (*SETTINGS, RELU):
        serial = bench.cell(setting, 0)
        cells = [bench.cell(setting.compensated, tau) for tau in bench.delays if tau]
        gap, lowest = max(serial.median - cell.median for cell in cells), min(cell.worst for cell in cells)
        claims.append(
            Claim(
                f"{setting} with {setting.activation}, compensated: within {short(CLOSE)} of serial at every τ, and "
                f"every run over {short(LEARNS)}",
                f"serial {serial}; " + "; ".join(f"τ {cell.tau} {cell}" for cell in cells),
                gap <= CLOSE and lowest > LEARNS,
            )
        )
    return claims


def remedies(bench: Bench) -> list[Claim]:
    """What makes up for it by hand: the two rules of thumb, and the number behind them."""
    where = losses(bench)
    pairs = [(bench.cell(one, 0), bench.cell(one.divided(tau + 1), tau)) for one, tau in (*where, (RELU, 1))]
    lowered = [
        (bench.cell(one, 0), bench.cell(one.with_implicit_momentum_of(tau), tau))
        for one, tau in (*where, (RELU, 1))
        if one.momentum and one.method == "SGD"
    ]
    return [
        Claim("some settings lose accuracy, and so need a remedy", f"{len(where)} cells of the table", bool(where)),
        _rule("lr / (τ + 1), momentum or β₁ unchanged", pairs),
        _rule("momentum 1 − (1 − μ)(τ + 1) for SGD, lr unchanged", lowered),
        *_product(
            cell
            for cell in bench.cells.values()
            if cell.setting.method == "SGD" and cell.setting.compensation == "none"
        ),
    ]


def _rule(text: str, pairs: Sequence[tuple[Cell, Cell]]) -> Claim:
    """Of serial and remedied cells, for a rule that needs no search. A seed that does not learn refutes it too."""
    gaps = [(serial.median - cell.median, cell) for serial, cell in pairs]
    gap, worst = max(gaps, key=lambda pair: pair[0])
    lowest = min(cell.worst for _, cell in pairs)
    return Claim(
        f"{text}: within {short(NEAR)} of serial everywhere, in every run over {short(LEARNS)}",
        f"{len(pairs)} cells: farthest from serial ({-gap:+.3f}) is {worst.setting} at τ = {worst.tau}, "
        f"{worst.setting.activation}; worst run {short(lowest)}",
        gap <= NEAR and lowest > LEARNS,
    )


def _product(cells: Iterable[Cell]) -> list[Claim]:
    """One number, lr / (1 − momentum) × (τ + 1), tells apart what learns and what does not."""
    runs = [(_tension(cell), accuracy) for cell in cells for accuracy in cell.accuracies]
    small = [accuracy for tension, accuracy in runs if tension <= 1.001]
    large = [accuracy for tension, accuracy in runs if tension >= 3.999]
    lowest, highest = min(small, default=0.0), max(large, default=1.0)
    return [
        Claim(
            "SGD learns wherever lr / (1 − momentum) × (τ + 1) is at most 1",
            f"the worst of {len(small)} runs reaches {short(lowest)}",
            lowest > LEARNS,
        ),
        Claim(
            "SGD does not learn where it is 4 or more",
            f"the best of {len(large)} runs reaches {short(highest)}",
            highest < GUESSES,
        ),
    ]


def _tension(cell: Cell) -> float:
    return cell.setting.step * (cell.tau + 1)


def answer(bench: Bench) -> str:
    """What to do, with the case that shows it."""
    tau = EXAMPLE
    smaller = MOMENTUM.divided(tau + 1)
    serial, stale, better, slower = (
        short(bench.cell(one, at).median)
        for one, at in ((MOMENTUM, 0), (MOMENTUM, tau), (MOMENTUM.compensated, tau), (smaller, tau))
    )
    return (
        f"Say compensation='auto'. {MOMENTUM} at τ = {tau}: {stale} where serial training reaches {serial}; {better} "
        f"compensated. By hand, divide lr / (1 − momentum) by τ + 1: {slower} with lr {smaller.lr:g}. A setting whose "
        f"lr is that far from too large already needs neither."
    )


COLOURS = {SGD: BLUE, LARGE: GREEN, MOMENTUM: RED, ADAM: ORANGE}
SHADES = ("#b9c6d3", "#7faad8", "#2f6db3", "#12335c", "#0b1a2c")


def plot(bench: Bench, path: Path) -> Path:
    """Accuracy against τ for each optimizer, as set and compensated, and every uncompensated run of SGD against
    lr / (1 − momentum) × (τ + 1)."""
    count = len(bench.seeds)
    title = (
        f"What staleness costs: digits, MLP 64-32-10, {bench.epochs} epochs of batches of 16, rule ordered, "
        f"{count} seed{'s' * (count > 1)}"
    )
    made, panels = row_of_axes(15, 4.8, len(SETTINGS) + 1, title)
    for axes, setting in zip(panels, SETTINGS, strict=False):
        _curve(axes, bench, setting)
    _scatter(panels[-1], bench)
    for axes in panels:
        accuracy_axis(axes, labelled=axes is panels[0])
        axes.legend(fontsize=8, loc=(0.03, 0.17))
    return save_figure(made, path)


def _curve(axes: Axes, bench: Bench, setting: Setting) -> None:
    """One optimizer: the median and the range as it is set, and compensated."""
    stale = [bench.cell(setting, tau) for tau in bench.delays]
    better = [bench.cell(setting.compensated if tau else setting, tau) for tau in bench.delays]
    _band(axes, stale, "--", GREY, "as set")
    _band(axes, better, "-", COLOURS[setting], "compensated")
    axes.set_xticks(range(len(stale)), [str(tau) for tau in bench.delays])
    axes.set_xlim(-0.25, len(stale) - 0.55)
    axes.set_xlabel("staleness τ (updates)")
    axes.set_title(str(setting), fontsize=10, color=COLOURS[setting], weight="bold")


def _band(axes: Axes, cells: Sequence[Cell], style: str, colour: str, label: str) -> None:
    """Median and range, with a mark at each cell."""
    places = range(len(cells))
    worst, best = [1 - cell.worst for cell in cells], [1 - cell.best for cell in cells]
    axes.fill_between(places, worst, best, color=colour, alpha=0.15, linewidth=0)
    axes.plot(places, [1 - cell.median for cell in cells], f"{style}o", color=colour, label=label)


def _scatter(axes: Axes, bench: Bench) -> None:
    """Every run of SGD without compensation; the delays are set a little apart, for a mark not to hide another."""
    for index, (tau, shade) in enumerate(zip(bench.delays, SHADES, strict=False)):
        cells = [
            cell
            for cell in bench.cells.values()
            if cell.tau == tau and cell.setting.method == "SGD" and cell.setting.compensation == "none"
        ]
        points = [(_tension(cell), 1 - accuracy) for cell in cells for accuracy in cell.accuracies]
        places = [at * 2 ** (0.16 * (index - 1.5)) for at, _ in points]
        axes.scatter(
            places, [error for _, error in points], s=20, color=shade, alpha=0.8, linewidth=0, label=f"τ = {tau}"
        )
    axes.axvline(2**0.5, color=GREY, linewidth=1, linestyle=":")
    axes.set_xscale("log", base=2)
    powers = range(-3, 5)
    axes.set_xticks([2.0**n for n in powers], ["1/8", "1/4", "1/2", "1", "2", "4", "8", "16"])
    axes.set_xlabel("lr / (1 − momentum) × (τ + 1)")
    axes.set_title("every run of SGD as set", fontsize=10, weight="bold")


def plan(settings: StudySettings) -> Bench:
    """Three seeds from that of the settings on; ten at length."""
    return Bench(tuple(range(settings.seed, settings.seed + (10 if settings.full else 3))))


def run(settings: StudySettings) -> Findings:
    """The instrument, the table, what makes up for it, and the figure."""
    bench = plan(settings)
    with measuring(settings.seed):
        claims = (*same_bits(bench), *costs(bench), *compensated(bench), *remedies(bench))
        drawn = plot(bench, settings.out / "staleness.png")
    return Findings(claims, answer(bench), (drawn,))


experiment = Study("staleness", "What does staleness cost, and what makes up for it?", run)
