"""The parts of the studies that train by several workers: each claim holds, and a planted fault is reported.

The trainings here are short_actors. What must have the same bits has them after ten updates as after a thousand.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hogwild.experiments import _actors, _cartpole, _equation, _race, _shared_grad
from torch import nn
from traits import KINDS

from hogwild import NotReproducible

pytest.importorskip("sklearn")
pytest.importorskip("gymnasium")


def unsettled(claims):
    return [claim.text for claim in claims if not claim.settled]


# loss_list: actor learners

DIGEST = "under ordered the policy has the same digest at 1, 2 and 4 workers"
SOLVED = "asynchronous actor learners (ordered, staleness 3) solve CartPole-v1: 475 or more"
FREE = "two workers without any lock (hogwild) solve it too"


def test_the_policy_does_not_depend_on_who_played(short_actors):
    assert unsettled(_actors.claims(short_actors)) == [SOLVED, FREE]


def test_loss_list_reports_other_digests_and_missing_crews(short_actors):
    other = dataclasses.replace(short_actors.free, digest="0" * 64)
    parted = dataclasses.replace(short_actors, ordered={**short_actors.ordered, ("processes", 2): other})
    assert DIGEST in unsettled(_actors.claims(parted))
    two = {who: run for who, run in short_actors.ordered.items() if who[1] < 4}
    assert DIGEST in unsettled(_actors.claims(dataclasses.replace(short_actors, ordered=two)))


def test_loss_list_reports_the_score_it_found(short_actors):
    assert SOLVED not in unsettled(_actors.claims(dataclasses.replace(short_actors, score=475.0)))
    assert SOLVED in unsettled(_actors.claims(dataclasses.replace(short_actors, score=474.9)))
    solved = dataclasses.replace(short_actors.free, evaluations=({"return": 480.0}, {"return": 30.0}))
    assert FREE not in unsettled(_actors.claims(dataclasses.replace(short_actors, free=solved)))


def test_players_that_draw_from_elsewhere_leave_a_trace(monkeypatch):
    """It is refused, by what differs, where an episode depends on more than the seed and the policy."""

    def play_anyhow(policy, count, random):
        return _cartpole.play_together(policy, count, np.random.default_rng())

    monkeypatch.setattr(_actors, "play_together", play_anyhow)
    with pytest.raises(NotReproducible, match="the loss"):
        _actors.measure(0, (("threads", 1), ("threads", 2), ("threads", 4)), 4)


def test_two_workers_in_order_solve_cartpole(monkeypatch):
    run = _actors.train(3, "ordered", "processes", 2)
    assert run.stopped == "stop"
    monkeypatch.setattr(_actors, "JUDGED", 20)  # for those that end it are a hundred
    assert _actors.judged(run, 3) >= _cartpole.SOLVED


def test_a_list_and_a_generator_give_train_the_same_gradient():
    assert unsettled([_actors.list_or_generator(0)]) == []


def test_loss_list_reports_a_generator_that_stops_short(monkeypatch):
    whole = _actors.Reinforce.__call__

    def short_of_one(self, policy, seed):
        losses = list(whole(self, policy, seed))
        return losses if self.listed else (loss for loss in losses[:-1])

    monkeypatch.setattr(_actors.Reinforce, "__call__", short_of_one)
    assert unsettled([_actors.list_or_generator(0)])


def test_episodes_played_together_follow_the_rules_of_one():
    """The environment of many is that of one: the same steps from the same start, and the same loss."""
    torch.manual_seed(0)
    policy = _cartpole.Policy()
    episodes = _cartpole.play_together(policy, 5, np.random.default_rng(3))
    env = _cartpole.environment()
    for episode in episodes:
        env.reset(seed=0)
        env.unwrapped.state = np.array(episode.observations[0], dtype=np.float64)
        found = [env.step(int(action)) for action in episode.actions]
        assert [terminated for _, _, terminated, _, _ in found] == [False] * (len(episode) - 1) + [True]
        np.testing.assert_allclose([one[0] for one in found[:-1]], episode.observations[1:], atol=1e-4)
        values = _cartpole.returns(episode)
        at_once = _cartpole.loss_at_once(policy, episode, values)
        torch.testing.assert_close(at_once, _cartpole.episode_loss(policy, episode), rtol=1e-4, atol=1e-5)


def test_advantages_are_over_the_mean_of_those_who_went_on_and_those_who_fell():
    def episode(steps):
        return _cartpole.Episode(
            np.zeros((steps, 4), dtype=np.float32), np.zeros(steps, dtype=np.int64), np.ones(steps, dtype=np.float32)
        )

    longer, shorter = _cartpole.advantages([episode(2), episode(1)])
    first = (1 + _cartpole.DISCOUNT) - (2 + _cartpole.DISCOUNT) / 2  # under one reward, so the scale is one
    torch.testing.assert_close(longer, torch.tensor([first, 0.5]))
    torch.testing.assert_close(shorter, torch.tensor([-first]))
    assert all(float(one.abs().max()) < 1e-9 for one in _cartpole.advantages([episode(500)] * 3))


# accumulation: one model, two workers

ONCE = "2 workers, autograd.grad, one writing at a time (locked): every gradient is applied once"
SAME = (
    "2 workers in order (ordered): autograd.grad and zeroed backward() still end with the same bits, those of 1 worker"
)
RACES = [
    f"2 {kind}, zeroed backward() into one shared .grad (racing): every gradient is applied once" for kind in KINDS
]
FAILS = "2 workers, backward() without zeroing: it fails as it does with one"


def broken(found, name, **audit):
    one = found[name]
    return {**found, name: dataclasses.replace(one, run=dataclasses.replace(one.run, **audit))}


def test_the_loops_by_two_workers_are_told_apart(short_shared, monkeypatch):
    monkeypatch.setattr(_race, "cores", lambda: 1)
    assert unsettled(_shared_grad.claims(short_shared)) in ([], [FAILS])  # 85 updates may be too few to fail


def test_accumulation_reports_each_loop_by_two_workers(short_shared, monkeypatch):
    monkeypatch.setattr(_race, "cores", lambda: 2)
    racing, locked = short_shared["racing, processes"], short_shared["locked"]
    doubled = broken(short_shared, "locked", audit=dataclasses.replace(locked.run.audit, parameters=_doubled(locked)))
    assert ONCE in unsettled(_shared_grad.claims(doubled))
    assert ONCE in unsettled(_shared_grad.claims(broken(short_shared, "locked", audit=None)))
    assert SAME in unsettled(_shared_grad.claims(broken(short_shared, "ordered, backward", digest="0" * 64)))
    for text, name in zip(RACES, ("racing, threads", "racing, processes"), strict=True):
        harmless = broken(short_shared, name, audit=locked.run.audit)
        assert text in unsettled(_shared_grad.claims(harmless))
    for trained in (
        {**short_shared, "not zeroed": locked},
        {**short_shared, "not zeroed": dataclasses.replace(racing, accuracy=0.1)},
    ):
        assert FAILS in unsettled(_shared_grad.claims(trained))


def _doubled(one):
    first, *rest = one.run.audit.parameters
    return (dataclasses.replace(first, projection=2.0), *rest)


def test_what_is_not_zeroed_is_applied_again_and_again(short_shared):
    assert short_shared["not zeroed"].applied > 10
    assert 0.5 < short_shared["racing, processes"].applied < 2


# two_apis: the differential equation by workers

HAND = "fitted by a worker (ordered, staleness 0): the bits of the loop written by hand"
CREWS = "fitted by 1 and 2 workers (ordered, staleness 1), with grad() and with backward(): the same bits"
STALE = "the learning rate and momentum of the loop by hand would do at staleness 1: error below 1e-2"
BELOW = "and an error below 1e-2"


def test_the_fit_does_not_depend_on_who_computed_it(short_fits):
    assert unsettled(_equation.by_workers(*short_fits)) == [BELOW]


def test_two_apis_reports_workers_whose_fits_part(short_fits):
    hand, found = short_fits
    off = nn.Linear(1, 1)
    last = _equation.CREWS[-1]
    nudged = dataclasses.replace(found.crews[last], model=_nudged(found.crews[last].model))
    assert CREWS in unsettled(
        _equation.by_workers(hand, dataclasses.replace(found, crews={**found.crews, last: nudged}))
    )
    alone = {who: fit for who, fit in found.crews.items() if who.workers == 1}
    assert CREWS in unsettled(_equation.by_workers(hand, dataclasses.replace(found, crews=alone)))
    assert HAND in unsettled(_equation.by_workers(_equation.Fit(off), found))
    exact = dataclasses.replace(found.stale, error=1e-3)
    assert STALE in unsettled(_equation.by_workers(hand, dataclasses.replace(found, stale=exact)))


def _nudged(model):
    made = _equation.DryRun()
    made.load_state_dict(model.state_dict())
    with torch.no_grad():
        next(made.parameters())[0] *= 1 + 2e-7
    return made


def test_a_worker_fits_the_equation_at_staleness_one():
    torch.manual_seed(0)
    fitted = _equation.fit_by(_equation.ALONE, _equation.DryRun(), 1500, 1, _equation.GENTLE)
    assert fitted.error < 1e-2


def test_two_apis_reports_an_error_that_is_large(short_fits):
    hand, found = short_fits
    small = {who: dataclasses.replace(fit, error=1e-3) for who, fit in found.crews.items()}
    assert unsettled(_equation.by_workers(hand, dataclasses.replace(found, crews=small))) == []
