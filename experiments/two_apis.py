"""The question "should I use grad(loss) or loss.backward()?", asked about fitting a differential equation.

Somebody fits the solution of a differential equation with a network and asks which of PyTorch's two ways to a
gradient to use, and what each needs and does. One answer works an example; another quotes the documentation:
concurrent `backward()` with shared inputs "might result in racing condition", and `torch.autograd.grad()` can
be used "to avoid non-determinism".

    hogwild run two_apis

Seen with torch 2.13, seed 0, in 39 s on two busy cores: the same bits from both, in the worked example (all values as
printed) and after 2,000 steps on u'' + 0.5 u' + 4 u = 0 (error at most 9.2e-4). Under `ordered` a worker at staleness
0 ends with the bits of that loop. At staleness 1, workers end with the same bits with either call, whether one or two,
threads or processes, and with an error of 2.1e-3 (to 5.9e-3 over five seeds) once the settings are gentler than those
of the loop, with which it is 7.0e-2. The answer's printed x1 was no leaf, so its `.grad` would have stayed None.

Threads on one Parameter lost 0 of 80,000,000 concurrent additions to `.grad`, though their order changed the last bits
from run to run; threads with a Parameter each over one `.grad` lost 1e-5 to 2e-4 of theirs and processes 1e-5 to 3e-2;
`grad()` lost none. A shared `.grad` that each worker applies and zeroes made threads apply 1.0001 to 1.06 times what
they computed, and processes 1.0001 to 1.6 times. The race differs from run to run; the busier the cores are with other
work, the less of it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from hogwild.experiment import Claim, Findings, Study, StudySettings
from hogwild.run.figures import BLUE, RED, row_of_axes, save_figure

from . import _equation, _race
from ._common import measuring, same_bits
from ._equation import Fit, Gradients, by_backward, by_grad

X1, X2 = 0.3939, 0.7965
"""The inputs that the answer printed, to four digits."""


def _leaves() -> tuple[Tensor, Tensor, Tensor]:
    """x1, x2 and y of the worked example, each of shape [1]."""
    x1 = torch.tensor([X1], requires_grad=True)
    x2 = torch.tensor([X2], requires_grad=True)
    return x1, x2, x1**2 + 5 * x2


def worked_example() -> list[Claim]:
    """What the answer printed. Its inputs are known to four digits, so dL/dx1 is known to 1e-4."""
    x1, x2, y = _leaves()
    claims = [
        _printed("y is 4.1377", y.item(), 4.1377, 5e-4),
        Claim("y has grad_fn <AddBackward0>", f"<{_name(y)}>", _name(y) == "AddBackward0"),
    ]
    d1, d2 = torch.autograd.grad(y, (x1, x2), torch.ones_like(y))
    claims += [
        _printed("grad() returns 0.7879 for x1", d1.item(), 0.7879, 1.5e-4),
        _printed("grad() returns 5. for x2", d2.item(), 5.0, 0.0),
        Claim(".grad is None after grad()", f"{x1.grad}, {x2.grad}", x1.grad is None and x2.grad is None),
    ]
    x1, x2, y = _leaves()
    backward: Callable[..., object] = torch.autograd.backward
    result = backward(y, torch.ones_like(y))
    assert x1.grad is not None
    assert x2.grad is not None
    claims += [
        Claim("backward() returns None", str(result), result is None),
        _printed("x1.grad is 0.7879 after backward()", x1.grad.item(), 0.7879, 1.5e-4),
        _printed("x2.grad is 5. after backward()", x2.grad.item(), 5.0, 0.0),
        Claim(
            "both perform the same operation",
            "same bits" if same_bits([d1, d2], [x1.grad, x2.grad]) else "other bits",
            same_bits([d1, d2], [x1.grad, x2.grad]),
        ),
        _as_printed(),
    ]
    return claims


def _printed(text: str, found: float, printed: float, within: float) -> Claim:
    return Claim(text, f"{found:.4f}", abs(found - printed) <= within)


def _name(tensor: Tensor) -> str:
    return "None" if tensor.grad_fn is None else tensor.grad_fn.name()


def _as_printed() -> Claim:
    """The answer's x1 and x2 print `grad_fn=<UnbindBackward>`: they were rows of one leaf, not leaves."""
    x1, x2 = torch.tensor([X1, X2], requires_grad=True)
    (x1**2 + 5 * x2).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that .grad of a non-leaf is read, which is the point
        found = x1.grad
    return Claim(
        "x1.grad is filled for the x1 that the answer printed, with its grad_fn=<UnbindBackward>",
        f"x1.grad is {found}: grad_fn=<{_name(x1)}>, no leaf",
        found is not None,
        expected=False,
    )


def mutations() -> list[Claim]:
    """What each call changes, needs and frees."""
    return [
        _adds(),
        _inputs(),
        _unused(),
        *_create_graph(),
        _freed(),
        _needs(),
        _vector(),
    ]


def _adds() -> Claim:
    x1, _, y = _leaves()
    y.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    assert x1.grad is not None
    once = x1.grad.item()
    y.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    twice = x1.grad.item()
    torch.autograd.grad(y, x1)
    return Claim(
        "a second backward() adds to .grad; grad() leaves it alone",
        f"{once:.4f}, then {twice:.4f}, then {x1.grad.item():.4f}",
        twice == 2 * once == x1.grad.item(),
    )


def _inputs() -> Claim:
    x1, x2, y = _leaves()
    y.backward(inputs=[x2])  # type: ignore[no-untyped-call]
    return Claim(
        "backward(inputs=[x2]) fills .grad of x2 alone",
        f"x1.grad is {x1.grad}, x2.grad is {x2.grad}",
        x1.grad is None and x2.grad is not None,
    )


def _unused() -> Claim:
    x1, _, y = _leaves()
    other = torch.ones(1, requires_grad=True)
    refused = _refusal(lambda: torch.autograd.grad(y, (x1, other), retain_graph=True))
    _, allowed = torch.autograd.grad(y, (x1, other), allow_unused=True)
    return Claim(
        "grad() refuses an input that the output does not depend on; allow_unused=True gives None for it",
        f"{'refused' if 'not have been used' in refused else refused}, then {allowed}",
        "not have been used" in refused and allowed is None,
    )


def _create_graph() -> list[Claim]:
    x1, _, y = _leaves()
    (d1,) = torch.autograd.grad(y, x1, create_graph=True)
    (second,) = torch.autograd.grad(d1, x1)
    x1, _, y = _leaves()
    x1.grad = before = torch.zeros(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of the reference cycle
        y.backward(create_graph=True)  # type: ignore[no-untyped-call]
    replaced = x1.grad is not before and float(before) == 0
    x1.grad = None
    return [
        _printed("create_graph=True: the gradient can be differentiated again, d²y/dx1² = 2", second.item(), 2, 0),
        Claim(
            "backward(create_graph=True) puts a new tensor in .grad instead of adding into the old one",
            "the old one is bypassed" if replaced else "the old one was added to",
            replaced,
        ),
    ]


def _freed() -> Claim:
    _, _, y = _leaves()
    y.backward()  # type: ignore[no-untyped-call]
    after_backward = _refusal(y.backward)
    x1, _, y = _leaves()
    torch.autograd.grad(y, x1)
    after_grad = _refusal(lambda: torch.autograd.grad(y, x1))
    both = all("second time" in said for said in (after_backward, after_grad))
    return Claim(
        "either call frees the graph unless retain_graph=True",
        "a second call of either is refused" if both else f"{after_backward!r}, {after_grad!r}",
        both,
    )


def _needs() -> Claim:
    x = torch.tensor([X1])
    refused = _refusal(lambda: torch.autograd.grad((x * 2 * torch.ones(1, requires_grad=True)).sum(), x))
    needed = "does not require grad" in refused or "not have been used" in refused
    return Claim(
        "grad() too needs its inputs named, with requires_grad=True; neither needs Variable",
        "refused without requires_grad" if needed else refused or "accepted",
        needed,
    )


def _vector() -> Claim:
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    v = torch.tensor([1.0, 10.0, 100.0])
    (product,) = torch.autograd.grad(x**2, x, v)
    (summed,) = torch.autograd.grad((v * x**2).sum(), x)
    return Claim(
        "grad_outputs is the vector of a vector-Jacobian product",
        f"{product.tolist()}",
        same_bits([product], [summed]) and product.tolist() == [2.0, 40.0, 600.0],
    )


def _refusal(call: Callable[[], object]) -> str:
    """What torch says when it refuses the call; empty when it does not."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def many_parameters() -> Claim:
    """Whether the number of parameters is a reason to prefer `backward()`: 1,000 tensors."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(500)))
    parameters = list(model.parameters())
    inputs = torch.randn(4, 8)
    seconds: dict[Gradients, list[float]] = {by_grad: [], by_backward: []}
    results = {}
    for _ in range(15):
        for api, found in seconds.items():
            loss = model(inputs).square().mean()
            start = time.perf_counter()
            results[api] = api(loss, parameters)
            found.append(time.perf_counter() - start)
    grad, backward = (sorted(found)[len(found) // 2] for found in seconds.values())
    equal = same_bits(results[by_grad], results[by_backward])
    return Claim(
        "backward() is more suitable for a large number of parameters (other bits, or half the time)",
        f"{len(parameters):,} tensors: {'same' if equal else 'other'} bits, {backward / grad:.2f} × the time of grad()",
        not equal or backward < 0.5 * grad,
        expected=False,
    )


def differential_equation(grad: Fit, backward: Fit) -> list[Claim]:
    """Both fits against the exact solution and against each other."""
    equal = same_bits(grad.model.parameters(), backward.model.parameters())
    steps = len(grad.losses)
    return [
        Claim(
            "u'' + 0.5 u' + 4 u = 0 fitted with grad(): error below 1e-2",
            f"at most {grad.error:.1e} on 0..{_equation.T_END:g}, {steps:,} steps",
            grad.error < 1e-2,
        ),
        Claim("fitted with backward(): error below 1e-2", f"at most {backward.error:.1e}", backward.error < 1e-2),
        Claim("the two fits have the same bits", f"{'same' if equal else 'other'} bits", equal),
    ]


@dataclass(frozen=True)
class Races:
    """What was counted, by worker kind: additions lost by each API, and shares applied by step and zero."""

    backward: dict[str, _race.Loss]
    grad: dict[str, _race.Loss]
    applied: dict[str, list[float]]


def count_races(passes: int, attempts: int) -> Races:
    """Run every race: each worker kind, each API."""
    return Races(
        {
            kind: _race.lost(_race.accumulate, kind, passes, 2 if kind == "one Parameter" else attempts)
            for kind in _race.KINDS
        },
        {kind: _race.lost(_race.collect, kind, passes // 4, 1) for kind in _race.KINDS},
        {kind: _race.applied(kind, passes // 2, attempts) for kind in ("one Parameter", "processes")},
    )


def races(found: Races, orders: int, order_runs: int) -> list[Claim]:
    """The documentation's warning, as numbers. On one core workers seldom meet, so nothing is claimed there."""
    one = found.backward["one Parameter"]
    claims = [
        Claim("backward() in threads on one Parameter loses additions", str(one), one.missing > 0, expected=False),
        Claim(
            "it is still not deterministic: the order of the additions changes the last bits of .grad",
            f"{orders} different results in {order_runs} runs",
            orders > 1,
        ),
    ]
    if _race.cores() > 1:
        claims += [
            Claim(f"backward() in {who} loses additions", str(loss), loss.missing > 0)
            for who, loss in (
                ("threads, each with its own Parameter over one .grad,", found.backward["replicas"]),
                ("processes over one .grad", found.backward["processes"]),
            )
        ]
        claims += [
            Claim(
                f"step and zero on one .grad in {who} applies more or less than was computed",
                f"{min(shares):.4f} to {max(shares):.4f} of the computed gradient applied in {len(shares)} attempts",
                set(shares) != {1.0},
            )
            for who, shares in (
                ("threads on one Parameter", found.applied["one Parameter"]),
                ("processes", found.applied["processes"]),
            )
        ]
    lost = sum(loss.missing for loss in found.grad.values())
    total = sum(loss.computed for loss in found.grad.values())
    claims.append(Claim("grad() loses none, in threads or in processes", f"{lost:,.0f} of {total:,} lost", lost == 0))
    return claims


def _plot_races(found: Races, path: Path) -> Path:
    title = f"Two workers at the same time, one .grad of {_race.VALUES:,} values in memory both can write"
    made, (left, right) = row_of_axes(11, 4.2, 2, title)
    names = {"one Parameter": "threads,\none Parameter", "replicas": "threads,\nreplicas", "processes": "processes"}
    for api, losses, colour, shift in (("backward()", found.backward, RED, -1), ("grad()", found.grad, BLUE, 1)):
        shares = [losses[kind].missing / losses[kind].computed for kind in names]
        places = [index + 0.18 * shift for index in range(len(shares))]
        left.bar(places, shares, 0.34, color=colour, label=api)
        for place, share in zip(places, shares, strict=True):
            text = f"{share:.1e}" if share else "0"
            left.text(place, max(share, 1.1e-8), text, ha="center", va="bottom", fontsize=9)
    left.set_yscale("log")
    left.set_ylim(1e-8, 1)
    left.set_xticks(range(len(names)), list(names.values()))
    left.set_ylabel("share of additions lost")
    left.set_title("Adding gradients", fontsize=10)
    left.legend()
    for index, shares in enumerate(found.applied.values()):
        farthest = max(shares, key=lambda share: abs(share - 1))
        right.bar(index, abs(farthest - 1), 0.4, color=RED, label=None if index else "farthest attempt")
        right.text(index, 1.7 * max(abs(farthest - 1), 1e-8), f"× {farthest:.5g}", ha="center", va="bottom", fontsize=9)
        places = [index + 0.1 * (attempt / max(1, len(shares) - 1) - 0.5) for attempt in range(len(shares))]
        off = [max(abs(share - 1), 1e-8) for share in shares]
        right.plot(places, off, "o", color="black", markersize=4, label=None if index else "each attempt")
    right.set_xticks(range(len(found.applied)), [names[kind] for kind in found.applied])
    right.set_xlim(-0.6, len(found.applied) - 0.4)
    right.set_yscale("log")
    right.set_ylim(1e-8, 10)
    right.set_ylabel("|gradient applied ÷ gradient computed − 1|")
    right.set_title("Adding, applying and zeroing: lost or applied twice", fontsize=10)
    right.legend(fontsize=8, loc="upper left")
    return save_figure(made, path)


def run(settings: StudySettings) -> Findings:
    """The worked example, the mutations, the differential equation, and the race."""
    passes, attempts, orders = (2000, 50, 10) if settings.full else (400, 50, 8)
    with measuring(settings.seed):
        start = _equation.DryRun()
        fits = [_equation.fit(start, api, _equation.STEPS) for api in (by_grad, by_backward)]
        crews = _equation.CREWS + (_equation.MORE_CREWS if settings.full else ())
        trained = _equation.fit_by_workers(start, crews, _equation.STEPS)
        found = count_races(passes, attempts)
        different = _race.distinct(_race.accumulate, "one Parameter", 2000, orders)
        claims = (
            *worked_example(),
            *mutations(),
            many_parameters(),
            *differential_equation(*fits),
            *_equation.by_workers(fits[0], trained),
            *races(found, different, orders),
        )
    answer = (
        "Either: they walk the same graph and give the same bits. grad() needs the inputs named and returns their "
        "gradients; backward() adds them to .grad of the leaves. For a differential equation, take the derivatives "
        "with respect to the input by grad(create_graph=True) and train with whichever suits, also with several "
        "workers, as long as each has a .grad of its own. Where they share one, the two part: additions are lost "
        "unless the Parameter is shared too, and zeroing it applies gradients twice or never; what grad() returns "
        "is private."
    )
    figures = (
        _equation.plot(fits[0], trained, settings.out / "two_apis-equation.png"),
        _plot_races(found, settings.out / "two_apis-race.png"),
    )
    return Findings(claims, answer, figures)


experiment = Study("two_apis", "grad(loss) or loss.backward(): what does each do, also when workers race?", run)
