"""What the fork server does before it serves: it imports what workers need, and lets go of what was held back while it
started."""

import os
import signal

import hogwild.workers.preloaded  # noqa: F401
from hogwild.workers.spawn import CALLERS_SAFE, SAFE

# Workers, and programs that these start, have the caller's environment.
callers = os.environ.pop(CALLERS_SAFE, None)
if callers:
    os.environ[SAFE] = callers
elif callers is not None:
    del os.environ[SAFE]

# A Ctrl-C that came meanwhile was held back; it is the parent's to act on, and the server ignores all later ones.
if signal.SIGINT in signal.sigpending():
    signal.sigwait({signal.SIGINT})
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
