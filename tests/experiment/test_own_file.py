"""A person's own file as an experiment: what is found in it, its parameters, and what is told of mistakes."""

from __future__ import annotations

import enum
import random
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest
import torch
import tyro
from own_files import rings

import hogwild
from hogwild.config import OwnCode, RunConfig
from hogwild.errors import ArgumentError
from hogwild.experiment import Study, Training, bound, code, find, settings_of
from hogwild.experiment.parameters import parameters_of


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


def builder(
    whole: int = 3,
    number: float = 1,
    flag: bool = True,
    text: str = "a",
    path: Path = Path("/x"),
    word: Literal["left", "right"] = "left",
    size: Literal[1, 2] = 2,
    colour: Colour = Colour.RED,
    perhaps: int | None = 4,
    several: tuple[int, ...] = (1, 2),
    pair: tuple[float, float] = (0.9, 0.999),
    names: list[str] | None = None,
    told: Annotated[int, tyro.conf.arg(help="Told here.")] = 0,
    *,
    seed: int = 0,
    data: Path | None = None,
) -> hogwild.Problem:
    """Build nothing.

    Args:
        whole: So
            many.
    """
    raise NotImplementedError


PARAMETERS = {one.name: one for one in parameters_of(builder)}


@pytest.mark.parametrize(
    ("name", "text", "plain", "given"),
    [
        ("whole", "-7", -7, -7),
        ("number", "3", 3.0, 3.0),
        ("flag", "false", False, False),
        ("text", "none", "none", "none"),
        ("path", "/tmp/y", "/tmp/y", Path("/tmp/y")),
        ("word", "right", "right", "right"),
        ("size", "1", 1, 1),
        ("colour", "BLUE", "BLUE", Colour.BLUE),
        ("perhaps", "none", None, None),
        ("perhaps", "5", 5, 5),
        ("several", "4,5", [4, 5], (4, 5)),
        ("pair", "0.5,1", [0.5, 1.0], (0.5, 1.0)),
        ("names", "a,b", ["a", "b"], ["a", "b"]),
        ("names", "none", None, None),
    ],
)
def test_a_text_becomes_what_is_recorded_and_what_is_given(name, text, plain, given):
    one = PARAMETERS[name]
    assert one.read_text(text) == plain and type(one.read_text(text)) is type(plain)
    assert one.given(plain) == given and type(one.given(plain)) is type(given)
    assert one.plain(given) == plain
    recorded = RunConfig(updates=1, own=OwnCode("/f.py", "0", parameters={name: plain})).to_toml()
    assert RunConfig.from_mapping(tomllib.loads(recorded)).own.parameters.get(name) == plain


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("whole", "2.5", "'2.5' is not a whole number"),
        ("whole", str(2**70), "over 64 bits"),
        ("number", "big", "'big' is not a number"),
        ("flag", "yes", "'yes' is neither true nor false"),
        ("word", "up", "'up' is not known; left, right are"),
        ("size", "3", "'3' is not known; 1, 2 are"),
        ("colour", "GREEN", "'GREEN' is not known; RED, BLUE are"),
        ("several", "1,x", "'x' is not a whole number"),
        ("pair", "1,2,3", r"\[1.0, 2.0, 3.0\] has 3 where 2 are needed"),
    ],
)
def test_a_text_that_stands_for_no_value(name, text, why):
    with pytest.raises(ValueError, match=why):
        PARAMETERS[name].read_text(text)


def test_what_a_builder_is_passed_is_no_parameter_and_the_docstring_is_the_help():
    assert "seed" not in PARAMETERS and "data" not in PARAMETERS
    assert PARAMETERS["whole"].about == "So many." and PARAMETERS["told"].about == "Told here."
    assert PARAMETERS["number"].default == 1.0 and PARAMETERS["several"].default == [1, 2]


# --- what is found in a file


@pytest.fixture(autouse=True)
def path_as_it_was(monkeypatch):
    """The folder of a file that is run stays on the path."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def written(folder: Path, text: str, name: str = "own.py") -> str:
    (folder / name).write_text(textwrap.dedent(text), encoding="utf-8")
    return str(folder / name)


PLAIN = """
import torch, hogwild

def {name}(width: int = 2){returns}:
    model = torch.nn.Linear(width, 1)
    return hogwild.Problem(model, torch.ones(8, width), lambda model, batch: model(batch).sum())
"""


@pytest.mark.parametrize(("name", "returns"), [("build", ""), ("anything", " -> hogwild.Problem")])
def test_a_function_alone_is_an_experiment(name, returns, tmp_path):
    training, saved = find(written(tmp_path, PLAIN.format(name=name, returns=returns)))
    assert isinstance(training, Training) and saved is None
    assert training.name == "own" and [one.name for one in training.parameters] == ["width"]
    config = settings_of(training, {"width": 3, "updates": 1})
    assert bound(training, config).build(0, None).model.in_features == 3
    assert config.own.parameters == {"width": 3} and Path(config.own.file).name == "own.py"


def test_of_several_one_is_named(tmp_path):
    text = PLAIN.format(name="one", returns="") + PLAIN.format(name="two", returns="")
    path = written(
        tmp_path, f"{text}\nhogwild.define_experiment(one, lr=0.5)\nhogwild.define_experiment(two, name='second')\n"
    )
    with pytest.raises(ArgumentError, match=r"own.py defines 2 experiments; name one: .*own.py:one or .*own.py:two"):
        find(path)
    assert (find(f"{path}:one")[0].name, find(f"{path}:two")[0].name) == ("own-one", "second")
    assert find(f"{path}:one")[0].defaults == {"lr": 0.5}
    with pytest.raises(ArgumentError, match=r"own.py has no experiment or function named 'three'; it has one, two"):
        find(f"{path}:three")


def test_a_training_and_a_study_made_by_hand_are_found(tmp_path):
    path = written(
        tmp_path,
        """
        from hogwild.experiment import Study, Training
        mine = Training("mine", "?", None, {"epochs": 1})
        asked = Study("asked", "?", None)
        """,
    )
    assert find(f"{path}:mine")[0].name == "mine" and isinstance(find(f"{path}:asked")[0], Study)


def test_a_module_is_found_from_here_and_from_its_record(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "toys.py").write_text(PLAIN.format(name="make", returns=""))
    monkeypatch.chdir(tmp_path)
    config = settings_of(find("work.toys:make")[0], {"updates": 1})
    assert (config.own.module, config.own.builder) == ("work.toys", "make")
    monkeypatch.chdir("/")
    monkeypatch.setattr(code, "_loaded", {})
    sys.path[:] = [folder for folder in sys.path if folder != str(tmp_path)]
    for name in ("work", "work.toys"):
        del sys.modules[name]
    (tmp_path / "config.toml").write_text(config.to_toml())
    again, saved = find(str(tmp_path))
    assert saved == config and again.own.file == config.own.file
    with pytest.raises(ArgumentError, match="no module 'nowhere.at_all' is found from here"):
        find("nowhere.at_all:build")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "__init__.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"broken: ZeroDivisionError: division by zero \(in .*__init__.py:1\)"):
        find("broken.one:build")


def test_what_a_file_draws_at_its_top_is_the_same_and_what_it_builds_follows_the_seed(tmp_path):
    path = written(
        tmp_path,
        """
        import random
        import numpy, torch, hogwild
        TOP = torch.rand(1).item(), numpy.random.rand(), random.random()

        def build(seed: int, data=None) -> hogwild.Problem:
            drawn = torch.rand(1).item(), numpy.random.rand(), random.random()
            return hogwild.Problem(torch.nn.Linear(1, 1), (TOP, drawn, seed), None)
        """,
    )
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    built = [find(path)[0].build(seed, None).data for seed in (1, 1, 2)]
    assert built[0] == built[1] and built[0][0] == built[2][0]
    assert all(one != other for one, other in zip(built[0][1], built[2][1], strict=True))
    assert [data[2] for data in built] == [1, 1, 2]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1] and random.getstate() == before[2]


def test_a_file_may_train_at_its_top(tmp_path):
    """Workers get by value what it has defined so far, as they do later."""
    path = written(
        tmp_path,
        """
        from functools import partial
        import torch, hogwild

        class Line(torch.nn.Linear):
            pass

        def loss(model, batch):
            return (model(batch) - batch).square().mean()

        line, x = Line(4, 4), torch.randn(16, 4)
        sgd = partial(torch.optim.SGD, lr=0.1)
        hogwild.train(line, x, loss, optimizer=sgd, update="ordered", kind="processes", updates=5, batch_size=4)

        def build(seed: int) -> hogwild.Problem:
            return hogwild.Problem(line, x, loss)
        """,
    )
    assert find(path)[0].build(1, None).data.shape == (16, 4)


def test_a_changed_file_is_warned_of(tmp_path):
    path = rings(tmp_path)
    config = settings_of(find(str(path))[0], {})
    (tmp_path / "config.toml").write_text(config.to_toml())
    find(str(tmp_path))
    path.write_text(path.read_text() + "# changed\n")
    with pytest.warns(UserWarning, match=r"rings.py has changed since the run was begun: its SHA-256 was \w+… and is"):
        find(str(tmp_path))
    path.unlink()
    with pytest.raises(ArgumentError, match=r"rings.py, in which the experiment 'rings' stands, is not there; put it"):
        find(str(tmp_path))


def test_a_recorded_parameter_that_is_gone_is_told(tmp_path):
    path = rings(tmp_path)
    config = settings_of(find(str(path))[0], {"hidden": 4})
    path.write_text(path.read_text().replace("hidden: int = 8", "units: int = 8").replace("hidden", "units"))
    with pytest.raises(ArgumentError, match=r"hidden 4 given, and build \(rings.py:\d+\) has no such parameter"):
        settings_of(find(str(path))[0], {}, config)


# --- mistakes

HEAD = "import torch, hogwild\n"
PROBLEM = "    return hogwild.Problem(torch.nn.Linear(1, 1), torch.ones(4, 1), lambda m, b: m(b).sum())\n"
UNTYPED = "def build(width=3):\n    pass\nhogwild.define_experiment(build)\n"
MISTAKES = {
    "it defines what cannot be": (f"{HEAD}{UNTYPED}", ["own.py:2: parameter 'width' of build has no type"]),
    "it raises": ("x = 1\nraise KeyError('gone')\n", ["own.py:2", "KeyError: 'gone'", "python own.py"]),
    "no syntax": ("x = 1\ndef f(:\n", ["own.py:2", "SyntaxError: invalid syntax"]),
    "a module that is not there": ("import nothing_there\n", ["own.py:1", "No module named 'nothing_there'"]),
    "it ends the program": ("import sys\n\nsys.exit(0)\n", ["own.py:3", "sys.exit", '__name__ == "__main__"']),
    "nothing in it": ("x = 1\n", ["own.py defines no experiment", "returns a hogwild.Problem", "define_experiment"]),
    "a parameter without a type": (
        f"{HEAD}def build(width=3):\n{PROBLEM}",
        ["own.py:2", "parameter 'width' of build has no type", "width: int = 3 works"],
    ),
    "a type that no flag can give": (
        f"{HEAD}def build(width: dict = {{}}):\n{PROBLEM}",
        ["own.py:2", "parameter 'width' of build is a dict", "int, float, bool, str"],
    ),
    "a default of another type": (
        f"{HEAD}def build(width: int = 'a'):\n{PROBLEM}",
        ["own.py:2", "'width'", "'a' is a str, not int"],
    ),
    "the name of a setting": (
        f"{HEAD}def build(lr: float = 0.1):\n{PROBLEM}",
        ["own.py:2", "'lr' of build has the name of a flag", "--lr", "my_lr"],
    ),
    "the name of a flag of a command": (f"{HEAD}def build(out: str = ''):\n{PROBLEM}", ["own.py:2", "--out", "my_out"]),
    "any keywords": (f"{HEAD}def build(**other):\n{PROBLEM}", ["own.py:2", "'other'", "cannot be given by name"]),
    "a type that is not there": (f"{HEAD}def build(width: 'Width'):\n{PROBLEM}", ["own.py:2", "Width", "build"]),
    "the wrong thing returned": (
        f"{HEAD}def build():\n    return torch.nn.Linear(1, 1)\n",
        ["own.py:2", "build returned a Linear", "hogwild.Problem(model, data, loss)"],
    ),
    "it raises when it builds": (
        f"{HEAD}def build(width: int = 2):\n    torch.ones(2) @ torch.ones(3)\n",
        ["own.py:3", "RuntimeError: inconsistent tensor size", "raised in build(width=2)"],
    ),
    "a value that is needed": (
        f"{HEAD}def build(my_data: str):\n{PROBLEM}",
        ["build (own.py:2) needs my_data", "--my-data TEXT"],
    ),
    "an unknown setting": (
        f"{HEAD}def build():\n{PROBLEM}\nhogwild.define_experiment(build, epoch=3)\n",
        ["own.py:5", "'epoch' is not a setting", "did you mean epochs?"],
    ),
    "no function": (f"{HEAD}hogwild.define_experiment(3)\n", ["own.py:2", "build 3 is an int", "takes a function"]),
}


def built(path: str) -> hogwild.Problem:
    training, _ = find(path)
    return bound(training, settings_of(training, {"updates": 1})).build(0, None)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_its_place(mistake, tmp_path):
    text, words = MISTAKES[mistake]
    path = written(tmp_path, text)
    with pytest.raises(ArgumentError) as caught:
        built(path)
    assert "\n" not in str(caught.value) and str(caught.value).count("own.py:") <= 1
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_a_folder_of_data_that_nobody_reads_is_refused(tmp_path):
    training, _ = find(written(tmp_path, PLAIN.format(name="build", returns="")))
    with pytest.raises(ArgumentError, match=r"--data /d given, and build \(own.py:4\) has no parameter named data"):
        training.build(0, Path("/d"))


def test_a_name_of_a_file_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"nothing.py: No such file; hogwild new nothing.py writes one"):
        find("nothing.py")
    rings(tmp_path)
    with pytest.raises(ArgumentError, match=r"no experiment is named 'rings'; did you mean the file rings.py\?"):
        find("rings")
    with pytest.raises(ArgumentError, match=r"named 'rigns'; did you mean the file rings.py\? there are"):
        find("rigns")
    with pytest.raises(ArgumentError, match=r"rigns.py: No such file; did you mean rings.py\? hogwild new"):
        find("rigns.py")


def test_a_file_is_compiled_as_it_is_and_not_as_this_package_is(tmp_path):
    text = (
        PLAIN.format(name="build", returns="")
        + """
from dataclasses import dataclass, fields

@dataclass
class Sizes:
    hidden: int = 3

HIDDEN = {one.name: one.type for one in fields(Sizes)}["hidden"]("7")
"""
    )
    assert find(written(tmp_path, text))[0].name == "own"
