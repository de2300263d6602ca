"""A loop of one's own that catches what a call of the worker raised, and goes on: the run ends by it all the same."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable

import pytest
from loops import gradients, launched
from torch import nn
from traits import KINDS

import hogwild

TOLD = r"^loss is a str that is no number"


def claims_again(worker: hogwild.Worker) -> None:
    while True:
        try:
            if (ticket := worker.claim()) is None:
                return
            worker.commit(ticket, gradients(worker.read(ticket))[0], "low")
        except hogwild.ArgumentError:
            continue


def ends(worker: hogwild.Worker) -> None:
    ticket = worker.claim()
    try:
        worker.commit(ticket, gradients(worker.read(ticket))[0], "low")
    except hogwild.ArgumentError:
        return


def claims_once_more(worker: hogwild.Worker) -> None:
    ticket = worker.claim()
    try:
        worker.commit(ticket, gradients(worker.read(ticket))[0], "low")
    except hogwild.ArgumentError:
        worker.claim()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("work", [claims_again, claims_once_more, ends])
def test_what_commit_raised_ends_the_run_whoever_catches_it(work: Callable[[hogwild.Worker], None], kind: str) -> None:
    with pytest.raises(hogwild.ArgumentError, match=TOLD) as raised:
        launched(work, update="ordered", kind=kind, worker_timeout=20.0)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on", ["claiming", "ending"])
def test_a_loss_that_is_not_finite_ends_the_run_whoever_catches_it(on: str, kind: str) -> None:
    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            own = gradients(worker.read(ticket))
            try:
                worker.commit(ticket, own[0], math.nan if ticket.update == 3 else own[1])
            except Exception:
                if on == "ending":
                    return

    with pytest.raises(hogwild.NonFiniteError, match="the loss is nan at update 3"):
        launched(work, update="ordered", kind=kind, worker_timeout=20.0)


def test_what_raised_inside_of_claim_keeps_its_cause() -> None:
    looks = threading.Event()

    def ahead(ticket: hogwild.Ticket) -> None:
        looks.set()
        try:
            raise KeyError("gone")
        except KeyError as error:
            raise hogwild.ArgumentError("no such batch") from error

    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim(ahead)) is not None:
            if ticket % 2:
                assert looks.wait(60)  # the other worker has to wait for this one, and looks ahead
            worker.commit(ticket, *gradients(worker.read(ticket)))

    with pytest.raises(hogwild.ArgumentError, match="no such batch") as raised:
        launched(work, update="sync", kind="threads", workers=2, micro_batches=2)
    assert isinstance(raised.value.__cause__, KeyError)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_that_catches_its_own_errors_and_claims_for_ever_is_ended(kind: str) -> None:
    def work(worker: hogwild.Worker) -> None:
        while True:
            try:
                if worker.claim() is None:
                    return
                raise KeyError("episode")
            except Exception:
                continue

    with pytest.raises(hogwild.ArgumentError, match=r"^claim\(\) called before ticket \d was committed"):
        launched(work, update="ordered", kind=kind, worker_timeout=20.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_that_is_mended_counts(kind: str) -> None:
    def work(worker: hogwild.Worker) -> None:
        while (ticket := worker.claim()) is not None:
            own = gradients(worker.read(ticket))
            try:
                worker.commit(ticket, own[0], "low")
            except hogwild.ArgumentError:
                worker.commit(ticket, *own)

    model = nn.Linear(3, 2)
    plain = launched(trains, copy.deepcopy(model), update="ordered", kind=kind)
    assert launched(work, model, update="ordered", kind=kind).digest == plain.digest


def trains(worker: hogwild.Worker) -> None:
    while (ticket := worker.claim()) is not None:
        worker.commit(ticket, *gradients(worker.read(ticket)))
