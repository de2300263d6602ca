"""A run imports the rule that it was asked for; what is only said in a refusal is made there."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import problems
import pytest
from traits import KINDS, NAMES

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
import problems
problems.train(update={update!r}, updates=2, workers=1)
print(*sorted(name.rpartition(".")[2] for name in sys.modules if name.startswith("hogwild.rules.")))
"""


@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_a_run_imports_its_own_rule_alone(update):
    script = SCRIPT.format(tests=str(Path(problems.__file__).parent), update=update)
    # `hogwild.reference` and the tests' helpers import no rule
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert {*done.stdout.split()} & {*NAMES} == {update}


IMPORTED = """
import sys
{first}
sys.path.insert(0, {tests!r})
import problems
import torch

def imported(model, batch):
    import sys
    import hogwild
    hogwild.worker_info().log(found=float({module!r} in sys.modules))
    return problems.cross_entropy(model, batch)

run = problems.train(
    loss=imported, optimizer=getattr(problems, {optimizer!r}), kind={kind!r}, update="ordered", updates=4, out="saved"
)
print(*sorted({{row["found"] for row in run.logged}}), {module!r} in sys.modules)
{then}
"""


def found(
    module: str, folder: Path, *, kind: str, optimizer: str = "SGD", first: str = "", then: str = ""
) -> list[str]:
    """Whether that module is imported where a loss is computed, and in the program; and what is printed `then`."""
    told = {"kind": kind, "optimizer": optimizer, "first": first, "then": then}
    return printed_by(IMPORTED.format(module=module, tests=str(Path(problems.__file__).parent), **told), folder)


def printed_by(script: str, folder: Path) -> list[str]:
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=folder)
    return done.stdout.split()


@pytest.mark.parametrize("optimizer", ["SGD", "MOMENTUM", "ADAM"])
@pytest.mark.parametrize("kind", KINDS)
def test_no_run_imports_torchs_compiler_for_its_optimizer(kind, optimizer, tmp_path):
    """Nor for its record, of which the numerical fingerprint takes steps of its own."""
    assert found("torch._dynamo", tmp_path, kind=kind, optimizer=optimizer) == ["0.0", "False"]


def test_an_optimizer_is_as_torch_makes_it_afterwards(tmp_path):
    """What was told to a method of `Optimizer`, so that it does not import the compiler, is taken back."""
    then = "torch.optim.SGD([torch.zeros(1)], lr=0.1)\nprint('torch._dynamo' in sys.modules)"
    assert found("torch._dynamo", tmp_path, kind="threads", then=then) == ["0.0", "False", "True"]


@pytest.mark.parametrize(("first", "wanted"), [("import pytest", ["1.0", "True"]), ("", ["0.0", "False"])])
def test_workers_find_pytest_where_the_program_has_imported_it(first, wanted, tmp_path):
    """A module of tests imports it, and each worker that is given a function of one would, anew."""
    assert found("pytest", tmp_path, kind="processes", first=first) == wanted


def test_a_module_of_tests_imports_no_checker_with_what_it_asserts_by(tmp_path):
    script = "import sys, hogwild.testing; print([name for name in sys.modules if name.startswith('hogwild.determ')])"
    assert printed_by(script, tmp_path) == ["[]"]


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


def test_two_threads_may_make_optimizers_at_once():
    """What one of them is done with, the other still needs."""
    done = subprocess.run([sys.executable, "-c", TWO_AT_ONCE], capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    assert done.stdout.split() == ["True", "True", "False", "False"]


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
