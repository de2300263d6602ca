"""What befell workers stays with the run: written as it happens, and told of all parts of a run that was resumed."""

from __future__ import annotations

import json
import shutil

import problems
import pytest
import torch
from crews import has_lost_one, teams_of_runs
from safetensors import safe_open
from side_by_side import within

import hogwild
from hogwild.run.saved.befallen import Befallen, read_befallen
from hogwild.testing import Fault, Hook, PlantedFault, planted

AT, UPDATES = 50, 200
SOON = 25  # while the first evaluation is made
SETTINGS = {"updates": UPDATES, "workers": 2, "kind": "processes", "checkpoint_every": 20, "evaluate_every": 20}


def train(folder, update, **arguments):
    return problems.train(update=update, out=folder, evaluate=problems.accuracy, **{**SETTINGS, **arguments})


class KeepingTheFirst(hogwild.Callback):
    """Keeps a copy of the first checkpoint."""

    def on_checkpoint(self, update, path):
        if not (copy := path.with_name("first")).exists():
            shutil.copy(path, copy)


@pytest.fixture
def interrupted(tmp_path, request):
    """A run one of whose workers was killed in the write of an update, and that was interrupted later."""
    fault = PlantedFault(Fault.KILL, Hook.WRITING, AT)
    watching = [KeepingTheFirst(), problems.interrupting_at(2 * AT)]
    with planted(fault), pytest.raises(KeyboardInterrupt):
        train(tmp_path, request.param, callbacks=watching)
    (failure,) = read_befallen(tmp_path).failures
    assert "died of SIGKILL" in failure
    return tmp_path


class Overtaking(hogwild.Callback):
    """A fault that befalls a worker while the first evaluation is made, and an interruption of that once the worker has
    ended, which nobody has heard yet."""

    def __init__(self, fault, monkeypatch):
        self.fault, self.teams = fault, teams_of_runs(monkeypatch)
        self.evaluating = torch.zeros(1, dtype=torch.int64).share_memory_()

    def planted(self):
        fault, evaluating = self.fault, self.evaluating

        def befalls(hook, seat):
            if hook is Hook.WRITING and seat.ticket == SOON:
                within(60, lambda: evaluating[0])
                fault(hook, seat)

        return planted(befalls)

    def on_evaluation(self, progress):
        self.evaluating.fill_(1)
        within(60, lambda: has_lost_one(self.teams[-1]))
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("update", "kind", "fault", "told"),
    [
        ("hogwild", "processes", Fault.KILL, "died of SIGKILL"),
        ("ordered", "processes", Fault.KILL, "died of SIGKILL"),
        ("ordered", "threads", Fault.RAISE, "raised PlantedError at update 25 (batch 25): planted at"),
    ],
)
def test_a_death_that_an_interruption_overtakes_is_noted(update, kind, fault, told, tmp_path, monkeypatch):
    overtaking = Overtaking(PlantedFault(fault, Hook.WRITING, SOON), monkeypatch)
    with overtaking.planted(), pytest.raises(KeyboardInterrupt):
        train(tmp_path, update, kind=kind, callbacks=[overtaking])
    found, doubted = read_befallen(tmp_path), [SOON] * (update == "hogwild")
    (failure,) = found.failures
    assert told in failure and ("may have been applied in part" in failure) is bool(doubted)
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["failures"], record["in_doubt"]) == ([failure], doubted) and found.in_doubt == tuple(doubted)


@pytest.mark.parametrize("interrupted", ["hogwild"], indirect=True)
@pytest.mark.parametrize("ended_by", ["Ctrl-C", "a kill"])
def test_an_update_in_doubt_stays_in_doubt_after_a_resumption(ended_by, interrupted):
    if ended_by == "a kill":
        (interrupted / "run.json").unlink()
    run = train(interrupted, "hogwild", resume=interrupted)
    assert run.in_doubt == (AT,) and run.updates == UPDATES - 1
    assert sorted([*run.journal["update"].tolist(), *run.in_doubt]) == list(range(UPDATES))
    (failure,) = run.failures
    assert f"at update {AT} (batch {AT}); update {AT} may have been applied in part" in failure
    record = json.loads((interrupted / "run.json").read_text())
    assert (record["in_doubt"], record["failures"]) == ([AT], [failure])
    assert read_befallen(interrupted) == Befallen((failure,), (AT,))


@pytest.mark.parametrize("interrupted", ["hogwild"], indirect=True)
def test_an_update_that_is_computed_again_is_in_doubt_no_more(interrupted):
    (interrupted / "run.json").unlink()
    first = (interrupted / "first").replace(interrupted / "checkpoint.safetensors")
    with safe_open(first, "pt") as file:  # which may doubt others, where the machine is busy
        doubted = tuple(json.loads(file.metadata().get("in_doubt", "[]")))
    run = train(interrupted, "hogwild", resume=interrupted)
    assert AT not in doubted and run.in_doubt == doubted and run.updates == UPDATES
    assert read_befallen(interrupted) == Befallen(run.failures, doubted) and len(run.failures) == 1


@pytest.mark.parametrize("interrupted", ["ordered"], indirect=True)
def test_the_failures_of_all_parts_are_told_in_another_folder_too(interrupted, tmp_path):
    out = tmp_path / "other"
    with planted(PlantedFault(Fault.KILL, Hook.WRITING, 3 * AT)):
        run = train(out, "ordered", resume=interrupted)
    first, second = run.failures
    assert f"at update {AT} " in first and f"at update {3 * AT} " in second
    assert read_befallen(out) == Befallen(run.failures) and run.in_doubt == ()
    assert run.digest == problems.train(update="ordered", updates=UPDATES).digest


def test_a_run_to_whose_workers_nothing_befell_has_no_such_file(tmp_path):
    train(tmp_path, "hogwild")
    assert not (tmp_path / "workers.jsonl").exists()


@pytest.mark.parametrize("line", ["{", "[]", "3", '{"failure": 3}', '{"in_doubt": true}', '{"a": 1}', "{}", "[" * 9999])
def test_what_is_no_such_file_is_one_line(line, tmp_path):
    (tmp_path / "workers.jsonl").write_text(line + "\n")
    with pytest.raises(hogwild.RunDirectoryError, match=r"workers\.jsonl does not say what befell workers") as caught:
        read_befallen(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path):
    (tmp_path / "workers.jsonl").write_text('{"failure": "one"}\n{"in_doubt": 1')
    assert read_befallen(tmp_path) == Befallen(("one",))
