"""MKL's vector functions have chosen their kernels before two threads can call one at once."""

from __future__ import annotations

import threading
from typing import Any

import problems
import pytest
import torch
from side_by_side import within
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from traits import KINDS

import hogwild
from hogwild.workers.surroundings import vector_math
from hogwild.workers.surroundings.vector_math import FUNCTIONS, call_vector_functions


class Recorded(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.called: set[tuple[str, torch.dtype]] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        self.called.add((function.overloadpacket.__name__, result.dtype))
        return result


@pytest.fixture(autouse=True)
def forgotten():
    vector_math._call_each.cache_clear()
    yield
    call_vector_functions()


def test_each_function_is_called_for_both_dtypes_and_only_once():
    with Recorded() as recorded:
        call_vector_functions()
    missing = {(n, d) for n in FUNCTIONS for d in (torch.float32, torch.float64)} - recorded.called - {
        ("square", torch.float32), ("square", torch.float64)  # it is pow
    }  # fmt: skip
    assert not missing
    with Recorded() as again:
        call_vector_functions()
    assert not again.called


def loss(model: nn.Module, batch: Any) -> Tensor:
    hogwild.worker_info().log(called=vector_math._call_each.cache_info().currsize)
    return problems.cross_entropy(model, batch)


@pytest.mark.parametrize("kind", KINDS)
def test_they_were_called_before_the_first_update(kind):
    run = problems.train(kind=kind, loss=loss, updates=4, workers=2)
    assert {row["called"] for row in run.logged} == {1}


def test_they_were_called_before_a_loop_of_ones_own_begins():
    def work(worker: Any) -> None:
        while worker.claim() is not None:
            raise RuntimeError(f"called: {vector_math._call_each.cache_info().currsize}")

    with pytest.raises(hogwild.WorkerError, match="called: 1"):
        hogwild.launch(work, problems.mlp(), optimizer=problems.SGD, updates=2, kind="threads", max_restarts=0)


def test_two_trainings_that_begin_at_once_do_not_call_them_at_once(monkeypatch):
    """The first of them meets nobody inside: without a lock it would meet the second."""
    at_the_lock, callers, acos, lock = set(), [], torch.acos, threading.Lock()

    class Told:
        """A lock that tells who comes to it."""

        def __enter__(self) -> None:
            at_the_lock.add(threading.get_ident())
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    def met(values: Tensor) -> Tensor:
        callers.append(threading.get_ident())
        within(60, lambda: len(at_the_lock) == 2 or len({*callers}) == 2, "the second does not come")
        return acos(values)

    monkeypatch.setattr(vector_math, "_lock", Told())
    monkeypatch.setattr(torch, "acos", met)
    threads = [threading.Thread(target=call_vector_functions) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(callers) == 2 and len({*callers}) == 1
