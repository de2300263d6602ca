"""The question "How does autograd average across a minibatch?".

Somebody asks how a backward pass from one averaged loss becomes an averaged gradient: whether the activations of
every sample are saved, whether each sample makes an arm of its own in the graph, and whether one can look at the
graph, "or at least see its size", for a lecture. All but the last is answered there.

    hogwild run minibatch

Seen with torch 2.13, seed 0, in 3 s: every value of the thread as printed, and the gradient of the mean 2e-7 from
the mean of the gradients on 64 digits. The graph of a small convolutional network has 17 nodes at every batch size
from 1 to 256; what it saved is 4 bytes and 4,016 for each sample, 1.03 MB at 256. 1 / T saves its result, not its
derivative. Drawn: the two-number example of the thread, and the network.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hogwild.autograd import GraphSummary, average_gradients, draw_graph, graph_summary
from hogwild.experiment import Claim, Findings, Study, StudySettings
from hogwild.run.figures import BLUE, GREY, ORANGE, row_of_axes, save_figure

from ._common import digits, measuring, relative_difference, same_bits

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def network() -> nn.Module:
    """A small convolutional network for images of shape [B, 1, 8, 8]; ten classes."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 4 * 4, 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def one_over_x() -> list[Claim]:
    """The mean of 1 / T for T = 1 … 10, with its gradient to four decimals as printed."""
    T = torch.arange(10.0) + 1.0
    T.requires_grad = True
    result = (1 / T).mean()
    kept = _kept_by_reciprocal(result)
    result.backward()  # type: ignore[no-untyped-call]
    assert T.grad is not None
    printed = [-0.1000, -0.0250, -0.0111, -0.0063, -0.0040, -0.0028, -0.0020, -0.0016, -0.0012, -0.0010]
    derivative = -1 / T.detach() ** 2
    return [
        _values("T is 1. … 10.", T, [float(n) for n in range(1, 11)]),
        _values("mean(1 / T) is 0.2929", result, [0.2929]),
        _named("it has grad_fn <MeanBackward0>", result, "MeanBackward0"),
        *(
            _values(f"T.grad[{index}] is {value:.4f}", one, [value])
            for index, (one, value) in enumerate(zip(T.grad, printed, strict=True))
        ),
        Claim(
            "a backward pass from one average gives ten gradients, one for each x",
            f"{len(set(T.grad.tolist()))} different values",
            len(set(T.grad.tolist())) == len(T),
        ),
        Claim(
            "the derivative of each operation is stored until backward() is called",
            "1 / T stored its result, and not −1 / T²"
            if isinstance(kept, Tensor) and torch.equal(kept, 1 / T.detach())
            else f"1 / T stored {kept}",
            isinstance(kept, Tensor) and torch.equal(kept, derivative),
            expected=False,
        ),
    ]


def _kept_by_reciprocal(result: Tensor) -> Tensor | None:
    """What the operation 1 / T saved for its backward function."""
    node = result.grad_fn
    while node is not None and node.name() != "ReciprocalBackward0":
        node = node.next_functions[0][0]
    return getattr(node, "_saved_result", None)


def x_times_w() -> list[Claim]:
    """The network y = x · w of the thread: every value that was printed."""
    w = torch.tensor([2.0], requires_grad=True)
    x = torch.tensor([1.0, 2.0])
    y = torch.mul(x, w)
    L = y.mean()
    y.retain_grad()
    L.retain_grad()
    summary = graph_summary(L)
    stored, not_stored = (getattr(y.grad_fn, f"_saved_{one}", None) for one in ("self", "other"))
    L.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    assert y.grad is not None
    return [
        _values("w is [2.]", w, [2.0]),
        _values("x is [1., 2.]", x, [1.0, 2.0]),
        _values("y is [2., 4.]", y, [2.0, 4.0]),
        _named("y has grad_fn <MulBackward0>", y, "MulBackward0"),
        _values("L is 3.", L, [3.0]),
        _named("L has grad_fn <MeanBackward0>", L, "MeanBackward0"),
        _values("L.grad is 1.", L.grad, [1.0]),
        _values("y.grad is [0.5, 0.5]", y.grad, [0.5, 0.5]),
        Claim("x.grad is None", str(x.grad), x.grad is None),
        _values("w.grad is [1.5]", w.grad, [1.5]),
        _values("dL/dw = dL/dy0·dy0/dw + dL/dy1·dy1/dw, a sum over the batch", (y.grad * x).sum(), [1.5]),
        Claim(
            "x * w stores what its backward function will need for dy/dw, and no more",
            f"x = {_listed(stored)}; of w: {_listed(not_stored)}",
            stored is not None and same_bits([stored], [x]) and not_stored is None,
        ),
        Claim(
            "x = 1 and x = 2 are two almost equal arms of the graph",
            f"{summary.nodes} nodes in one line: {_line(L)}",
            summary.nodes > 3,
            expected=False,
        ),
        _absent(),
    ]


def _listed(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else str(tensor.tolist())


def _values(text: str, found: Tensor | None, printed: Sequence[float]) -> Claim:
    """Equal to four decimals, which is how torch printed them."""
    if found is None:
        return Claim(text, "None", False)
    values = found.detach().reshape(-1).tolist()
    shown, expected = (", ".join(_as_torch_prints(one) for one in row) for row in (values, printed))
    return Claim(text, shown, shown == expected)


def _as_torch_prints(value: float) -> str:
    return f"{value:.0f}." if value == round(value) else f"{value:.4f}"


def _named(text: str, tensor: Tensor, name: str) -> Claim:
    found = "None" if tensor.grad_fn is None else tensor.grad_fn.name()
    return Claim(text, f"<{found}>", found == name)


def _line(loss: Tensor) -> str:
    names = []
    node = loss.grad_fn
    while node is not None:
        names.append(node.name().rsplit("::", 1)[-1])
        node = next((following for following, _ in node.next_functions if following is not None), None)
    return " → ".join(names)


def _absent() -> Claim:
    """What leads back only to tensors without requires_grad leaves no node."""
    x, w = torch.ones(2), torch.ones(2, requires_grad=True)
    plain = graph_summary((x * w).mean())
    busy = graph_summary((x.exp().sin().square() * w).mean())
    return Claim(
        "the graph only contains what leads back to a requires_grad=True leaf",
        f"three more operations on x: {busy.nodes - plain.nodes} more nodes; {plain.absent} input absent",
        busy.nodes == plain.nodes and plain.absent == busy.absent == 1,
    )


def averages(model: nn.Module, images: Tensor, labels: Tensor) -> list[Claim]:
    """Linearity on a real model, and who computes the average."""
    parameters = list(model.parameters())
    mean = torch.autograd.grad(cross_entropy(model(images), labels), parameters)
    each = average_gradients(
        (cross_entropy(model(one), label) for one, label in zip(images.split(1), labels.split(1), strict=True)),  # type: ignore[no-untyped-call]
        parameters,
    )
    parts = [one for one in each.gradients if one is not None]
    off = relative_difference(mean, parts)
    losses = cross_entropy(model(images), labels, reduction="none")
    only = torch.autograd.grad(losses[0], parameters)
    first = torch.autograd.grad(cross_entropy(model(images[:1]), labels[:1]), parameters)
    of_first = relative_difference(only, first)
    return [
        Claim(
            "the gradient of the mean is the mean of the gradients",
            f"{len(images)} digits: {off:.1e} apart, relative to its norm",
            off <= 1e-6,
        ),
        Claim(
            "with the loss of the first sample alone, the gradient is that sample's",
            f"{of_first:.1e} apart, relative",
            of_first <= 1e-6,
        ),
        _optimizer(model, images, labels),
        _defaults(),
    ]


def _optimizer(model: nn.Module, images: Tensor, labels: Tensor) -> Claim:
    parameters = list(model.parameters())
    before = [one.detach().clone() for one in parameters]
    optimizer = torch.optim.SGD(parameters, lr=0.0)
    optimizer.zero_grad()
    cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
    filled = [one.grad.clone() for one in parameters if one.grad is not None]
    optimizer.step()
    kept = [one.grad for one in parameters if one.grad is not None]
    equal = len(filled) == len(parameters) and same_bits(filled, kept) and same_bits(before, parameters)
    optimizer.zero_grad()
    return Claim(
        "the optimizer does not compute gradients, averaged or otherwise",
        f"all {len(filled)} .grad filled before step(), {'same' if equal else 'other'} bits after it",
        equal,
    )


def _defaults() -> Claim:
    """The default of `reduction` in each loss class of torch.nn."""
    found = {}
    for name, one in vars(nn).items():
        if inspect.isclass(one) and issubclass(one, nn.modules.loss._Loss):
            choice = inspect.signature(one).parameters.get("reduction")
            if choice is not None:
                found[name] = choice.default
    means = sum(default == "mean" for default in found.values())
    return Claim(
        "most PyTorch loss functions average over the minibatch",
        f"reduction='mean' is the default of {means} of {len(found)}",
        2 * means > len(found) > 0,
    )


@dataclass(frozen=True)
class Growth:
    """The graph of one training step for each batch size."""

    sizes: tuple[int, ...]
    graphs: tuple[GraphSummary, ...]

    @property
    def per_sample(self) -> float:
        """Bytes that each further sample adds."""
        first, last = self.graphs[0], self.graphs[-1]
        return (last.bytes - first.bytes) / (self.sizes[-1] - self.sizes[0])


def grow(model: nn.Module, images: Tensor, labels: Tensor) -> Growth:
    """Summarise the graph of the loss for growing batches."""
    graphs = tuple(
        graph_summary(cross_entropy(model(images[:size].clone()), labels[:size].clone())) for size in BATCHES
    )
    return Growth(BATCHES, graphs)


def size_of_the_graph(growth: Growth) -> list[Claim]:
    """How nodes and bytes depend on the batch size."""
    first, last = growth.graphs[0], growth.graphs[-1]
    nodes = {graph.nodes for graph in growth.graphs}
    fixed = first.bytes - growth.per_sample * growth.sizes[0]
    line = [fixed + growth.per_sample * size for size in growth.sizes]
    off = max(abs(graph.bytes - at) for graph, at in zip(growth.graphs, line, strict=True))
    top = last.operations[0]
    return [
        Claim(
            "each sample adds an arm to the graph",
            f"{', '.join(map(str, sorted(nodes)))} nodes at every batch size from 1 to {growth.sizes[-1]}",
            len(nodes) > 1,
            expected=False,
        ),
        Claim(
            "the activations of all samples are saved until backward()",
            f"{growth.per_sample:,.0f} bytes for each sample and {fixed:,.0f} for the batch; "
            f"at most {off:,.0f} off a line",
            growth.per_sample > 0 and off <= 0.01 * last.bytes,
        ),
        Claim(
            "parameters are saved once, whatever the batch",
            f"{first.parameter_bytes:,} bytes at 1, {last.parameter_bytes:,} at {growth.sizes[-1]}",
            first.parameter_bytes == last.parameter_bytes > 0,
        ),
        Claim(
            "there is a way to see the graph and its size",
            f"graph_summary(): {last.nodes} nodes, {last.edges} edges, {last.saved} saved tensors, "
            f"{last.bytes:,} bytes at {growth.sizes[-1]}, most by {top.name}",
            last.nodes > 0 and last.saved > 0 and last.bytes > 0,
        ),
    ]


def frozen(model: nn.Module, images: Tensor, labels: Tensor) -> Claim:
    """Freezing the first layer removes what led only to it."""
    whole = graph_summary(cross_entropy(model(images), labels))
    for one in model[0].parameters():  # type: ignore[index]
        one.requires_grad_(False)
    shorter = graph_summary(cross_entropy(model(images), labels))
    for one in model[0].parameters():  # type: ignore[index]
        one.requires_grad_(True)
    return Claim(
        "paths that lead to nothing that needs a gradient are absent",
        f"first layer frozen: {whole.nodes} → {shorter.nodes} nodes, {whole.bytes:,} → {shorter.bytes:,} bytes",
        shorter.nodes < whole.nodes and shorter.bytes < whole.bytes,
    )


def _plot(growth: Growth, path: Path) -> Path:
    made, (left, right) = row_of_axes(
        11, 4.3, 2, "The graph of one training step on digits: a small convolutional network"
    )
    kinds = [one.name for one in growth.graphs[-1].operations if one.bytes][:6]
    of = [{one.name: one.bytes for one in graph.operations} for graph in growth.graphs]
    shades = ("#1d4e89", "#2f6db3", "#5b93cf", "#8db7e0", "#bcd4ee", "#dfeaf6")
    positions = list(range(len(growth.sizes)))
    bottom = [0.0] * len(positions)
    for kind, shade in zip(kinds, shades, strict=False):
        heights = [row.get(kind, 0) / 1000 for row in of]
        left.bar(positions, heights, 0.8, bottom=bottom, color=shade, label=kind)
        bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
    left.set_xticks(positions, [str(size) for size in growth.sizes])
    left.set_xlabel("batch size (samples)")
    left.set_ylabel("saved for the backward pass (kB)")
    left.set_title("What is stored, by operation", fontsize=10)
    left.legend(fontsize=8, loc="upper left")
    right.plot(
        growth.sizes, [graph.bytes for graph in growth.graphs], "o-", color=BLUE, label="saved activations (bytes)"
    )
    right.plot(
        growth.sizes,
        [graph.parameter_bytes for graph in growth.graphs],
        "s-",
        color=GREY,
        label="saved parameters (bytes)",
    )
    right.plot(growth.sizes, [graph.nodes for graph in growth.graphs], "^-", color=ORANGE, label="nodes (count)")
    right.set_xscale("log", base=2)
    right.set_yscale("log")
    right.set_xticks(growth.sizes, [str(size) for size in growth.sizes])
    right.set_xlabel("batch size (samples)")
    right.set_ylabel("bytes, or number of nodes")
    right.set_title("Bytes grow with the batch, nodes do not", fontsize=10)
    right.legend(fontsize=8)
    return save_figure(made, path)


def _draw(model: nn.Module, images: Tensor, labels: Tensor, out: Path) -> tuple[Path, ...]:
    w = torch.tensor([2.0], requires_grad=True)
    small = draw_graph(
        (torch.tensor([1.0, 2.0]) * w).mean(), out / "minibatch-example", names={"w": w}, title="L = mean(x · w)"
    )
    large = draw_graph(
        cross_entropy(model(images), labels),
        out / "minibatch-network",
        names=dict(model.named_parameters()),
        title=f"A convolutional network, {len(images)} digits",
    )
    return *small, *large


def run(settings: StudySettings) -> Findings:
    """The thread's values, linearity on a real model, and the graph in numbers and as a drawing."""
    images, labels, _, _ = digits()
    with measuring(settings.seed):
        model = network()
        growth = grow(model, images, labels)
        claims = (
            *one_over_x(),
            *x_times_w(),
            *averages(model, images[:64], labels[:64]),
            *size_of_the_graph(growth),
            frozen(model, images[:64], labels[:64]),
        )
        figures = (
            _plot(growth, settings.out / "minibatch.png"),
            *_draw(model, images[:64], labels[:64], settings.out),
        )
    answer = (
        "Nothing averages but the loss: the mean is one operation of the graph, its backward function hands "
        "1 / B to every sample, and each later operation sums over the batch as its own derivative says. The "
        "graph has one node for each tensor operation, whatever the batch; what it stores, the activations "
        "each backward function will need, grows with the batch. graph_summary() counts it and draw_graph() "
        "draws it."
    )
    return Findings(claims, answer, figures)


experiment = Study("minibatch", "How does autograd average across a minibatch, and what does the graph store?", run)
