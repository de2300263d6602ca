"""Trains in threads under every rule, with a worker that fails, evaluations, two runs at once, and 32 workers.

    python tests/stress/every_rule_in_threads.py

A program for ThreadSanitizer, beside `races_meant.supp`; see docs/free-threading.md.
"""

from __future__ import annotations

import os
import threading
import warnings

import torch

import hogwild
from hogwild.bench.problems import PROBLEMS
from hogwild.rules.registry import RULES

PROBLEM = PROBLEMS["small-mlp"]
DATA = PROBLEM.generate()


def train(update, workers=2, model=None, loss=PROBLEM.loss, **settings):
    """Train a small MLP by Adam; returns the digest."""
    run = hogwild.train(
        PROBLEM.model() if model is None else model,
        DATA,
        loss,
        optimizer=PROBLEM.optimizer("adam", 16),
        update=update,
        workers=workers,
        kind="threads",
        batch_size=16,
        **{"updates": 120, **settings},
    )
    print(f"{update}, {workers} workers: {run.updates} updates, {run.digest[:8]}", flush=True)
    return run.digest


class FailsOnce:
    """A loss that raises the fortieth time it is called."""

    def __init__(self):
        self.calls = 0

    def __call__(self, model, batch):
        self.calls += 1
        if self.calls == 40:
            raise RuntimeError("planted")
        return PROBLEM.loss(model, batch)


def main():
    """All of it, and what must be equal is."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    plain = {rule: train(rule) for rule in RULES}
    assert train("ordered", loss=FailsOnce()) == plain["ordered"]
    evaluations = {"evaluate": lambda model: {"training": float(model.training)}, "evaluate_every": 20}
    assert train("ordered", **evaluations) == plain["ordered"]
    models = {
        rule: PROBLEM.model() for rule in ("ordered", "hogwild")
    }  # which draws, and both begin by looking for that
    both = [threading.Thread(target=train, args=(rule, 2, model)) for rule, model in models.items()]
    for one in both:
        one.start()
    for one in both:
        one.join()
    train("hogwild", workers=32, updates=200)
    print("done", flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # without torch's destructors, which are not this package's
