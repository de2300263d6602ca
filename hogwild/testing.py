"""For test suites: assert that a training is deterministic; plant delays and faults at the hooks of the protocol.

For instance:

    assert_deterministic(lambda: my_training(seed=0), runs=3)
    assert_divergence_below(my_training, limit=1e-3)
    with planted(RandomDelays(seed=1)):
        run = hogwild.train(...)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from hogwild._moved import names_from
from hogwild.shared.words import Hook
from hogwild.workers.planting import Fault, PlantedError, PlantedFault, RandomDelays, both, planted

if TYPE_CHECKING:
    from hogwild.determinism.verdict import Verdict

__all__ = [
    "Fault",
    "Hook",
    "PlantedError",
    "PlantedFault",
    "RandomDelays",
    "assert_deterministic",
    "assert_divergence_below",
    "both",
    "planted",
]

__getattr__ = names_from("hogwild.testing", ("testing",), {"Seam": "Hook"})


def assert_deterministic(
    train: Callable[[], Any] | nn.Module, *data_and_loss: Any, runs: int = 3, **arguments: Any
) -> Verdict:
    """Assert that a training ends in the same bits every time.

    Args:
        train: a function that trains and returns a `Run`, a module or a state dict, made anew at each call; or a model,
            followed by the other arguments of `hogwild.train`.
        data_and_loss: as in `hogwild.check`.
        runs: how often to train, at least twice.
        arguments: as in `hogwild.check`; `fresh_process=True` is one of them.

    Raises:
        AssertionError: two runs differ; the message is the verdict.
        ArgumentError, WorkerError: a run could not be made; nothing is asserted then.
    """
    __tracebackhide__ = True  # pytest shows the line of the test
    from hogwild.determinism.check import check  # here: what a test module imports, each process of workers does

    verdict = check(train, *data_and_loss, runs=runs, **{"controls": False, **arguments})
    if not verdict.identical:
        raise AssertionError(f"the training is not deterministic\n\n{verdict}")
    return verdict


def assert_divergence_below(
    train: Callable[[], Any] | nn.Module,
    *data_and_loss: Any,
    limit: float,
    measure: str = "relative_l2",
    runs: int = 3,
    **arguments: Any,
) -> Verdict:
    """Assert that no two runs of a training are further apart than `limit`.

    Args:
        train: as in `assert_deterministic`.
        data_and_loss: as in `hogwild.check`.
        limit: on `measure`.
        measure: relative_l2, max_abs or max_ulp, as `hogwild.distance` defines them.
        runs: how often to train, at least twice.
        arguments: as in `hogwild.check`.

    Raises:
        AssertionError: two runs are further apart; the message is the verdict.
        ArgumentError, WorkerError: a run could not be made; nothing is asserted then.
    """
    __tracebackhide__ = True
    from hogwild.determinism.check import check
    from hogwild.determinism.distance import refuse_limit

    refuse_limit(limit, measure, "limit")
    settings = {"controls": False, **arguments, "tolerance": limit, "measure": measure}
    verdict = check(train, *data_and_loss, runs=runs, **settings)
    if not verdict.passed:
        raise AssertionError(f"runs are further apart than {measure} {limit:g}\n\n{verdict}")
    return verdict
