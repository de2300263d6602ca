"""A run imports the rule that it was asked for; what is only said in a refusal is made there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import problems
import pytest
from traits import NAMES

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
