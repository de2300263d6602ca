"""The flags that a person's own file adds to a command: one for each parameter of its builder.

What the arguments name is looked at before they are parsed, so that a help text shows these flags too.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, is_dataclass, make_dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import arg
from tyro.constructors import PrimitiveConstructorSpec

from hogwild.cli.settings import SettingFlags, class_of
from hogwild.cli.values import words
from hogwild.config import AUTO
from hogwild.workers.process.early import import_torch, start_server_early
from hogwild.workers.process.spawn import refuse_removed_folder

if TYPE_CHECKING:
    from hogwild.experiment import Training
    from hogwild.experiment.parameters import Parameter

_FILE = re.compile(r"[^-].*\.py(:[A-Za-z_]\w*)?")
_UNTRAINED = {"-h", "--help", "--fresh-process"}  # flags with which the command itself trains nothing
_OF_PATHS = ("--command", "--out", "--data")  # flags whose values may look like a file of code
_MODULE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NOT_GIVEN = object()  # and not None, which `--width none` gives


@dataclass(frozen=True)
class NoOwnFlags(SettingFlags):
    """The flags of an experiment that has none of its own."""


def with_own_flags(command: type[Any], argv: Sequence[str]) -> type[Any]:
    """A command with the flags of the file that its arguments name; the command itself where they name none. What the
    command has for none to be named (`without_experiment`) gives way to a flag of that name.

    Raises:
        ArgumentError: the file cannot be run, or defines no experiment.
    """
    wanted = _experiment_in(argv)
    if wanted is None or not is_dataclass(command) or "own" not in command.__dataclass_fields__:
        return command
    refuse_removed_folder()
    if getattr(command, "trains", False) and not _UNTRAINED & {*argv}:
        start_server_early("processes" if getattr(command, "several", False) else _kind_in(argv))
    else:
        import_torch()
    from hogwild.experiment import Training, find

    training, _ = find(wanted)
    if not isinstance(training, Training) or not training.parameters:
        return command
    group = own_flags(training, several=getattr(command, "several", False))
    title = Path(training.own.file).name if training.own is not None else training.name
    own = ("own", Annotated[group, arg(name=title)], field(default_factory=group))
    hidden = [
        (name, Annotated[Any, tyro.conf.Fixed, tyro.conf.Suppress], field(default=None))
        for name in getattr(command, "without_experiment", ())
        if name in group.readers
    ]
    made = make_dataclass(command.__name__, [own, *hidden], bases=(command,), frozen=True)
    made.__doc__ = command.__doc__
    return made


def own_flags(training: Training, *, several: bool = False) -> type[SettingFlags]:
    """The class of the flags for a training's own parameters; of those that take several values each, to sweep."""
    group = class_of([(one.name, *_flag(one, several)) for one in training.parameters], training.question)
    group.readers = {one.name: one.read_text for one in training.parameters}
    return group


def _flag(one: Parameter, several: bool) -> tuple[Any, Any]:
    """(type, default) of a parameter's flag; the default stands for not given."""
    plain = one.default is False and not several  # --deep, as --audit
    hint = "" if plain else "(required)" if one.needed else f"(default: {_text(one.default)})"
    shown = arg(help=one.about or "A parameter of the experiment's own.", help_behavior_hint=hint)
    if plain:
        return Annotated[bool, shown], field(default=False)
    return Annotated[Any, _spec(one, several), shown], field(default=None if several else _NOT_GIVEN)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_text, value))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _spec(one: Parameter, several: bool) -> PrimitiveConstructorSpec[Any]:
    if several:
        return words(one.metavar, ("true",) if one.default is False else ())
    return PrimitiveConstructorSpec(
        nargs="*" if one.many else 1,
        metavar=one.metavar,
        instance_from_str=one.read,
        is_instance=lambda value: True,  # noqa: ARG005
        str_from_instance=lambda value: [_text(value)],
    )


def _experiment_in(argv: Sequence[str]) -> str | None:
    """What the arguments name as an experiment, where a person's own file stands behind it."""
    for flag, value in pairwise(argv):
        if flag == "--resume":
            return value if _is_of_own_file(Path(value)) else None
    if argv and _has_own_flags(argv[0]):
        return argv[0]
    if argv and (_MODULE.fullmatch(argv[0]) or _is_of_own_file(Path(argv[0]))):
        return argv[0]
    before = ["", *argv]
    files = (text for flag, text in zip(before, argv, strict=False) if flag not in _OF_PATHS and _FILE.fullmatch(text))
    return next(files, None)


def _kind_in(argv: Sequence[str]) -> str:
    """The kind of workers that the arguments name."""
    parts = [part for word in argv for part in word.split("=", 1)]
    return next((value for flag, value in pairwise(parts) if flag == "--kind"), AUTO)


def _has_own_flags(name: str) -> bool:
    """Whether one of our experiments has that name, and a builder that takes more than seed and data.

    As its text says: to import it would take as long as torch does, which a help text does not wait for.
    """
    package = find_spec("hogwild.experiments") if name.isidentifier() else None
    folders = (package.submodule_search_locations or []) if package is not None else []
    for path in (Path(folder) / f"{name}.py" for folder in folders):
        if path.is_file():
            made = ast.parse(path.read_text("utf-8")).body
            return any(
                isinstance(one, ast.FunctionDef) and one.name == "build" and len(one.args.args) > 2 for one in made
            )
    return False


def _is_of_own_file(path: Path) -> bool:
    """Whether that is the folder or the config.toml of a run of a person's own file."""
    with suppress(OSError, ValueError, RecursionError):
        config = path / "config.toml" if path.is_dir() else path
        return config.suffix == ".toml" and config.is_file() and "own" in tomllib.loads(config.read_text("utf-8"))
    return False
