"""The `rules` study settles its claims on measurements like those seen, and names the claim that a wrong one breaks."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

import sklearn.datasets  # noqa: F401 - it sets environment variables when it is first imported
from hogwild.experiments import _rules, rules
from hogwild.experiments._rules import Cell, Field, Setting
from traits import KINDS, OWN_GRADIENTS, SAME_BITS

from hogwild.determinism.compare import Comparison
from hogwild.determinism.controls import Controls
from hogwild.determinism.distance import distance
from hogwild.run.audit import Audit, ParameterAudit


def apart(size: float) -> Comparison:
    return Comparison(distance({"w": torch.ones(1)}, {"w": torch.full((1,), 1 + size)}))


CONTROLS = Controls(serial=apart(0.0), one_ulp=apart(1e-6), seed=apart(0.5))


def audit(whole: bool) -> Audit:
    projection = 1.0 if whole else 1.02
    return Audit(projection, 1e-5, (ParameterAudit("w", projection, 1e-5, 10),), 0.1, 100)


def made_up() -> Field:
    """Measurements as they should be: same bits where promised, other bits elsewhere."""
    found = Field(1, 2, 0)
    found.serial_digest, found.serial_accuracy = "serial", 0.95
    for number, setting in enumerate(found.settings):
        if setting.rule in SAME_BITS:
            digests, values = [setting.rule] * 3, [1.0] * 3
        elif setting.alone:
            digests, values = ["serial"] * 3, [1.0] * 3
        else:
            digests, values = [f"{number}-{run}" for run in range(3)], [1.0, 1.05, 1.1]
        found.cells[setting] = Cell(
            setting,
            digests,
            [{"w": torch.tensor([value])} for value in values],
            [0.95] * 3,
            [0.5] * 3,
            3,
            [1.5, 1.6],
            audit(setting.rule in OWN_GRADIENTS or setting.alone),
        )
    return found


def unsettled(found: Field, controls: Controls = CONTROLS) -> list[str]:
    return [claim.text for claim in rules.claims(found, controls) if not claim.settled]


def test_measurements_like_those_seen_settle_every_claim():
    assert unsettled(made_up()) == []


@pytest.mark.parametrize(
    ("setting", "changes", "claim"),
    [
        (Setting("ordered", "threads", 4), {"digests": ["other"] * 3}, "ordered: the same bits"),
        (Setting("sync", "processes", 2), {"digests": ["sync", "sync", "other"]}, "sync: the same bits"),
        (Setting("hogwild", "threads", 1), {"digests": ["other"] * 3}, "are the plain loop"),
        (Setting("locked", "processes", 2), {"audit": audit(False)}, "locked, snapshot, ordered, sync: every"),
        (Setting("ordered", "processes", 4), {"audit": None}, "locked, snapshot, ordered, sync: every"),
        (Setting("snapshot", "threads", 2), {"accuracies": [0.95, 0.8, 0.7]}, "the median run of every setting"),
    ],
)
def test_one_wrong_measurement_breaks_its_claim(setting, changes, claim):
    found = made_up()
    for name, value in changes.items():
        setattr(found.cells[setting], name, value)
    (broken,) = unsettled(found)
    assert claim in broken


def test_rules_that_never_differed_or_never_lost_anything_are_not_as_said():
    found = made_up()
    for setting, cell in found.cells.items():
        if setting.rule == "racing":
            cell.digests, cell.audit = ["serial"] * 3, audit(True)
    assert len(unsettled(found)) == 2


@pytest.mark.parametrize(
    "controls",
    [
        Controls(serial=apart(1e-7), one_ulp=apart(1e-6), seed=apart(0.5)),
        Controls(serial=apart(0.0), one_ulp=apart(0.9), seed=apart(0.5)),
    ],
    ids=["serial runs differ", "chaos"],
)
def test_controls_that_are_off_break_the_last_claim(controls):
    (broken,) = unsettled(made_up(), controls)
    assert "one flipped bit" in broken


def test_it_measures_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr(_rules, "split", _few)
    settings = tuple(Setting(rule, kind, 2) for rule in ("locked", "ordered") for kind in KINDS)
    found = Field(1, 1, 0, settings)
    found.measure()
    assert set(found.cells) == set(settings)
    for cell in found.cells.values():
        assert len(cell.digests) == len(cell.states) == len(cell.accuracies) == 2
        assert len(cell.speeds) == 1
        assert cell.audit.whole
    assert len({d for s, c in found.cells.items() if s.rule == "ordered" for d in c.digests}) == 1
    assert found.train(Setting("hogwild", "threads", 1)).digest == found.serial_digest
    controls = found.controls()
    assert controls.serial.identical
    assert 0 < controls.one_ulp.divergence.relative_l2 < controls.seed.divergence.relative_l2


def _few():
    generator = torch.Generator().manual_seed(0)

    def batch(number):
        return torch.rand(number, 1, 8, 8, generator=generator), torch.randint(0, 10, (number,), generator=generator)

    return batch(160), batch(40)


def test_figure_and_table_are_drawn_from_the_measurements(tmp_path):
    found = made_up()
    rules.draw(found, CONTROLS, tmp_path / "rules.png")
    assert (tmp_path / "rules.png").read_bytes().startswith(b"\x89PNG")
    drawn = rules.table(found)
    assert len(drawn.rows) == 36
    assert drawn.rows[0] == ("racing", "1 thread", "1.55", "0.950", "1", "0", "100 %", "0.50")
