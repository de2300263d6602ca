"""Train one shared-memory PyTorch model from many workers at once, and know exactly what that did to it.

The folders tell a story. Read them in this order:

    shared/                   the bytes that workers share
    model/  data/  optim/     a module, batches and steps on those bytes
    rules/                    how a gradient reaches the model
    workers/                  who computes it: threads, processes
    nodes/                    several machines: how gradients travel between them
    run/                      one run, from its arguments to its record
    api.py                    train() and launch(), the ways in
    determinism/  bench/      judging the result, and the speed
    report/  cli/             what a person sees, and types

`reference.py` says what every rule means without any of this.

Names are loaded when they are first used, so that pytest, which loads this package's plugin wherever it is installed,
does not wait for torch. Threads that ask for one at the same time wait in the import, and find the same object.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hogwild._moved import keep_old_imports
from hogwild._version import __version__ as __version__

if TYPE_CHECKING:
    from hogwild.api import launch, load_run, train
    from hogwild.data.schedule import Schedule
    from hogwild.data.sources import Source
    from hogwild.determinism.check import check
    from hogwild.determinism.distance import Divergence, distance
    from hogwild.determinism.probe import Probe, probe
    from hogwild.determinism.replay import Replay, replay
    from hogwild.determinism.states import digest
    from hogwild.determinism.verdict import Verdict
    from hogwild.errors import (
        ArgumentError,
        HogwildError,
        NodeError,
        NonFiniteError,
        NotReproducible,
        RunDirectoryError,
        WorkerError,
    )
    from hogwild.experiment.kinds import Problem
    from hogwild.experiment.own import define_experiment
    from hogwild.kernels.kernel import Kernel
    from hogwild.optim.rates import scheduler
    from hogwild.optim.row_adagrad import RowAdagrad
    from hogwild.rules.base import Gradient, Rule
    from hogwild.run.audit import Audit
    from hogwild.run.callback import Callback, RunInfo
    from hogwild.run.early_stopping import EarlyStopping
    from hogwild.run.kernel_training import train_kernel
    from hogwild.run.progress import Progress
    from hogwild.run.result import Run
    from hogwild.run.tensorboard import TensorBoard
    from hogwild.shared.tickets import Ticket
    from hogwild.workers.worker import Worker
    from hogwild.workers.worker_info import WorkerInfo, worker_info

keep_old_imports()

_HOMES = {
    "api": (
        "launch",
        "load_run",
        "train",
    ),
    "data.schedule": ("Schedule",),
    "data.sources": ("Source",),
    "determinism.check": ("check",),
    "determinism.distance": (
        "Divergence",
        "distance",
    ),
    "determinism.probe": (
        "Probe",
        "probe",
    ),
    "determinism.replay": (
        "Replay",
        "replay",
    ),
    "determinism.states": ("digest",),
    "determinism.verdict": ("Verdict",),
    "errors": (
        "ArgumentError",
        "HogwildError",
        "NodeError",
        "NonFiniteError",
        "NotReproducible",
        "RunDirectoryError",
        "WorkerError",
    ),
    "experiment.kinds": ("Problem",),
    "experiment.own": ("define_experiment",),
    "kernels.kernel": ("Kernel",),
    "optim.rates": ("scheduler",),
    "optim.row_adagrad": ("RowAdagrad",),
    "rules.base": (
        "Gradient",
        "Rule",
    ),
    "run.audit": ("Audit",),
    "run.callback": (
        "Callback",
        "RunInfo",
    ),
    "run.early_stopping": ("EarlyStopping",),
    "run.kernel_training": ("train_kernel",),
    "run.progress": ("Progress",),
    "run.result": ("Run",),
    "run.tensorboard": ("TensorBoard",),
    "shared.tickets": ("Ticket",),
    "workers.worker": ("Worker",),
    "workers.worker_info": (
        "WorkerInfo",
        "worker_info",
    ),
}

__all__ = [
    "ArgumentError",
    "Audit",
    "Callback",
    "Divergence",
    "EarlyStopping",
    "Gradient",
    "HogwildError",
    "Kernel",
    "NodeError",
    "NonFiniteError",
    "NotReproducible",
    "Probe",
    "Problem",
    "Progress",
    "Replay",
    "RowAdagrad",
    "Rule",
    "Run",
    "RunDirectoryError",
    "RunInfo",
    "Schedule",
    "Source",
    "TensorBoard",
    "Ticket",
    "Verdict",
    "Worker",
    "WorkerError",
    "WorkerInfo",
    "check",
    "define_experiment",
    "digest",
    "distance",
    "launch",
    "load_run",
    "probe",
    "replay",
    "scheduler",
    "train",
    "train_kernel",
    "worker_info",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = getattr(import_module(f"hogwild.{home}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'hogwild' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
