"""The flags of torch that decide bits on the CPU, captured once in the parent and set in every worker process.

Threads share all of them with the parent. What a thread has for itself (autocast, the default device) does not reach
other threads either, and is refused where it is not as torch begins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.backends import opt_einsum
from torch.utils import deterministic

from hogwild.errors import ArgumentError

_Pair = tuple[Callable[[], Any], Callable[[Any], Any]]
_backends: Any = torch.backends
_C: Any = torch._C
_deterministic: Any = deterministic
_opt_einsum: Any = opt_einsum  # which older versions of torch import only where they use it
_UNCHANGED = object()


def _attribute(owner: Any, name: str) -> _Pair:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _precision(backend: str, operation: str) -> _Pair:
    """How float32 is computed there: "none", "ieee", "tf32" or "bf16"."""
    return (
        lambda: _C._get_fp32_precision_getter(backend, operation),
        lambda value: _C._set_fp32_precision_setter(backend, operation, value),
    )


def _matmul_precision() -> Any:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses to say where a backend's own precision was set to another; see below
        return None


def _set_matmul_precision(value: str | None) -> None:
    if value is not None:
        torch.set_float32_matmul_precision(value)


def _algorithms() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _flushes() -> bool:
    return bool(torch.tensor(1e-310, dtype=torch.float64).mul(1.0).eq(0.0))


# In the order in which they are set: a general precision sets that of the operations, which come after it.
FLAGS: Mapping[str, _Pair] = {
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "deterministic, warn only": (
        _algorithms,
        lambda both: torch.use_deterministic_algorithms(both[0], warn_only=both[1]),
    ),
    "deterministic.fill_uninitialized_memory": _attribute(_deterministic, "fill_uninitialized_memory"),
    "float32_matmul_precision": (_matmul_precision, _set_matmul_precision),
    "fp32_precision": _precision("generic", "all"),
    "mkldnn.fp32_precision": _precision("mkldnn", "all"),
    "mkldnn.conv.fp32_precision": _precision("mkldnn", "conv"),
    "mkldnn.rnn.fp32_precision": _precision("mkldnn", "rnn"),
    "mkldnn.matmul.fp32_precision": _precision("mkldnn", "matmul"),
    "mkldnn.enabled": _attribute(_backends.mkldnn, "enabled"),
    "mkldnn.deterministic": _attribute(_backends.mkldnn, "deterministic"),
    "nnpack.enabled": (lambda: _C._get_nnpack_enabled(), lambda value: _C._set_nnpack_enabled(value)),
    "flush_denormal": (_flushes, torch.set_flush_denormal),
    "sdp.flash": (_backends.cuda.flash_sdp_enabled, _backends.cuda.enable_flash_sdp),
    "sdp.mem_efficient": (_backends.cuda.mem_efficient_sdp_enabled, _backends.cuda.enable_mem_efficient_sdp),
    "sdp.math": (_backends.cuda.math_sdp_enabled, _backends.cuda.enable_math_sdp),
    "sdp.overrideable": (
        lambda: _C._get_overrideable_sdp_enabled(),
        lambda value: _C._set_sdp_use_overrideable(value),
    ),
    "sdp.priority_order": (lambda: _C._get_sdp_priority_order(), lambda value: _C._set_sdp_priority_order(value)),
    "sdp.math_fp16_bf16_reduction": (
        _backends.cuda.fp16_bf16_reduction_math_sdp_allowed,
        _backends.cuda.allow_fp16_bf16_reduction_math_sdp,
    ),
    "cpu.allow_fp16_reduced_precision_reduction": (
        lambda: _C._get_cpu_allow_fp16_reduced_precision_reduction(),
        lambda value: _C._set_cpu_allow_fp16_reduced_precision_reduction(value),
    ),
    "mha.fastpath": (_backends.mha.get_fastpath_enabled, _backends.mha.set_fastpath_enabled),
    "opt_einsum.enabled": _attribute(_opt_einsum, "enabled"),
    "opt_einsum.strategy": _attribute(_opt_einsum, "strategy"),
    "quantized.engine": _attribute(_backends.quantized, "engine"),
    "anomaly": (
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda both: torch.set_anomaly_enabled(*both),
    ),
}
"""Name → how it is read, and set. It is what a reading of torch.backends, of torch's get_ and set_ functions and of
those of torch._C has shown to reach computations on the CPU."""


@dataclass(frozen=True)
class BitFlags:
    """Process-wide settings of torch that decide bits: `values` by the names in `FLAGS`.

    `intra_op` is the number of threads of each worker, which is one whatever this process uses, unless somebody asks
    what more of them would do. `recursion_limit` is Python's, without which code that calls itself deeply raises there.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    intra_op: int = 1
    recursion_limit: int = field(default_factory=sys.getrecursionlimit)

    @classmethod
    def capture(cls) -> BitFlags:
        """The settings of this process. A flag that this version of torch has not is left out."""
        found = {name: _read(read) for name, (read, _) in FLAGS.items()}
        return cls({name: value for name, value in found.items() if value is not _UNCHANGED})

    def apply(self) -> None:
        """Make them the settings of this process."""
        for name, value in self.values.items():
            read, write = FLAGS[name]
            if _read(read) != value:
                write(value)
        if self.recursion_limit > sys.getrecursionlimit():  # a lower one may be below where this process stands
            sys.setrecursionlimit(self.recursion_limit)


def _read(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except AttributeError:
        return _UNCHANGED


def refuse_thread_settings() -> None:
    """Refuse what the calling thread has set for itself and no worker would have.

    Raises:
        ArgumentError: `torch.autocast` is active for the CPU, or `torch.inference_mode`, or the default device is
            another.
    """
    if torch.is_inference_mode_enabled():
        raise ArgumentError("torch.inference_mode is active around the training, and nothing can be trained in it")
    if torch.is_autocast_enabled("cpu"):
        dtype = cast("Any", torch.get_autocast_dtype)("cpu")
        raise ArgumentError(
            f"torch.autocast is active around the training, and does not reach the workers; enter it in the loss: "
            f"with torch.autocast('cpu', {dtype}): ..."
        )
    device = torch.get_default_device()
    if device.type != "cpu":
        raise ArgumentError(
            f"torch's default device is {device}, and workers train on the CPU; call torch.set_default_device('cpu')"
        )
