"""How the change that a forward pass made to a buffer is committed to a value that has changed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

_SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)


def _is_counter(buffer: Tensor) -> bool:
    """True for a buffer that is taken for a counter."""
    return buffer.dtype in _SIGNED and buffer.shape != (1,)


@dataclass(frozen=True)
class BufferRule:
    """How one buffer's change in a forward pass is committed to values that may have changed meanwhile.

    With `before` and `after` the buffer around the forward pass, `base` the newest shared value and n the
    forward passes counted between `before` and `after`:

    - running average with momentum m: after + (1 − m)^n (base − before), which weighs this batch's statistic as if
      it had been computed on base, stays positive for a variance, and is `after` where base is before;
    - cumulative average (`momentum=None`): the mean of base's batches and this one's;
    - counter: base + (after − before);
    - anything else: after.

    A signed integer is taken for a counter, or a table of them, unless its shape is [1], as that of a pointer into a
    ring is by custom: a sum would take it out of the ring.

    A buffer that the forward pass left alone keeps base.
    """

    averages: bool = False
    momentum: float | None = None
    counter: int | None = None

    def commit(self, index: int, before: Sequence[Tensor], after: Sequence[Tensor], base: Sequence[Tensor]) -> Tensor:
        """The new value of buffer `index`; the sequences hold all buffers, for their counters."""
        b, a, newest = before[index], after[index], base[index]
        if torch.equal(b, a):
            return newest
        if self.averages:
            passes = 1 if self.counter is None else int(after[self.counter] - before[self.counter]) or 1
            if self.momentum is not None:
                return a + (1 - self.momentum) ** passes * (newest - b)
            if self.counter is not None:
                seen, others = int(before[self.counter]), int(base[self.counter])
                return (newest * others + (a * (seen + passes) - b * seen)) / (others + passes)
        if _is_counter(a):
            return newest + (a - b)
        return a

    @classmethod
    def for_model(cls, model: nn.Module, names: Sequence[str]) -> list[BufferRule]:
        """The rules of the named buffers: averages are those of torch's own normalisation layers."""
        position = {name: i for i, name in enumerate(names)}
        rules = [cls() for _ in names]
        for path, module in model.named_modules():
            if isinstance(module, _NormBase):
                prefix = f"{path}." if path else ""
                counter = position.get(f"{prefix}num_batches_tracked")
                for statistic in ("running_mean", "running_var"):
                    if (i := position.get(prefix + statistic)) is not None:
                        rules[i] = cls(True, module.momentum, counter)
        return rules
