"""Short trainings by several workers, one of each for a whole test session: what must have the same bits has them."""

from __future__ import annotations

import dataclasses

import pytest


@pytest.fixture
def undrawn(monkeypatch):
    """For commands whose figure nobody looks at, which takes longer than their training."""
    monkeypatch.setattr("hogwild.cli.running.can_plot", lambda: False)


@pytest.fixture(scope="session")
def short_actors():
    """Eight updates by each crew: too few for a policy that balances anything."""
    pytest.importorskip("gymnasium")
    from hogwild.experiments import _actors
    from hogwild.experiments._common import measuring

    with measuring(0):
        return _actors.measure(0, (("threads", 1), ("processes", 2), ("threads", 4)), updates=8)


@pytest.fixture(scope="session")
def short_shared(tmp_path_factory):
    """Each way, for five epochs of a third of the digits, 85 updates: too few to show how the last one fails."""
    pytest.importorskip("sklearn")
    from hogwild.experiments import accumulation
    from hogwild.experiments._common import measuring

    from hogwild.experiment import StudySettings

    data = accumulation.load(StudySettings(out=tmp_path_factory.mktemp("out")))
    data = dataclasses.replace(data, train=(data.train[0][:510], data.train[1][:510]), epochs=5)
    with measuring(0):
        return accumulation.with_workers(accumulation.Model(), data, 0, full=False)


@pytest.fixture(scope="session")
def short_fits():
    """Thirty steps: too few for any error to be small."""
    from hogwild.experiments import _equation
    from hogwild.experiments._common import measuring

    with measuring(0):
        start = _equation.DryRun()
        return _equation.fit(start, _equation.by_grad, 30), _equation.fit_by_workers(start, _equation.CREWS, 30)


@pytest.fixture(scope="session")
def few_episodes():
    """The policy of `loss_list`, and 24 episodes played with it."""
    pytest.importorskip("gymnasium")
    from hogwild.experiments import loss_list
    from hogwild.experiments._common import measuring

    with measuring(0), pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_list, "COUNTS", (1, 24))
        return loss_list.collect(0)


@pytest.fixture
def cut_loss_list(monkeypatch, few_episodes, short_actors):
    """The study with that training in place of a long one, with those episodes, and without the counts of them that no
    claim is about, only the figure; the claims that need the long one, and more turns on a clock than one."""
    from hogwild.experiments import _actors, loss_list

    monkeypatch.setattr(loss_list, "COUNTS", (1, 24))
    monkeypatch.setattr(loss_list, "MOST_TURNS", 1)
    monkeypatch.setattr(loss_list, "collect", lambda seed: few_episodes)
    monkeypatch.setattr(_actors, "measure", lambda seed, crews: short_actors)
    return {
        "potentially even a faster execution",
        "asynchronous actor learners (ordered, staleness 3) solve CartPole-v1: 475 or more",
        "two workers without any lock (hogwild) solve it too",
    }


@pytest.fixture
def cut_accumulation(monkeypatch, short_shared):
    """Likewise, and three epochs of smaller batches by one worker, in which it shows that not zeroing fails."""
    from hogwild.experiments import accumulation

    load = accumulation.load
    monkeypatch.setattr(accumulation, "load", lambda settings: dataclasses.replace(load(settings), epochs=3, batch=16))
    monkeypatch.setattr(accumulation, "with_workers", lambda start, data, seed, full: short_shared)
    racing = "zeroed backward() into one shared .grad (racing): every gradient is applied once"
    return {
        f"2 threads, {racing}",
        f"2 processes, {racing}",
        "2 workers, backward() without zeroing: it fails as it does with one",
    }


@pytest.fixture
def cut_two_apis(monkeypatch, short_fits):
    """Likewise, with half of the steps by hand, and a quarter of the passes in each race of `count_races`, of which up
    to four times as many are run until something is seen."""
    from hogwild.experiments import _equation, two_apis

    races = two_apis.count_races
    monkeypatch.setattr(_equation, "STEPS", 1000)
    monkeypatch.setattr(two_apis, "count_races", lambda passes, attempts: races(passes // 4, 4 * attempts))
    monkeypatch.setattr(_equation, "fit_by_workers", lambda start, crews, steps: short_fits[1])
    return {
        "fitted by a worker (ordered, staleness 0): the bits of the loop written by hand",
        "and an error below 1e-2",
    }
