"""The trainings learn what they are there to learn, under the rules and kinds that they are shown with."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sklearn.datasets
import torch
from hogwild.experiments._common import digits
from hogwild.experiments._idx import FILES, mnist, read_idx
from hogwild.experiments.digits import split
from hogwild.experiments.embeddings import GROUPS, Factors, Recovered, plant
from torch import Tensor
from torch.nn.functional import interpolate

from hogwild import experiment
from hogwild.errors import ArgumentError
from hogwild.experiment import Training
from hogwild.run.result import Run
from hogwild.run.training import train_experiment


def _train(name: str, **given: Any) -> Run:
    found, _ = experiment.find(name)
    assert isinstance(found, Training)
    return train_experiment(found, experiment.settings_of(found, given))


@pytest.mark.parametrize(("update", "kind"), [("hogwild", "processes"), ("locked", "threads")])
def test_digits_reach_96_percent(update: str, kind: str) -> None:
    run = _train("digits", update=update, kind=kind)
    assert run.metrics["accuracy"] >= 0.96
    assert run.updates == 30 * 94


@pytest.mark.parametrize("update", ["hogwild", "ordered"])
def test_digits_conv_reaches_96_percent_with_its_running_statistics(update: str) -> None:
    run = _train("digits-conv", update=update, epochs=6)
    assert run.metrics["accuracy"] >= 0.96
    assert run.state["1.num_batches_tracked"] > 0
    assert bool((run.state["1.running_var"] > 0).all())


@pytest.mark.parametrize(("update", "kind"), [("hogwild", "threads"), ("locked", "processes")])
def test_embeddings_find_the_planted_groups(update: str, kind: str) -> None:
    """By the pairs of rule and kind that the digits are not trained by: how a rule writes hangs on neither."""
    run = _train("embeddings", update=update, kind=kind, epochs=6)
    assert run.metrics["accuracy"] >= 0.9
    assert run.metrics["explained"] >= 0.75


def test_embeddings_that_learned_nothing_are_told_from_those_that_did() -> None:
    torch.manual_seed(0)
    metrics = Recovered(plant())(Factors())
    assert metrics["accuracy"] < 2 / GROUPS
    assert metrics["explained"] < 0.1


def test_the_held_out_digits_are_not_trained_on() -> None:
    (images, labels), (held, held_labels) = split()
    assert (len(images), len(labels), len(held), len(held_labels)) == (1500, 1500, 297, 297)
    again = split()
    assert torch.equal(images, again[0][0]) and torch.equal(held, again[1][0])
    # Every digit is in both parts, in about its share.
    assert held_labels.bincount().min() >= 20


def test_embeddings_hold_out_other_pairs_than_they_train_on() -> None:
    planted = plant()
    pairs = [users * 10_000 + items for users, items, _ in (planted.ratings, planted.held_out)]
    assert not set(pairs[0].tolist()) & set(pairs[1].tolist())


def _idx(values: Tensor) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes((0, 0, 8, values.dim())) + sizes + values.to(torch.uint8).numpy().tobytes()


def _contents() -> dict[str, bytes]:
    """The digits as MNIST's files: 28 × 28, in bytes."""
    (images, labels), (held, held_labels) = split()
    large = [interpolate(part, size=(28, 28), mode="bilinear").squeeze(1) * 255 for part in (images, held)]
    return dict(zip(FILES, (_idx(large[0]), _idx(labels), _idx(large[1]), _idx(held_labels)), strict=True))


def _write(folder: Path, contents: Mapping[str, bytes], *, zipped: bool = False) -> Path:
    for name, content in contents.items():
        (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(content) if zipped else content)
    return folder


@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_trains_on_idx_files(zipped: bool, tmp_path: Path) -> None:
    folder = _write(tmp_path, _contents(), zipped=zipped)
    run = _train("mnist", data=str(folder), kind="threads", epochs=20)
    assert run.metrics["accuracy"] >= 0.9


def test_mnist_reads_what_was_written(tmp_path: Path) -> None:
    (images, labels), (held, _) = mnist(_write(tmp_path, _contents()))
    assert images.shape == (1500, 1, 28, 28) and held.shape == (297, 1, 28, 28)
    assert images.dtype == torch.float32 and images.min() >= 0 and 0.9 < images.max() <= 1
    assert torch.equal(labels, split()[0][1])


def _spoiled(file: str, spoil: Any) -> dict[str, bytes]:
    small = dict(
        zip(
            FILES,
            [_idx(torch.zeros(4, 28, 28)), _idx(torch.zeros(4)), _idx(torch.zeros(2, 28, 28)), _idx(torch.zeros(2))],
            strict=True,
        )
    )
    small[file] = spoil(small[file])
    return small


IMAGES, LABELS = FILES[0], FILES[1]


@pytest.mark.parametrize(
    ("file", "spoil", "named"),
    [
        (IMAGES, lambda b: b"", "not an IDX file"),
        (IMAGES, lambda b: b[:7], "not an IDX file"),
        (IMAGES, lambda b: b"\x00\x00\x0d" + b[3:], "not an IDX file"),
        (IMAGES, lambda b: _idx(torch.zeros(4)), "in 3 dimensions"),
        (IMAGES, lambda b: b[:-1], "holds 3135"),
        (IMAGES, lambda b: b + b"\x00", "holds more"),
        (IMAGES, lambda b: b[:4] + b"\xff" * 12 + b[16:], "says that it holds"),
        (IMAGES, lambda b: b[:4] + b"\x00" * 4 + b[8:], "says that it holds 0"),
        (IMAGES, lambda b: _idx(torch.zeros(4, 14, 56)), "14 × 56"),
        (LABELS, lambda b: _idx(torch.zeros(3)), "3 labels for 4 images"),
        (LABELS, lambda b: _idx(torch.tensor([0, 1, 2, 10])), "label 10"),
    ],
)
def test_mnist_believes_no_file(file: str, spoil: Any, named: str, tmp_path: Path) -> None:
    _write(tmp_path, _spoiled(file, spoil))
    with pytest.raises(ArgumentError, match=named) as raised:
        mnist(tmp_path)
    assert str(tmp_path) in str(raised.value) and "\n" not in str(raised.value)


def test_a_gzip_file_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / f"{LABELS}.gz"
    path.write_bytes(gzip.compress(_idx(torch.arange(200) % 10))[:-20])
    with pytest.raises(ArgumentError, match="cannot be read"):
        read_idx(path, 1)
    path.write_bytes(b"no gzip")
    with pytest.raises(ArgumentError, match="cannot be read"):
        read_idx(path, 1)


@pytest.mark.parametrize("name", ["digits", "digits-conv", "embeddings"])
def test_a_folder_of_data_that_nobody_reads_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="leave it out"):
        _train(name, data=str(tmp_path))


def test_the_digits_that_are_read_are_those_that_scikit_learn_gives():
    found = sklearn.datasets.load_digits()
    train_images, train_labels, test_images, test_labels = digits()
    images, labels = torch.cat((train_images, test_images)), torch.cat((train_labels, test_labels))
    assert torch.equal(images, torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16)
    assert torch.equal(labels, torch.tensor(found.target, dtype=torch.int64)) and images.shape == (1797, 1, 8, 8)
