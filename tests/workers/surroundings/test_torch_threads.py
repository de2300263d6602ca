"""Trainings that begin and end across each other leave torch the threads it had."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import problems
import pytest
import torch
from torch import Tensor, nn

from hogwild.workers.surroundings.torch_threads import TorchThreads


@pytest.fixture(autouse=True)
def _three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


class Training(threading.Thread):
    """A training in a thread of its own, which ends when it is told to; `after` is what it computes with then."""

    def __init__(self, threads: TorchThreads) -> None:
        super().__init__()
        self._threads = threads
        self._born, self._begin, self._began, self._end = (threading.Event() for _ in range(4))
        self.after = 0
        self.start()
        assert self._born.wait(60)

    def begin(self) -> None:
        self._begin.set()
        assert self._began.wait(60)

    def run(self) -> None:
        torch.get_num_threads()  # as any torch function, gives the thread its number
        self._born.set()
        self._begin.wait(60)
        with self._threads.set_to(1):
            assert torch.get_num_threads() == 1
            self._began.set()
            self._end.wait(60)
        self.after = torch.get_num_threads()

    def end(self) -> int:
        self._end.set()
        self.join(60)
        return self.after


def of_a_thread_to_come() -> int:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return seen[0]


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_one_in_a_thread_born_during_another_puts_back_what_was_before_both(first_to_end):
    threads = TorchThreads()
    first = Training(threads)
    first.begin()
    second = Training(threads)
    second.begin()
    both = [first, second]
    assert both[first_to_end].end() == both[1 - first_to_end].end() == 3
    assert of_a_thread_to_come() == torch.get_num_threads() == 3


def test_one_in_a_thread_born_during_another_that_ended_before_it_began():
    threads = TorchThreads()
    first = Training(threads)
    first.begin()
    second = Training(threads)
    assert first.end() == 3
    second.begin()
    assert second.end() == of_a_thread_to_come() == torch.get_num_threads() == 3


def test_it_is_looked_up_anew_for_the_next_training():
    threads = TorchThreads()
    for number in (3, 2):
        torch.set_num_threads(number)
        training = Training(threads)
        training.begin()
        assert training.end() == of_a_thread_to_come() == number


def test_every_step_before_a_run_is_made_with_the_threads_of_a_worker() -> None:
    """With more, a step of 0.2 ms took 44 while a fork server started, and was taken for a long one."""
    seen: list[int] = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(torch.get_num_threads())
        return problems.cross_entropy(model, batch)

    for update in ("hogwild", "ordered"):
        problems.train(update=update, kind="threads", workers=1, updates=2, loss=loss)
    assert len(seen) > 2 * 2
    assert set(seen) == {1}
    assert torch.get_num_threads() == 3
