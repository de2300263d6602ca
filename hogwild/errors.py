"""Every failure a user can meet, one exception each; and how a user is warned, and shown a text or a traceback."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import get_close_matches
from functools import partial, wraps
from html import escape
from inspect import Signature, signature
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")
_CONTROLS = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_LIBRARIES = frozenset({"hogwild", "torch", "numpy"})
_OF_PYTHON = (f"{Path(os.__file__).parent}{os.sep}", "<frozen ")  # how the names of the files of its library begin


class HogwildError(Exception):
    """Whatever this package raises on purpose."""


class ArgumentError(HogwildError, ValueError):
    """An argument or a configuration that cannot work: one line with the value, the rule it broke, what would work."""


class _OneWorkerError(HogwildError):
    """A failure of one worker.

    Attributes:
        worker: its number; None where it was none's in particular.
        update: what it was computing; None where it was between two updates.
        batch: the number of its batch; None likewise.
    """

    def __init__(
        self, message: str, *, worker: int | None = None, update: int | None = None, batch: int | None = None
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.update = update
        self.batch = batch


class WorkerError(_OneWorkerError, RuntimeError):
    """A worker raised, died or hung, and was not to be replaced, or too often.

    The message is the first failure of the run and ends with the worker's own traceback; `__cause__` is what it raised.
    """


class NodeError(HogwildError, RuntimeError):
    """A machine of a run over several was lost, or cannot take part, and the run cannot go on without it."""


class NonFiniteError(_OneWorkerError, ArithmeticError):
    """A loss or a gradient was NaN or infinite. It has not touched the shared model, unless it is a gradient under
    `racing`, which other workers may have applied before it was looked at."""


class NotReproducible(HogwildError, RuntimeError):  # noqa: N818 - it names a finding about the training, not a slip
    """The training draws random numbers that this worker kind cannot reproduce, or keeps state that each worker would
    have for itself."""


class RunDirectoryError(HogwildError, ValueError):
    """A file of a run directory is missing, damaged, or not what it should be."""


class Terminated(SystemExit):
    """SIGTERM or SIGHUP, where it ends the program as an exception: no code that catches the end of somebody's file
    means it."""


def one_line(error: BaseException) -> str:
    """The message of an exception on one line, or its type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def with_type(error: BaseException) -> str:
    """The message of an exception on one line, without what follows an empty one, such as a traceback; after its type
    where it is none of this package's, for KeyError('loss') says 'loss' alone."""
    name = type(error).__name__
    line = " ".join(str(error).strip().partition("\n\n")[0].split()) or name
    return line if type(error).__module__.startswith("hogwild.") or line == name else f"{name}: {line}"


def called_by(function: Any) -> Any:
    """The function that a `functools.partial` calls in the end; any other as it is."""
    while isinstance(function, partial):
        function = function.func
    return function


def class_name(value: Any) -> str:
    """The class of a value, and the module that it is defined in."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def a_type(value: Any) -> str:
    """The name of a value's type after an article: a list, an int."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"


def printable(text: str, limit: int = 160) -> str:
    """Text that a file may have chosen, as one short line without control characters."""
    shown = "".join(letter if letter.isprintable() else "�" for letter in " ".join(text[: 4 * limit].split()))
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def without_controls(text: str) -> str:
    """Text that moves no cursor, and changes no colour: all but its control characters, line ends and tabs excepted."""
    return text.translate(_CONTROLS)


def in_a_sentence(names: Sequence[str], last: str) -> str:
    """Names in a sentence: a, b and c."""
    *first, end = names
    return f"{', '.join(first)} {last} {end}" if first else end


def some_of(names: Sequence[str], most: int = 3, between: str = ", ") -> str:
    """The first few names, each printable, and how many more there are; empty where there are none."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return between.join(map(printable, names[:most])) + more


def guess(given: str, known: Collection[str], shown: str = "{!r}") -> str:
    """The one of the known names that was surely meant, as a question before they are listed; empty where none was."""
    close = get_close_matches(given, known, 1)
    return f"did you mean {shown.format(close[0])}? " if close else ""


def flag_of(setting: str) -> str:
    """The flag of a setting: --batch-size."""
    return "--group" if setting == "groups" else f"--{setting.replace('_', '-')}"  # one flag for each of them


def as_html(text: str) -> str:
    """Lines of text as a notebook shows them."""
    return f"<pre style='white-space: pre-wrap'>{escape(text)}</pre>"


def warn_caller(message: str) -> None:
    """Warn, at the line outside this package from which it was called."""
    level, frame = 2, sys._getframe(1)  # 1 is this function
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] == "hogwild":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def short_traceback(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A public function whose errors of ours are shown below one frame of ours, and below no other but the caller's
    code: what we call in between says nothing to who calls us. Other errors, which may be our mistakes, keep all; so
    do ours where HOGWILD_TRACEBACK=full is in the environment. A call that does not fit it is told what was meant."""

    @wraps(function)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except HogwildError as error:
            if not _all_is_shown():
                _shorten(error)
            raise
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None and (said := told(args, kwargs)):
                error.add_note(said)
            raise

    def told(args: tuple[object, ...], named: Mapping[str, object]) -> str:
        return _what_is_meant(signature(function), args, named)

    return called


_ELSEWHERE = {
    "lr": ("optimizer", "the optimizer has it: optimizer=functools.partial(torch.optim.SGD, lr=0.1)"),
    "learning_rate": ("optimizer", "the optimizer has it: optimizer=functools.partial(torch.optim.SGD, lr=0.1)"),
    "num_workers": ("workers", "it is workers: each fetches its own batches, and trains on them"),
    "max_steps": ("updates", "it is updates"),
    "epochs": ("work", "a loop of your own has none: updates says how long it is"),
    "args": ("work", "functools.partial gives the loop what else it needs"),
    "scheduler": ("lr_schedule", "it is lr_schedule"),
    "callback": ("callbacks", "it is callbacks, a list"),
    "max_grad_norm": ("clip_grad_norm", "it is clip_grad_norm"),
    "gradient_clip_val": ("clip_grad_norm", "it is clip_grad_norm"),
    "grad_clip": ("clip_grad_norm", "it is clip_grad_norm"),
    "max_norm": ("clip_grad_norm", "it is clip_grad_norm"),
    "accumulate_grad_batches": ("accumulate", "it is accumulate"),
    "gradient_accumulation_steps": ("accumulate", "it is accumulate"),
    "fast_dev_run": ("limit_updates", "it is limit_updates=20, or as many as are enough"),
    "num_processes": ("workers", "it is workers"),
    "out_dir": ("out", "it is out"),
    "output_dir": ("out", "it is out"),
    "save_dir": ("out", "it is out"),
    "resume_from": ("resume", "it is resume, the folder of a run"),
    "resume_from_checkpoint": ("resume", "it is resume, the folder of a run"),
    "early_stopping": ("callbacks", "it is a callback: callbacks=[hogwild.EarlyStopping('accuracy', patience=3)]"),
    "patience": ("callbacks", "it is a callback's: callbacks=[hogwild.EarlyStopping('accuracy', patience=3)]"),
    "logger": ("callbacks", "it is a callback: callbacks=[hogwild.TensorBoard()]"),
    "precision": ("loss", "autocast is used inside the loss: with torch.autocast('cpu', dtype=torch.bfloat16)"),
    "rule": ("update", "it is update: update='ordered'"),
    "tau": ("staleness", "it is staleness"),
    "momentum": ("optimizer", "the optimizer has it: optimizer=functools.partial(torch.optim.SGD, momentum=0.9)"),
    "weight_decay": ("optimizer", "the optimizer has it, as lr and momentum"),
    "steps": ("updates", "it is updates"),
    "total_steps": ("updates", "it is updates"),
    "num_steps": ("updates", "it is updates"),
    "num_epochs": ("epochs", "it is epochs"),
    "save_every": ("checkpoint_every", "it is checkpoint_every"),
    "val_data": ("evaluate", "it is evaluate, a function of the model that returns metrics"),
    "device": ("model", "models are trained on the CPU"),
}
"""What other libraries call an argument → one that a function of ours has, where the other means something; what to
say."""


def _what_is_meant(form: Signature, args: Sequence[object], named: Mapping[str, object]) -> str:
    """What was probably meant by a call that does not fit a signature; empty where nobody knows."""
    known = form.parameters
    for name in named:
        if name not in known:
            place, said = _ELSEWHERE.get(name, ("", ""))
            close = get_close_matches(name, known, 1, 0.75)
            return said if place in known else f"did you mean {close[0]}?" if close else ""
    by_name = [one.name for one in known.values() if one.kind is one.KEYWORD_ONLY]
    first = next((name for name in by_name if name not in named), "")
    return f"the others are given by name: {first}=…" if first and len(args) > len(known) - len(by_name) else ""


def traceback_of(error: BaseException) -> str:
    """The traceback of what was raised by code that we call, from a frame of the caller's on where it has one."""
    trace = error.__traceback__
    own = trace if _all_is_shown() else _callers(trace) or trace
    return "".join(traceback.format_exception(type(error), error, own)).rstrip()


def _all_is_shown() -> bool:
    return os.environ.get("HOGWILD_TRACEBACK") == "full"


def _shorten(error: BaseException) -> None:
    """Leave in its traceback the frame of the function that was called, and what follows from a frame of the caller's
    on; and in those of its causes what follows from there."""
    if error.__traceback__ is not None and (first := error.__traceback__.tb_next) is not None:
        first.tb_next = _callers(first)
        error.__traceback__ = first
    seen, cause = {id(error)}, error.__cause__ or error.__context__
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        trace, ours = cause.__traceback__, isinstance(cause, HogwildError)
        if trace is not None and _home(trace) == "hogwild":
            cause.__traceback__ = _callers(trace) or (None if ours else trace)
        cause = cause.__cause__ or cause.__context__


def _callers(trace: TracebackType | None) -> TracebackType | None:
    """What follows of a traceback from the first frame on that is neither ours nor a library's; None where none is."""
    while trace is not None and (_home(trace) in _LIBRARIES or _is_of_python(trace)):
        trace = trace.tb_next
    return trace


def _home(trace: TracebackType) -> str:
    """The package whose code that frame is of."""
    return str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_of_python(trace: TracebackType) -> bool:
    """True for a frame of the standard library, and not of what is installed beside it."""
    file = trace.tb_frame.f_code.co_filename
    return file.startswith(_OF_PYTHON) and "site-packages" not in file
