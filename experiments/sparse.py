"""Whether an update of a sparse embedding costs the rows that its batch touches, or the whole table.

    hogwild run sparse

A table of 10,000 rows and one of 1,000,000 are trained in turn, by one worker under `hogwild`, with each optimizer that
takes sparse gradients. A dense gradient, for which the same code does pay for the table, shows that the clock would see
it.

Seen with torch 2.13 on two cores, in two runs: 0.99 and 1.03 times as long (SGD), 1.17 and 1.19 (SparseAdam, which
reads two more tables), 1.09 twice (Adagrad) for a table a hundred times as large; 22 and 23 times for a dense gradient
of a table ten times as large.

Shapes: R rows of the table, of 64 values each; B batch, 8 words a sample.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import hogwild
from hogwild.experiment import Claim, Findings, Study, StudySettings
from hogwild.optim.factory import Factory
from hogwild.run.figures import BLUE, GREY, row_of_axes, save_figure

from ._common import measuring

SMALL, LARGE = 10_000, 1_000_000
DENSE = 100_000
"""Rows of the larger table with a dense gradient, which would take a tenth of a second at a million."""
WIDTH, WORDS, BATCH = 64, 8, 16
SAMPLES = 2_048
EPOCH = SAMPLES // BATCH
"""Updates of an epoch. The first is not timed: in it the kernel gives memory to each row that is touched for the first
time."""
LIMIT = 1.5
"""Times by which the update of a table a hundred times as large may take longer: its rows are in no cache."""

OPTIMIZERS: dict[str, Factory] = {
    "SGD": partial(torch.optim.SGD, lr=0.1),
    "SparseAdam": partial(torch.optim.SparseAdam, lr=1e-3),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1),
}


@dataclass(frozen=True)
class Pair:
    """Seconds that one update of the smaller table and of the larger one takes, in each repeat."""

    small: list[float]
    large: list[float]

    @property
    def ratio(self) -> float:
        """Larger over smaller, the least of each: what else the machine does only adds."""
        return min(self.large) / min(self.small)

    def __str__(self) -> str:
        return f"{1e6 * min(self.small):,.0f} µs → {1e6 * min(self.large):,.0f} µs: {self.ratio:.2f} ×"


def seconds_per_update(rows: int, optimizer: Factory, *, sparse: bool) -> float:
    """Processor time of one update of a table of so many rows, by one worker thread."""
    last = EPOCH * (9 if sparse else 2) - 1
    model = nn.EmbeddingBag(rows, WIDTH, sparse=sparse)
    data = torch.randint(rows, (SAMPLES, WORDS)), torch.randn(SAMPLES, WIDTH)
    seen: dict[int, float] = {}

    def loss(bag: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        info = hogwild.worker_info()
        assert info is not None
        seen[info.update] = time.thread_time()
        words, wanted = batch
        return nn.functional.mse_loss(bag(words), wanted)

    hogwild.train(model, data, loss, optimizer=optimizer, kind="threads", workers=1, updates=last + 1, batch_size=BATCH)
    return (seen[last] - seen[EPOCH]) / (last - EPOCH)


def measure(optimizer: Factory, large: int, repeats: int, *, sparse: bool) -> Pair:
    """Both tables in turn, so many times."""
    pair = Pair([], [])
    for _ in range(repeats):
        pair.small.append(seconds_per_update(SMALL, optimizer, sparse=sparse))
        pair.large.append(seconds_per_update(large, optimizer, sparse=sparse))
    return pair


def claims(found: dict[str, Pair], dense: Pair) -> tuple[Claim, ...]:
    """What an update costs with each optimizer, and that the clock would see a whole table."""
    return (
        *(
            Claim(
                f"{name}: an update of {LARGE:,} × {WIDTH} costs at most {LIMIT} × one of {SMALL:,} × {WIDTH}",
                str(pair),
                pair.ratio <= LIMIT,
            )
            for name, pair in found.items()
        ),
        Claim(
            f"with a dense gradient it costs the table: {DENSE:,} rows at least 3 × {SMALL:,}",
            str(dense),
            dense.ratio >= 3,
        ),
    )


def _plot(found: dict[str, Pair], dense: Pair, path: Path) -> Path:
    made, (axes,) = row_of_axes(7.5, 4.2, 1, f"One update of an embedding table of {WIDTH} columns, batches of {BATCH}")
    rows = {**found, f"SGD, dense,\n{DENSE:,} rows": dense}
    for offset, colour, which in ((-0.2, GREY, "small"), (0.2, BLUE, "large")):
        times = [1e6 * min(getattr(pair, which)) for pair in rows.values()]
        label = f"{SMALL:,} rows" if which == "small" else f"{LARGE:,} rows"
        axes.bar([place + offset for place in range(len(rows))], times, 0.38, color=colour, label=label)
    axes.set_xticks(range(len(rows)), list(rows))
    axes.set_yscale("log")
    axes.set_ylabel("processor time of an update (µs)")
    axes.legend(fontsize=8)
    return save_figure(made, path)


def run(settings: StudySettings) -> Findings:
    """Measure every optimizer, and the dense control."""
    repeats = 15 if settings.full else 7
    with measuring(settings.seed):
        found = {name: measure(optimizer, LARGE, repeats, sparse=True) for name, optimizer in OPTIMIZERS.items()}
        dense = measure(OPTIMIZERS["SGD"], DENSE, repeats, sparse=False)
    answer = (
        "No. A sparse gradient holds the rows of its batch, and neither the worker, nor the lock-free write, nor the "
        "optimizer touches another row. A table a hundred times as large costs no more than its rows being further "
        "apart in memory. With sparse=False the same update writes the whole table."
    )
    return Findings(claims(found, dense), answer, (_plot(found, dense, settings.out / "sparse.png"),))


experiment = Study("sparse", "Does an update of a sparse embedding cost the rows of its batch, or the table?", run)
