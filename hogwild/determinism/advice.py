"""What a check concludes, in words: the verdict, the source that it points at, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hogwild.determinism.explain import blame
from hogwild.rules.registry import NAMES, SAME_BITS, gives_same_bits

if TYPE_CHECKING:
    from hogwild.determinism.verdict import Verdict


_IN_ONE_PROCESS = (
    ", in one process; fresh_process=True makes each in a new one, with a hash seed of its own and nothing that an "
    "earlier run left"
)


def conclusion_in_words(found: Verdict) -> str:
    """The verdict and the advice."""
    serial, on_machines = found.controls.serial, found.controls.machines
    if serial is not None and not serial.identical:
        why = blame(found.sources, serial) or f"{_explain(found)} looks for the source."
        return (
            f"the training is not deterministic even with one worker: two serial runs of one seed differ, and no "
            f"rule can give the same bits before that is mended. {why}"
        )
    if found.identical and not all(one.comparison.identical for one in on_machines) and not found.passed:
        return "all runs on one machine have the same bits, and those on several have not."
    if found.identical and on_machines and found.passed and found.tolerance is None:
        return f"all runs have the same bits, those on up to {on_machines[-1].nodes} machines too."
    if found.identical:
        unpromised = list(_unpromised(found))
        alone = _IN_ONE_PROCESS if found.one_process and not unpromised else ""
        return " ".join((f"all runs have the same bits{alone}.", *unpromised))
    if found.passed and found.tolerance is not None:
        return f"runs differ, within the tolerance ({found.tolerance.measure} ≤ {found.tolerance.limit:g})."
    why = blame(found.sources, serial, _left_behind(found))
    if len(found.lengths()) > 1:
        why = f"They ended after different numbers of updates. {_ended(found) or why}".strip()
    return " ".join(part for part in ("runs diverge.", why, _advice(found)) if part)


def _left_behind(found: Verdict) -> str:
    """What it looks like where all runs but the first have the same bits; empty where they have not, or are few."""
    first, *others = [run.digest for run in found.runs]
    if len(others) < 2 or len({*others}) > 1 or first in others or _racing(found):
        return ""
    return (
        "All runs after the first are alike, as where the first leaves something that they find: a cache, a file, a "
        "generator that is seeded once, code that is compiled at its first use."
    )


def _ended(found: Verdict) -> str:
    """Why they ended there, under a rule with the same bits; empty where they differ before, or may."""
    if found.config is None or not gives_same_bits(found.config.update) or found.first_difference is not None:
        return ""
    ends = "what ends them (stop, a callback) hangs on more than the training: a clock, draws, or a run before."
    return f"As far as was noted they had the same bits until then: {ends}"


def _racing(found: Verdict) -> list[str]:
    """The rules of the runs that do not promise the same bits."""
    return sorted({run.rule for run in found.runs if run.rule and not gives_same_bits(run.rule)})


def _unpromised(found: Verdict) -> Iterator[str]:
    """That the same bits were luck, where a rule of ours lets workers race and there are several."""
    racing = ", ".join(rule for rule in _racing(found) if rule in NAMES)
    if not racing or all(run.workers == 1 for run in found.runs):
        return
    yield f"That was luck: the rule {racing} does not promise them."
    alone = sum(run.active == 1 for run in found.runs)
    if alone:
        made = f"In {alone} of {len(found.runs)} runs one worker made every update before another had begun"
        yield f"{made}, so nothing raced; longer runs tell more."


def _explain(found: Verdict) -> str:
    return "--explain" if found.typed else "explain=True"


def _advice(found: Verdict) -> str:
    if found.remedy is not None:
        accuracy = "" if found.remedy.accuracy is None else f", accuracy {found.remedy.accuracy:.4f}"
        speed = f"{found.remedy.relative_speed:.2f} × the speed{accuracy}, measured here"
        given = found.remedy.flags if found.typed else found.remedy.arguments
        return f"For the same bits every time: {given} ({speed})."
    varied = len(found.sources) > 1
    if not varied and (racing := ", ".join(_racing(found))):
        instead = f"--update {SAME_BITS}" if found.typed else f'update="{SAME_BITS}"'
        return f"It trained under {racing}, which does not promise the same bits; {instead} does."
    if found.config is None:
        return "" if varied else _usual_sources(found)
    if gives_same_bits(found.config.update) and not found.sources:
        return (
            f"{found.config.update} promises the same bits, so something outside of it differs from run to run: "
            f"a clock, a hash seed, numbers nobody seeded, a file. {_explain(found)} looks for it."
        )
    return ""


def _usual_sources(found: Verdict) -> str:
    """What usually makes trainings differ that were only repeated."""
    kept = "what an earlier run left" if found.one_process else "a hash seed"  # which one process has for all
    usual = (
        "Usual sources: threads or processes of its own that race, numbers nobody seeded, torch's threads "
        f"(torch.set_num_threads(1)), a clock, {kept}."
    )
    if found.typed:
        return (
            f"{usual} A command is only repeated; in Python hogwild.check(function, explain=True) varies what it can."
        )
    return usual if found.sources else f"{usual} explain=True varies what it can of a function."
