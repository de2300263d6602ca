"""What machines that train together agree upon: all that decides bits before they train, and the bits in the end.

Each tells what it has, and is told what the others have; whoever differs from machine 0 is named, with both values.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch

from hogwild._version import __version__
from hogwild.config import DECIDE_BITS, RunConfig
from hogwild.data.sources import DatasetSource, TensorSource, own_copy
from hogwild.errors import ArgumentError, NotReproducible, printable
from hogwild.nodes.party import Party
from hogwild.nodes.peer import PIECE
from hogwild.run.job import Job
from hogwild.run.prepare import Prepared
from hogwild.run.saved.checkpoint import form_of
from hogwild.run.saved.directory import file_digest
from hogwild.run.saved.environment import flags_of_torch
from hogwild.run.saved.fingerprint import fingerprint
from hogwild.run.saved.found import differ
from hogwild.run.staleness import CURVATURE, CURVATURE_GROWS
from hogwild.run.trial.at_batch import at_batch
from hogwild.run.trial.batch_digest import batch_digest
from hogwild.shared.hashing import digest_bytes
from hogwild.shared.state import SharedState

PREPARING = 600.0  # seconds that one machine may need longer than another before it trains
END = "end"  # what each machine tells its final bits by
_LOOKS = 16  # batches that are compared beside the first
_LOOKING = 10.0  # seconds for all of them
_BATCH = "batch "  # how the names of their digests begin
_FACTORS = "lr_schedule.factors."  # and those of the schedule at some updates
_FIRST_BATCH, _FROZEN, _MODEL = "data.first_batch", "frozen parameters", "model"
_WHERE_IT_BEGAN = ("version", _MODEL)
_NAMES = {_FIRST_BATCH: "batch 0", _MODEL: "the initial model"}  # what a person calls them
_HASH = re.compile("[0-9a-f]{64}")
_SHORT = 8  # digits of a hash that are shown
_MOST_SHOWN, _BEFORE = 80, 30  # letters of a longer text that are shown, and those before the first that differs
_OWN = ("data",)  # its folder may be elsewhere; what is in it is compared by the first batch
_ALSO = ("evaluate_every", "recheck", "keep_best")  # must be the same, though they decide no bits


def agree(prepared: Prepared, party: Party, state: SharedState, version: int) -> None:
    """Make sure that all machines train the same from the same version on.

    Raises:
        ArgumentError: they do not; told is what differs.
        NodeError: a machine did not come.
    """
    job = prepared.job
    frozen = [entry.name for entry in state.plan.constants.entries]
    facts = {
        "hogwild": __version__,
        "torch": torch.__version__,
        "bytes that are sent at once": PIECE,
        "fingerprint (hogwild doctor --fingerprint)": fingerprint(),
        **{f"torch's {name}": value for name, value in flags_of_torch().items()},
        **_settings(job.config),
        "updates": job.updates,
        "stop": job.callbacks.may_stop,
        "node_timeout": party.invitation.timeout,
        **_flat(prepared.training),
        **_batches(job),
        CURVATURE: prepared.curvature.largest if prepared.curvature is not None else None,
        CURVATURE_GROWS: prepared.curvature.grows if prepared.curvature is not None else None,
        "layout": form_of(prepared.plan, job.rule),
        _FROZEN: digest_bytes(dict(zip(frozen, state.constants, strict=True))).hex(),
        "version": version,
        _MODEL: digest_bytes(state.state_dict(version, job.rule.place(version))).hex(),
    }
    if party.returns:
        of_first = party.hear_all("facts", PREPARING, [0])[0]
        told = {0: _now(of_first), party.node: _now(facts)}
    else:
        party.tell("facts", facts)
        told = party.hear_all("facts", PREPARING)
    if found := differences(told):
        told_all = printable("; ".join(found), 600)
        raise ArgumentError(f"the machines do not train the same: {told_all}{_remedy(told)}")


def _batches(job: Job) -> dict[str, str]:
    """Digests of some batches of the whole run; of none where the data may draw as they like, or make their batches."""
    if not job.rule.same_bits or not isinstance(job.source, TensorSource | DatasetSource):
        return {}
    source, found, until = own_copy(job.source), {}, time.monotonic() + _LOOKING
    for number in sorted({(job.batches - 1) * part // _LOOKS for part in range(1, _LOOKS + 1)} - {0}):
        if time.monotonic() > until:
            break
        with suppress(Exception), at_batch(job.config.seed, job.config.workers, batch=number) as info:
            found[f"{_BATCH}{number}"] = batch_digest(source.batch(number, info.generator))
    return found


def _settings(config: RunConfig) -> dict[str, Any]:
    """Those that must be the same, what was changed of them on purpose, and an experiment of one's own."""
    values = {name: getattr(config, name) for name in (*DECIDE_BITS, *_ALSO) if name not in _OWN}
    values["what was changed"] = "; ".join(map(str, config.changes))
    if config.own is not None:
        values |= {f"parameter {name}": value for name, value in config.own.parameters.items()}
        values[f"the content of {Path(config.own.file).name}"] = file_digest(Path(config.own.file))
    return _flat(values)


def differences(facts: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """What machines told that is not what machine 0 told, a short text each."""
    return [
        _difference(name, node, facts[node], facts[0])
        for node in sorted(facts)
        for name in _differing(facts[node], facts[0])
    ]


def _difference(name: str, node: int, facts: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    own, others = _from_where_they_differ(facts.get(name), first.get(name))
    return f"{_NAMES.get(name, name)} is {_shown(own)} on machine {node} and {_shown(others)} on machine 0"


def _from_where_they_differ(one: Any, other: Any) -> tuple[Any, Any]:
    """Of two long texts, such as the groups of an optimizer, a little of each around the first letter that differs."""
    if not (isinstance(one, str) and isinstance(other, str) and max(len(one), len(other)) > _MOST_SHOWN):
        return one, other
    alike = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
    begin = max(alike - _BEFORE, 0)
    return _piece(one, begin), _piece(other, begin)


def _piece(text: str, begin: int) -> str:
    end = begin + _MOST_SHOWN
    return f"{'…' if begin else ''}{text[begin:end]}{'…' if end < len(text) else ''}"


def _differing(facts: Mapping[str, Any], first: Mapping[str, Any]) -> Iterator[str]:
    """The names of what differs; of batches only the first, and nothing that follows from another batch or model."""
    found = [
        name
        for name in dict.fromkeys([*first, *facts])
        if differ(facts.get(name), first.get(name)) and _is_known(name, facts, first)
    ]
    batches = [name for name in found if _is_batch(name)]
    follow = {*batches[1:], *((CURVATURE, CURVATURE_GROWS) if any(map(_may_be_drawn, found)) else ())}
    yield from (name for name in found if name not in follow)


def _remedy(facts: Mapping[int, Mapping[str, Any]]) -> str:
    """What to do where nothing differs but what a program may have drawn; else empty."""
    if not all(_may_be_drawn(name) for one in facts.values() for name in _differing(one, facts[0])):
        return ""
    return (
        "; all need the same data and model: seed what is random (torch.manual_seed(0)) before data and model are "
        "made, the same on all machines"
    )


def _may_be_drawn(name: str) -> bool:
    """True of the numbers in data and models, which a program may have drawn without a seed."""
    return _is_batch(name) or name in (_FROZEN, _MODEL)


def _is_batch(name: str) -> bool:
    return name == _FIRST_BATCH or name.startswith(_BATCH)


def _shown(value: Any) -> str:
    """A value in a message; a hash by its first digits."""
    if isinstance(value, str) and _HASH.fullmatch(value):
        return repr(f"{value[:_SHORT]}…")
    return repr(value)


def _is_known(name: str, *facts: Mapping[str, Any]) -> bool:
    """False of a batch that some machine had no time to look at, and of a rate where another has no such update."""
    return not name.startswith((_BATCH, _FACTORS)) or all(name in one for one in facts)


def _now(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Those that hold wherever a run stands."""
    return {name: value for name, value in facts.items() if name not in _WHERE_IT_BEGAN}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted names, as JSON has them; lists as texts."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str | int | float | None) else str(value)
    return flat


def refuse_another_end(node: int, digest: str, told: Mapping[int, Any]) -> None:
    """Make sure that other machines have come to the bits of this one, `digest`, by what they told, by their numbers.

    Raises:
        NotReproducible: one has not.
    """
    for other, found in sorted(told.items()):
        if found != digest:
            raise NotReproducible(
                f"machine {other} ended with other bits ({printable(str(found), 16)}) than machine {node} "
                f"({digest[:16]}): its loss, its data or its learning rates are not the same in all updates"
            )
