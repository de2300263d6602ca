"""A person's own file, run once, so that what it defines can be trained.

    train.py   train.py:build   package.module:build   →   place_of   →   run_code   →   a module

The file is run as `python train.py` runs it, but under another name: what stands under `if __name__ == "__main__"` is
left out. Its folder is on the path, so that it finds the modules beside it. What it draws at its top is seeded by a
fixed number; what it prints goes to standard error. Worker processes get what it defines by value, and do not run it.
"""

from __future__ import annotations

import hashlib
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module, util
from pathlib import Path
from types import ModuleType

import cloudpickle

from hogwild.data.seeding import preserved_generators, seed_generators
from hogwild.errors import ArgumentError, Terminated, guess, one_line

_FILE = re.compile(r"(?P<file>.+\.py)(:(?P<builder>\w+))?")
_MODULE = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<builder>\w+)")
_loaded: dict[tuple[str, str, str], ModuleType] = {}
_found: dict[str, Path] = {}  # by the name that was given: a file may change the current folder when it is run


@dataclass(frozen=True)
class Place:
    """Where an experiment of one's own stands: a file, or a module by name; and what builds it, where it is named."""

    file: str = ""
    module: str = ""
    builder: str = ""

    def __str__(self) -> str:
        """As a person names it."""
        return f"{self.file or self.module}{f':{self.builder}' if self.builder else ''}"


@dataclass(frozen=True)
class Code:
    """Code that was run.

    Attributes:
        module: what it defines.
        file: its absolute path.
        sha256: of the file, in hexadecimal.
    """

    module: ModuleType
    file: Path
    sha256: str


def place_of(text: str) -> Place | None:
    """The place that is named like `train.py`, `train.py:build` or `package.module:build`; None for other texts."""
    if found := _FILE.fullmatch(text):
        return Place(file=found["file"], builder=found["builder"] or "")
    if found := _MODULE.fullmatch(text):
        return Place(module=found["module"], builder=found["builder"])
    return None


def run_code(place: Place) -> Code:
    """Run the code at that place; once for each content of the file.

    Raises:
        ArgumentError: there is no such file or module, or it raises; the message names file, line and what was raised.
    """
    path = _file_of(place)
    try:
        content = path.read_bytes()
    except OSError as error:
        told = f"{path} cannot be read ({error.strerror})"
        if isinstance(error, FileNotFoundError):
            meant = guess(path.stem, files_in(path.parent), "{}.py")
            told = f"{place.file or path}: No such file; {meant}hogwild new {path.name} writes one to start from"
        raise ArgumentError(told) from error
    _found[place.file] = path
    sha256 = hashlib.sha256(content).hexdigest()
    key = (str(path), place.module, sha256)
    if key not in _loaded:
        _loaded[key] = _import(place.module, path) if place.module else _run(path, content)
    return Code(_loaded[key], path, sha256)


def files_in(folder: Path) -> list[str]:
    """The files in a folder that may be somebody's own experiments, without their ending."""
    return [path.stem for path in folder.glob("*.py")]


def _file_of(place: Place) -> Path:
    if place.file:
        path = Path(place.file).absolute()
        return path if path.exists() else _found.get(place.file, path)
    if place.module not in sys.modules:  # as experiments of ours are by now
        _find_from(Path.cwd())
    package = place.module.rpartition(".")[0]
    try:
        with told_where(Path(package.replace(".", "/")), f"{place.module} is in it"):
            found = util.find_spec(place.module)  # imports the package that the module is in
    except ArgumentError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        found = None
    if found is None or found.origin is None or not found.has_location:
        raise ArgumentError(
            f"no module {place.module!r} is found from here; name a file (train.py:{place.builder}), or a module that "
            f"python -m would find"
        )
    return Path(found.origin).absolute()


def find_from(module: str, file: str) -> None:
    """Let a module be found by its name, where that file is it."""
    path = Path(file)
    above = path.parent.parents if path.name == "__init__.py" else path.parents
    _find_from(above[len(module.split(".")) - 1])


def _find_from(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import(name: str, path: Path) -> ModuleType:
    with told_where(path, "it has to be imported without an error"):
        return import_module(name)


def _run(path: Path, content: bytes) -> ModuleType:
    name = f"own:{path.stem}"  # no import can be meant by it
    module = ModuleType(name)
    module.__file__ = str(path)
    _find_from(path.parent)
    sys.modules[name] = module  # dataclasses and type hints look there
    cloudpickle.register_pickle_by_value(module)  # it may train while it is run
    try:
        with told_where(path, f"it has to run by itself: python {path.name}"):
            exec(compile(content, str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[name]
        raise
    return module


@contextmanager
def told_where(path: Path, works: str, seed: int = 0, *, ours: bool = False) -> Iterator[None]:
    """Inside, what a person's code raises becomes one line with its place; what it prints goes to standard error; and
    what it draws is seeded, and leaves this process's generators as they were.

    Args:
        path: the file whose lines are named.
        works: what would work.
        seed: of torch's, numpy's and Python's own generators.
        ours: the file is this package's; what it refuses is told without a place, of which its reader knows nothing.

    Raises:
        ArgumentError: it raised anything, or ended the program.
    """
    with preserved_generators(), redirect_stdout(sys.stderr):
        seed_generators(seed)
        try:
            yield
        except (KeyboardInterrupt, GeneratorExit, Terminated):
            raise
        except SystemExit as error:
            raise ArgumentError(
                f"{_where(error, path)}: it ends the program (sys.exit); what is not for a training stands under "
                f'if __name__ == "__main__"'
            ) from error
        except ArgumentError as error:
            told, here = one_line(error), f"{path.name}:"
            placed = ours or told.startswith(here)
            raise ArgumentError(told if placed else f"{_where(error, path)}: {told}") from error
        except BaseException as error:
            raise ArgumentError(f"{_where(error, path)}: {_what(error, path)}; {works}") from error


def _where(error: BaseException, path: Path) -> str:
    """The last line of the file that the error passed: train.py:7."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return f"{path.name}:{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path.name}:{lines[-1]}" if lines else path.name


def _what(error: BaseException, path: Path) -> str:
    """What was raised, and where, if not in the file itself."""
    told = error.msg if isinstance(error, SyntaxError) else one_line(error)
    what = type(error).__name__ if told == type(error).__name__ else f"{type(error).__name__}: {told}"
    if isinstance(error, SyntaxError):
        elsewhere = f"{error.filename}:{error.lineno}" if error.filename != str(path) else ""
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        elsewhere = f"{last.filename}:{last.lineno}" if last.filename != str(path) else ""
    return f"{what} (in {elsewhere})" if elsewhere and "importlib" not in elsewhere else what
