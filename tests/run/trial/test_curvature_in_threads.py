"""Trainings of one program that measure the curvature of their losses at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hogwild.optim.stability import Curvature
from hogwild.run.trial import curvature


def test_the_choice_of_attention_kernels_is_as_before_whoever_ends_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(job: Any, *others: Any) -> Curvature:
        time.sleep(job.pause)
        return Curvature(1.0)

    monkeypatch.setattr(curvature, "own_parts", lambda job: job)
    monkeypatch.setattr(curvature, "Trainee", lambda job, *others: job)
    monkeypatch.setattr(curvature, "_power_iteration", slow)
    anatomy: Any = SimpleNamespace(trained={})
    rule = SimpleNamespace(batches_per_ticket=1)

    def measure(pause: float) -> None:
        job: Any = SimpleNamespace(source=1, loss=1, rule=rule, tickets=9, pause=pause)
        assert curvature.curvature(job, anatomy) == Curvature(1.0)

    before = torch.backends.cuda.flash_sdp_enabled()
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(measure, [0.05, 0.1, 0.15, 0.2]))
        assert torch.backends.cuda.flash_sdp_enabled() == before
    finally:
        torch.backends.cuda.enable_flash_sdp(before)
