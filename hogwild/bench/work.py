"""What one measurement is: the work that every contender does alike, the line they start from, what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hogwild.bench.problems import Batch, BenchProblem
from hogwild.errors import HogwildError

StateArrays = Mapping[str, NDArray[Any]]
_LOOK_EVERY = 0.0005  # seconds, while waiting for the other workers


class ContenderError(HogwildError, RuntimeError):
    """A contender did not do its work; the message says what happened."""


class NotFinishedError(ContenderError):
    """A contender was ended because it took too long."""


@dataclass(frozen=True)
class Work:
    """Train `batches` batches, whoever computes them.

    Attributes:
        problem: model and loss.
        data: the problem's, in shared memory; an alternative trains on a copy of its own, as its users do.
        batch_size: samples in each batch of each worker.
        optimizer: "sgd" or "adam".
        batches: how many, over all workers together; a multiple of twice the workers.
        seed: of the order of the samples.
        looks: states to keep on the way, for the loss over time; 0 where speed is measured.
        limit: seconds after which a contender is ended.
    """

    problem: BenchProblem
    data: Batch
    batch_size: int
    optimizer: str
    batches: int
    seed: int = 0
    looks: int = 0
    limit: float = 120.0


@dataclass(frozen=True)
class Measurement:
    """What one contender did in one measurement.

    Attributes:
        batches, samples: trained on, counted while training.
        seconds: from the moment when all workers were ready to the end of the last.
        startup_seconds: from the call to the moment when all workers were ready.
        loss: of the trained model, on the samples it is judged by.
        pss: proportional set size of each worker process at its end, bytes; empty where workers are threads.
        curve: (seconds, loss) pairs, where the work asks for looks.
    """

    batches: int
    samples: int
    seconds: float
    startup_seconds: float
    loss: float
    pss: tuple[int, ...] = ()
    curve: tuple[tuple[float, float], ...] = field(default=(), repr=False)

    @property
    def samples_per_second(self) -> float:
        """Samples trained on per second, start-up left out."""
        return self.samples / self.seconds


class StartLine:
    """Where workers wait until all of them are ready, so that no clock runs while one of them still starts.

    Each worker writes its own word of shared memory and reads those of the others, so nothing is held that a dead
    worker would keep.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._ready = share((torch.zeros(workers, dtype=torch.int64),))[0]

    def wait(self, index: int, seconds: float = 60.0) -> float:
        """Wait; returns CLOCK_MONOTONIC seconds at which this worker saw all others.

        Raises:
            ContenderError: another worker did not come.
        """
        self._ready[index] = 1
        deadline = time.monotonic() + seconds
        while not self._ready.all():
            if time.monotonic() > deadline:
                raise ContenderError(f"worker {index} waited {seconds:.0f} s for the others to be ready")
            time.sleep(_LOOK_EVERY)
        return time.monotonic()


def state_of(model: nn.Module) -> StateArrays:
    """A copy of a model's parameters and buffers."""
    return {name: np.array(value.numpy()) for name, value in model.state_dict().items()}


def judge_states(work: Work, states: list[tuple[float, StateArrays]]) -> tuple[tuple[float, float], ...]:
    """(seconds, state) pairs → (seconds, loss) pairs."""
    model = work.problem.model()
    losses = []
    for seconds, state in states:
        model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
        losses.append((seconds, work.problem.judge(model, work.data)))
    return tuple(losses)


def share(data: Batch) -> Batch:
    """The tensors, moved to shared memory."""
    return tuple(tensor.share_memory_() for tensor in data)  # type: ignore[no-untyped-call]


StartContender = Callable[[Work], Measurement]


def private_copy(data: Batch) -> tuple[Tensor, ...]:
    """The data in ordinary memory of this process, as a program that loads its data has it."""
    return tuple(tensor.clone() for tensor in data)
