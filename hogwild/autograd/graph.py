"""What the graph behind a loss holds: its operations, the tensors they saved, and the memory of those.

The graph is what autograd recorded during the forward pass and walks in the backward pass. It has one node
for each tensor operation, whatever the batch size, and stores what each operation's backward function will
need; that grows with the batch. Operations none of whose inputs needs a gradient leave no node at all.

`drawing.py` beside this file draws the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor
from torch.autograd.graph import Node


@dataclass(frozen=True)
class Operation:
    """All nodes of one kind: their name as torch gives it, how many there are, and what they saved.

    Attributes:
        name: such as `AddmmBackward0`; at `AccumulateGrad` a path ends and a leaf receives its `.grad`.
        nodes: how many nodes of the graph are of this kind.
        saved: how many tensors they saved, parameters included.
        bytes: what those keep alive besides parameters. Memory saved by several operations counts for the one
            nearest to the loss.
    """

    name: str
    nodes: int
    saved: int
    bytes: int


@dataclass(frozen=True)
class GraphSummary:
    """The graph behind one loss.

    Attributes:
        nodes: operations and leaves that the backward pass visits.
        edges: ways a gradient takes from one node to the next.
        absent: inputs of operations without a way on, because nothing there needs a gradient.
        saved: tensors saved for the backward pass, parameters included.
        bytes: memory those keep alive besides the parameters, shared memory counted once.
        parameter_bytes: saved memory that belongs to the leaves that receive a gradient; it is alive anyway.
        operations: by kind, the largest `bytes` first, then by name.
    """

    nodes: int
    edges: int
    absent: int
    saved: int
    bytes: int
    parameter_bytes: int
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        width = max(len(one.name) for one in self.operations)
        rows = [f"{'operation':{width}}  nodes  saved tensors  bytes"]
        form = f"{{0.name:{width}}}  {{0.nodes:5}}  {{0.saved:13}}  {{0.bytes:,}}"
        rows += [form.format(one) for one in self.operations]
        rows.append(
            f"{self.nodes} nodes, {self.edges} edges, {self.absent} absent (nothing there needs a gradient); "
            f"{self.saved} saved tensors: {self.bytes:,} bytes, and {self.parameter_bytes:,} of parameters"
        )
        return "\n".join(rows)


def graph_summary(loss: Tensor) -> GraphSummary:
    """Count the nodes, edges and saved tensors of the graph behind a loss, without walking it backwards.

    Args:
        loss: any tensor with a graph, of any shape; before `backward()` has freed it.

    Raises:
        ValueError: the tensor has no graph, or the graph has been freed.
    """
    nodes = walk(loss)
    ledger = Ledger(nodes)
    kinds: dict[str, list[int]] = {}
    for node in nodes:
        row = kinds.setdefault(operation_name(node), [0, 0, 0])
        row[0] += 1
        for tensor in saved_tensors(node):
            row[1] += 1
            row[2] += ledger.enter(tensor)
    operations = [Operation(name, *row) for name, row in kinds.items()]
    ways = [following for node in nodes for following, _ in node.next_functions]
    edges = sum(following is not None for following in ways)
    return GraphSummary(
        nodes=len(nodes),
        edges=edges,
        absent=len(ways) - edges,
        saved=sum(one.saved for one in operations),
        bytes=sum(one.bytes for one in operations),
        parameter_bytes=ledger.parameter_bytes,
        operations=tuple(sorted(operations, key=lambda one: (-one.bytes, one.name))),
    )


def walk(loss: Tensor) -> list[Node]:
    """Every node of the graph once, the nearest to the loss first.

    Raises:
        ValueError: the tensor has no graph.
    """
    if loss.grad_fn is None:
        raise ValueError("the tensor has no graph: it was computed from nothing that requires a gradient")
    nodes = [loss.grad_fn]
    seen = set(nodes)
    for node in nodes:
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return nodes


def operation_name(node: Node) -> str:
    """The node's name without its C++ namespace."""
    return node.name().rsplit("::", 1)[-1]


def leaf_of(node: Node) -> Tensor | None:
    """The leaf tensor that receives its `.grad` at this node, or None at an operation."""
    leaf = getattr(node, "variable", None)
    return leaf if isinstance(leaf, Tensor) else None


def saved_tensors(node: Node) -> Iterator[Tensor]:
    """What a node saved for its backward function.

    Raises:
        ValueError: it has been freed.
    """
    try:
        found = [getattr(node, name) for name in _saved_attributes(type(node))]
    except RuntimeError as error:
        raise ValueError(
            "the graph has been freed by a backward pass: look at it before that, or call backward(retain_graph=True)"
        ) from error
    for one in found:
        for tensor in one if isinstance(one, list | tuple) else (one,):
            if isinstance(tensor, Tensor):
                yield tensor


@cache
def _saved_attributes(kind: type[Any]) -> tuple[str, ...]:
    """torch's own nodes have one attribute for each saved value, those of `autograd.Function` a tuple."""
    return tuple(name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors")


class Ledger:
    """Adds up the memory of saved tensors, each byte once, parameters apart from the rest."""

    def __init__(self, nodes: list[Node]) -> None:
        leaves = [leaf for leaf in map(leaf_of, nodes) if leaf is not None]
        self._parameters = {leaf.untyped_storage().data_ptr() for leaf in leaves}
        self._extents: dict[int, tuple[int, int]] = {}
        self._entered: list[Tensor] = []  # alive, so that no address is used twice
        self.parameter_bytes = 0

    def enter(self, tensor: Tensor) -> int:
        """Enter a saved tensor; how many bytes it adds to what was entered, 0 for a parameter."""
        self._entered.append(tensor)
        storage = tensor.untyped_storage().data_ptr()
        first, last = _extent(tensor)
        low, high = self._extents.get(storage, (first, first))
        self._extents[storage] = min(low, first), max(high, last)
        added = max(high, last) - min(low, first) - (high - low)
        if storage in self._parameters:
            self.parameter_bytes += added
            return 0
        return added


def _extent(tensor: Tensor) -> tuple[int, int]:
    """The bytes of its storage that a tensor spans: first, and one after the last."""
    first = int(tensor.storage_offset())
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    last = first + steps + 1 if tensor.numel() else first
    return first * tensor.element_size(), last * tensor.element_size()
