"""NaN or infinity late in the data: the error says that it is the batch, which batch, and where in it."""

from __future__ import annotations

import math

import problems
import pytest
import torch
from traits import KINDS, NAMES

import hogwild

IN_PLACE = ("racing", "hogwild", "locked")


def holed(sample: int, value: float = math.nan):
    x, y = problems.data()
    x = x.clone()
    x[sample, 3] = value
    return x, y


def batch_of(sample: int) -> int:
    """The number of the batch that a sample is in, in the first epoch."""
    schedule = hogwild.Schedule(200, 16)
    return next(number for number in range(13) if sample in schedule.indices(number))


def late() -> int:
    """A sample that is in none of the first batches."""
    return next(sample for sample in range(200) if batch_of(sample) > 6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("update", NAMES)
def test_the_batch_that_holds_it_is_named(update, kind):
    sample = late()
    with pytest.raises(hogwild.NonFiniteError) as caught:
        problems.train(update=update, kind=kind, data=holed(sample), staleness=1)
    told = str(caught.value)
    assert caught.value.batch is not None and "\n" not in told
    number = caught.value.batch
    if sample in hogwild.Schedule(200, 16).indices(number):
        assert told.startswith(f"data: batch {number} holds NaN, in its tensor 0; leave such samples out")
        assert "the loss is nan at update" in told
    else:  # another worker came to the weights that this one had made NaN
        assert update in IN_PLACE and not told.startswith("data")


@pytest.mark.parametrize(("value", "name"), [(math.nan, "NaN"), (math.inf, "infinity")])
def test_by_the_name_of_its_field(value, name):
    x, y = holed(late(), value)

    def loss(model, batch):
        return problems.cross_entropy(model, (batch["points"], batch["class"]))

    with pytest.raises(hogwild.NonFiniteError, match=f"holds {name}, in its tensor 'points'"):
        problems.train(update="ordered", data={"points": x, "class": y}, loss=loss)


def test_a_source_of_ones_own_is_asked_with_the_generator_of_that_batch():
    with pytest.raises(hogwild.NonFiniteError, match="data: batch 5 holds NaN, in its tensor 0"):
        problems.train(update="ordered", data=Drawn(), epochs=1)


class Drawn:
    def __len__(self):
        return 12

    def batch(self, number, generator):
        x = torch.randn(16, 8, generator=generator)
        x[0, 0] = math.nan if number == 5 else 0.0
        return x, torch.zeros(16, dtype=torch.long)


def test_a_sound_batch_is_not_blamed():
    def loss(model, batch):
        info = hogwild.worker_info()
        return problems.cross_entropy(model, batch) * (math.nan if info.update == 9 else 1.0)

    with pytest.raises(hogwild.NonFiniteError, match=r"^the loss is nan at update 9"):
        problems.train(update="ordered", loss=loss)


def test_data_that_cannot_be_fetched_again_hides_nothing():
    class Once(Drawn):
        def batch(self, number, generator):
            if number and not problems.in_worker_thread():
                raise OSError("gone")
            return super().batch(number, generator)

    with pytest.raises(hogwild.NonFiniteError, match=r"^the loss is nan at update 5"):
        problems.train(update="hogwild", workers=1, data=Once(), epochs=1)


def test_a_replay_names_it_too(tmp_path):
    sample = late()
    problems.train(update="ordered", data=holed(sample), on_nonfinite="skip", out=tmp_path, updates=13)
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace('"skip"', '"raise"'))
    with pytest.raises(hogwild.NonFiniteError, match=f"data: batch {batch_of(sample)} holds NaN"):
        hogwild.replay(
            tmp_path, model=problems.mlp(), data=holed(sample), loss=problems.cross_entropy, optimizer=problems.SGD
        )
