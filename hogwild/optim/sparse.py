"""Which gradients stay sparse under a rule, and which tables a rule refuses.

Invariant: where a gradient stays sparse, an update's cost depends on the rows it names, not on the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from hogwild.errors import ArgumentError, some_of
from hogwild.optim.kernels import takes_sparse, written_step
from hogwild.optim.several import kind_of, optimizers_in, part_of_group
from hogwild.shared.layout import Entry, Layout

LARGEST_TABLES = 64 << 20  # bytes of parameters with sparse gradients that a rule may keep several copies of, or zero


def stay_sparse(
    found: frozenset[int] | None,
    layout: Layout,
    optimizer: Optimizer,
    rule: str,
    *,
    copies: bool,
    shared: bool,
    by_row: Callable[[], str],
    private: Callable[[], str],
) -> frozenset[int]:
    """The positions of the parameters whose gradients are sparse when the optimizer steps.

    Args:
        found: those whose gradients autograd made sparse; None: not tried, as for a loop of the user's own.
        layout: of the trained parameters.
        optimizer: the caller's.
        rule: its name, for messages.
        copies: the rule keeps several copies of every table, for the optimizer does not step rows or the rule none.
        shared: it keeps gradients in shared memory, where they are dense.
        by_row, private: give the names of the rules that touch only the rows of a batch, and of those that share no
            gradients, for messages.

    Raises:
        ArgumentError: the rule copies or zeroes whole tables that are too large for it, or the optimizer takes no dense
            gradients and the rule no others.
    """
    only_sparse = held_by(_takes_no_others, optimizer, layout)
    if found is None:
        found = only_sparse
    if copies or shared:
        beside = "" if shared else _beside(optimizer)
        refuse_large([layout.entries[i] for i in sorted(found)], rule, beside, shared=shared, by_row=by_row)
    if found and shared and only_sparse:
        raise ArgumentError(
            f"{rule} shares gradients that are dense, and SparseAdam steps only sparse ones; use update={private()}, "
            f"or another optimizer"
        )
    return frozenset() if shared else found


def _beside(optimizer: Optimizer) -> str:
    """Of several optimizers, those because of which none steps single rows where versions are kept."""
    parts = optimizers_in(optimizer)
    whole = [kind_of(part) for part in parts if written_step(part) is None] if len(parts) > 1 else []
    return f" beside {', '.join(whole)}" if whole else ""


def refuse_large(
    tables: Sequence[Entry], rule: str, beside: str = "", *, shared: bool, by_row: Callable[[], str]
) -> float:
    """The size in MiB of tables with sparse gradients, under a rule that copies them, which it may do `beside` an
    optimizer alone, or zeroes them (`shared`).

    Raises:
        ArgumentError: they are too large for that.
    """
    nbytes = sum(table.numel * table.dtype.itemsize for table in tables)
    if nbytes > LARGEST_TABLES:
        does = "zeroes whole tables at every update" if shared else f"keeps several copies of every table{beside}"
        raise ArgumentError(
            f"{rule} {does}, and {', '.join(table.name for table in tables)} "
            f"with sparse gradients have {nbytes / (1 << 20):,.0f} MiB, over {LARGEST_TABLES >> 20} MiB; "
            f"update={by_row()} touch only the rows of a batch"
        )
    return nbytes / (1 << 20)


def refuse_undeclared(tables: Sequence[Entry], rule: str, *, shared: bool, by_row: str) -> None:
    """Refuse sparse gradients of tables that nobody declared, under a rule that would copy them whole for it, or zeroes
    them (`shared`) and they are too large for that.

    Raises:
        ArgumentError: they are refused.
    """
    if shared:
        refuse_large(tables, rule, shared=True, by_row=lambda: by_row)
        return
    names = [table.name for table in tables]
    raise ArgumentError(
        f"{some_of(names)} got a sparse gradient, and nothing said so before, so {rule} keeps whole copies of it; "
        f"launch(…, sparse={names!r}) says so, as a layer with sparse=True does; update={by_row} need not be told"
    )


def declared_sparse(
    model: nn.Module,
    optimizer: Optimizer,
    trained: Mapping[str, nn.Parameter],
    layout: Layout,
    named: Sequence[str] = (),
) -> frozenset[int] | None:
    """The positions of the tables whose gradients are sparse, where nothing was tried: those that are `named`, those
    whose layers say so, and of several optimizers what SparseAdam holds; None where none is named, and the optimizer
    takes no others, or would not step their rows.

    Raises:
        ArgumentError: a name is that of no table, or the optimizer does not step rows.
    """
    several = len(optimizers_in(optimizer)) > 1
    only = held_by(_takes_no_others, optimizer, layout) if several else frozenset()
    if named:
        names = list(trained)
        wrong = [name for name in named if name not in trained or not trained[name].dim()]
        if wrong or isinstance(named, str):
            raise ArgumentError(f"sparse {named!r} names {some_of(wrong)}; a list of these works: {some_of(names)}")
        if not any(map(takes_sparse, optimizers_in(optimizer))):
            raise ArgumentError(
                f"sparse {list(named)} given, and {kind_of(optimizer)} as it is set does not step single rows; "
                f"SGD without momentum and weight decay, SparseAdam, Adagrad and hogwild.RowAdagrad do"
            )
        return only | frozenset(map(names.index, named)) | tables_of(model, list(trained.values()))
    if isinstance(optimizer, torch.optim.SparseAdam) or not any(map(takes_sparse, optimizers_in(optimizer))):
        return None
    return only | (tables_of(model, list(trained.values())) & held_by(takes_sparse, optimizer, layout))


def _takes_no_others(optimizer: Optimizer) -> bool:
    return isinstance(optimizer, torch.optim.SparseAdam)


def held_by(which: Callable[[Optimizer], bool], optimizer: Optimizer, layout: Layout) -> frozenset[int]:
    """The positions of the parameters that one of these optimizers steps."""
    holders = part_of_group(optimizer)
    return frozenset(i for span in layout.ranges if which(holders[span.group][0]) for i in span.members)


def tables_of(model: nn.Module, trained: Sequence[nn.Parameter]) -> frozenset[int]:
    """The positions of the tables whose layers say that their gradients are sparse; the first may be dense all the
    same."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse]
    tables = {id(layer.weight) for layer in layers}
    return frozenset(i for i, parameter in enumerate(trained) if id(parameter) in tables)
