"""The flags of torch that decide bits, captured once in the parent and set in every worker."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class BitFlags:
    """Process-wide settings of torch that decide bits. `intra_op` is the number of threads of each worker, which is one
    whatever this process uses, unless somebody asks what more of them would do."""

    default_dtype: torch.dtype
    deterministic: bool
    deterministic_warn_only: bool
    matmul_precision: str
    mkldnn: bool
    flush_denormal: bool
    intra_op: int = 1

    @classmethod
    def capture(cls) -> BitFlags:
        """The settings of this process."""
        return cls(
            default_dtype=torch.get_default_dtype(),
            deterministic=torch.are_deterministic_algorithms_enabled(),
            deterministic_warn_only=torch.is_deterministic_algorithms_warn_only_enabled(),
            matmul_precision=torch.get_float32_matmul_precision(),
            mkldnn=bool(torch.backends.mkldnn.enabled),
            flush_denormal=bool(torch.tensor(1e-310, dtype=torch.float64).mul(1.0).eq(0.0)),
        )

    def apply(self) -> None:
        """Make them the settings of this process."""
        torch.set_default_dtype(self.default_dtype)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.deterministic_warn_only)
        torch.set_float32_matmul_precision(self.matmul_precision)
        torch.backends.mkldnn.enabled = self.mkldnn  # type: ignore[assignment]
        torch.set_flush_denormal(self.flush_denormal)
