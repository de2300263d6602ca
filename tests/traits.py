"""Which rules and kinds a test runs on. The registry says: a rule that is added is tested where its traits belong."""

from __future__ import annotations

from hogwild.config import KINDS
from hogwild.rules.registry import LEAST_OVERHEAD, NAMES, names_where
from hogwild.rules.registry import SAME_BITS as RECOMMENDED
from hogwild.shared.words import Hook

__all__ = [
    "EXACT",
    "IN_PLACE",
    "KINDS",
    "NAMES",
    "ONE_OF_EACH",
    "OTHER_BITS",
    "OWN_GRADIENTS",
    "PRIVATE_IN_PLACE",
    "SAME_BITS",
    "SLOTS_OF_GRADIENTS",
    "VERSIONED",
    "WITHOUT_SLOTS",
    "hooks_of",
]

VERSIONED = names_where(lambda rule: rule.versioned)
IN_PLACE = names_where(lambda rule: not rule.versioned)
ONE_OF_EACH = (LEAST_OVERHEAD, RECOMMENDED)  # one that steps in place, one that makes versions
SAME_BITS = names_where(lambda rule: rule.same_bits)
OTHER_BITS = names_where(lambda rule: not rule.same_bits)
EXACT = names_where(lambda rule: rule.exact)
OWN_GRADIENTS = names_where(lambda rule: not rule.shares_gradients)
PRIVATE_IN_PLACE = names_where(lambda rule: not rule.versioned and not rule.shares_gradients)
SLOTS_OF_GRADIENTS = names_where(lambda rule: rule.dense_gradients)
WITHOUT_SLOTS = names_where(lambda rule: not rule.dense_gradients)


def hooks_of(update: str) -> tuple[Hook, ...]:
    """The hooks that a worker of a small model passes under that rule: one that steps in place publishes nothing.
    Nothing is computed twice, and there are no tables."""
    publishing = (Hook.PUBLISHING, Hook.PUBLISHED) if update not in VERSIONED else ()
    return tuple(hook for hook in Hook if hook not in (Hook.STEPPING, Hook.COMPARING, Hook.LOGGED, *publishing))
