"""The flags that say how to train, made from the fields of `RunConfig`: a new setting there is a new flag here.

A field gives its flag everything: the name, the type, what the help shows for a value and for the default, and, in the
docstring under it, the help text.
"""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, make_dataclass
from difflib import get_close_matches
from functools import cache, partial
from itertools import groupby, pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar

from tyro.conf import UseAppendAction, arg

from hogwild import config
from hogwild.cli.values import folder, number, read, truth, whole, words
from hogwild.config import RunConfig
from hogwild.errors import ArgumentError, flag_of
from hogwild.groups import Group
from hogwild.rules.registry import NAMES, owners_of

_NO_FLAG = ("name", "changes", "own", "groups")  # the experiment, named without a flag; what is told in other ways
_OFF = "turns off"  # in a flag's metadata: the setting that it turns off
_FOLDER = "FOLDER"  # what the help shows for a path
_GROUPS = {
    "update": ("rule", "How the model is shared, and by whom."),
    "optimizer": ("training", "What is not given is the experiment's own setting, or that of the config.toml."),
    "evaluate_every": ("record", "What is measured and saved on the way."),
    "on_nonfinite": ("failure", "What to do when something goes wrong."),
}
"""The first setting of each group of the help → the group's name, and a line about it. Settings stand as in
`RunConfig`."""
GroupFlag = Annotated[
    UseAppendAction[tuple[tuple[str, ...], ...]],
    arg(metavar="PATTERN OPTION=VALUE...", help_behavior_hint="(repeatable)"),
]
"""The type of the flag --group of a command."""
_WIDEST = 24  # letters of a flag and its value, up to which tyro gives all of them a column of their own
_MORE = {"update": f" One of {', '.join(NAMES)}; hogwild list tells them apart."}


@dataclass(frozen=True)
class SettingFlags:
    """Flags for settings: those of one group of the help, or all groups of a command. `readers`: for flags of an
    experiment's own, what reads the value of each from a text."""

    readers: ClassVar[Mapping[str, Callable[[str], Any]]] = {}

    def given(self) -> dict[str, Any]:
        """The settings that were named on the command line.

        Raises:
            ArgumentError: one is turned on and off.
        """
        found: dict[str, Any] = {}
        for one in fields(self):
            value, off = getattr(self, one.name), one.metadata.get(_OFF)
            if isinstance(value, SettingFlags):
                found |= value.given()
            elif value is one.default:
                continue
            elif off in found:
                raise ArgumentError(f"{flag_of(off)} and {flag_of(one.name)} given; one of them works")
            else:
                found[off or one.name] = off is None and value
        return found


@cache
def setting_flags(*left_out: str, several: bool = False) -> type[SettingFlags]:
    """The class of the flags for all settings but these; of flags that take several values each, as texts."""
    texts = _docstrings()
    first, flags = "", []
    for one in fields(RunConfig):
        first = one.name if one.name in _GROUPS else first
        if one.name not in (*_NO_FLAG, *left_out):
            flags.append((first, (one.name, *_flag(one, texts[one.name], several))))
            if one.default is False and not several:
                flags.append((first, _flag_off(one.name)))
    groups = []
    for first, members in groupby(flags, key=lambda flag: flag[0]):
        title, about = _GROUPS[first]
        group = class_of([flag for _, flag in members], about)
        groups.append((title, Annotated[group, arg(name=title)], field(default_factory=group)))
    return class_of(groups, "How to train.")


def settings_in(texts: Sequence[str], command: object) -> dict[str, Any]:
    """The settings in texts of the form key=value, for a command that has flags for them.

    Raises:
        ArgumentError: another form, a key that is no setting, or a value that is none of it; or it is given twice.
    """
    given, found = given_settings(command), {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ArgumentError(f"--set: {text!r} is not of the form KEY=VALUE; lr=0.03 is an example")
        if name in found or name in given:
            raise ArgumentError(f"--set {text} given, and {name} is given already; one of them works")
        found[name] = _read_setting(name, value.strip(), readers_of(command))
    return found


def _read_setting(name: str, value: str, readers: Mapping[str, Callable[[str], Any]]) -> Any:
    if name not in readers:
        close = get_close_matches(name, readers, 1)
        works = f"did you mean {close[0]}?" if close else f"the settings are {', '.join(readers)}"
        raise ArgumentError(f"--set: {name!r} is no setting; {works}")
    try:
        return readers[name](value)
    except ValueError as error:
        raise ArgumentError(f"--set {name}: {error}") from None


def given_settings(command: Any) -> dict[str, Any]:
    """The settings that were given to a command as flags, those of the experiment's own included.

    Raises:
        ArgumentError: --group is given without a pattern, or something that is no option with a value.
    """
    groups = {"groups": tuple(map(_group, command.group))} if getattr(command, "group", ()) else {}
    return {**command.training.given(), **command.own.given(), **groups}


def _group(texts: Sequence[str]) -> Group:
    """A pattern of names, then options as OPTION=VALUE, a value as TOML has it."""
    options = {}
    if not texts:
        raise ArgumentError("--group given without a pattern; '*.bias' weight_decay=0 is an example")
    for text in texts[1:]:
        name, equals, value = text.partition("=")
        if not equals or name in options:
            raise ArgumentError(f"--group {' '.join(texts)}: {text!r} is not one OPTION=VALUE; weight_decay=0 is")
        try:
            options[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            raise ArgumentError(
                f"--group {' '.join(texts)}: {value!r} is no value; 0.01, true, [0.9, 0.99] are"
            ) from None
    try:
        return Group(texts[0], options)
    except ValueError as error:
        raise ArgumentError(f"--group: {error}") from None


def readers_of(command: Any) -> dict[str, Callable[[str], Any]]:
    """For each setting that a command has a flag for: what reads its value from a text."""
    wanted = {one.name: one for one in fields(RunConfig)}
    settings = {name: partial(read_setting, wanted[name]) for name in _names_in(command.training)}
    return {**settings, **command.own.readers}


def read_setting(setting: Field[Any], text: str) -> Any:
    """The value of a setting that a text stands for; `none` is None, where it may be.

    Raises:
        ValueError: it stands for none.
    """
    form, _, other = str(setting.type).partition(" | ")
    if setting.metadata["metavar"] == _FOLDER and text != "none":
        return str(Path(text).absolute())
    return None if other and text == "none" else read(form, text)


def _names_in(flags: SettingFlags) -> list[str]:
    found: list[str] = []
    for one in fields(flags):
        value = getattr(flags, one.name)
        found.extend(_names_in(value) if isinstance(value, SettingFlags) else [one.name] * (_OFF not in one.metadata))
    return found


def class_of(members: list[tuple[str, Any, Any]], about: str) -> type[SettingFlags]:
    """The class of the flags with that name, type and field each, in one group of the help."""
    made: type[SettingFlags] = make_dataclass("SettingFlags", members, bases=(SettingFlags,), frozen=True)
    made.__doc__ = about
    return made


def _flag(setting: Field[Any], text: str, several: bool) -> tuple[Any, Any]:
    """(type, default) of a setting's flag; the default stands for not given."""
    owners = owners_of(setting.name)
    text = f"For {owners[0]}: {text[0].lower()}{text[1:]}" if len(owners) == 1 else text
    text += _MORE.get(setting.name, "")
    form, metavar, choices = str(setting.type).split(" | ")[0], setting.metadata["metavar"], setting.metadata["choices"]
    if choices:
        metavar = "|".join(choices)
        if len(f"--{setting.name} {metavar}") > _WIDEST:
            metavar, text = "WORD", f"{text} One of {', '.join(choices)}."
    shown: dict[str, Any] = {"help": text, "help_behavior_hint": _hint(setting)}
    flag: Any
    if several:
        alone = ("true",) if setting.default is False else ()  # as the flag of one run, which takes no value
        flag = Annotated[tuple[str, ...] | None, words(metavar or "true|false", alone), arg(**shown)]
    elif form == "bool" and not setting.default:
        return Annotated[bool, arg(**shown)], field(default=False)
    elif form == "bool":
        flag = Annotated[bool | None, truth(), arg(**shown)]
    elif form == "int":
        flag = Annotated[int | None, whole(metavar), arg(**shown)]
    elif form == "float":
        flag = Annotated[float | None, number(metavar), arg(**shown)]
    elif metavar == _FOLDER:
        flag = Annotated[str | None, folder(metavar), arg(**shown)]
    else:
        flag = Annotated[str | None, arg(metavar=metavar, **shown)]
    return flag, field(default=None)


def _flag_off(name: str) -> tuple[str, Any, Any]:
    """(name, type, default) of the flag that turns a setting off which an earlier run, or an experiment, has on."""
    shown = arg(help=f"Turn {flag_of(name)} off, where the run or the file has it on.", help_behavior_hint="")
    return f"no_{name}", Annotated[bool, shown], field(default=False, metadata={_OFF: name})


def _hint(setting: Field[Any]) -> str:
    """What the help says of a setting that is not given."""
    unset = setting.metadata["unset"]
    if unset is None:
        unset = "" if setting.default is False else str(setting.default).replace("True", "true")
    return f"(default: {unset})" if unset else ""


def _docstrings() -> dict[str, str]:
    """The docstring under each field of `RunConfig`."""
    tree = ast.parse(inspect.getsource(config))
    (body,) = (node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == RunConfig.__name__)
    found = {}
    for node, after in pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(after, ast.Expr):
            text = ast.literal_eval(after.value)
            found[node.target.id] = " ".join(text.split())
    return found
