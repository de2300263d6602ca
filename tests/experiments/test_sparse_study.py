"""The `sparse` study settles its claims on costs like those seen, and one breaks where an update costs the table."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")

from hogwild.experiments import sparse

from hogwild.experiment import StudySettings


def unsettled(found, dense):
    return [claim.text for claim in sparse.claims(found, dense) if not claim.settled]


FLAT, STEEP = sparse.Pair([6e-5, 5e-5, 9e-5], [6.5e-5, 5.5e-5, 9e-5]), sparse.Pair([1e-3] * 3, [1e-2] * 3)


def test_the_claims_hold_where_only_a_dense_gradient_costs_the_table():
    assert unsettled(dict.fromkeys(sparse.OPTIMIZERS, FLAT), STEEP) == []


@pytest.mark.parametrize("name", sparse.OPTIMIZERS)
def test_an_optimizer_that_costs_the_table_is_named(name):
    (text,) = unsettled({**dict.fromkeys(sparse.OPTIMIZERS, FLAT), name: STEEP}, STEEP)
    assert text.startswith(f"{name}: ")


def test_a_clock_that_sees_no_difference_is_named():
    (text,) = unsettled(dict.fromkeys(sparse.OPTIMIZERS, FLAT), FLAT)
    assert "dense" in text


MEASURE = sparse.measure


def measure_once(optimizer, large, repeats, *, sparse):
    return MEASURE(optimizer, large, 1 if sparse else repeats, sparse=sparse)


@pytest.mark.usefixtures("fonts")
def test_the_study_on_small_tables(monkeypatch, tmp_path):
    """What a dense gradient costs is seen already at 20 times the rows; a sparse one's cost is not judged here."""
    monkeypatch.setattr(sparse, "SAMPLES", 128)
    monkeypatch.setattr(sparse, "EPOCH", 8)
    monkeypatch.setattr(sparse, "SMALL", 1_000)
    monkeypatch.setattr(sparse, "LARGE", 2_000)
    monkeypatch.setattr(sparse, "DENSE", 50_000)
    monkeypatch.setattr(sparse, "measure", measure_once)
    found = sparse.experiment.run(StudySettings(out=tmp_path))
    assert len(found.claims) == 4
    assert found.claims[-1].settled
    assert found.figures[0].stat().st_size > 5000
