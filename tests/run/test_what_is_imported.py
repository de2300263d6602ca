"""A run imports the rule that it was asked for; what is only said in a refusal is made there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import problems
import pytest
from traits import KINDS, NAMES

BARE = """
import json, os, signal, sys, traceback
import torch

for line in sys.stdin:
    source, folder = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(120)  # by which it ends where it hangs
        os.chdir(folder)
        os.dup2(os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        os.dup2(1, 2)
        status = 1
        try:
            exec(source, {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def bare():
    """A program that has imported torch and nothing else, and forks one for each script."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", BARE], **pipes) as program:
        yield program
        program.stdin.close()


@pytest.fixture
def printed_by(bare, tmp_path):
    """What a script prints in such a program."""

    def ask(script: str) -> str:
        print(json.dumps([script, str(tmp_path)]), file=bare.stdin, flush=True)
        status, printed = bare.stdout.readline(), (tmp_path / "output").read_text()
        assert status == "0\n", printed
        return printed

    return ask


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import problems
problems.train(update={update!r}, updates=2, workers=1)
print(*sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith("hogwild.rules.")))
"""


@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_a_run_imports_its_own_rule_alone(update, printed_by):
    script = SCRIPT.format(tests=str(Path(problems.__file__).parent), update=update)
    # `hogwild.reference` and the tests' helpers import no rule
    assert {*printed_by(script).split()} & {*NAMES} == {update}


IMPORTED = """
import sys
{first}
sys.path.insert(0, {tests!r})
import problems
import torch

MODULES = "torch._dynamo", "pytest", "numba"

def imported(model, batch):
    import sys
    import hogwild
    names = [name for name in MODULES if name in sys.modules]
    hogwild.worker_info().log(**dict.fromkeys(names, 1.0))
    return problems.cross_entropy(model, batch)

for optimizer in {optimizers!r}:
    for kind in {kinds!r}:
        given = {{"optimizer": getattr(problems, optimizer), "kind": kind, "overwrite": True}}
        run = problems.train(loss=imported, update="ordered", updates=4, out="saved", **given)
        found = {{name for row in run.logged for name in MODULES if name in row}}
        print(optimizer, kind, len(run.logged), *found, *(name for name in MODULES if name in sys.modules))
torch.optim.SGD([torch.zeros(1)], lr=0.1)
print(*(name for name in MODULES if name in sys.modules))
"""


def asking(optimizers: Sequence[str], kinds: Sequence[str], first: str = "") -> str:
    """A script that prints of each training in one program: the optimizer, the kind, how many rows were logged, and
    what is imported where a loss is computed, and in the program; at last, what is once an optimizer was made there."""
    named = {"tests": str(Path(problems.__file__).parent), "optimizers": optimizers, "kinds": kinds, "first": first}
    return IMPORTED.format(**named)


def words(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines()]


def test_no_run_imports_torchs_compiler_for_its_optimizer_nor_pytest(printed_by):
    """Nor for its record, of which the numerical fingerprint takes steps of its own. What was told to a method of
    `Optimizer`, so that it does not import the compiler, is taken back: then it is as torch makes it."""
    optimizers = ["SGD", "MOMENTUM", "ADAM"]
    *trainings, last = words(printed_by(asking(optimizers, KINDS)))
    assert trainings == [[optimizer, kind, "4"] for optimizer in optimizers for kind in KINDS]
    assert last == ["torch._dynamo"]


@pytest.mark.parametrize("module", ["pytest", "numba"])
def test_workers_find_what_the_program_has_imported(module, printed_by):
    """A module of tests imports the one and a kernel the other, and each worker that is given such would, anew."""
    pytest.importorskip(module)
    training, _ = words(printed_by(asking(["SGD"], ["processes"], first=f"import {module}")))
    assert training == ["SGD", "processes", "4", module, module]


def test_a_module_of_tests_imports_no_checker_with_what_it_asserts_by(printed_by):
    script = "import sys, hogwild.testing; print([name for name in sys.modules if name.startswith('hogwild.determ')])"
    assert printed_by(script) == "[]\n"


TWO_AT_ONCE = """
import sys, threading
import torch
from hogwild.optim.factory import made_by

def marked():
    return hasattr(torch.optim.Optimizer.add_param_group.__wrapped__, "__dynamo_disable")

class Maker(threading.Thread):
    def __init__(self):
        super().__init__()
        self.inside, self.leave = threading.Event(), threading.Event()
        self.start()
        self.inside.wait()

    def run(self):
        made_by(self.make, [("w", torch.nn.Parameter(torch.zeros(1)))])

    def make(self, named):
        self.inside.set()
        self.leave.wait()
        return torch.optim.SGD(named, lr=0.1)

first, second = Maker(), Maker()
seen = [marked()]
for one in first, second:
    one.leave.set()
    one.join()
    seen.append(marked())
print(*seen, "torch._dynamo" in sys.modules)
"""


def test_two_threads_may_make_optimizers_at_once(printed_by):
    """What one of them is done with, the other still needs."""
    assert printed_by(TWO_AT_ONCE).split() == ["True", "True", "False", "False"]


IMPORTS = """
import importlib, pkgutil, sys
sys.path.insert(0, {tests!r})
import hogwild
import problems

EXTRAS = "sklearn matplotlib.pyplot gymnasium numba plotly jinja2 torch.utils.tensorboard torch._dynamo".split()
for name in [*(found.name for found in pkgutil.walk_packages(hogwild.__path__, "hogwild.")), *EXTRAS]:
    try:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    except ModuleNotFoundError:
        continue  # of an extra that is not installed
    assert not sys._is_gil_enabled(), name

def asking(model, batch):
    hogwild.worker_info().log(gil=float(sys._is_gil_enabled()))
    return problems.cross_entropy(model, batch)

for kind in "threads", "processes":
    run = problems.train(loss=asking, kind=kind, updates=4)
    assert [row["gil"] for row in run.logged] == 4 * [0.0], kind
"""


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this interpreter always has the GIL")
def test_no_import_turns_the_gil_on_again():
    """Without PYTHON_GIL, which would keep it off: a module that does not say that it can do without turns it on."""
    script = IMPORTS.format(tests=str(Path(problems.__file__).parent))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    command = [sys.executable, "-W", "error:The global interpreter lock:RuntimeWarning", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment)
    assert done.returncode == 0, done.stderr
