"""What a script, a notebook or a program from standard input defines reaches every worker process."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import problems
import pytest
import torch
from programs import started
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from traits import KINDS
from warm_pythons import warm_python
from warm_servers import own_server

import hogwild
from hogwild.workers.process import spawn

SCRIPT = """
import torch, hogwild
from functools import partial
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x):
        return helper(self.layer(x))

def helper(x):
    return torch.relu(x) + shift

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return torch.full((4,), i / 64.0), i % 2

class Loud(Exception):
    pass

shift = 0.25
scale = 2.0
print("top of the program")
run = hogwild.train(
    Net(), Squares(), lambda model, batch: scale * nn.functional.cross_entropy(model(batch[0]), batch[1]),
    optimizer=lambda named: torch.optim.SGD(named, lr=0.1), updates=12, batch_size=8, workers=2,
    lr_schedule=lambda u: 1 / (1 + u), evaluate=lambda model: {"norm": float(model.layer.weight.detach().norm())},
)
assert run.updates == 12, run.updates
def bad(model, batch):
    if hogwild.worker_info() and hogwild.worker_info().update == 3:
        raise Loud("of its own class")
    return model(batch[0]).sum()
try:
    hogwild.train(Net(), Squares(), bad, optimizer=partial(torch.optim.SGD, lr=0.1), updates=12, batch_size=8)
except hogwild.WorkerError as error:
    assert "Loud" in str(error) and "of its own class" in str(error), error
    print("told of it")
print("end of the program")
"""


def from_standard_input(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-"], input=source, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("way", ["script", "standard input", "cell"])
def test_a_program_without_a_guard_runs_once_and_its_classes_reach_the_workers(way, tmp_path):
    if way == "script":
        path = tmp_path / "program.py"
        path.write_text(SCRIPT)
        done = warm_python([str(path)], tmp_path)
    elif way == "standard input":
        done = from_standard_input(SCRIPT)
    else:  # as a notebook runs a cell: compiled from text, in a module that has no file
        cell = f"import __main__; exec(compile({SCRIPT!r}, '<cell 1>', 'exec'), __main__.__dict__)"
        done = warm_python(["-c", cell], tmp_path)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert done.stdout.splitlines() == ["top of the program", "told of it", "end of the program"]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no /dev/shm")
def test_a_program_needs_no_room_in_dev_shm():
    """Containers give /dev/shm 64 MB. What a run shares lies elsewhere."""
    folder = Path("/dev/shm")
    seen = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.append({path.name for path in folder.iterdir() if "torch" in path.name or "psm" in path.name})
        return {}

    before = {path.name for path in folder.iterdir()}
    problems.train(kind="processes", updates=10, evaluate=evaluate, evaluate_every=2)
    assert all(names <= before for names in seen)
    assert seen


def test_functions_with_a_cache_and_names_of_torch_in_another_module_are_sent():
    @functools.lru_cache(maxsize=3)
    def weight(number: int) -> float:
        return 1 + number / 10

    def loss(model: nn.Module, batch: Any) -> Tensor:
        assert weight.cache_parameters() == {"maxsize": 3, "typed": False}
        with sdpa_kernel(SDPBackend.MATH):
            return weight(len(batch[0])) * problems.cross_entropy(model, batch)

    settings: dict[str, Any] = {"update": "ordered", "staleness": 1, "loss": loss, "updates": 6}
    alone = problems.train(kind="threads", workers=1, **settings)  # for several threads would mix up torch's choice
    assert problems.train(kind="processes", **settings).digest == alone.digest


def test_a_function_that_can_be_differentiated_once_is_sent():
    class Squared(torch.autograd.Function):
        """Whose backward names what torch has in a module that cannot be imported."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * gradient

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return Squared.apply(model(batch[0])).mean()

    runs = [problems.train(loss=loss, update="ordered", kind=kind, updates=6) for kind in KINDS]
    assert runs[0].digest == runs[1].digest


def test_partial_functions_and_bound_methods_are_sent():
    class Scaled:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        def loss(self, model: nn.Module, batch: Any, power: int) -> Tensor:
            return self.scale * problems.cross_entropy(model, batch) ** power

    loss = partial(Scaled(0.5).loss, power=2)
    runs = [problems.train(loss=loss, kind=kind, update="ordered", updates=5) for kind in KINDS]
    assert runs[0].digest == runs[1].digest


def test_a_folder_named_as_a_package_is_not_taken_for_it(tmp_path):
    """The fork server is started by `python -c`, which by itself would import from the current folder first, and on
    Python 3.14 by the path that this program has by then."""
    (tmp_path / "hogwild").mkdir()
    taken = tmp_path / "taken"
    (tmp_path / "hogwild" / "__init__.py").write_text(f"open({str(taken)!r}, 'w').close()")
    program = (
        f"import os, problems, sys; os.chdir({str(tmp_path)!r}); sys.path.insert(0, os.getcwd())\n"
        "print(problems.train(kind='processes', updates=3).updates)"
    )
    with started(program, errors=tmp_path / "errors", warm=False) as running:
        assert (running.output.readline(), running.ended()) == ("3\n", 0), (tmp_path / "errors").read_text()
    assert not taken.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="there is no fork server")
@pytest.mark.parametrize("callers", [None, "1"])
def test_a_worker_has_the_environment_of_its_program(callers, monkeypatch):
    """Its server is started with another."""
    before = {name for name in os.environ if "HOGWILD" in name}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        safe, of_ours = os.environ.get(spawn.SAFE), {name for name in os.environ if "HOGWILD" in name}
        hogwild.worker_info().log(safe=float(safe == "1"), more=float(of_ours > before))
        return problems.cross_entropy(model, batch)

    with own_server(), monkeypatch.context() as patch:
        patch.delenv(spawn.SAFE, raising=False) if callers is None else patch.setenv(spawn.SAFE, callers)
        (row, *_) = problems.train(kind="processes", updates=3, loss=loss).logged
        assert os.environ.get(spawn.SAFE) == callers
    assert (row["safe"], row["more"]) == (float(callers == "1"), 0.0)


def test_workers_load_nothing_from_the_current_folder_where_python_ignores_its_environment(tmp_path):
    """As under -E: then it does not hear of PYTHONSAFEPATH."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "torch.py").write_text("raise RuntimeError('this is not torch')")
    script = tmp_path / "script.py"
    script.write_text(
        "import hogwild, torch\nmodel, x = torch.nn.Linear(2, 1), torch.ones(8, 2)\n"
        "if __name__ == '__main__':\n    run = hogwild.train(model, x, lambda model, batch: model(batch).sum(),"
        "\n        updates=3, optimizer=lambda named: torch.optim.SGD(named, lr=0.1), batch_size=4, kind='processes')\n"
        "    print(run.updates, run.failures)\n"
    )
    done = subprocess.run(
        [sys.executable, "-E", script], cwd=tmp_path / "here", capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout == "3 ()\n"
