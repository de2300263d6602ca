"""What the fork server does before it serves: it imports what workers need, and sees to it that Ctrl-C interrupts
neither it nor a process of ours that is about to begin. NumPy's BLAS would start its threads in each worker that limits
them, so they are limited here."""

import os
import signal
from multiprocessing import current_process, util
from typing import Any

from hogwild.workers.process.early import imported_for_good
from hogwild.workers.process.spawn import CALLERS_SAFE, SAFE, begins_deaf

with imported_for_good():
    import hogwild.workers.process.preloaded  # noqa: F401
    from hogwild.workers.surroundings.blas_threads import blas_threads

# Workers, and programs that these start, have the caller's environment.
callers = os.environ.pop(CALLERS_SAFE, None)
if callers:
    os.environ[SAFE] = callers
elif callers is not None:
    del os.environ[SAFE]

_server = os.getpid()
_set_handler = signal.signal


def _let_go_once_ignored(number: int, handler: Any) -> Any:
    """`signal.signal` until the server ignores Ctrl-C. One that came meanwhile was held back; it is the parent's to act
    on, and is dropped as all later ones are. Whatever the server did before with a Ctrl-C, it would print a traceback.
    """
    before = _set_handler(number, handler)
    if number == signal.SIGINT:
        signal.signal = _set_handler
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    return before


def _hold_back() -> None:
    if os.getppid() == _server:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _let_go(_: object) -> None:
    if not begins_deaf(current_process()):
        blas_threads.give_back()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


blas_threads.lend()
os.register_at_fork(after_in_child=_hold_back)  # what is forked is deaf, until it knows whose it is
util.register_after_fork(_let_go, _let_go)
signal.signal = _let_go_once_ignored  # type: ignore[assignment]
