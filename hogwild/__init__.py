"""Train one shared-memory PyTorch model from many workers at once, and know exactly what that did to it."""

from hogwild.determinism.distance import Divergence, distance
from hogwild.determinism.probe import Probe, probe
from hogwild.determinism.replay import Replay, replay
from hogwild.determinism.states import digest
from hogwild.errors import (
    ArgumentError,
    HogwildError,
    NonFiniteError,
    NotReproducible,
    RunDirectoryError,
    WorkerError,
)
from hogwild.rules import Gradient, Rule
from hogwild.run import Progress, Run
from hogwild.schedule import Schedule, Source
from hogwild.trainer import launch, train
from hogwild.workers.loop import Worker, WorkerInfo, worker_info

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "Divergence",
    "Gradient",
    "HogwildError",
    "NonFiniteError",
    "NotReproducible",
    "Probe",
    "Progress",
    "Replay",
    "Rule",
    "Run",
    "RunDirectoryError",
    "Schedule",
    "Source",
    "Worker",
    "WorkerError",
    "WorkerInfo",
    "digest",
    "distance",
    "launch",
    "probe",
    "replay",
    "train",
    "worker_info",
]
