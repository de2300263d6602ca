"""Row gradients of tables that nobody declared, refused where a table would be copied whole for them, or zeroed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from hogwild.optim.sparse import refuse_undeclared
from hogwild.rules.base import Rule
from hogwild.rules.registry import quoted, stepping_by_row
from hogwild.shared.state import StatePlan


class Undeclared:
    """Looks at what a loop of the user's own commits, for one worker.

    Args:
        plan: of the shared state; knows the tables that were declared.
        rule: of the run.
    """

    def __init__(self, plan: StatePlan, rule: Rule) -> None:
        self._plan = plan
        self._rule = rule
        self._seen: set[int] = set()

    def look(self, values: Sequence[Tensor | None]) -> None:
        """Look at one gradient, a tensor or None for each parameter in layout order.

        Raises:
            ArgumentError: it has rows of a table that was not declared, and is copied whole, or zeroed.
        """
        plan, rule = self._plan, self._rule
        tables = {i for i, value in enumerate(values) if value is not None and value.is_sparse} - {*plan.sparse}
        if tables - self._seen and (plan.needs.slots > 1 or rule.dense_gradients):
            self._seen |= tables
            entries = [plan.parameters.entries[i] for i in sorted(tables)]
            refuse_undeclared(entries, rule.name, by_row=quoted(stepping_by_row(), "and"), shared=rule.dense_gradients)
