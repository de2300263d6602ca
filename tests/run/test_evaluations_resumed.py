"""A run that is interrupted and resumed has the evaluations of one that was never stopped."""

from __future__ import annotations

import itertools
import time

import problems
import pytest
from traits import IN_PLACE, KINDS, NAMES, VERSIONED

import hogwild
from hogwild.run.owed import owed, shown_before
from hogwild.run.saved.best import load_best
from hogwild.run.saved.checkpoint import ResumePoint
from hogwild.run.saved.metrics import read_metrics
from hogwild.shared.words import Hook, Word, Words
from hogwild.testing import planted

EVERY, UPDATES, HALF = 5, 40, 20
SKIPPED = (3, 5, 6, 11, 14)
ALL_DUE = [*range(EVERY, UPDATES + 1, EVERY)]


def with_holes(model, batch):
    """A loss that some batches have none of."""
    loss = problems.cross_entropy(model, batch)
    return loss * float("nan") if hogwild.worker_info().batch in SKIPPED else loss


def total(model):
    """Which model it is."""
    return {"total": sum(p.double().sum().item() for p in model.parameters())}


def train(update, **arguments):
    settings = {"loss": with_holes, "on_nonfinite": "skip", "workers": 1, "updates": UPDATES}
    settings |= {"evaluate": total, "evaluate_every": EVERY} | arguments
    return problems.train(update=update, **settings)


def rows(run):
    return [(row["update"], row["total"]) for row in run.evaluations]


class Asked(hogwild.Callback):
    """Where it was asked whether the run is to stop, and what was evaluated there; it never is."""

    def __init__(self):
        self.at = []

    def should_stop(self, progress):
        self.at.append((progress.updates, progress.metrics["total"]))
        return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", [*IN_PLACE, VERSIONED[0]])
def test_updates_that_were_skipped_shift_no_evaluation(update, kind, tmp_path):
    whole = train(update, kind=kind)
    assert whole.updates == UPDATES - len(SKIPPED) * (update in IN_PLACE)
    with pytest.raises(KeyboardInterrupt):
        train(update, kind=kind, out=tmp_path, callbacks=[problems.interrupting_at(HALF)])
    run = train(update, kind=kind, out=tmp_path, resume=tmp_path)
    assert rows(run) == rows(whole)
    assert [row["update"] for row in run.evaluations] == ALL_DUE


@pytest.mark.parametrize("every", [1, EVERY])
@pytest.mark.parametrize("update", VERSIONED)
def test_no_version_after_the_one_that_is_evaluated_goes_by_unseen(update, every, tmp_path):
    """Several workers are ahead of an evaluation that is interrupted, and end what they are at."""
    settings = {"workers": 3, "evaluate_every": every, "loss": problems.cross_entropy}
    settings |= {"ordered": {"staleness": 2}, "sync": {"micro_batches": 3}}.get(update, {})
    with pytest.raises(KeyboardInterrupt):
        train(update, out=tmp_path, callbacks=[problems.interrupting_at(HALF)], **settings)
    run = train(update, out=tmp_path, resume=tmp_path, **settings)
    assert [row["update"] for row in run.evaluations] == [*range(every, UPDATES + 1, every)]


@pytest.mark.parametrize("update", IN_PLACE)
def test_whoever_may_stop_the_run_is_asked_at_each_version_once(update, tmp_path):
    whole, asked = Asked(), Asked()
    train(update, callbacks=[whole])
    with pytest.raises(KeyboardInterrupt):
        train(update, out=tmp_path, callbacks=[problems.interrupting_at(HALF), asked])
    assert [at for at, _ in asked.at] == [*range(EVERY, HALF, EVERY)]
    train(update, out=tmp_path, resume=tmp_path, callbacks=[asked])
    assert asked.at == whole.at


@pytest.mark.parametrize("update", NAMES)
def test_training_goes_on_once_an_evaluation_is_on_disk(update, tmp_path, monkeypatch):
    """Or a checkpoint would be of a later version, and who is killed and resumed would count one evaluation less."""
    publish, found = Words.tries_to_publish, {}

    def spied(words, word, value):
        if word == Word.EVALUATED:
            found[value] = [row["update"] for row in read_metrics(tmp_path / "metrics.jsonl")[0]]
        return publish(words, word, value)

    monkeypatch.setattr(Words, "tries_to_publish", spied)
    train(update, out=tmp_path, callbacks=[Asked()])
    assert [*found] == ALL_DUE and all(version in rows for version, rows in found.items())


@pytest.mark.parametrize("update", IN_PLACE)
def test_evaluations_after_the_checkpoint_are_made_again(update, tmp_path):
    """As a kill would leave it."""

    class Kill(hogwild.Callback):
        def on_evaluation(self, progress):
            if progress.updates == HALF + 2 * EVERY:
                raise KeyError("as if killed")

    with pytest.raises(KeyError):
        train(update, out=tmp_path, checkpoint_every=HALF, callbacks=[Kill()])
    assert rows(train(update, out=tmp_path, resume=tmp_path)) == rows(train(update))


@pytest.mark.parametrize(("workers", "every"), [(1, EVERY), (2, EVERY), (2, 1)])
@pytest.mark.parametrize("update", IN_PLACE)
def test_one_that_was_interrupted_is_not_left_out(update, workers, every, tmp_path):
    settings = {"workers": workers, "evaluate_every": every}
    with pytest.raises(KeyboardInterrupt):
        train(update, out=tmp_path, **{**settings, "evaluate": problems.interrupting(HALF // every, total)})
    run = train(update, out=tmp_path, resume=tmp_path, **settings)
    assert [row["update"] for row in run.evaluations] == [*range(every, UPDATES + 1, every)]


@pytest.mark.parametrize("update", IN_PLACE)
def test_what_was_applied_and_not_yet_shown_is_shown(update, tmp_path):
    """The worker has made the next version, and waits to show it, when an evaluation is interrupted."""
    written, calls = set(), itertools.count(1)

    def note(hook, seat):
        if hook is Hook.WRITING:
            written.add(seat.ticket)

    def interrupted(model):
        if next(calls) == HALF:
            deadline = time.monotonic() + 20
            while max(written) < HALF:
                assert time.monotonic() < deadline, (
                    "the worker waits for an evaluation before it makes the next version"
                )
                time.sleep(0.001)
            raise KeyboardInterrupt
        return total(model)

    settings = {"on_nonfinite": "raise", "loss": problems.cross_entropy, "evaluate_every": 1}
    with planted(note), pytest.raises(KeyboardInterrupt):
        train(update, out=tmp_path, evaluate=interrupted, **settings)
    run = train(update, out=tmp_path, resume=tmp_path, **settings)
    assert [row["update"] for row in run.evaluations] == [*range(1, UPDATES + 1)]


@pytest.mark.parametrize("update", IN_PLACE)
def test_what_is_evaluated_from_there_on_is_evaluated_of_no_version_before(update, tmp_path):
    first, again = tmp_path / "first", {"resume": tmp_path / "first", "change": {"updates": UPDATES}}
    train(update, out=first, updates=HALF, checkpoint_every=HALF, evaluate=None, evaluate_every=None)
    run = train(update, out=tmp_path / "second", updates=HALF, **again)
    assert rows(run) == [row for row in rows(train(update)) if row[0] >= HALF]
    run = train(update, out=tmp_path / "third", updates=HALF, evaluate_every=3, **again)
    assert [row["update"] for row in run.evaluations] == [*range(HALF + 1, UPDATES + 1, 3)]


@pytest.mark.parametrize("update", IN_PLACE)
def test_the_best_of_an_interrupted_run_is_no_version_too_early(update, tmp_path):
    def settings():
        calls = itertools.count(0)  # the first is on trial
        return {"evaluate": lambda _: {"height": next(calls)}, "keep_best": "height:max"}

    with pytest.raises(KeyboardInterrupt):
        train(update, out=tmp_path, callbacks=[problems.interrupting_at(HALF)], **settings())
    assert load_best(tmp_path).update == HALF
    best = train(update, out=tmp_path, resume=tmp_path, **settings()).best  # which comes to no higher one
    assert (best.update, best.value) == (HALF, HALF // EVERY)


@pytest.mark.parametrize(
    ("start", "of", "shown", "due"),
    [
        (ResumePoint(20, 20, (), 60, shown=20, shown_every=5), [5, 10, 15, 20], 20, []),
        (ResumePoint(15, 20, (), 60, shown=20, shown_every=5), [5, 10, 15, 20, 25, 30], 20, []),
        (ResumePoint(20, 20, (), 60, shown=20, shown_every=5), [5, 10, 15], 19, [20]),  # killed as it was evaluated
        (ResumePoint(25, 26, (24,), 60, shown=15, shown_every=5), [5, 10, 15], 19, [20]),  # 25 has its worker
        (ResumePoint(26, 31, (23, 24), 60, shown=15, shown_every=5), [5, 10, 15], 19, [20, 25, 30]),
        (ResumePoint(18, 20, (18, 19), 60, shown=15, shown_every=5), [5, 10, 15, 20], 18, []),
        (ResumePoint(9, 9, (), 60, shown=0, shown_every=5), [], 4, [5]),
        (ResumePoint(33, 33, (), 60, shown=30, shown_every=15), [15, 30, 33], 33, []),  # the last of a run that ended
        (ResumePoint(33, 33, (), 60, shown=0, shown_every=0), [], 33, []),  # nothing was evaluated
        (ResumePoint(35, 35, (), 60, shown=0, shown_every=0), [], 34, [35]),
        (ResumePoint(33, 33, (), 60, shown=30, shown_every=3), [27, 30], 33, []),  # or at others
        (ResumePoint(33, 40, (), 60), [5, 10, 35, 40, 45], 40, []),  # files that do not say what was shown
        (ResumePoint(33, 43, (32,), 60), [5, 10, 35, 40, 45], 43, []),
    ],
)
def test_what_was_shown_and_what_is_owed(start, of, shown, due):
    every = start.shown_every if start.shown_every > 3 else 5
    evaluations = [{"update": update, "seconds": 0.0} for update in of]
    found = shown_before(start, evaluations, every, rows_are_whole=True)
    assert (found, [*owed(start, found, every)]) == (shown, due)
