"""Every flag of torch that decides bits on the CPU reaches every worker, or is refused by name."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import problems
import pytest
import torch
from torch import Tensor, nn
from traits import KINDS, NAMES

import hogwild
from hogwild import ArgumentError
from hogwild.workers.surroundings.bit_flags import FLAGS, BitFlags

PRECISIONS = hasattr(torch._C, "_get_fp32_precision_getter")  # of each backend and operation, from torch 2.9 on

# Name → a value that torch does not begin with.
OTHER: dict[str, Any] = {
    "default_dtype": torch.float64,
    "deterministic, warn only": (True, True),
    "deterministic.fill_uninitialized_memory": False,
    "float32_matmul_precision": "high",
    "fp32_precision": "bf16",
    "mkldnn.fp32_precision": "bf16",
    "mkldnn.conv.fp32_precision": "bf16",
    "mkldnn.rnn.fp32_precision": "bf16",
    "mkldnn.matmul.fp32_precision": "tf32",  # as float32_matmul_precision "high" has it
    "mkldnn.enabled": False,
    "mkldnn.deterministic": True,
    "nnpack.enabled": False,
    "flush_denormal": True,
    "sdp.flash": False,
    "sdp.mem_efficient": False,
    "sdp.math": False,
    "sdp.overrideable": False,
    "sdp.priority_order": [0, 1, 2, 3, 4],
    "sdp.math_fp16_bf16_reduction": True,
    "cpu.allow_fp16_reduced_precision_reduction": None,  # only on a processor that computes with float16
    "mha.fastpath": False,
    "opt_einsum.enabled": None,  # only where opt_einsum is installed
    "opt_einsum.strategy": None,  # the same
    "quantized.engine": "onednn",
    "anomaly": (True, False),
}


@pytest.fixture(autouse=True)
def restored_flags() -> Iterator[BitFlags]:
    flags = BitFlags.capture()
    yield flags
    flags.apply()
    assert BitFlags.capture() == flags


def log_flags(model: nn.Module, batch: Any) -> Tensor:
    seen = BitFlags.capture().values
    hogwild.worker_info().log(**{name: float(seen[name] == value) for name, value in expected().items()})
    x, y = batch
    return nn.functional.cross_entropy(model(x.to(next(model.parameters()).dtype)), y)


def expected() -> dict[str, Any]:
    """Of the flags that this torch has."""
    return {name: OTHER[name] for name in BitFlags.capture().values if OTHER[name] is not None}


def test_each_flag_has_another_value_to_be_tested_with(restored_flags):
    assert set(OTHER) == set(FLAGS) >= set(restored_flags.values)
    if PRECISIONS:
        assert set(restored_flags.values) == set(FLAGS)
    assert all(restored_flags.values[name] != value for name, value in expected().items())


@pytest.mark.parametrize("name", expected())
def test_each_is_captured_and_set_alone(name, restored_flags):
    FLAGS[name][1](OTHER[name])
    flags = BitFlags.capture()
    assert flags.values[name] == OTHER[name]
    restored_flags.apply()
    flags.apply()
    assert BitFlags.capture() == flags


@pytest.mark.parametrize("kind", KINDS)
def test_all_of_them_reach_every_worker(kind):
    model = problems.mlp()
    for name, value in expected().items():
        FLAGS[name][1](value)
    run = problems.train(model, kind=kind, loss=log_flags, updates=6, update="ordered")
    assert len(run.logged) == 6
    for row in run.logged:
        assert {name: row[name] for name in expected()} == dict.fromkeys(expected(), 1.0)


def log_limit(model: nn.Module, batch: Any) -> Tensor:
    hogwild.worker_info().log(limit=sys.getrecursionlimit())
    return problems.cross_entropy(model, batch)


@pytest.mark.parametrize("kind", KINDS)
def test_a_higher_limit_on_recursion_reaches_every_worker(kind):
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 1234)
    try:
        run = problems.train(kind=kind, loss=log_limit, updates=6, update="ordered")
    finally:
        sys.setrecursionlimit(before)
    assert [row["limit"] for row in run.logged] == [before + 1234] * 6


class Attention(nn.Module):
    """Eight values as a sequence of four heads, which each kernel adds up in an order of its own."""

    def forward(self, x: Tensor) -> Tensor:
        q = x.reshape(1, 1, -1, 8)
        return nn.functional.scaled_dot_product_attention(q, q, q).reshape(x.shape)


def attentive() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), Attention(), nn.Linear(8, 3))


def test_the_attention_kernels_that_are_chosen_are_those_of_every_kind():
    digests = [problems.train(attentive(), update="ordered", kind=kind).digest for kind in KINDS]
    torch.backends.cuda.enable_flash_sdp(False)
    math = [problems.train(attentive(), update="ordered", kind=kind).digest for kind in KINDS]
    assert len(set(digests)) == len(set(math)) == 1
    assert digests[0] != math[0], "the flag decides bits"


@pytest.mark.skipif(not PRECISIONS, reason="this torch has no precisions of backends")
@pytest.mark.parametrize("kind", KINDS)
def test_a_precision_that_torch_calls_inconsistent_trains(kind):
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    with pytest.raises(RuntimeError):
        torch.get_float32_matmul_precision()
    assert problems.train(kind=kind, update="ordered", updates=4).updates == 4


@pytest.mark.parametrize("update", NAMES)
def test_autocast_around_a_training_is_refused(update):
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ArgumentError, match="^torch.autocast is active .* loss"):
        problems.train(update=update)


def test_autocast_around_a_launch_is_refused():
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ArgumentError, match="^torch.autocast is active"):
        hogwild.launch(lambda worker: None, problems.mlp(), optimizer=problems.SGD, updates=2, kind="threads")


def test_autocast_in_the_loss_trains():
    def loss(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return problems.cross_entropy(model, batch)

    runs = [problems.train(loss=loss, update="ordered", kind=kind, workers=n).digest for kind in KINDS for n in (1, 2)]
    assert len(set(runs)) == 1


def test_another_default_device_is_refused():
    model, data = problems.mlp(), problems.data()
    torch.set_default_device("meta")
    try:
        with pytest.raises(ArgumentError, match="^torch's default device is meta"):
            hogwild.train(model, data, problems.cross_entropy, optimizer=problems.SGD, updates=2, kind="threads")
    finally:
        torch.set_default_device("cpu")


# --- the reading of torch: what a new version brings shows here

CARRIED = {
    "_get_deterministic_algorithms", "_get_deterministic_algorithms_warn_only",
    "_get_deterministic_fill_uninitialized_memory", "_get_float32_matmul_precision", "_get_fp32_precision_getter",
    "_get_mkldnn_enabled", "_get_mkldnn_deterministic", "_get_nnpack_enabled", "_get_flash_sdp_enabled",
    "_get_mem_efficient_sdp_enabled", "_get_math_sdp_enabled", "_get_math_sdp_allow_fp16_bf16_reduction",
    "_get_overrideable_sdp_enabled", "_get_sdp_priority_order", "_get_cpu_allow_fp16_reduced_precision_reduction",
    "_get_qengine", "_get_graph_executor_optimize",
}  # fmt: skip
REFUSED = {"_get_default_device"}
NOT_OF_THE_CPU = (
    "cuda", "cudnn", "cublas", "miopen", "rocm", "fa3", "fa4", "native_aot", "onednn_allow_tf32", "accelerator",
    "privateuse1", "sm_carveout", "blas_preferred", "blas_default", "linalg_preferred", "mtia", "xpu", "mps",
)  # fmt: skip
NO_FLAGS = (
    "backcompat", "warn", "tracing", "value_trace", "dtensor", "DTensor", "mobile", "model", "module_info", "operator",
    "operation", "schema", "stack", "obj_in_tls", "nested_int", "symnode", "upgrader", "version", "caught",
    "cpp_backtrace", "file_format", "custom_class", "dispatch", "function", "tensor_metadata", "thread_name",
    "all_dtypes", "graph_exec_group", "cpu_capability", "autograd_fallback", "fake_constant", "symbolize_mode",
)  # fmt: skip


def test_every_flag_that_torch_can_tell_has_been_thought_about():
    known = {name for name in dir(torch._C) if name.startswith("_get_")}
    unknown = {
        name
        for name in known - CARRIED - REFUSED
        if not any(part in name for part in NOT_OF_THE_CPU) and not any(part in name for part in NO_FLAGS)
    }
    assert not unknown, "carry it in FLAGS, refuse it, or say here that it decides no bits on the CPU"


BACKENDS = {
    "mkldnn", "nnpack", "mha", "opt_einsum", "quantized", "cuda",  # some of what they hold is carried
    "cpu", "kleidiai", "mkl", "openmp",  # of the CPU, and without switches that decide bits
    "_coreml", "_nnapi", "cudnn", "cusparselt", "miopen", "mps", "python_native", "xeon", "xnnpack",
}  # fmt: skip


def test_every_backend_of_torch_has_been_thought_about():
    found = {one.name for one in pkgutil.iter_modules(import_module("torch.backends").__path__)}
    assert found <= BACKENDS


def test_inference_mode_around_a_training_or_its_model_is_told():
    with torch.inference_mode(), pytest.raises(ArgumentError, match="^torch.inference_mode is active around"):
        problems.train(updates=2)
    with torch.inference_mode():
        model = problems.mlp()
    with pytest.raises(ArgumentError, match=r"^0\.weight was made in torch.inference_mode, and cannot be trained; "):
        problems.train(model, updates=2)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_made_in_inference_mode_may_be_frozen_and_is_no_buffer(kind):
    model = problems.mlp()
    with torch.inference_mode():
        layer, count = nn.Linear(8, 8), torch.ones(1)
    model.insert(0, layer.requires_grad_(False))
    assert problems.train(model, kind=kind, updates=4).updates == 4
    model.register_buffer("count", count)
    with pytest.raises(ArgumentError, match="^buffer count was made in torch.inference_mode, and cannot be written to"):
        problems.train(model, kind=kind, updates=4)
