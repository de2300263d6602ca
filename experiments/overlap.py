"""What do gradients that overlap cost where workers race, and does compensation="workers" help?

    hogwild run overlap               # 3 seeds, 8 workers
    hogwild run overlap --full        # 10 seeds, 4 and 8 workers

Digits, an MLP 64-32-10, 15 epochs of batches of 16, rules `hogwild`, `locked` and `snapshot` in threads. Each gradient
waits 1 ms after its forward pass, so that the steps of all other workers come between what it read and its own step.
Each setting as it is, and with compensation="workers". Seen with torch 2.13, 10 seeds, 8 workers, whose gradients were
6.8 updates old on average; median accuracy on 297 held-out digits [Adam's worst seed], as set → compensated:

                                serial  hogwild          locked           snapshot
    SGD 0.1, momentum 0.9       .978    .101 → .976      .106 → .973      .094 → .973
    the same with ReLU          .971    .098 → .973      .098 → .971      .098 → .973
    SGD 0.5                     .970    .104 → .973      .099 → .976      .099 → .973
    Adam 0.01                   .971    .948 → .955      .970 → .973      .961 → .973
                                        [.801 → .936]    [.936 → .960]    [.899 → .966]

No compensated run ended below .936.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from hogwild import Run, train
from hogwild.experiment import Claim, Findings, Study, StudySettings, Table
from hogwild.run.figures import BLUE, GREEN, GREY, ORANGE, row_of_axes, save_figure

from ._common import measuring, untold
from ._staleness import BATCH_SIZE, Cell, Setting, accuracy_axis, short
from .digits import Held, loss, split

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOMENTUM = Setting("SGD", 0.1, 0.9)
RELU = replace(MOMENTUM, activation="ReLU")
LARGE = Setting("SGD", 0.5)
ADAM = Setting("Adam", 0.01, 0.9)
SETTINGS = (MOMENTUM, RELU, LARGE, ADAM)
RULES = ("hogwild", "locked", "snapshot")
WAIT = 1e-3  # seconds
CLOSE = 0.02  # of the serial accuracy
LEARNS = 0.9
EPOCHS = 15


def late(model: nn.Module, batch: Any) -> Tensor:
    """The loss of a batch, after a wait in which others step."""
    value = loss(model, batch)
    time.sleep(WAIT)
    return value


@dataclass(frozen=True)
class Crews:
    """Where settings are trained: the seeds and the numbers of workers; nothing is trained twice.

    Attributes:
        ages: by rule and workers, the mean staleness of each run.
    """

    seeds: tuple[int, ...]
    workers: tuple[int, ...]
    cells: dict[tuple[Setting, str, int], Cell] = field(default_factory=dict)
    ages: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """Workers of the largest crew."""
        return self.workers[-1]

    def serial(self, setting: Setting) -> Cell:
        """The setting with one worker, whom nobody overtakes."""
        return self.cell(setting, "locked", 1)

    def cell(self, setting: Setting, rule: str, workers: int) -> Cell:
        """The setting under that rule by so many workers, once for every seed."""
        key = setting, rule, workers
        if key not in self.cells:
            data, held = split()
            accuracies, digests = [], []
            for seed in self.seeds:
                model = setting.network(seed)
                run = _trained(model, data, setting, rule, workers, seed)
                accuracies.append(Held(held)(model)["accuracy"])
                digests.append(run.digest)
                self.ages.setdefault((rule, workers), []).append(run.staleness.mean)
            self.cells[key] = Cell(setting, workers - 1, tuple(accuracies), tuple(digests))
        return self.cells[key]


def _trained(model: nn.Module, data: Any, setting: Setting, rule: str, workers: int, seed: int) -> Run:
    with untold():
        return train(
            model,
            data,
            late,
            optimizer=setting.optimizer,
            update=rule,
            compensation=setting.compensation,
            workers=workers,
            kind="threads",
            epochs=EPOCHS,
            batch_size=BATCH_SIZE,
            seed=seed,
            on_nonfinite="ignore",
        )


def name(setting: Setting) -> str:
    """An optimizer in words, and the activation where it is not tanh."""
    return str(setting) + ("" if setting.activation == "tanh" else f", {setting.activation}")


def helped(setting: Setting) -> Setting:
    """The same with `compensation="workers"`."""
    return replace(setting, compensation="workers")


def overlapping(crews: Crews) -> Claim:
    """The instrument: so many workers, and each gradient as old as that."""
    means = {
        workers: statistics.median(age for rule in RULES for age in crews.ages[rule, workers])
        for workers in crews.workers
    }
    return Claim(
        "while W workers are busy a gradient is W − 1 updates old on average, to a tenth",
        "; ".join(f"{workers} workers: {mean:.2f}" for workers, mean in means.items()),
        all(abs(mean - workers + 1) <= 0.1 * (workers - 1) for workers, mean in means.items()),
    )


def as_set(crews: Crews) -> Claim:
    """What the age costs where nothing is done about it."""
    cells = {rule: crews.cell(MOMENTUM, rule, crews.most) for rule in RULES}
    return Claim(
        f"{MOMENTUM} learns with {crews.most} workers that overlap",
        f"serial {crews.serial(MOMENTUM)}; " + _words(cells),
        all(cell.median > LEARNS for cell in cells.values()),
        expected=False,
    )


def compensated(crews: Crews) -> list[Claim]:
    """What `compensation="workers"` does to each setting, with nothing else changed."""
    claims = []
    for setting in SETTINGS:
        serial = crews.serial(setting)
        cells = {rule: crews.cell(helped(setting), rule, crews.most) for rule in RULES}
        fits = all(cell.median >= serial.median - CLOSE and cell.worst > LEARNS for cell in cells.values())
        claims.append(
            Claim(
                f"{name(setting)}, {crews.most} workers, compensated: within {short(CLOSE)} of "
                f"serial under every rule, and every run over {short(LEARNS)}",
                f"serial {serial}; " + _words(cells),
                fits,
            )
        )
    return claims


def _words(cells: dict[str, Cell]) -> str:
    return "; ".join(f"{rule} {cell}" for rule, cell in cells.items())


def answer(crews: Crews) -> str:
    """In one sentence, with the case that shows it."""
    plain, better = (
        short(min(crews.cell(one, rule, crews.most).median for rule in RULES)) for one in (MOMENTUM, helped(MOMENTUM))
    )
    serial = short(crews.serial(MOMENTUM).median)
    return (
        f"Where {crews.most} workers overlap all the time, say compensation='workers': {MOMENTUM} ends at {better} "
        f"with it, at {plain} without (the median of the worst rule), and serially at {serial}."
    )


def table(crews: Crews, workers: int) -> Table:
    """Medians and worst seeds of a crew."""
    rows = []
    for setting in SETTINGS:
        for place, rule in enumerate(RULES):
            found = [crews.cell(one, rule, workers) for one in (setting, helped(setting))]
            cells = [f"{short(cell.median)} [{short(cell.worst)}]" for cell in found]
            head = ("", rule, "") if place else (name(setting), rule, short(crews.serial(setting).median))
            rows.append((*head, *cells))
    return Table((f"{workers} workers: median [worst]", "rule", "serial", "as set", "compensated"), tuple(rows))


def plot(crews: Crews, path: Path) -> Path:
    """A panel a setting: accuracy serially, and under each rule with the largest crew, as set and compensated."""
    title = f"Gradients of {crews.most} workers that overlap: digits, MLP 64-32-10, {EPOCHS} epochs of batches of 16"
    made, panels = row_of_axes(13, 4.2, len(SETTINGS), title)
    for axes, setting in zip(panels, SETTINGS, strict=True):
        _panel(axes, crews, setting)
        accuracy_axis(axes, labelled=axes is panels[0])
    panels[0].legend(fontsize=8, loc=(0.03, 0.17))
    return save_figure(made, path)


def _panel(axes: Axes, crews: Crews, setting: Setting) -> None:
    serial = crews.serial(setting)
    axes.axhline(1 - serial.median, color=GREY, linewidth=1, label="serial")
    colours = dict(zip(RULES, (BLUE, GREEN, ORANGE), strict=True))
    for place, rule in enumerate(RULES):
        for one, hollow, side in ((setting, True, -0.12), (helped(setting), False, 0.12)):
            cell = crews.cell(one, rule, crews.most)
            errors = [1 - accuracy for accuracy in cell.accuracies]
            face = "white" if hollow else colours[rule]
            axes.plot([place + side] * 2, [min(errors), max(errors)], color=colours[rule], linewidth=1)
            label = None if place else "as set" if hollow else 'compensation="workers"'
            axes.plot(place + side, 1 - cell.median, "o", color=colours[rule], markerfacecolor=face, label=label)
    axes.set_xticks(range(len(RULES)), RULES)
    axes.set_xlim(-0.5, len(RULES) - 0.5)
    axes.set_title(name(setting), fontsize=10, weight="bold")


def plan(settings: StudySettings) -> Crews:
    """Three seeds and eight workers; ten, and four workers too, at length."""
    count = 10 if settings.full else 3
    return Crews(tuple(range(settings.seed, settings.seed + count)), (4, 8) if settings.full else (8,))


def run(settings: StudySettings) -> Findings:
    """The claims, the table and the figure."""
    crews = plan(settings)
    with measuring(settings.seed):
        claims = (as_set(crews), *compensated(crews))
        tables = tuple(table(crews, workers) for workers in crews.workers)
        drawn = plot(crews, settings.out / "overlap.png")
        return Findings((overlapping(crews), *claims), answer(crews), (drawn,), tables)


experiment = Study(
    "overlap", 'What do overlapping gradients cost, and does compensation="workers" make up for it?', run
)
