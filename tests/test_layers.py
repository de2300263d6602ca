"""The order of the house: every import runs down; files are short; what is public is written down."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import hogwild
from hogwild._moved import MODULES
from hogwild.config import RunConfig
from hogwild.rules.registry import NAMES as RULE_NAMES
from hogwild.rules.registry import RULES, rule_class

OF_EXPERIMENTS = (
    "optimizer",
    "lr",
    "data",
    "digest_every",
    "tensorboard",
    "patience",
    "changes",
    "own",
    "groups",
)  # by name, of experiments and of replays
ROOT = Path(__file__).parent.parent / "hogwild"  # the source, which has no experiments in it
FILES = sorted(ROOT.rglob("*.py"))

# From the top down. A module may import what stands on a lower floor, and what stands beside it in its own folder.
FLOORS: list[set[str]] = [
    {"cli", "pytest_plugin"},
    {"report", "testing"},
    {"api", "determinism", "bench", "sweep"},
    {"run"},
    {"workers", "experiment", "nodes"},
    {"rules", "reference"},
    {"model", "data", "optim", "kernels"},
    {"shared", "config"},
    {"errors", "groups", "own_code", "autograd", "_moved", "_version"},
]
DOORS = {"", "__main__"}  # hogwild itself names what is public; `python -m hogwild` is the command
FLOOR = {name: number for number, floor in enumerate(FLOORS) for name in floor}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path) for path in FILES}


def unit(module: str) -> str:
    """The part of the package that a module belongs to; hogwild itself has none."""
    return module.split(".")[1] if "." in module else ""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Modules of ours that a file imports, wherever in it, except for type checkers alone."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    for node in runtime(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "hogwild")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            if node.module and node.module.split(".")[0] == "hogwild":
                deeper = {f"{node.module}.{alias.name}" for alias in node.names} & NAMES
                yield from deeper or {node.module}


def runtime(tree: ast.AST) -> Iterator[ast.AST]:
    """The statements that are done, in whatever block; an import is one."""
    blocks = (ast.stmt, ast.excepthandler, ast.match_case)
    left = [tree]
    while left:
        for child in ast.iter_child_nodes(left.pop()):
            of_types = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
            if isinstance(child, blocks) and not of_types:
                yield child
                left.append(child)


def test_every_module_has_a_floor():
    assert {unit(name) for name in NAMES} == set(FLOOR) | DOORS
    assert len(FLOORS) <= 9


def test_every_import_runs_down():
    wrong = [
        f"{name_of(path)} imports {other}, which is above it or beside it in another folder"
        for path in FILES
        for other in imports(path)
        if (mine := unit(name_of(path))) not in DOORS
        and (mine != "cli" if other == "hogwild" else unit(other) != mine and FLOOR[unit(other)] <= FLOOR[mine])
    ]
    assert not wrong


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES if len([*path.parent.glob("*.py")]) > 6}))
def test_a_folder_says_which_modules_it_has(folder):
    """But for the commands, which have the names of their modules."""
    told = re.findall(r"\w+", ast.get_docstring(parsed(folder / "__init__.py")) or "")
    assert folder.name in ("hogwild", "cli") or {path.stem for path in folder.glob("*.py")} - {"__init__"} <= {*told}


def test_no_two_modules_import_each_other():
    graph = {name_of(path): set(imports(path)) - {name_of(path)} for path in FILES if name_of(path) != "hogwild"}
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"a circle: {' → '.join((*trail, name))}"
        if name not in done:
            for other in graph.get(name, ()):
                visit(other, (*trail, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def test_threads_and_processes_know_nothing_of_each_other():
    def reached(name: str, seen: set[str]) -> set[str]:
        for other in imports(ROOT.parent / f"{name.replace('.', '/')}.py"):
            if other not in seen and (ROOT.parent / f"{other.replace('.', '/')}.py").exists():
                seen.add(other)
                reached(other, seen)
        return seen

    assert "hogwild.workers.threads" not in reached("hogwild.workers.processes", set())
    assert "hogwild.workers.processes" not in reached("hogwild.workers.threads", set())


def test_autograd_and_distance_stand_on_their_own():
    """The studies import nothing of ours; the judge of states imports nothing of the trainer that made them."""
    for path in (ROOT / "autograd").glob("*.py"):
        assert {unit(other) for other in imports(path)} <= {"autograd"}
    for name in ("distance", "predictions", "states", "ulp"):
        judged = {unit(other) for other in imports(ROOT / "determinism" / f"{name}.py")}
        assert judged <= {"determinism", "errors", "shared"}, name


def test_shared_memory_knows_no_optimizer_and_no_rule():
    for path in (ROOT / "shared").glob("*.py"):
        assert {unit(other) for other in imports(path)} <= {"shared", "errors"}, path.name
        assert "torch.optim" not in path.read_text(encoding="utf-8"), path.name


def test_the_arena_alone_maps_memory():
    """What must change for another kind of shared memory is in one file."""
    for path in FILES:
        if path.name != "arena.py":
            names = {
                alias.name
                for node in nodes(path)
                if isinstance(node, ast.Import | ast.ImportFrom)
                for alias in node.names
            }
            assert not names & {"mmap", "shared_memory"}, path.name


def test_files_are_short():
    assert not [name_of(path) for path in FILES if len(path.read_text(encoding="utf-8").splitlines()) >= 400]


def test_no_two_files_of_tests_have_one_name():
    """pytest takes them for one module where both are collected, and one of them alone for what it is."""
    names = [path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py"]
    assert len(names) == len(set(names)), sorted({name for name in names if names.count(name) > 1})


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function's body, its docstring left out."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return function.end_lineno - body[0].lineno + 1 if body else 0


def test_functions_are_short():
    assert not [
        f"{name_of(path)}.{node.name}"
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and code_lines(node) >= 50
    ]


def test_no_two_public_things_share_a_name():
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name_of(path))
    assert not {name: places for name, places in homes.items() if len(places) > 1}


def test_nobody_but_the_rules_spells_the_name_of_one():
    """Names that stand alone in the code; sentences, signatures and the defaults of settings may have them."""
    spelled = {
        f"{name_of(path)}:{node.lineno} {node.value}"
        for path in FILES
        if unit(name_of(path)) not in ("rules", "reference", "api", "config")
        for node in nodes(path)
        if isinstance(node, ast.Constant) and node.value in set(RULE_NAMES) - {"hogwild"}
    }
    # The damage of racing, which is no rule's name, is a key of a verdict's JSON.
    assert {place.split(":")[0] + place[place.index(" ") :] for place in spelled} <= {
        "hogwild.determinism.damage racing"
    }


@pytest.mark.parametrize("function", [hogwild.train, hogwild.launch])
def test_the_ways_in_take_every_setting_with_its_default(function):
    """`RunConfig` is the one list of settings; the signatures of `train` and `launch` are held against it."""
    parameters = inspect.signature(function).parameters
    settings = {one.name: one.default for one in dataclasses.fields(RunConfig) if one.name not in OF_EXPERIMENTS}
    if function is hogwild.launch:  # makes no batches, computes no gradient, and is told how many updates there are
        for name in (
            "accumulate",
            "gradient",
            "epochs",
            "updates",
            "limit_updates",
            "batch_size",
            "drop_last",
            "shuffle",
        ):
            del settings[name]
    assert {name: parameters[name].default for name in settings} == settings


def test_every_file_opens_with_what_it_is():
    assert not [name_of(path) for path in FILES if not ast.get_docstring(parsed(path))]


def test_the_public_names_are_complete_sorted_and_there():
    declared = [name for names in hogwild._HOMES.values() for name in names]
    assert sorted(declared) == hogwild.__all__
    for home, names in hogwild._HOMES.items():
        assert all(getattr(hogwild, name).__module__.startswith("hogwild.") for name in names), home
    assert set(hogwild.__all__) <= set(dir(hogwild))
    with pytest.raises(AttributeError, match="'nothing'"):
        hogwild.nothing  # noqa: B018


def test_names_are_typed_as_they_are_loaded():
    """The imports for type checkers name the same homes as the table that loads them."""
    tree = parsed(ROOT / "__init__.py")
    typed = {
        (node.module.removeprefix("hogwild."), alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    assert typed == {(home, name) for home, names in hogwild._HOMES.items() for name in names}


def test_who_only_has_it_installed_does_not_wait_for_torch():
    program = "import sys, hogwild.pytest_plugin; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("name", hogwild.__all__)
def test_every_public_name_is_documented(name):
    value = getattr(hogwild, name)
    own = vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
    assert own and len(own.split()) > 3, f"hogwild.{name} has no docstring of its own"
    if isinstance(value, type):
        for method, function in vars(value).items():
            if not method.startswith("_") and callable(function):
                assert function.__doc__, f"hogwild.{name}.{method} has no docstring"


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "py.typed").exists()


@pytest.mark.parametrize("name", RULE_NAMES)
def test_a_rule_says_what_it_is(name):
    rule = rule_class(name)
    assert rule.name == name
    assert rule.__module__ == RULES[name].module
    assert 3 < len(rule.summary.split()) < 15
    assert rule.exact or not rule.versioned
    settings = {one.name for one in dataclasses.fields(RunConfig)}
    assert set(RULES[name].options) == set(inspect.signature(rule).parameters) <= settings
    assert set(rule.options_for(4)) <= set(RULES[name].options)


def test_old_modules_lead_to_such_as_there_are():
    assert {f"hogwild.{home}" for homes in MODULES.values() for home in homes} <= NAMES


def test_old_modules_are_still_found():
    program = """
import warnings
from hogwild._moved import MODULES
for old, homes in MODULES.items():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(f"import hogwild.{old} as module")
    assert [one.category for one in caught] == [DeprecationWarning], (old, caught)
    assert caught[0].filename == "<string>" and homes[0] in str(caught[0].message), (old, caught)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
