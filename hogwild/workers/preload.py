"""What the fork server imports, so that workers find it imported: torch, the rules, and all that they stand on."""

import signal

import hogwild.workers.loop
import hogwild.workers.process_main  # noqa: F401
from hogwild.rules.registry import NAMES, rule_class

for name in NAMES:
    rule_class(name)

# A Ctrl-C that came meanwhile was held back; it is the parent's to act on, and the server ignores all later ones.
if signal.SIGINT in signal.sigpending():
    signal.sigwait({signal.SIGINT})
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
