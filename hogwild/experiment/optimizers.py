"""The optimizers that the command line can name, and the learning rates that they begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from inspect import signature
from typing import Any

import torch

from hogwild.errors import ArgumentError, one_line, some_of
from hogwild.groups import Group
from hogwild.optim.factory import Factory, Named

OPTIMIZERS: Mapping[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adafactor": torch.optim.Adafactor,
}
"""What the command line's `--optimizer` can name."""


def optimizer_named(name: str, lr: float | None, groups: Sequence[Group] = ()) -> Factory:
    """The factory of a named optimizer; `lr` None leaves torch's own default. `groups` have options of their own.

    Raises:
        ArgumentError: no optimizer has that name.
    """
    if name not in OPTIMIZERS:
        raise ArgumentError(f"optimizer {name!r} is not known; {', '.join(OPTIMIZERS)} are")
    factory = OPTIMIZERS[name] if lr is None else partial(OPTIMIZERS[name], lr=lr)
    return partial(_grouped, factory, tuple(groups)) if groups else factory


def _grouped(
    make: Callable[..., torch.optim.Optimizer], groups: Sequence[Group], named: Named
) -> torch.optim.Optimizer:
    """The optimizer with the parameters of each group in a group of their own, and before them those of none.

    Raises:
        ArgumentError: an option that the optimizer has not or refuses, or a pattern that no parameter is left for.
    """
    plain = make(named)
    known, left, parts = plain.defaults, list(named), []
    for group in groups:
        for name in group.options:
            if name not in known:
                kind = type(plain).__name__
                raise ArgumentError(f"group {str(group)!r}: {name!r} is no option of {kind}; {', '.join(known)} are")
        members = [one for one in left if fnmatchcase(one[0], group.match)]
        if not members:
            why = _why_empty(group, groups, [name for name, _ in named], [name for name, _ in left])
            raise ArgumentError(f"group {str(group)!r} matches no parameter{why}")
        left = [one for one in left if one not in members]
        options = {name: tuple(value) if isinstance(value, list) else value for name, value in group.options.items()}
        _refuse_invalid(type(plain), {**known, **options}, group, members[0][1])
        parts.append({"params": [parameter for _, parameter in members], **options})
    rest = [{"params": [parameter for _, parameter in left]}] if left else []
    return make([*rest, *parts])


def _why_empty(group: Group, groups: Sequence[Group], names: Sequence[str], left: Sequence[str]) -> str:
    """Why nothing is left for a group: an earlier one has taken it, or no name matches."""
    wanted = [name for name in names if fnmatchcase(name, group.match)]
    earlier = groups[: groups.index(group)]
    taken = [one.match for one in earlier if any(fnmatchcase(name, one.match) for name in wanted)]
    if not wanted:
        return f"; left for it are {', '.join(left) or 'none'}"
    return (
        f": {some_of(wanted)} {'is' if len(wanted) == 1 else 'are'} taken by {' and '.join(map(repr, taken))} before "
        f"it. The first pattern that matches holds, so the narrower one comes first"
    )


def _refuse_invalid(
    kind: type[torch.optim.Optimizer], options: Mapping[str, Any], group: Group, parameter: torch.nn.Parameter
) -> None:
    """Refuse what the optimizer refuses as options of its own: of a group's it looks at none."""
    for name, value in group.options.items():
        if value != value:
            raise ArgumentError(f"group {str(group)!r}: {name} is not a number")
    taken = signature(kind).parameters
    try:
        kind([parameter], **{name: value for name, value in options.items() if name in taken})
    except (ValueError, TypeError) as error:
        raise ArgumentError(f"group {str(group)!r}: {one_line(error)}") from error


LEARNING_RATES: Mapping[str, float] = {
    "sgd": 0.1,
    "momentum": 0.01,
    "adam": 0.001,
    "adamw": 0.001,
    "adagrad": 0.01,
    "rmsprop": 0.001,
    "adafactor": 0.01,
}
"""What an optimizer begins with where neither the experiment nor a flag says otherwise."""
