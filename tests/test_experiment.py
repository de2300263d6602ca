"""What an experiment's name and some settings come to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from hogwild import experiment
from hogwild.config import RunConfig
from hogwild.errors import ArgumentError
from hogwild.experiment import OPTIMIZERS, Problem, Training, optimizer_named


def _training(**defaults: object) -> Training:
    return Training(
        "toy", "?", lambda seed, data: Problem(nn.Linear(1, 1), torch.ones(4, 1), lambda m, b: m(b).sum()), defaults
    )


def test_flags_over_the_experiments_over_run_configs() -> None:
    training = _training(epochs=3, batch_size=2, workers=4)
    config = experiment.settings_of(training, {"workers": 1})
    assert (config.name, config.workers, config.batch_size, config.kind) == ("toy", 1, 2, "auto")


def test_flags_over_those_of_a_saved_run() -> None:
    saved = RunConfig(name="toy", epochs=5, workers=3, seed=9, optimizer="adam", lr=0.02)
    config = experiment.settings_of(_training(epochs=1, workers=2), {"seed": 1}, saved)
    assert (config.workers, config.seed, config.epochs, config.lr) == (3, 1, 5, 0.02)


def test_updates_take_the_place_of_epochs_and_the_other_way_round() -> None:
    assert experiment.settings_of(_training(epochs=3), {"updates": 7}).epochs is None
    assert experiment.settings_of(_training(updates=3), {"epochs": 7}).updates is None
    with pytest.raises(ArgumentError, match="both of epochs and updates"):
        experiment.settings_of(_training(epochs=3), {"epochs": 1, "updates": 1})
    with pytest.raises(ArgumentError, match="neither"):
        experiment.settings_of(_training(), {})


@pytest.mark.parametrize(
    ("given", "lr"),
    [
        ({}, 0.7),
        ({"optimizer": "sgd"}, 0.7),  # the experiment's own
        ({"optimizer": "adam"}, 0.001),  # the experiment's suits another optimizer
        ({"optimizer": "adam", "lr": 0.3}, 0.3),
        ({"lr": 0.3}, 0.3),
    ],
)
def test_the_learning_rate_belongs_to_the_optimizer(given: dict[str, object], lr: float) -> None:
    assert experiment.settings_of(_training(epochs=1, optimizer="sgd", lr=0.7), given).lr == lr


def test_every_optimizer_has_a_learning_rate() -> None:
    assert experiment.LEARNING_RATES.keys() == OPTIMIZERS.keys()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_can_be_made(name: str) -> None:
    config = experiment.settings_of(_training(epochs=1), {"optimizer": name, "lr": 0.25})
    optimizer = optimizer_named(config.optimizer, config.lr)(list(nn.Linear(2, 2).named_parameters()))
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert optimizer.param_groups[0].get("momentum", 0) == (0.9 if name == "momentum" else 0)


def test_find_prefers_the_experiment_to_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    found, saved = experiment.find("digits")
    assert found.name == "digits" and saved is None


def test_a_config_of_an_experiment_that_is_not_installed(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(RunConfig(name="elsewhere", epochs=1).to_toml())
    with pytest.raises(ArgumentError, match="'elsewhere'"):
        experiment.find(str(path))
