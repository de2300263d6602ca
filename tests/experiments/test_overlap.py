"""The overlap study settles its claims on a table like the one seen, and names the claim that one wrong number breaks;
what it trains is trained as it says."""

from __future__ import annotations

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from hogwild.experiments import overlap
from hogwild.experiments._staleness import Cell
from hogwild.experiments.overlap import ADAM, LARGE, MOMENTUM, RULES, Crews, helped

AGES = {(rule, 8): [7.0] for rule in RULES}


class Imagined(Crews):
    """Cells that are made up: no training."""

    def __init__(self, wrong, ages=AGES):
        super().__init__((0,), (8,), ages=ages)
        object.__setattr__(self, "wrong", wrong)

    def cell(self, setting, rule, workers):
        lost = workers > 1 and setting.momentum and setting.method == "SGD" and setting.compensation == "none"
        accuracy = self.wrong.get((setting, rule, workers), 0.1 if lost else 0.97)
        return Cell(setting, workers - 1, (accuracy,), ("",))


def unsettled(crews):
    claims = [overlap.overlapping(crews), overlap.as_set(crews), *overlap.compensated(crews)]
    assert len(overlap.table(crews, 8).rows) == len(RULES) * len(overlap.SETTINGS)
    assert "compensation='workers'" in overlap.answer(crews)
    return [claim.text for claim in claims if not claim.settled]


def test_a_table_like_the_one_seen_settles_every_claim():
    assert unsettled(Imagined({})) == []


@pytest.mark.parametrize(
    ("wrong", "claim"),
    [
        ({(MOMENTUM, rule, 8): 0.96 for rule in RULES}, f"{MOMENTUM} learns with 8 workers"),
        ({(helped(LARGE), "snapshot", 8): 0.94}, f"{LARGE}, 8 workers, compensated"),
        ({(helped(ADAM), "locked", 8): 0.8}, f"{ADAM}, 8 workers, compensated"),
        ({(ADAM, "locked", 1): 0.995}, f"{ADAM}, 8 workers, compensated"),
    ],
)
def test_one_wrong_number_leaves_its_claim_unsettled(wrong, claim):
    (text,) = unsettled(Imagined(wrong))
    assert text.startswith(claim)


def test_workers_that_do_not_overlap_are_told():
    (text,) = unsettled(Imagined({}, AGES | {(rule, 8): [3.0] for rule in RULES}))
    assert text.startswith("while W workers are busy")


@pytest.mark.filterwarnings("error:. workers share")
def test_crews_train_what_they_say_once(monkeypatch, tmp_path):
    monkeypatch.setattr(overlap, "EPOCHS", 1)
    monkeypatch.setattr(overlap, "WAIT", 1e-4)
    monkeypatch.setattr(overlap, "SETTINGS", (MOMENTUM,))
    runs: list[str] = []
    train = overlap._trained
    monkeypatch.setattr(overlap, "_trained", lambda *given: (run := train(*given), runs.append(run.digest))[0])
    crews = Crews((0,), (8,))
    assert [row[1] for row in overlap.table(crews, 8).rows] == list(RULES)
    assert {key[1:] for key in crews.cells} == {("locked", 1), *((rule, 8) for rule in RULES)}
    assert all(0 <= cell.worst <= 1 for cell in crews.cells.values())
    assert sorted(runs) == sorted(cell.digests[0] for cell in crews.cells.values()), "each was trained, and once"
    trained = dict(crews.cells)
    assert overlap.plot(crews, tmp_path / "o.png").stat().st_size > 5000
    assert crews.cells == trained
