"""Callback: what a person's object is told of a run while it is made; and the list of them, called as one.

    on_trial → on_begin → the others, in any order → on_end

All are called in the program that called `train`, one after the other, never in a worker. What one of them draws from
the random generators of this program is put back, so that no bit hangs on who listens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from difflib import get_close_matches
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hogwild.config import RunConfig
from hogwild.data.seeding import preserved_generators
from hogwild.errors import ArgumentError, WorkerError, a_type, one_line
from hogwild.run.progress import Progress, Stop
from hogwild.run.saved.metrics import Row

if TYPE_CHECKING:
    from hogwild.run.result import Run

_ALIKE = 0.8  # how much of a method's name and of a misspelt one is the same
_log = logging.getLogger("hogwild")


@dataclass(frozen=True)
class RunInfo:
    """A run that is about to train: what `Callback.on_begin` is given.

    Attributes:
        config: its settings.
        kind: "threads" or "processes": what its workers are.
        settings: what is trained, beside `config`, as in `Run.settings`; empty where the run is not saved.
        id: its identity, 32 hexadecimal digits, which a resumed run keeps; empty where the run is not saved.
        start: the version that it goes on from; 0 where it is new.
        updates: that the whole run is to have.
        out: the directory that it is saved in, if any; of several machines, machine 0 saves it.
        node: the number of this machine; each calls its own callbacks.
        evaluations: of the parts before it was resumed, as in `Run.evaluations`: what a callback counts on from.
    """

    config: RunConfig
    kind: str
    settings: Mapping[str, Any]
    id: str
    start: int
    updates: int
    out: Path | None
    node: int = 0
    evaluations: Sequence[Row] = ()


class Callback:
    """What is told of a run while it is made, and may end it: override what you need.

    The methods are called in the program that called `train`, in the order of the list, and workers train meanwhile.
    What one of them raises ends the run, with a note that says which it was: Ctrl-C (`KeyboardInterrupt`) as an
    interruption, which is saved where there is a directory, anything else as what `evaluate` raises: with what was
    saved up to then. An object may be used for several runs, one after the other; `on_begin` is where it starts anew.
    """

    def on_trial(self, metrics: Mapping[str, float]) -> None:
        """Raise `ArgumentError` here where `metrics` has not what this callback will look at: nothing is trained yet.

        Where a class overrides this, or `keep_best` names a metric, `evaluate` is asked once before a run that is new,
        and this is what it returned; empty without `evaluate`. Nothing of it is recorded. It is called before
        `on_begin`, and neither of a run that is resumed, nor of several machines.
        """

    def on_begin(self, info: RunInfo) -> None:
        """All is checked and the directory is begun; the workers start next. A run that had ended before, and is given
        back as it is, calls nothing."""

    def on_progress(self, progress: Progress) -> None:
        """Called several times a second, and once when training has ended."""

    def on_log(self, rows: Sequence[Row]) -> None:
        """What workers recorded by `worker_info().log(…)` since the last call: `update`, `batch`, `worker`, then their
        own names, in the order in which it came. A worker that was replaced may have recorded an update before."""

    def on_evaluation(self, progress: Progress) -> None:
        """The version `progress.updates` was evaluated; `progress.metrics` are its metrics. Without `evaluate` it is
        never called. A version is evaluated again where it was not yet whole; the later call counts."""

    def should_stop(self, progress: Progress) -> bool:
        """Called after each evaluation on the way; True ends the run at that version. A class that overrides this makes
        training wait for each answer. It is asked every `evaluate_every` updates without `evaluate` too."""
        raise NotImplementedError

    def on_checkpoint(self, update: int, path: Path) -> None:
        """A checkpoint of that version is whole, in that file. One that was replaced by the next before anybody looked
        is passed over."""

    def on_failure(self, error: WorkerError) -> None:
        """A worker raised, died or hung, and the run goes on without it or with another one; the error's attributes
        say where it was. What ends the run is told to `on_end` instead."""

    def on_end(self, run: Run | None, error: BaseException | None) -> None:
        """Called once for each `on_begin` that returned, last of all, however the run ended. What it raises is raised,
        unless the run ended by an error: then it is logged. Ctrl-C is raised when all have been called.

        Args:
            run: what it came to, saved already where it has a directory. None where it failed, or was interrupted
                without a directory.
            error: what it ended by: None where it came to its end or was stopped, KeyboardInterrupt or SystemExit
                where it was interrupted, else what failed.
        """


class _Stopping(Callback):
    """`stop=`, as one of the list."""

    def __init__(self, stop: Stop) -> None:
        self._stop = stop

    def should_stop(self, progress: Progress) -> bool:
        return self._stop(progress)


class _Following(Callback):
    """`progress=`, as one of the list."""

    def __init__(self, follow: Callable[[Progress], None]) -> None:
        self._follow = follow

    def on_progress(self, progress: Progress) -> None:
        self._follow(progress)


_ARGUMENTS: Mapping[type[Callback], str] = {_Stopping: "stop=", _Following: "progress="}


class CallbackList:
    """The callbacks of a run, in their order; `stop` and `progress` are the last two, where they are given.

    Args:
        callbacks: objects of subclasses of `Callback`.
        stop: progress → True to end the run.
        progress: told how the run stands.
        evaluates: whether there are metrics.

    Raises:
        ArgumentError: what is given is none of these.
    """

    def __init__(
        self,
        callbacks: Sequence[Callback] = (),
        stop: Stop | None = None,
        progress: Callable[[Progress], None] | None = None,
        *,
        evaluates: bool = True,
    ) -> None:
        given = [*_checked(callbacks)]
        given += [_Stopping(stop)] if stop is not None else []
        given += [_Following(progress)] if progress is not None else []
        self._all: tuple[Callback, ...] = tuple(given)
        self._evaluates = evaluates
        self._failed: set[int] = set()

    def that_have(self, name: str) -> tuple[Callback, ...]:
        """Those that override that method."""
        own = getattr(Callback, name)
        return tuple(one for one in self._all if getattr(getattr(one, name), "__func__", None) is not own)

    @property
    def may_stop(self) -> bool:
        """True where one of them may end the run, so that training waits for it."""
        return bool(self.that_have("should_stop"))

    def names_of(self, name: str) -> str:
        """Those that override that method, as a message has them."""
        return " and ".join(_called(one, name).rstrip("=") for one in self.that_have(name))

    def tell(self, name: str, *arguments: Any) -> None:
        """Call that method of each of them that has not raised."""
        for one in self.that_have(name):
            if id(one) not in self._failed:
                self._call(one, name, *arguments)

    def says_stop(self, progress: Progress) -> bool:
        """Whether one of them ends the run; all are asked, since one may count how often.

        Raises:
            ArgumentError: an answer is neither true nor false, as a tensor of several elements.
        """
        answers = [_truth(one, self._call(one, "should_stop", progress)) for one in self.that_have("should_stop")]
        return any(answers)

    def _call(self, one: Callback, name: str, *arguments: Any) -> Any:
        try:
            with preserved_generators():
                return getattr(one, name)(*arguments)
        except BaseException as error:
            self._failed.add(id(one))
            if isinstance(error, Exception):
                alone = name == "should_stop" and not self._evaluates
                error.add_note(f"raised by {_called(one, name)}{'; without evaluate= there are no metrics' * alone}")
            raise

    def told(self, info: RunInfo) -> AbstractContextManager[Ending]:
        """Inside, the run is made, and what it comes to is put into the ending: begins before, ends afterwards."""
        return _Telling(self._all, self._call, info)


class _Telling(AbstractContextManager["Ending"]):
    """What `CallbackList.told` is; no generator, which would turn a StopIteration of a callback into another error."""

    def __init__(self, callbacks: Sequence[Callback], call: Callable[..., Any], info: RunInfo) -> None:
        self._callbacks, self._call, self._info = callbacks, call, info
        self._begun: list[Callback] = []
        self._ending = Ending()

    def __enter__(self) -> Ending:
        try:
            for one in self._callbacks:
                self._call(one, "on_begin", self._info)
                self._begun.append(one)
        except BaseException as error:
            _leave_by(error, self._end(error))
            raise
        return self._ending

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        _leave_by(error, self._end(error))

    def _end(self, error: BaseException | None) -> list[BaseException]:
        """Tell what is left to tell, then call `on_end` of all that have begun; what was raised, Ctrl-C as well."""
        raised: list[BaseException] = []
        try:
            self._ending.tell_rest()
        except BaseException as late:
            raised.append(late)
            error = error or late
        for one in self._begun:
            try:
                self._call(one, "on_end", self._ending.run, error)
            except BaseException as late:
                raised.append(late)
        return raised


def _leave_by(error: BaseException | None, raised: Sequence[BaseException]) -> None:
    """Raise the first of what callbacks have raised in the end, unless the run ended by an error, and log the others.
    An interruption is raised before all else, for who asked for it waits for it."""
    found = raised if error is None else [error, *raised]
    first = next((one for one in found if not isinstance(one, Exception)), found[0] if found else None)
    for late in raised:
        if late is not first:
            notes = "".join(f"; {note}" for note in getattr(late, "__notes__", ()))
            _log.error("%s: %s%s", type(late).__name__, one_line(late), notes)
    if first is not None and first is not error:
        raise first


@dataclass
class Ending:
    """What a run has come to, once it has, and what tells the callbacks of the last that came."""

    run: Run | None = None
    tell_rest: Callable[[], None] = lambda: None


def _truth(one: Callback, answer: Any) -> bool:
    """Whether the answer of that one is to end the run."""
    try:
        return bool(answer)
    except Exception as error:
        raise ArgumentError(
            f"{_called(one, 'should_stop')} returned {a_type(answer)} that is neither true nor false "
            f"({one_line(error)}); it must return True or False"
        ) from error


def _called(one: Callback, name: str) -> str:
    return _ARGUMENTS.get(type(one), f"{type(one).__name__}.{name}")


def _checked(callbacks: Any) -> Sequence[Callback]:
    if isinstance(callbacks, str) or not isinstance(callbacks, Sequence):
        given = "" if isinstance(callbacks, Callback) else f", {callbacks!r}"
        raise ArgumentError(f"callbacks is {a_type(callbacks)}{given}; pass a list of hogwild.Callback")
    for number, one in enumerate(callbacks):
        if isinstance(one, type) and issubclass(one, Callback):
            raise ArgumentError(f"callbacks[{number}] is the class {one.__name__}; pass an object of it, {_made(one)}")
        if not isinstance(one, Callback):
            raise ArgumentError(
                f"callbacks[{number}] is {a_type(one)}, {one!r}; pass an object of a class that is derived "
                f"from hogwild.Callback"
            )
        _refuse_misspelt(type(one))
    return callbacks


def _made(kind: type[Callback]) -> str:
    """How an object of that class is made, with the names of the arguments that it needs."""
    try:
        needed = [name for name, one in signature(kind).parameters.items() if _is_needed(one)]
    except (TypeError, ValueError):
        needed = []
    return f"{kind.__name__}({', '.join(needed)})"


def _is_needed(one: Parameter) -> bool:
    return one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)


def _refuse_misspelt(kind: type[Callback]) -> None:
    """Refuse a method that nobody calls, and whose name is nearly that of one which the class does not have.

    Raises:
        ArgumentError: there is one.
    """
    known = [name for name in vars(Callback) if not name.startswith("_")]
    missing = [name for name in known if getattr(kind, name) is getattr(Callback, name)]
    for name in dir(kind):
        close = get_close_matches(name, missing, 1, _ALIKE) if name not in known and not name.startswith("_") else []
        if close and callable(getattr(kind, name)):
            raise ArgumentError(
                f"{kind.__name__}.{name} is never called; did you mean {close[0]}? (hogwild.Callback has "
                f"{', '.join(known)}; a helper may begin with an underscore)"
            )
