"""What a compiled function says of memory: in which order it is seen, and what will be written soon."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LINE = 64  # bytes that come from memory at once

_BYTES, _INT = ir.IntType(8).as_pointer(), ir.IntType(32)
_FOR_WRITING, _KEPT, _DATA = ir.Constant(_INT, 1), ir.Constant(_INT, 3), ir.Constant(_INT, 1)


def _fence(context: Any) -> Any:  # noqa: ARG001
    """`fence()`: what was loaded and stored before is loaded and stored before what follows.

    On x86-64 this is a word to the compiler, and costs nothing.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        builder.fence("acq_rel")
        return context.get_dummy_value()

    return types.void(), generate


def _prefetch_to_write(context: Any, address: Any) -> Any:  # noqa: ARG001
    """`prefetch_to_write(address)`: the line there will be written. It is no access: any address will do."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        form = ir.FunctionType(ir.VoidType(), [_BYTES, _INT, _INT, _INT])
        prefetch = cgutils.get_or_insert_function(builder.module, form, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
        builder.call(prefetch, [builder.inttoptr(arguments[0], _BYTES), _FOR_WRITING, _KEPT, _DATA])
        return context.get_dummy_value()

    return types.void(types.intp), generate


fence: Any = intrinsic(_fence)
prefetch_to_write: Any = intrinsic(_prefetch_to_write)
