"""Short trainings by several workers, one of each for a whole test session: what must have the same bits has them."""

from __future__ import annotations

import dataclasses

import pytest


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


@pytest.fixture
def cut_short(monkeypatch, short_actors, short_shared, short_fits):
    """The studies with these trainings in place of long ones; for each study, the claims that need the long ones."""
    from hogwild.experiments import _actors, _equation, accumulation, loss_list, two_apis

    measure, count_races = loss_list.measure, two_apis.count_races
    monkeypatch.setattr(loss_list, "measure", lambda policy, episodes, repeats: measure(policy, episodes, 4))
    # shorter races, and so many more that as much is done at most; each kind ends with the first that loses something
    monkeypatch.setattr(two_apis, "count_races", lambda passes, attempts: count_races(passes // 4, 4 * attempts))
    monkeypatch.setattr(_actors, "measure", lambda seed, crews: short_actors)
    monkeypatch.setattr(accumulation, "with_workers", lambda start, data, seed, full: short_shared)
    monkeypatch.setattr(_equation, "fit_by_workers", lambda start, crews, steps: short_fits[1])
    racing = "zeroed backward() into one shared .grad (racing): every gradient is applied once"
    return {
        "accumulation": {
            f"2 threads, {racing}",
            f"2 processes, {racing}",
            "2 workers, backward() without zeroing: it fails as it does with one",
        },
        "two_apis": {
            "fitted by a worker (ordered, staleness 0): the bits of the loop written by hand",
            "and an error below 1e-2",
        },
        "loss_list": {
            "asynchronous actor learners (ordered, staleness 3) solve CartPole-v1: 475 or more",
            "two workers without any lock (hogwild) solve it too",
        },
    }
