"""The numerical fingerprint: the same twice, another where other kernels compute, and nothing is left changed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from hogwild.run.saved.environment import environment
from hogwild.run.saved.fingerprint import fingerprint


def test_it_is_the_same_at_every_call_and_with_any_threads():
    before = torch.get_rng_state()
    first = fingerprint()
    torch.set_num_threads(2)
    try:
        assert fingerprint() == first == environment()["fingerprint"]
    finally:
        torch.set_num_threads(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_it_is_computed_anew_under_other_settings_of_torch(monkeypatch):
    looked = []
    monkeypatch.setattr("hogwild.run.saved.fingerprint._results", lambda: looked.append(1) or iter(()))
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    other = fingerprint()
    assert fingerprint() == other and len(looked) == 1, "once for these"
    monkeypatch.undo()
    assert fingerprint() != other


def asked(**variables):
    command = [sys.executable, "-m", "hogwild", "doctor", "--fingerprint"]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="there are no other kernels")
def test_other_kernels_have_another():
    assert asked() == fingerprint()
    assert asked(ATEN_CPU_CAPABILITY="default") != fingerprint()
