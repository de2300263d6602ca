"""`hogwild`: private gradients, applied in place without a lock (Niu et al. 2011, Hogwild!).

What holds when workers race: each gradient is the worker's own and is computed whole before any of it is applied;
every element of the model is, at any time, a value that some worker wrote there.
What does not: a read may mix elements of many versions; of two simultaneous steps on one element one may be lost;
optimizer state races in the same way, but an adaptive step that is written out (`hogwild.optim.kernels`) is never
larger than it could be serially. After a kill one update may be applied in part.
"""

from __future__ import annotations

from typing import ClassVar

from hogwild.rules.any_age import AnyAge
from hogwild.rules.in_place import InPlace


class Hogwild(AnyAge, InPlace):
    """`backward()` into a private `.grad`; read and write in place, unlocked."""

    name: ClassVar[str] = "hogwild"
    summary: ClassVar[str] = "a private gradient, applied in place without a lock"
    gradient_by: str = "backward"
