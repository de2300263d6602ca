"""Any number of workers from 1 to 8, threads or processes, delayed at every hook and killed: the bits of the reference.

pytest tests/stress -m stress             4 kills a rule
HOGWILD_KILLS=200 pytest tests/stress     as many as you like; HOGWILD_SEED=… repeats a failure's choices
"""

from __future__ import annotations

import itertools
import os
import random
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache

import problems
import pytest
from killer import Killer
from optimizers import OPTIMIZERS, everything, everything_loss, plain
from torch import nn
from traits import SAME_BITS

import hogwild
from hogwild.testing import RandomDelays, planted

pytestmark = [
    pytest.mark.stress,
    pytest.mark.filterwarnings("ignore:staleness"),
    pytest.mark.filterwarnings(r"ignore:\d+ workers share \d+ cores"),
]

KILLS = int(os.environ.get("HOGWILD_KILLS", "4"))
SEED = int(os.environ.get("HOGWILD_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
MOST, UPDATES = 8, {"ordered": 300, "sync": 60}
METHODS = ("sgd", "momentum", "adam", "adafactor")
MODELS = ("BatchNorm", "tied, frozen, several dtypes")


@dataclass(frozen=True)
class Setting:
    """What is trained; who trains it is drawn anew for each run."""

    update: str
    method: str
    model: str
    clip: float | None

    def build(self) -> nn.Module:
        return problems.conv_bn() if self.model == MODELS[0] else everything(self.method)

    @property
    def arguments(self):
        loss = problems.cross_entropy if self.model == MODELS[0] else everything_loss
        options = {"staleness": MOST - 1} if self.update == "ordered" else {"micro_batches": MOST}
        return {
            "update": self.update,
            "updates": UPDATES[self.update],
            "loss": loss,
            "clip_grad_norm": self.clip,
            **options,
        }

    @cache  # noqa: B019 - of a value that lives as long as the module
    def digest(self) -> str:
        return plain(self.build(), OPTIMIZERS[self.method], **self.arguments)

    def train(self, workers: int, kind: str) -> hogwild.Run:
        optimizer = OPTIMIZERS[self.method]
        return problems.train(
            self.build(), optimizer=optimizer, workers=workers, kind=kind, recheck=0.1, **self.arguments
        )


def drawn(choices: random.Random) -> tuple[int, str, AbstractContextManager[None]]:
    """How many workers of which kind, and who kills one of them: only processes can be killed."""
    if choices.random() < 0.25:
        return choices.randint(1, MOST), "threads", nullcontext()
    return choices.randint(1, MOST), "processes", Killer(choices, longest=0.1)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("update", SAME_BITS)
def test_one_digest_whoever_trains_and_dies(update):
    print(f"HOGWILD_SEED={SEED}")
    choices = random.Random(f"{SEED} {update}")
    settings = [Setting(update, *one) for one in itertools.product(METHODS, MODELS, (None, 0.5))]
    choices.shuffle(settings)
    runs = met = 0
    while met < KILLS:
        assert runs < 10 * KILLS, f"only {met} kills met a worker at work in {runs} runs"
        setting = settings[runs % len(settings)]
        workers, kind, killer = drawn(choices)
        with planted(RandomDelays(seed=choices.randrange(1 << 30), share=0.05)), killer:
            run = setting.train(workers, kind)
        runs += 1
        met += len(run.failures)
        told = f"{setting}, {workers} {kind}, failures: {run.failures}"
        assert run.updates == UPDATES[update] and run.in_doubt == (), told
        assert sorted(run.journal["update"]) == list(range(UPDATES[update])), told
        assert run.digest == setting.digest(), told
    print(f"{update}: {runs} runs of {len(settings)} settings, {met} kills met a worker at work, each the one digest")
