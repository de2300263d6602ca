"""The plan of a sweep: the grid, what is drawn of it, what its folders are called, and what is refused."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from torch import nn

from hogwild.errors import ArgumentError, RunDirectoryError
from hogwild.experiment import Problem, Training
from hogwild.own_code import OwnCode
from hogwild.sweep import plan as module
from hogwild.sweep.jobs import jobs_for
from hogwild.sweep.plan import SweepPlan, keep_plan, make_plan, read_plan, refuse_changed

TOY = Training(
    "toy", "?", lambda seed, data: Problem(nn.Linear(1, 1), torch.ones(4, 1), lambda m, b: m(b).sum()), {"epochs": 1}
)


def planned(values: dict[str, tuple], **others: object) -> SweepPlan:
    return make_plan(TOY, "toy", values, **others)


def test_the_grid_in_its_order_with_seeds_beside_each_other():
    plan = planned({"seed": (0, 1), "update": ("hogwild", "ordered"), "lr": (0.1, 0.01), "epochs": (2,)})
    assert plan.axes == {"update": ("hogwild", "ordered"), "lr": (0.1, 0.01), "seed": (0, 1)}
    assert plan.fixed == {"epochs": 2}
    assert [run.folder for run in plan.runs][:3] == [
        "hogwild-lr0.1-seed0",
        "hogwild-lr0.1-seed1",
        "hogwild-lr0.01-seed0",
    ]
    assert len(plan.runs) == len({run.folder for run in plan.runs}) == 8
    last = plan.runs[-1]
    assert last.settings == {"update": "ordered", "lr": 0.01, "seed": 1}
    assert (last.config.update, last.config.lr, last.config.seed, last.config.epochs) == ("ordered", 0.01, 1, 2)


def test_one_run_is_a_sweep_too():
    assert [(run.folder, run.settings) for run in planned({}).runs] == [("run", {})]


def test_a_setting_of_another_rule_is_left_out_and_its_run_made_once():
    plan = planned(
        {"update": ("hogwild", "ordered"), "staleness": (1, 2), "micro_batches": (2,)}
        | {"update": ("hogwild", "ordered", "sync")}
    )
    assert [dict(run.settings) for run in plan.runs] == [
        {"update": "hogwild"},
        {"update": "ordered", "staleness": 1},
        {"update": "ordered", "staleness": 2},
        {"update": "sync"},
    ]


def test_a_sample_is_a_part_of_the_grid_in_its_order_and_follows_its_seed():
    values = {"lr": tuple(i / 100 for i in range(1, 21)), "seed": tuple(range(20))}
    whole = [run.folder for run in planned(values).runs]
    one, again, other = (planned(values, sample=30, sample_seed=seed).runs for seed in (1, 1, 2))
    drawn = [run.folder for run in one]
    assert drawn == [run.folder for run in again] != [run.folder for run in other]
    assert len(set(drawn)) == 30 and drawn == [name for name in whole if name in drawn]


def test_a_few_runs_of_a_huge_grid_are_drawn_at_once():
    many = tuple(range(1, 1001))
    plan = planned({"seed": many, "batch_size": many, "epochs": many, "max_restarts": many}, sample=3)
    assert len(plan.runs) == 3


@pytest.mark.parametrize("sample_seed", range(12))
@pytest.mark.parametrize("rules_first", [True, False])
def test_a_sample_has_as_many_runs_as_were_asked_for_where_rules_have_settings_of_their_own(sample_seed, rules_first):
    """Points of the grid that are the same run were drawn as if they were several; where all of them were of the rule
    without the setting, that was refused as given for nothing."""
    rules, ages = {"update": ("hogwild", "ordered")}, {"staleness": (1, 2, 3)}
    values = {**rules, **ages} if rules_first else {**ages, **rules}
    whole = [run.settings for run in planned(values).runs]
    for sample in (1, 2, 3, 4):
        drawn = [run.settings for run in planned(values, sample=sample, sample_seed=sample_seed).runs]
        assert len(drawn) == sample and drawn == [one for one in whole if one in drawn]
    with pytest.raises(ArgumentError, match="sample 5 of a grid of 4 runs; 1 to 4 works"):
        planned(values, sample=5)


@pytest.mark.parametrize(
    ("values", "others", "why"),
    [
        ({"seed": tuple(range(3))}, {"sample": 4}, "sample 4 of a grid of 3 runs; 1 to 3 works"),
        ({"seed": tuple(range(101)), "epochs": tuple(range(1, 101))}, {}, "10,100 runs, over 10,000; --sample N"),
        ({"update": ("ordered", "sync"), "workers": (2, 3)}, {}, "update ordered, workers 3: 3 workers"),
        ({"lr": (0.1, -1.0)}, {}, r"lr -1: lr -1.0 is not above 0"),
        ({"staleness": (1, 2)}, {}, "staleness 1 given, and update is 'hogwild'; only 'ordered' has it"),
        ({"staleness": (1, 2)}, {"sample": 2}, "staleness 1 given, and update is 'hogwild'; only 'ordered' has it"),
        ({"staleness": (1,), "update": ("hogwild", "sync")}, {}, "staleness 1 given, .* only 'ordered' has it"),
        ({"epochs": (1,), "updates": (5, 6)}, {}, "both of epochs and updates"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_trains(values, others, why):
    with pytest.raises(ArgumentError, match=why) as caught:
        planned(values, **others)
    assert "\n" not in str(caught.value)


def test_folders_have_short_names_that_no_file_system_confuses():
    data = ("/a/b c", "/a/b_c", "x" * 80, "Logs", "logs")
    names = [run.folder for run in planned({"data": data}).runs]
    assert len({name.lower() for name in names}) == 5 and "logs" not in {name.lower() for name in names}
    assert all(len(name) <= 60 and "/" not in name and " " not in name for name in names)
    assert names == [run.folder for run in planned({"data": data}).runs]


# --- in its folder


def test_a_text_that_names_no_folder_of_its_own_is_a_number(tmp_path):
    plan = keep_plan(tmp_path, planned({"data": (".", "..", "...", "z")}))
    assert read_plan(tmp_path) == plan
    assert [run.folder.startswith("run00") for run in plan.runs] == [True, True, True, False]


def test_a_plan_is_kept_and_read_back(tmp_path):
    plan = planned({"lr": (0.1, 0.01), "clip_grad_norm": (None, 1.0)}, sample=3)
    assert keep_plan(tmp_path, plan) is plan
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]
    again = read_plan(tmp_path)
    assert (
        again == plan
        and keep_plan(tmp_path, planned({"lr": (0.1, 0.01), "clip_grad_norm": (None, 1.0)}, sample=3)) == plan
    )


@pytest.mark.parametrize(
    ("values", "others", "why"),
    [
        ({"lr": (0.1, 0.02), "epochs": (3,)}, {}, "lr is 0.1 0.02, and the sweep in .* was planned with 0.1 0.01"),
        ({"lr": (0.1, 0.01)}, {}, "epochs is not given, and the sweep in .* was planned with 3"),
        (
            {"lr": (0.1, 0.01), "epochs": (3,), "seed": (1,)},
            {},
            "seed is 1, and the sweep .* was planned with not given",
        ),
        (
            {"lr": (0.1, 0.01), "epochs": (3,)},
            {"sample": 1},
            "sample is 1, and the sweep .* was planned with not given",
        ),
    ],
)
def test_another_sweep_in_the_same_folder_is_refused_by_name(values, others, why, tmp_path):
    keep_plan(tmp_path, planned({"lr": (0.1, 0.01), "epochs": (3,)}))
    with pytest.raises(ArgumentError, match=f"{why}.*; hogwild sweep --resume .* goes on with it"):
        keep_plan(tmp_path, planned(values, **others))


def test_other_defaults_of_the_experiment_are_another_sweep(tmp_path):
    keep_plan(tmp_path, planned({"seed": (0, 1)}))
    other = dataclasses.replace(TOY, defaults={"epochs": 4})
    with pytest.raises(ArgumentError, match="epochs of seed0 is 4, and the sweep in .* was planned with 1"):
        keep_plan(tmp_path, make_plan(other, "toy", {"seed": (0, 1)}))


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "mine").write_text("")
    with pytest.raises(ArgumentError, match=r"is not empty \(it holds mine\); name another folder"):
        keep_plan(tmp_path, planned({}))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_sweep_of_a_file_that_has_changed_is_refused(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("a")
    own = OwnCode(str(file), module.file_digest(file))
    plan = planned({})
    (run,) = plan.runs
    plan = dataclasses.replace(plan, runs=(dataclasses.replace(run, config=dataclasses.replace(run.config, own=own)),))
    refuse_changed(plan, tmp_path)
    file.write_text("b")
    with pytest.raises(ArgumentError, match=r"own.py has changed since the sweep in .* was planned"):
        refuse_changed(plan, tmp_path)
    file.unlink()
    with pytest.raises(ArgumentError, match=r"own.py is not there any more since the sweep"):
        refuse_changed(plan, tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda found: found.update(format=2),
        lambda found: found.update(runs=[]),
        lambda found: found.update(more=1),
        lambda found: found.pop("axes"),
        lambda found: found["runs"][0].update(folder="../out"),
        lambda found: found["runs"][0].update(folder=".."),
        lambda found: found["runs"][0]["config"].update(lr="fast"),
        lambda found: found["runs"][0]["config"].update(own={"file": 3}),
    ],
)
def test_a_damaged_plan_is_told(damage, tmp_path):
    keep_plan(tmp_path, planned({}))
    found = json.loads((tmp_path / "sweep.json").read_text())
    damage(found)
    (tmp_path / "sweep.json").write_text(json.dumps(found))
    with pytest.raises(RunDirectoryError, match="sweep.json is not the plan of a sweep") as caught:
        read_plan(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_plan_is_no_sweep(tmp_path):
    with pytest.raises(ArgumentError, match="is not the folder of a sweep"):
        read_plan(tmp_path)


@pytest.mark.parametrize(("cores", "workers", "jobs"), [(2, 2, 1), (8, 2, 4), (8, 3, 2), (2, 4, 1), (1.5, 1, 1)])
def test_runs_at_once_have_a_core_for_each_worker(cores, workers, jobs, monkeypatch):
    monkeypatch.setattr("hogwild.sweep.jobs.usable_cores", lambda: float(cores))
    assert jobs_for(workers) == jobs
