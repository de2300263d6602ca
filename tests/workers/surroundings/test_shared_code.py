"""What code threads share, and that without the GIL nobody counts who refers to it."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest
import torch
from torch import nn

from hogwild.workers.surroundings import shared_code
from hogwild.workers.surroundings.interpreter import has_gil
from hogwild.workers.worker import Worker

MORTAL = pytest.mark.skipif(
    has_gil() or not hasattr(sys, "_is_immortal"), reason="with the GIL, or before Python 3.14, counts cost nothing"
)


@pytest.fixture(scope="module")
def found():
    names = ["torch", "torch.nn.functional", "torch.nn.modules.module", "hogwild.workers.worker", "builtins"]
    return list(shared_code.code_of([sys.modules[name] for name in names]))


def test_what_a_step_looks_up_is_among_it(found):
    ids = {id(one) for one in found}
    looked_up = [
        *(torch, vars(torch), torch.Tensor, torch.empty, torch.float32, nn.functional, nn.functional.linear),
        *(nn.Module, vars(nn.Module)["__call__"], vars(nn.Module)["__getattr__"], vars(object)["__getattribute__"]),
        *(vars(torch._C.TensorBase)["add_"], vars(torch._C.TensorBase)["requires_grad"], torch._C.TensorBase),
        *(nn.modules.module._global_forward_hooks, Worker, Worker.claim),
    ]
    assert not [one for one in looked_up if id(one) not in ids]
    assert len(ids) == len(found), "each once"


def test_no_data_is_among_it(found):
    containers = [one for one in found if isinstance(one, dict | list | set) and one is not vars(torch)]
    dictionaries = [vars(one) for one in found if type(one) is types.ModuleType]
    hooks = [value for name, value in vars(nn.modules.module).items() if name.startswith("_global")]
    assert all(any(one is known for known in (*dictionaries, *hooks)) for one in containers)
    assert not [one for one in found if issubclass(type(one), torch.Tensor | nn.Module)]


@pytest.mark.filterwarnings("error")
def test_all_of_torch_is_walked_without_a_warning():
    modules = [module for name, module in list(sys.modules.items()) if shared_code._is_code(name, module)]
    assert len(list(shared_code.code_of(modules))) > 10_000


TRAINS = """
import functools, sys, torch, hogwild
x = torch.randn(64, 4)
run = hogwild.train(
    torch.nn.Linear(4, 2), (x, x[:, 0].long().clamp(0, 1)),
    lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
    optimizer=functools.partial(torch.optim.SGD, lr=0.1),
    update="ordered", workers=2, kind="threads", updates=8, batch_size=8,
)
assert run.updates == 8
print(sys._is_immortal(torch.Tensor), sys._is_immortal(torch.nn.Module.__call__), sys._is_immortal(x))
"""


@MORTAL
def test_threads_make_it_immortal_and_the_program_ends_as_ever():
    ended = subprocess.run([sys.executable, "-c", TRAINS], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True True False\n", "")


def test_nothing_is_touched_where_there_is_a_gil(monkeypatch):
    monkeypatch.setattr(shared_code, "has_gil", lambda: True)
    monkeypatch.setattr(shared_code, "_setter", lambda: pytest.fail("it was asked for"))
    shared_code.count_no_more()


def test_nothing_is_touched_where_the_interpreter_has_no_such_function(monkeypatch):
    monkeypatch.setattr(shared_code, "has_gil", lambda: False)
    monkeypatch.setattr(shared_code, "_setter", lambda: None)
    monkeypatch.setattr(shared_code, "code_of", lambda modules: pytest.fail("it was walked"))
    shared_code.count_no_more()
