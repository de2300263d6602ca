"""A training repeated in a fresh interpreter each time: nothing of this process, its imports, its hash seed or its
memory can make two repeats equal, or different. Several machines are as many interpreters.

    parent ── subject and variation, in a file of a folder of its own ──▶ python -m hogwild.determinism.fresh
           ◀── the outcome, in another of each machine's ──
"""

from __future__ import annotations

import gc
import pickle
import sys
import tempfile
from pathlib import Path

import cloudpickle
from torch import Tensor, nn

from hogwild.config import AUTO
from hogwild.determinism.foreign import ForeignCommand, ForeignFunction, in_own_groups
from hogwild.determinism.subject import AS_IT_IS, Outcome, Subject, Variation
from hogwild.errors import ArgumentError, HogwildError, WorkerError, one_line
from hogwild.nodes.loopback import environments_of
from hogwild.workers.process.early import fork_server


class Fresh(Subject):
    """A subject whose every repeat is made in an interpreter of its own.

    Raises:
        ArgumentError: it cannot be pickled, or is a command, which has its own interpreter anyway.
    """

    def __init__(self, inner: Subject) -> None:
        if isinstance(inner, ForeignCommand):
            raise ArgumentError("fresh_process given with a command, which always runs in a process of its own")
        self.inner = inner
        self.title = inner.title

    def repeat(self, variation: Variation = AS_IT_IS) -> Outcome:
        """Repeat it elsewhere."""
        with tempfile.TemporaryDirectory(prefix="hogwild-fresh-") as name:
            task = Path(name) / "task"
            try:
                task.write_bytes(pickle.dumps(sys.path) + cloudpickle.dumps((self.inner, variation)))
            except Exception as error:
                raise ArgumentError(
                    f"{self.title} cannot be taken to a fresh process: {type(error).__name__}: {one_line(error)}"
                ) from error
            outcome = _first(_made_on(variation.nodes, task))
        self.inner.settle(outcome)
        return outcome


def _made_on(nodes: int, task: Path) -> list[Outcome]:
    """What each machine made of it."""
    environments = environments_of(nodes) if nodes > 1 else [{}]
    results = [task.with_name(f"result {node}") for node in range(nodes)]
    commands = [[sys.executable, "-m", __name__, str(task), str(result)] for result in results]
    made = []
    for result, (status, told) in zip(results, in_own_groups(commands, task.parent, environments), strict=True):
        if status != 0 or not result.is_file():
            raise WorkerError(f"a repeat in a fresh process ended with status {status}\n{told}")
        made.append(pickle.loads(result.read_bytes()))  # written a moment ago, in a folder that only we can enter
    for one in made:
        if isinstance(one, HogwildError):
            raise one
    return made


def _first(made: list[Outcome]) -> Outcome:
    """That of machine 0, once it is sure that all have one model."""
    if len({outcome.digest for outcome in made}) > 1:
        raise WorkerError(f"{len(made)} machines that train one model ended with different ones")
    return made[0]


def _main(task: Path, result: Path) -> None:
    fork_server(AUTO)
    with task.open("rb") as file:
        sys.path[:] = pickle.load(file)  # what is pickled by name is found where the parent found it
        subject, variation = pickle.load(file)
    if isinstance(subject, ForeignFunction):
        subject.remember(value for value in gc.get_objects() if type(value) in (Tensor, nn.Parameter))
    made: Outcome | HogwildError
    try:
        made = subject.repeat(variation)
    except HogwildError as error:
        made = error
    result.write_bytes(cloudpickle.dumps(made))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]))
