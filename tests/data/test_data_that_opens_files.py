"""A data set that opens its file when it is first indexed: nothing before the run may open it for the workers."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import problems
import pytest
from rows_in_a_file import SAMPLES, Loaded, Opened, written
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset
from traits import NAMES

import hogwild

ADVICE = r"; kind='threads' sends nothing, and processes can open or make for themselves what __getstate__ leaves out$"
UNSENT = (
    r"^data cannot be sent to worker processes: TypeError: cannot pickle '.*Buffered\w+' (object|instances)" + ADVICE
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return written(tmp_path)


@pytest.mark.parametrize("kind", ["processes", "auto"])
@pytest.mark.parametrize("update", NAMES)
def test_it_trains_in_processes(update: str, kind: str, path: Path) -> None:
    data = Opened(path)
    run = problems.train(data=data, update=update, kind=kind, workers=1, updates=12)
    assert run.kind == "processes"
    assert data.file is None
    assert run.digest == problems.train(data=problems.data(SAMPLES), update=update, workers=1, updates=12).digest


def test_it_does_so_within_another_and_where_much_is_asked_before_the_run(path: Path) -> None:
    """The curvature is measured, and a batch that holds no numbers is looked for."""
    data = Opened(path)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        at = hogwild.worker_info().update
        return problems.cross_entropy(model, batch) * (float("nan") if at == 5 else 1)

    train = partial(problems.train, data=Subset(data, range(60)), update="ordered", staleness=3, kind="processes")
    with pytest.raises(hogwild.NonFiniteError):
        train(loss=loss, updates=8)
    assert data.file is None
    assert train(updates=8).updates == 8


def test_one_that_is_open_is_refused_and_told_what_helps(path: Path) -> None:
    data = Opened(path)
    data[0]
    for kind in ("processes", "auto"):
        with pytest.raises(hogwild.ArgumentError, match=UNSENT):
            problems.train(data=data, kind=kind)


def test_one_with_a_lock_is_told_the_same() -> None:
    class Locked(Dataset[Any]):
        def __init__(self) -> None:
            self.rows, self.lock = problems.data(SAMPLES), threading.Lock()

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, i: int) -> Any:
            with self.lock:
                return self.rows[0][i], self.rows[1][i]

    with pytest.raises(hogwild.ArgumentError, match=r"^data cannot be sent .*: TypeError: .*lock' object" + ADVICE):
        problems.train(data=Locked(), kind="processes")
    assert problems.train(data=Locked(), kind="threads", updates=4).updates == 4


def test_one_that_leaves_it_out_may_be_open(path: Path) -> None:
    class Sent(Opened):
        def __getstate__(self) -> dict[str, Any]:
            return {**vars(self), "file": None}

    data = Sent(path)
    data[0]
    assert problems.train(data=data, update="ordered", kind="processes", updates=8).updates == 8


def test_what_cannot_be_sent_trains_in_threads(path: Path) -> None:
    data = Opened(path)
    data[0]
    assert problems.train(data=data, update="ordered", kind="threads", workers=1, updates=8).updates == 8


@pytest.mark.parametrize("update", NAMES)
def test_what_it_loads_is_loaded_once_for_all_workers(update: str, path: Path) -> None:
    run = problems.train(data=Loaded(path), update=update, kind="processes", workers=2, updates=12)
    assert run.updates == 12
    assert path.with_suffix(".log").read_text().split() == [str(os.getpid())]


class Once(Opened):
    """Whose file a process may open once."""

    open_here: ClassVar[set[Path]] = set()

    def __getitem__(self, i: int) -> Any:
        if self.file is None:
            assert self.path not in self.open_here, "it is open in this process"
            self.open_here.add(self.path)
        return super().__getitem__(i)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __del__(self) -> None:
        super().__del__()
        self.open_here.discard(self.path)


@pytest.mark.parametrize("update", NAMES)
def test_a_file_is_not_opened_a_second_time_in_a_process(update: str, path: Path) -> None:
    data = Once(path)

    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"right": float(model(data[0][0]).argmax() == data[0][1])}

    for _ in range(2):
        run = problems.train(data=data, update=update, kind="processes", workers=1, updates=8, evaluate=evaluate)
        assert run.updates == 8


def test_what_cannot_be_sent_all_the_same_is_left_as_it_is(path: Path) -> None:
    class Locked(Opened):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self.lock = threading.Lock()

    data = Locked(path)
    with pytest.raises(hogwild.ArgumentError, match="cannot pickle '_thread.lock'"):
        problems.train(data=data, kind="processes")
    assert data.file is not None and not data.file.closed


class Owned(Opened):
    """Whose file ends with it."""

    def __del__(self) -> None:
        super().__del__()
        self.path.unlink(missing_ok=True)


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("update", NAMES)
def test_a_copy_does_not_remove_what_belongs_to_the_data_set(update: str, kind: str, path: Path) -> None:
    data = Owned(path)
    for _ in range(2):
        run = problems.train(data=data, update=update, kind=kind, workers=1, updates=12, max_restarts=0)
        assert (run.updates, run.kind) == (12, kind)
    assert path.exists()
    del data
    assert not path.exists()
