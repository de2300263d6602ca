"""What the fork server imports, so that workers find it imported: torch, the rules, and all that they stand on."""

import os
import signal

import hogwild.workers.loop
import hogwild.workers.process_main  # noqa: F401
from hogwild.rules.registry import NAMES, rule_class
from hogwild.workers.spawn import CALLERS_SAFE, SAFE

for name in NAMES:
    rule_class(name)

# Workers, and programs that these start, have the caller's environment.
if callers := os.environ.pop(CALLERS_SAFE, ""):
    os.environ[SAFE] = callers
else:
    os.environ.pop(SAFE, None)

# A Ctrl-C that came meanwhile was held back; it is the parent's to act on, and the server ignores all later ones.
if signal.SIGINT in signal.sigpending():
    signal.sigwait({signal.SIGINT})
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
