"""README and docs are tested: Python snippets run, commands parse, links resolve; CI runs the README's two commands."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from warm_pythons import warm_python

from hogwild import experiment
from hogwild.cli import COMMANDS, main
from hogwild.cli.parsing import parse

ROOT = Path(__file__).parents[2]
FOUND = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [page for page in FOUND if page.name != "changelog.md"]  # that tells of the past too
TRAINED = {"run", "check", "probe", "sweep"}  # commands whose first argument names an experiment

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")
_TEST = re.compile(r"^def test_", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def _blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        matches = _BLOCK.finditer(text)
        found += [Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2]) for match in matches]
    return found


BLOCKS = _blocks()
SNIPPETS = [block for block in BLOCKS if block.language == "python"]
OUTSIDE = re.compile(r"^import (wandb|mlflow)$", re.MULTILINE)  # test_callbacks_page.py runs these, with stand-ins
SCRIPTS = [block for block in SNIPPETS if not _TEST.search(block.text) and not OUTSIDE.search(block.text)]
TESTS = [block for block in SNIPPETS if _TEST.search(block.text)]
OWN = next(block for block in SCRIPTS if block.page.name == "README.md" and "define_experiment" in block.text)
OURS = next(block for block in SCRIPTS if block.page.name == "README.md" and "hogwild.train" in block.text)


def _prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


# --- Python


def test_there_are_snippets():
    assert len(SCRIPTS) > 20
    assert TESTS
    lines = [line for line in OURS.text.splitlines() if line.strip()]
    assert len(lines) < 11, "one's own model in under ten lines, imports included"


@pytest.mark.parametrize("block", SCRIPTS, ids=str)
def test_a_snippet_runs(block, tmp_path, monkeypatch):
    if "import numba" in block.text:
        pytest.importorskip("numba")
    monkeypatch.chdir(tmp_path)
    code = compile(block.text, str(block), "exec")
    exec(code, {"__name__": "snippet"})


def test_a_training_needs_no_guard(tmp_path):
    """As a script, and from standard input, where there is no file that a worker could import."""
    (tmp_path / "snippet.py").write_text(OURS.text, encoding="utf-8")
    script = warm_python(["snippet.py"], tmp_path)
    command = [sys.executable, "-"]
    typed = subprocess.run(
        command, check=False, cwd=tmp_path, capture_output=True, text=True, input=OURS.text, timeout=120
    )
    for done in (script, typed):
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr


def test_the_readmes_own_file_is_run_replayed_and_swept(tmp_path, monkeypatch, capsys, fonts):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert len(OWN.text.splitlines()) < 25, "the shortest whole example"
    (tmp_path / "train.py").write_text(OWN.text, encoding="utf-8")
    run = ["run", "train.py", "--hidden", "64", "--update", "ordered", "--quiet", "--json", "--out", "run"]
    assert main(run) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accuracy"] > 0.85
    assert main(["replay", "run", "--quiet"]) == 0
    assert "equal" in capsys.readouterr().out
    sweep = ["sweep", "train.py", "--hidden", "64", "--update", "ordered", "--quiet", "--json", "--out", "swept"]
    assert main(sweep) == 0
    assert [row["digest"] for row in json.loads(capsys.readouterr().out)["rows"]] == [found["digest"]]


@pytest.mark.parametrize("block", TESTS, ids=str)
def test_a_pytest_snippet_passes(block, tmp_path, monkeypatch, request):
    """In this pytest: each of its tests is called with the fixtures that it names."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "snippet"}
    exec(compile(block.text, str(block), "exec"), namespace)
    tests = [value for name, value in namespace.items() if name.startswith("test_")]
    assert tests
    for test in tests:
        test(**{name: request.getfixturevalue(name) for name in inspect.signature(test).parameters})


# --- commands


def _shell_lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        yield line.strip().removeprefix("$ ")


def _commands() -> list[tuple[str, str]]:
    """(where, command) for all commands of this package, and of pytest, in blocks and in running text."""
    found: dict[tuple[str, str], None] = {}
    for block in BLOCKS:
        if block.language != "python":
            for line in _shell_lines(block.text):
                # In a list of commands the text after two spaces says what each does.
                found[block.page.name, re.split(r"  +[a-z]", line)[0] if not block.language else line] = None
    for page in PAGES:
        for code in re.findall(r"`([^`]+)`", _prose(page)):
            found[page.name, " ".join(code.split())] = None
    return [(where, line) for where, line in found if re.match(r"(HOGWILD_\S+ )*(hogwild|pytest) [^·]+$", line)]


def _arguments(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    while "=" in words[0]:
        del words[0]
    return words[: words.index("|")] if "|" in words else words


COMMAND_LINES = _commands()


def test_there_are_commands():
    assert len(COMMAND_LINES) > 40


@pytest.mark.parametrize(("where", "line"), [c for c in COMMAND_LINES if "pytest " not in c[1]])
def test_a_command_is_one(where, line, tmp_path, monkeypatch):
    """The parser takes it: a flag that does not exist fails. A bare command has only to exist."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "train.py").write_text(OWN.text, encoding="utf-8")
    _, name, *rest = _arguments(line)
    assert name in COMMANDS or name == "--help"
    if not rest or name == "--help":
        return
    if "--help" in rest:
        with pytest.raises(SystemExit):
            parse(COMMANDS, [name, *rest])
        return
    parse(COMMANDS, [name, *rest])
    if (
        name in TRAINED
        and not rest[0].startswith("-")
        and "/" not in rest[0]
        and rest[0] not in ("train.py", "RUN_DIR")
    ):
        assert rest[0] in experiment.names()


@pytest.mark.parametrize(("where", "line"), [c for c in COMMAND_LINES if "pytest " in c[1]])
def test_a_test_command_selects_something(where, line):
    _, folder, _, wanted, *_ = _arguments(line)
    sources = [path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts]
    assert any(wanted in path.name or wanted in path.read_text(encoding="utf-8") for path in sources)


def test_ci_runs_the_readme_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"<!-- command: (\w+) -->\n```bash\n(.*?)\n```", readme, re.DOTALL)
    assert [name for name, _ in commands] == ["run", "test"]
    assert all("-c constraints.txt" in command for _, command in commands)
    printed = subprocess.run(
        ["bash", "-c", "bash() { true; }; source .ci/run"], capture_output=True, text=True, cwd=ROOT
    ).stdout
    assert [line[2:] for line in printed.splitlines() if line.startswith("$ ")] == [c for _, c in commands]


# --- pages


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page):
    broken = []
    for _, target in _LINK.findall(_prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists() or (anchor and anchor not in _anchors(to)):
            broken.append(target)
    assert not broken


def test_every_page_is_in_the_map():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for page in PAGES[1:]:
        if page.name != "index.md":
            assert f"]({page.name})" in index
            assert f"](docs/{page.name})" in readme


def test_there_is_one_changelog():
    assert (ROOT / "docs" / "changelog.md").resolve() == ROOT / "CHANGELOG.md"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_the_interface_is_documented():
    import hogwild

    table = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in hogwild.__all__ if not re.search(rf"`{name}\b", table)] == []


def test_every_command_and_experiment_is_documented():
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"hogwild {name} " not in page] == []
    assert [name for name in experiment.names() if f"| `{name}` |" not in page] == []
