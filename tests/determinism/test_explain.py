"""Why runs differ: one source varied at a time."""

from __future__ import annotations

import os

import problems
import pytest
import torch
from checks import Fickle, check
from torch import nn

import hogwild


def test_explain_varies_one_source_at_a_time():
    verdict = check(update="ordered", explain=True)
    by_name = {source.name: source for source in verdict.sources}
    assert by_name["interleaving"].comparison.identical
    assert by_name["worker count"].comparison.identical
    assert by_name["worker kind"].comparison.identical
    assert not by_name["seed"].comparison.identical
    assert by_name["torch threads"].comparison is not None
    assert "none" in by_name["nondeterministic operations"].note


class Puts(nn.Module):
    """Uses an operation that has no deterministic implementation by PyTorch's own account."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = problems.mlp()

    def forward(self, x):
        table = torch.zeros(4).put_(torch.tensor([0, 0]), torch.tensor([1.0, 1.0]))
        return self.inner(x) * table[0]


def test_explain_names_nondeterministic_operations():
    verdict = check(Puts(), update="ordered", explain=True)
    assert "put_" in {source.name: source for source in verdict.sources}["nondeterministic operations"].note
    assert not torch.are_deterministic_algorithms_enabled()

    def function():
        return {"w": torch.zeros(4).put_(torch.tensor([0, 1]), torch.tensor([1.0, 2.0]))}

    verdict = hogwild.check(function, explain=True)
    assert "put_" in {source.name: source for source in verdict.sources}["nondeterministic operations"].note


def test_explain_shows_what_torch_threads_do_to_a_function():
    def depends_on_threads():
        return {"w": torch.full((2,), float(torch.get_num_threads()))}

    verdict = hogwild.check(depends_on_threads, explain=True)
    by_name = {source.name: source for source in verdict.sources}
    assert by_name["with one torch thread"].comparison.identical
    assert not by_name["torch threads"].comparison.identical


def test_a_function_that_differs_only_with_several_torch_threads_has_its_source_named():
    def differs_with_threads():
        torch.manual_seed(0 if torch.get_num_threads() == 1 else int.from_bytes(os.urandom(4)))
        return nn.Linear(3, 3)

    torch.set_num_threads(2)
    try:
        verdict = hogwild.check(differs_with_threads, explain=True)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert "The source is torch's own threads" in verdict.conclusion


def test_a_source_that_cannot_be_varied_is_not_guessed_at():
    verdict = hogwild.check(
        lambda: {"w": torch.rand(1, generator=torch.Generator().manual_seed(_entropy()))}, explain=True
    )
    assert "No source that can be varied explains it" in verdict.conclusion
    assert "look for threads or processes of its own that race, numbers nobody seeded, a clock" in verdict.conclusion
    verdict = check(Fickle(), update="ordered", explain=True)
    assert "not deterministic even with one worker" in verdict.conclusion
    assert "No source that can be varied explains it" in verdict.conclusion


def _entropy() -> int:
    return int.from_bytes(os.urandom(4))


def test_what_a_first_call_leaves_behind_is_not_laid_to_torchs_threads():
    cache: list[torch.Tensor] = []

    def filled_by_the_first_call():
        torch.manual_seed(0)
        if not cache:
            cache.append(torch.rand(3))
        return {"w": torch.rand(3) + cache[0]}

    verdict = hogwild.check(filled_by_the_first_call, runs=3, explain=True)
    assert verdict.digests == 2
    assert "torch's own threads: with one" not in verdict.conclusion
    assert "All runs after the first are alike, as where the first leaves something" in verdict.conclusion
    del cache[:]
    unexplained = hogwild.check(filled_by_the_first_call, runs=3)
    assert "All runs after the first are alike" in unexplained.conclusion
    assert unexplained.conclusion.endswith("explain=True varies what it can of a function.")


def test_what_changes_now_and_then_is_not_laid_to_torchs_threads():
    calls = iter(range(1000))

    def slow_clock():
        return {"w": torch.full((2,), float(next(calls) // 3))}

    verdict = hogwild.check(slow_clock, runs=4, explain=True)
    assert "No source that can be varied explains it" in verdict.conclusion


@pytest.mark.usefixtures("forked_interpreters")
def test_a_hash_seed_is_no_source_within_one_process():
    numbers = iter(range(100))
    conclusion = hogwild.check(lambda: {"w": torch.full((2,), float(next(numbers)))}, runs=2).conclusion
    assert "a hash seed" not in conclusion
    fresh = hogwild.check(lambda: {"w": torch.full((2,), float(_entropy()))}, runs=2, fresh_process=True)
    assert "a hash seed" in fresh.conclusion
