"""Why do runs differ? One source varied at a time, with the others as they are.

For a training by `hogwild.train`: interleaving, worker count, worker kind, torch threads, seed. For any other function:
torch threads, and torch's own list of operations without a deterministic implementation.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hogwild.determinism.compare import Comparison, compare, compare_all, worst
from hogwild.determinism.controls import ALONE, Tell
from hogwild.determinism.flip import first_gradients
from hogwild.determinism.foreign import ForeignCommand, ForeignFunction
from hogwild.determinism.subject import Outcome, OwnTraining, Subject, Variation
from hogwild.errors import HogwildError, one_line

OPERATIONS, AS_IS = "nondeterministic operations", "as it is"
ONE_THREAD, THREADS = "with one torch thread", "with several torch threads"
_NAMED = re.compile(r"^(\S+).* does not have a deterministic implementation")


@dataclass(frozen=True)
class DifferenceSource:
    """One possible source of differences: what was varied, and what that alone did.

    `comparison` is None where it could not be varied, and `note` says why, or what was found.
    """

    name: str
    varied: str
    comparison: Comparison | None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON values."""
        comparison = self.comparison.to_dict() if self.comparison else None
        return {"source": self.name, "varied": self.varied, "comparison": comparison, "note": self.note}


def explain(
    subject: Subject, own: OwnTraining | None, runs: Sequence[Outcome], serial: Outcome | None, tell: Tell
) -> list[DifferenceSource]:
    """A row for each source; those that cannot be varied say why."""
    if own is not None and serial is not None:
        return _of_own(subject, own, runs, serial, tell)
    if isinstance(subject, ForeignFunction):
        return _of_function(subject, runs, tell)
    why = "a command trains by itself" if isinstance(subject, ForeignCommand) else "it needs controls, in this process"
    return [DifferenceSource("all", "", None, f"nothing was varied: {why}")]


def _of_own(
    subject: Subject, own: OwnTraining, runs: Sequence[Outcome], serial: Outcome, tell: Tell
) -> list[DifferenceSource]:
    config = own.config
    was = serial.run.kind if serial.run is not None else config.kind
    kind = "threads" if was == "processes" else "processes"
    threads = max(2, torch.get_num_threads())
    rows = [DifferenceSource("interleaving", f"the same {len(runs)} times", worst(compare_all(runs)))]
    if config.workers > 1:
        rows.append(DifferenceSource("worker count", f"1 instead of {config.workers}", compare(runs[0], serial)))
    for name, varied, variation, base in (
        ("worker kind", f"{kind} instead of {was}, one worker", Variation({**ALONE, "kind": kind}), serial),
        ("torch threads", f"{threads} instead of 1, one worker", Variation(ALONE, intra_op=threads), serial),
        ("seed", f"{config.seed + 1} instead of {config.seed}", Variation({"seed": config.seed + 1}), runs[0]),
    ):
        tell(f"varying: {name}")
        try:
            rows.append(DifferenceSource(name, varied, compare(base, subject.repeat(variation))))
        except HogwildError as error:
            rows.append(DifferenceSource(name, varied, None, one_line(error)))
    rows.append(_operations(named_operations(_one_step(own))))
    return rows


def _of_function(subject: ForeignFunction, runs: Sequence[Outcome], tell: Tell) -> list[DifferenceSource]:
    threads = max(2, torch.get_num_threads())
    rows = [DifferenceSource(AS_IS, f"the same {len(runs)} times", worst(compare_all(runs)))]
    tell("varying: torch threads")
    alone, several = _in_turn(subject, threads, len(runs) if _digests(runs) > 1 else 1)
    rows.append(DifferenceSource(ONE_THREAD, f"the same {len(alone)} times", worst(compare_all(alone))))
    threads_may_be_it = torch.get_num_threads() > 1 or _digests(runs) == 1  # else runs with one differ already
    if len(several) > 1 and threads_may_be_it:
        rows.append(DifferenceSource(THREADS, f"the same {len(several)} times", worst(compare_all(several))))
    rows.append(DifferenceSource("torch threads", f"{threads} instead of 1", compare(alone[0], several[0])))
    tell("asking torch which operations are nondeterministic")
    rows.append(_operations(named_operations(subject.repeat)))
    return rows


def _in_turn(subject: Subject, threads: int, most: int) -> tuple[list[Outcome], list[Outcome]]:
    """Runs with one torch thread and with several, in turn, until some with one differ. Those with several come between
    others: what changes as time goes by, or is left by the first run of all, does not look like the work of threads.
    Where those with several alone differ, as many again with one show whether that is chance."""
    alone, several = [_with_threads(subject, 1)], []
    for _ in range(most):
        several.append(_with_threads(subject, threads))
        alone.append(_with_threads(subject, 1))
        if _digests(alone) > 1:
            break
    while _digests(several) > 1 and _digests(alone) == 1 and len(alone) < 2 * most + 1:
        alone.append(_with_threads(subject, 1))
    return alone, several


def _digests(runs: Sequence[Outcome]) -> int:
    return len({run.digest for run in runs})


def _one_step(own: OwnTraining) -> Callable[[], Any]:
    def step() -> None:
        problem, source = own.source()
        first_gradients(problem.model, problem.loss, source, own.config.seed, own.rule_of().gradient_by)

    return step


def _operations(names: Sequence[str] | None) -> DifferenceSource:
    if names is None:
        return DifferenceSource(OPERATIONS, "", None, "not found out: it raised when it was asked")
    note = f"{', '.join(names)}, by PyTorch's own account" if names else "none, by PyTorch's own account"
    return DifferenceSource(OPERATIONS, "", None, note)


def blame(sources: Sequence[DifferenceSource], serial: Comparison | None, left_behind: str = "") -> str:
    """The source that the rows point at, in a sentence, or `left_behind`, what the runs themselves point at, where no
    later run differs; empty where there is none."""
    by_name = {source.name: source for source in sources}
    if serial is not None and serial.identical:
        return "The source is how the workers interleave: with one worker, runs are identical."
    alone, several = _differ(by_name.get(ONE_THREAD)), _differ(by_name.get(THREADS))
    if several and not alone:
        return "The source is torch's own threads: with one (torch.set_num_threads(1)), runs are identical."
    if left_behind and not alone:
        return left_behind
    named = by_name.get(OPERATIONS)
    if named is not None and not named.note.startswith(("none", "not found out")):
        return f"It uses operations that need not be deterministic: {named.note}."
    if len(sources) > 1:
        own = "threads or processes of its own that race, numbers nobody seeded, " if AS_IS in by_name else ""
        others = "a clock, a hash seed, or a file" if own else "a clock, a hash seed, numbers nobody seeded, or a file"
        return f"No source that can be varied explains it: look for {own}{others} that changes."
    return ""


def _differ(source: DifferenceSource | None) -> bool:
    return source is not None and source.comparison is not None and not source.comparison.identical


def named_operations(train: Callable[[], Any]) -> list[str] | None:
    """The operations that `train` uses and that PyTorch says have no deterministic implementation, sorted; None where
    it raised.

    As `torch.use_deterministic_algorithms(True, warn_only=True)` reports them; it sees those of this process.
    """
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        always = torch.is_warn_always_enabled()
        torch.set_warn_always(True)
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            train()
        except Exception:  # it may use what refuses to be asked
            return None
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            torch.set_warn_always(always)
    return sorted({match[1] for warning in caught if (match := _NAMED.match(str(warning.message)))})


def _with_threads(subject: Subject, number: int) -> Outcome:
    """A repeat in which torch computes with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        return subject.repeat()
    finally:
        torch.set_num_threads(before)
