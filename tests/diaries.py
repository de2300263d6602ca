"""Callbacks for tests: one that notes every call, one that stops, and one that raises."""

from __future__ import annotations

import problems

import hogwild

SETTINGS = {"update": "ordered", "updates": 40, "evaluate": problems.accuracy, "evaluate_every": 10}


class Diary(hogwild.Callback):
    """Notes every call."""

    def __init__(self):
        self.notes = []

    def names(self):
        return [name for name, *_ in self.notes]

    def of(self, name):
        return [arguments for one, *arguments in self.notes if one == name]

    def on_begin(self, info):
        self.notes.append(("begin", info))

    def on_progress(self, progress):
        self.notes.append(("progress", progress))

    def on_log(self, rows):
        self.notes.append(("log", rows))

    def on_evaluation(self, progress):
        self.notes.append(("evaluation", progress))

    def on_checkpoint(self, update, path):
        self.notes.append(("checkpoint", update, path))

    def on_failure(self, error):
        self.notes.append(("failure", error))

    def on_end(self, run, error):
        self.notes.append(("end", run, error))


class StopAt(hogwild.Callback):
    def __init__(self, update):
        self.update = update

    def should_stop(self, progress):
        return progress.updates >= self.update


def raising(name, error, raised=None):
    """A callback that raises that error in that method, and sets an event before."""

    def method(self, *arguments):
        if raised is not None:
            raised.set()
        raise error

    return type("Raising", (hogwild.Callback,), {name: method})()


def log_batch(model, batch):
    info = hogwild.worker_info()
    info.log(seen=info.batch)
    return problems.cross_entropy(model, batch)
