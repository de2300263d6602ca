"""The own parameters of a person's builder: the function's typed arguments, which become flags and are recorded.

A value has two forms: the plain one, which TOML has and the record keeps, and the one that the builder is given.

    text of a flag   →  read()  →   plain value   →  given()  →   argument of the builder
"""

from __future__ import annotations

import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import docstring_parser

from hogwild.config import RunConfig
from hogwild.errors import ArgumentError, a_type, flag_of, one_line

PASSED = ("seed", "data")
"""Settings that a builder is passed where it has a parameter of that name."""
OF_COMMANDS = (
    *("experiment", "group", "out", "overwrite", "resume", "set", "full", "json", "quiet", "help"),
    *("nodes", "join", "token", "node_timeout"),
    *("runs", "fresh_process", "tolerance", "explain", "plot", "command", "other_seed", "other_workers", "window"),
    *("verbose", "sample", "sample_seed", "jobs"),
)
"""Flags of the commands that train what a person's file defines."""
_SCALARS: Mapping[type, str] = {int: "N", float: "X", bool: "true|false", str: "TEXT", Path: "PATH"}
_FORMS = "int, float, bool, str, Path, Literal, an Enum, a list or tuple of one of them, and each of them | None"
_LARGEST = (1 << 63) - 1
_NOTHING: Any = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameter:
    """A parameter of a builder.

    Attributes:
        name: its name.
        form: int, float, bool, str, Path, or an Enum; of a list, that of its values.
        choices: the texts that it may be; empty where it is free.
        many: None, list or tuple.
        size: how many values a tuple has, where its type says so, as tuple[float, float] does.
        optional: whether it may be None.
        default: its plain default value; `inspect.Parameter.empty` where it has none.
        about: what it is, as the builder's docstring says.
    """

    name: str
    form: Any
    choices: tuple[Any, ...] = ()
    many: type | None = None
    optional: bool = False
    default: Any = _NOTHING
    about: str = ""
    size: int | None = None

    @property
    def needed(self) -> bool:
        """Whether it has no default value."""
        return self.default is _NOTHING

    @property
    def metavar(self) -> str:
        """What stands for its value in a help text."""
        one = "|".join(map(str, self.choices)) if self.choices else _SCALARS[self.form]
        return f"{one}|none" if self.optional and not self.many else one

    def read(self, texts: Sequence[str]) -> Any:
        """The plain value that the texts behind a flag stand for.

        Raises:
            ValueError: they stand for none.
        """
        if self.optional and list(texts) == ["none"]:
            return None
        if self.many:
            return self._sized([self._read(text) for text in texts])
        if len(texts) != 1:
            raise ValueError(f"{' '.join(texts)!r} is not one value")
        return self._read(texts[0])

    def read_text(self, text: str) -> Any:
        """The plain value that one text stands for; of a list, its values with commas between. Errors are those of
        `read`."""
        return self.read(text.split(",") if self.many and text != "none" else [text])

    def _read(self, text: str) -> Any:
        _refuse_halves(text)
        if self.choices:
            for choice in self.choices:
                if str(choice) == text:
                    return choice
            raise ValueError(f"{text!r} is not known; {', '.join(map(str, self.choices))} are")
        if self.form is bool:
            if text not in ("true", "false"):
                raise ValueError(f"{text!r} is neither true nor false")
            return text == "true"
        if self.form is Path:
            return str(Path(text).absolute())
        try:
            value = self.form(text)
        except ValueError:
            what, other = ("a whole number", 2) if self.form is int else ("a number", 0.05)
            raise ValueError(f"{text!r} is not {what}; {other} is one") from None
        if self.form is int and abs(value) > _LARGEST:
            raise ValueError(f"{text} has over 64 bits; {_LARGEST} is the largest that works")
        return value

    def plain(self, value: Any) -> Any:
        """The plain form of a value of the builder's.

        Raises:
            ValueError: it is not of the parameter's type.
        """
        if value is None and self.optional:
            return None
        if self.many:
            if not isinstance(value, list | tuple):
                raise ValueError(f"{value!r} is not a {self.many.__name__}")
            return self._sized([self._plain(one) for one in value])
        return self._plain(value)

    def _sized(self, values: list[Any]) -> list[Any]:
        if self.size is not None and len(values) != self.size:
            raise ValueError(f"{values!r} has {len(values)} where {self.size} are needed")
        return values

    def _plain(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            value = value.name
        _refuse_halves(value)
        if self.form is Path and isinstance(value, str | Path):
            return str(Path(value).absolute())
        if self.form is float and type(value) is int:
            return float(value)
        if self.choices and value not in self.choices:
            raise ValueError(f"{value!r} is not known; {', '.join(map(str, self.choices))} are")
        if not self.choices and type(value) is not self.form:
            raise ValueError(f"{value!r} is {a_type(value)}, not {_name(self.form)}")
        return value

    def given(self, plain: Any) -> Any:
        """What the builder is given for a plain value."""
        if plain is None:
            return None
        if self.many:
            return self.many(self._given(one) for one in plain)
        return self._given(plain)

    def _given(self, plain: Any) -> Any:
        if isinstance(self.form, enum.EnumType):
            return self.form[plain]
        return self.form(plain) if self.form in (Path, float) else plain


def parameters_of(builder: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The own parameters of a builder: all but those that it is passed.

    Raises:
        ArgumentError: one has no type, or none that works, or the name of another flag; the message names file and
            line.
    """
    where = line_of(builder)
    try:
        signature = inspect.signature(builder)
        hints = typing.get_type_hints(builder, include_extras=True)
    except Exception as error:
        raise ArgumentError(f"{where}: the types of {builder.__name__} cannot be read: {one_line(error)}") from error
    texts = {one.arg_name: " ".join((one.description or "").split()) for one in _documented(builder)}
    return tuple(
        _parameter(one, hints.get(one.name, _NOTHING), texts.get(one.name, ""), builder)
        for one in signature.parameters.values()
        if one.name not in PASSED
    )


def is_passed(builder: Callable[..., Any]) -> tuple[str, ...]:
    """Those of the settings in `PASSED` that a builder has parameters for."""
    return tuple(name for name in PASSED if name in inspect.signature(builder).parameters)


def line_of(function: Callable[..., Any]) -> str:
    """Where a function stands: train.py:7."""
    code = inspect.unwrap(function).__code__
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}"


def _documented(builder: Callable[..., Any]) -> list[docstring_parser.DocstringParam]:
    try:
        return docstring_parser.parse(inspect.getdoc(builder) or "").params
    except docstring_parser.ParseError:
        return []


def _parameter(one: inspect.Parameter, hint: Any, about: str, builder: Callable[..., Any]) -> Parameter:
    name, where = one.name, f"{line_of(builder)}: parameter {one.name!r} of {builder.__name__}"
    if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
        raise ArgumentError(f"{where} cannot be given by name; a plain one, {name}: int = 1, works")
    switches = {f"no_{setting.name}" for setting in fields(RunConfig) if setting.default is False}
    if name in {setting.name for setting in fields(RunConfig)} | switches | set(OF_COMMANDS):
        raise ArgumentError(
            f"{where} has the name of a flag of the commands, {flag_of(name)}; another name works, as my_{name}"
        )
    if hint is _NOTHING:
        like = f": {type(one.default).__name__} = {one.default!r}" if _is_plain(one.default) else ": int"
        raise ArgumentError(f"{where} has no type; {name}{like} works")
    if typing.get_origin(hint) is typing.Annotated:
        hint, *more = typing.get_args(hint)
        about = next((text for other in more if (text := getattr(other, "help", None))), about)
    made = _of_type(name, hint, about)
    if made is None:
        raise ArgumentError(f"{where} is a {_name(hint)}, which no flag can give; {_FORMS} work")
    if one.default is _NOTHING:
        return made
    try:
        default = made.plain(one.default)
    except ValueError as error:
        raise ArgumentError(f"{where} has a default that is not of its type: {error}") from None
    return replace(made, default=default)


def _of_type(name: str, hint: Any, about: str) -> Parameter | None:
    """A parameter of that type; None where no flag can give one."""
    optional, many, size = False, None, None
    choices: tuple[Any, ...] = ()
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [one for one in typing.get_args(hint) if one is not types.NoneType]
        optional = len(members) < len(typing.get_args(hint))
        if len(members) != 1:
            return None
        (hint,) = members
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is list or (origin is tuple and len(inner) == 2 and inner[1] is ...):
        many, hint = origin, inner[0]
    elif origin is tuple and len(set(inner)) == 1:
        many, hint, size = tuple, inner[0], len(inner)
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        forms = {type(choice) for choice in choices}
        hint = forms.pop() if len(forms) == 1 else object
    elif isinstance(hint, enum.EnumType):
        choices = tuple(hint.__members__)
    if (hint not in _SCALARS and not choices) or hint is object:
        return None
    return Parameter(name, hint, choices, many, optional, about=about, size=size)


def _refuse_halves(value: Any) -> None:
    """Refuse a text of which a part is no letter, as in another encoding; no file of a run can hold it."""
    if isinstance(value, str | Path) and any("\ud800" <= letter <= "\udfff" for letter in str(value)):
        raise ValueError(f"{str(value)!r} has halves of letters, which no file can hold")


def _is_plain(value: Any) -> bool:
    return isinstance(value, int | float | str)


def _name(form: Any) -> str:
    return form.__name__ if isinstance(form, type) and not typing.get_args(form) else str(form)


def complete(parameters: tuple[Parameter, ...], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The plain value of every parameter; `where` is its builder, as a message names it."""
    known = [one.name for one in parameters]
    for name in given:
        if name not in known:
            raise ArgumentError(f"{name} {given[name]!r} given, and {where} has no such parameter; {_has(known)}")
    values = {}
    for one in parameters:
        if one.needed and one.name not in given:
            flag = f"{flag_of(one.name)} {one.metavar}"
            raise ArgumentError(f"{where} needs {one.name}, which has no default value; {flag} gives it")
        try:
            values[one.name] = one.plain(given[one.name]) if one.name in given else one.default
        except ValueError as error:
            raise ArgumentError(f"{one.name} of {where}: {error}") from None
    return values


def _has(known: list[str]) -> str:
    return f"it has {', '.join(known)}" if known else "it has none"
