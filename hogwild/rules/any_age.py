"""Rules whose gradients have no fixed age: while W workers are busy, a gradient is W − 1 updates old on average."""

from __future__ import annotations

from hogwild.config import COMPENSATIONS
from hogwild.errors import ArgumentError
from hogwild.rules.base import FRESH, Age, Rule


class AnyAge(Rule):
    """Takes gradients to be workers − 1 updates old where it is told to make up for it.

    Args:
        compensation: "workers" does what `hogwild.optim.compensation` says, for that age; "none", and "auto", nothing.

    Raises:
        ArgumentError: it is none of these.
    """

    def __init__(self, compensation: str = "none") -> None:
        if compensation not in COMPENSATIONS:
            raise ArgumentError(f"compensation {compensation!r} is not known; {', '.join(COMPENSATIONS)} are")
        self.compensation = "workers" if compensation == "workers" else "none"

    def made_up_for(self, workers: int) -> Age:
        """One update less than there are workers, on average."""
        return Age(workers - 1, varies=True) if self.compensation == "workers" else FRESH
