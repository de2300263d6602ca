"""What the README says is run: its snippets as scripts, without a guard; its two commands are what CI runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_are_snippets():
    assert len(SNIPPETS) >= 3
    first = [line for line in SNIPPETS[0].splitlines() if line.strip()]
    assert len(first) < 11, "one's own model in under ten lines after the imports"


@pytest.mark.parametrize(
    ("number", "how"), [*((number, "script") for number in range(len(SNIPPETS))), (0, "standard input")]
)
def test_a_snippet_runs(number, how, tmp_path):
    if how == "script":
        path = tmp_path / "snippet.py"
        path.write_text(SNIPPETS[number], encoding="utf-8")
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    else:
        done = subprocess.run(
            [sys.executable, "-"], input=SNIPPETS[number], capture_output=True, text=True, timeout=120, cwd=tmp_path
        )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_ci_runs_the_readme_commands():
    commands = re.findall(r"<!-- command: (\w+) -->\n```bash\n(.*?)\n```", README, re.DOTALL)
    assert [name for name, _ in commands] == ["run", "test"]
    assert all("-c constraints.txt" in command for _, command in commands)
    printed = subprocess.run(
        ["bash", "-c", "bash() { true; }; source .ci/run"], capture_output=True, text=True, cwd=ROOT
    ).stdout
    assert [line[2:] for line in printed.splitlines() if line.startswith("$ ")] == [c for _, c in commands]
