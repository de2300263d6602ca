"""A person's own file as an experiment: `define_experiment`, and what is found in a file.

own_experiment(place)   the file's code   →   what it defines   →   a Training
own_code(training, …)   the values of its own parameters, as a run records them
bound(training, config) the training with those values
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_type_hints

from hogwild.config import RunConfig
from hogwild.errors import ArgumentError, a_type
from hogwild.experiment.code import Code, Place, run_code, told_where
from hogwild.experiment.kinds import Experiment, Problem, Study, Training
from hogwild.experiment.parameters import PASSED, Parameter, complete, is_passed, line_of, parameters_of
from hogwild.own_code import OwnCode

_DEFINED = "__hogwild_experiments__"  # in the module that defines them


def define_experiment(
    build: Callable[..., Problem], *, name: str = "", question: str = "", **settings: Any
) -> Training:
    """Make what a function builds an experiment that `hogwild run FILE` trains, `check` checks and `sweep` sweeps.

        def build(hidden: int = 32) -> hogwild.Problem: ...

        hogwild.define_experiment(build, epochs=5, lr=0.1)

    Args:
        build: makes the `Problem`. Its parameters are flags: each needs a type, and has the help that the docstring
            gives it under `Args:`. One named `seed` is passed the run's seed, one named `data` the folder of `--data`,
            a `Path` or None. What it draws from torch's, numpy's or Python's own generators follows the seed.
        name: what runs are called; the file's name where it is empty.
        question: what is found out, in a sentence; the first line of the docstring of `build` where it is empty.
        settings: what suits this problem where no flag says otherwise: fields of `RunConfig`, such as epochs and lr.

    Raises:
        ArgumentError: `build` is no function, one of its parameters cannot be a flag, or no setting has that name.
    """
    made = _defined(build, name, question, settings)
    sys._getframe(1).f_globals.setdefault(_DEFINED, []).append(made)
    return made


def _defined(
    build: Callable[..., Problem], name: str = "", question: str = "", settings: Mapping[str, Any] | None = None
) -> Training:
    """The training that a function builds; arguments and errors are those of `define_experiment`."""
    if not isinstance(build, FunctionType):
        raise ArgumentError(f"build {build!r} is {a_type(build)}; define_experiment takes a function")
    known = [one.name for one in fields(RunConfig) if one.name not in ("name", "changes", "own", "data")]
    for key in settings or ():
        if key not in known:
            close = get_close_matches(key, known, 1)
            works = f"did you mean {close[0]}?" if close else f"the settings are {', '.join(known)}"
            raise ArgumentError(f"define_experiment: {key!r} is not a setting; {works}")
    parameters = parameters_of(build)
    told = question or (build.__doc__ or "").strip().partition("\n")[0]
    return Training(
        name or build.__name__, told, Builder(build, parameters, {}, bool(name)), dict(settings or {}), parameters
    )


@dataclass(frozen=True)
class Builder:
    """What `Training.build` is where a person's function builds the problem.

    Attributes:
        function: theirs.
        parameters: its own.
        values: the plain value of each, by name; that of one that is left out is its default.
        named: whether the experiment has a name that was given to it.
    """

    function: Callable[..., Problem]
    parameters: tuple[Parameter, ...]
    values: Mapping[str, Any]
    named: bool

    def __call__(self, seed: int, data: Path | None) -> Problem:
        """Build it; errors are those of `told_where`, and of a function that builds something else."""
        wanted = is_passed(self.function)
        passed = {key: value for key, value in zip(PASSED, (seed, data), strict=True) if key in wanted}
        name, where = self.function.__name__, line_of(self.function)
        if data is not None and "data" not in passed:
            raise ArgumentError(f"--data {data} given, and {name} ({where}) has no parameter named data; leave it out")
        values = complete(self.parameters, self.values, f"{name} ({where})")
        given = {one.name: one.given(values[one.name]) for one in self.parameters}
        told = ", ".join(f"{key}={value!r}" for key, value in given.items())
        file, ours = Path(self.function.__code__.co_filename), self.function.__module__.startswith("hogwild.")
        with told_where(file, f"raised in {name}({told})", seed, ours=ours):
            problem = self.function(**given, **passed)
        if not isinstance(problem, Problem):
            raise ArgumentError(
                f"{where}: {name} returned {a_type(problem)}; it must return a hogwild.Problem(model, data, loss)"
            )
        return problem


def bound(training: Training, config: RunConfig) -> Training:
    """A training with the values that a run's settings have for its own parameters."""
    if not isinstance(training.build, Builder) or config.own is None:
        return training
    return replace(training, build=replace(training.build, values=config.own.parameters))


def own_experiment(place: Place) -> Experiment:
    """The experiment that a person's own file or module defines.

    Raises:
        ArgumentError: it cannot be run, defines none, or several of which none is named.
    """
    code = run_code(place)
    found = _experiments_in(code)
    if place.builder:
        if place.builder not in found:
            found = {**found, **_functions_in(code.module, lambda function: function.__name__ == place.builder)}
        if place.builder not in found:
            known = f"; it has {', '.join(found)}" if found else ""
            raise ArgumentError(f"{code.file.name} has no experiment or function named {place.builder!r}{known}")
        chosen = found[place.builder]
    elif len(found) == 1:
        (chosen,) = found.values()
    elif found:
        raise ArgumentError(
            f"{code.file.name} defines {len(found)} experiments; name one: "
            f"{' or '.join(f'{place.file}:{key}' for key in found)}"
        )
    else:
        raise ArgumentError(
            f"{code.file.name} defines no experiment; it needs a function that returns a hogwild.Problem, and "
            f"hogwild.define_experiment(build, epochs=5) (hogwild new writes an example)"
        )
    if not isinstance(chosen, Training):
        return chosen
    named = not isinstance(chosen.build, Builder) or chosen.build.named
    name = chosen.name if named else code.file.stem if len(found) == 1 else f"{code.file.stem}-{chosen.name}"
    return replace(chosen, name=name, own=OwnCode(str(code.file), code.sha256, place.builder, place.module))


def _experiments_in(code: Code) -> dict[str, Experiment]:
    """Name → experiment: those that are defined, else the functions that build one."""
    module, found = code.module, {}
    for one in getattr(module, _DEFINED, ()):
        found[one.build.function.__name__] = one
    for name, value in vars(module).items():
        if isinstance(value, Training | Study) and not any(value is one for one in found.values()):
            found[name] = value
    return (
        found or _functions_in(module, _builds) or _functions_in(module, lambda function: function.__name__ == "build")
    )


def _functions_in(module: ModuleType, is_one: Callable[[FunctionType], bool]) -> dict[str, Experiment]:
    return {
        name: _defined(value)
        for name, value in list(vars(module).items())
        if isinstance(value, FunctionType) and value.__module__ == module.__name__ and is_one(value)
    }


def _builds(function: FunctionType) -> bool:
    """Whether a function says that it returns a problem."""
    if "return" not in function.__annotations__:
        return False
    try:
        return get_type_hints(function).get("return") is Problem
    except Exception:  # `parameters_of` tells it
        return "Problem" in str(function.__annotations__["return"])


def own_names(training: Training) -> set[str]:
    """The names of a training's own parameters."""
    return {one.name for one in training.parameters}


def own_code(training: Training, given: Mapping[str, Any], saved: RunConfig | None) -> OwnCode:
    """The code with the values of its parameters: those given, over those of an earlier run, over the defaults.

    Raises:
        ArgumentError: one has no value, or one that is not of its type, or is none of the parameters.
    """
    assert training.own is not None
    known = {one.name: one for one in training.parameters}
    earlier = {}
    if saved is not None and saved.own is not None:
        unset = {name: None for name, one in known.items() if one.optional}
        earlier = {**unset, **saved.own.parameters}
    builder = training.build.function if isinstance(training.build, Builder) else None
    where = f"{builder.__name__} ({line_of(builder)})" if builder is not None else training.name
    return replace(training.own, parameters=complete(training.parameters, {**earlier, **given}, where))
