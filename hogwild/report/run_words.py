"""What a run was made with, when it was gone on with, and what its workers did, in words: the same in a terminal and on
a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hogwild.errors import some_of
from hogwild.report.ranking import setting_text
from hogwild.report.words import count, duration, size
from hogwild.run.result import Run, WorkerUsage


def optimizer_in_words(run: Run, usual_lr: str = "") -> str:
    """The optimizer, its learning rate, and why that is the usual one, and the groups that have other options: adam,
    lr 0.001 (its default). Empty where nothing was recorded."""
    found = run.optimizer_settings
    if found["optimizer"] is None and found["lr"] is None:
        return ""
    told = found["optimizer"] or "the kernel's own"
    rates = _rates(run) or ([] if found["lr"] is None else [found["lr"]])
    if rates:
        told += f", lr {some_of([setting_text(rate) for rate in rates])}{f' ({usual_lr})' * bool(usual_lr)}"
    return "; ".join([told, *(str(group) for group in run.config.groups)])


def _rates(run: Run) -> list[float]:
    """The learning rates of the groups that a Python program made, each once; none where the settings have the one."""
    origin = run.origin if run.config.lr is None else None
    found = origin.training.get("optimizer") if origin is not None and not origin.of_a_kernel else None
    groups = found.get("groups") if isinstance(found, Mapping) else None
    rates = [group.get("lr") for group in groups if isinstance(group, Mapping)] if isinstance(groups, list) else []
    return list(dict.fromkeys(rate for rate in rates if isinstance(rate, int | float)))


def resumed_in_words(run: Run) -> str:
    """When a run was gone on with; empty where it never was."""
    return at_updates(run.origin.starts) if run.origin is not None else ""


def at_updates(versions: Sequence[int]) -> str:
    """How often, and where, in words: at update 40; twice, at update 40; 3 times, at updates 40 and 60."""
    places = [count(version) for version in dict.fromkeys(versions)]
    often = {0: "", 1: "", 2: "twice, "}.get(len(versions), f"{len(versions)} times, ")
    if len(places) > 1:
        return f"{often}at updates {', '.join(places[:-1])} and {places[-1]}"
    return f"{often}at update {places[0]}" if places else ""


def usage_cells(usage: WorkerUsage) -> tuple[str, str, str, str, str]:
    """A worker as tables have it: its number, its gradients, its CPU time, how long it waited, and its memory."""
    memory = size(usage.pss or usage.rss) if usage.rss else "–"
    times = duration(usage.cpu_seconds), duration(usage.waited_seconds)
    return str(usage.worker), count(usage.computed), *times, memory
