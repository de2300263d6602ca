"""The study `loss_list` says so when an instrument or its subject is broken, and ranks two times by turns enough."""

from __future__ import annotations

import dataclasses
import itertools
import time

import pytest
import torch

pytest.importorskip("matplotlib")
pytest.importorskip("gymnasium")

from hogwild.experiments import loss_list


def unsettled(claims):
    return [claim.text for claim in claims if not claim.settled]


@pytest.fixture
def played(few_episodes):
    policy, episodes = few_episodes
    return policy, episodes[:8]


def test_loss_list_holds_on_few_episodes(played):
    torch.manual_seed(0)
    assert unsettled([*loss_list.example(), *loss_list.gradients(*played)]) == []


def test_loss_list_reports_a_sum_that_was_not_divided(played, monkeypatch):
    def undivided(policy, episodes):
        found = loss_list.one_each(policy, episodes)
        return dataclasses.replace(found, gradients=tuple(one * len(episodes) for one in found.gradients))

    monkeypatch.setitem(loss_list.WAYS, "one backward each", undivided)
    assert len(unsettled(loss_list.gradients(*played))) == 2


def test_loss_list_reports_a_last_loss_left_out(played, monkeypatch):
    monkeypatch.setattr(
        loss_list, "episode_losses", lambda policy, episodes: EPISODE_LOSSES(policy, episodes[:-1] or episodes)
    )
    assert unsettled(loss_list.gradients(*played))


EPISODE_LOSSES = loss_list.episode_losses


def test_loss_list_reports_each_cost(played):
    _, episodes = played
    steps = [len(episodes[0]), sum(map(len, episodes))]
    listed = loss_list.Costs([1000 * n for n in steps], [0, 50_000_000], [[0.1], 6 * [1.0]])
    each = loss_list.Costs([1000 * steps[0], 1000 * steps[1] // 20], [0, 1_000_000], [[0.1], 6 * [0.8]])
    assert unsettled(loss_list.costs(listed, each, episodes)) == []
    for changed in (
        {"graph": [1000, 1000]},
        {"resident": [0, 40_000_000]},
        {"seconds": [[0.1], 6 * [1.1]]},
        {"seconds": [[0.1], 5 * [0.8] + [1.1]]},
    ):
        worse = dataclasses.replace(each, **changed) if "graph" not in changed else each
        base = dataclasses.replace(listed, **changed) if "graph" in changed else listed
        assert unsettled(loss_list.costs(base, worse, episodes))


def test_loss_list_times_until_one_way_is_ahead(monkeypatch):
    """Whatever slows single turns down: the faster way is found in the end, and of two equal ones neither."""
    clock = [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: clock[0])
    pace = {"one backward of the mean": [2.0], "one backward each": [1.0, 3.0, 1.0]}  # slowed in each third turn

    def takes(name, count):
        turn = itertools.cycle(pace[name])

        def way(policy, episodes):
            if len(episodes) == count:
                clock[0] += next(turn)

        return way

    def seconds():
        for name in pace:
            monkeypatch.setitem(loss_list.WAYS, name, takes(name, loss_list.COUNTS[-1]))
        return [turns[-1] for turns in loss_list.time_each(None, [None] * loss_list.COUNTS[-1], 3).values()]

    listed, each = seconds()
    assert len(listed) == len(each) == 16 and loss_list.lead(listed, each) == loss_list.LEAD
    pace["one backward each"] = [1.0, 3.0]
    listed, each = seconds()
    assert len(listed) == loss_list.MOST_TURNS and loss_list.lead(listed, each) == 0


def test_loss_list_reports_graphs_that_are_kept(played):
    """The instrument itself: all graphs together, against the largest of one at a time."""
    policy, episodes = played
    together = loss_list.peak_graph(policy, episodes, listed=True)
    alone = loss_list.peak_graph(policy, episodes, listed=False)
    longest = max(episodes, key=len)
    assert together > 2 * alone
    assert alone == loss_list.peak_graph(policy, [longest], listed=True)
