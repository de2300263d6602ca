"""replay(): the recorded run again, bit for bit; and every change to the record is found."""

from __future__ import annotations

import json
import shutil

import numpy as np
import problems
import pytest
import torch
from safetensors.torch import load_file, save_file
from side_by_side import within
from traits import VERSIONED

import hogwild
from hogwild.run.saved.directory import file_digest
from hogwild.testing import Hook, planted

pytestmark = pytest.mark.filterwarnings("ignore:staleness")
MODELS = {"mlp": problems.mlp, "conv_bn": problems.conv_bn, "dropout": problems.dropout}


def record(out, update, model="conv_bn", **arguments):
    settings = {"workers": 3, "kind": "processes", "staleness": 3, "micro_batches": 5, "optimizer": problems.ADAM}
    return problems.train(MODELS[model](), update=update, out=out, **{**settings, "epochs": 4, **arguments})


def replay(out, model="conv_bn", data=None):
    return hogwild.replay(
        out, model=MODELS[model](), data=data or problems.data(), loss=problems.cross_entropy, optimizer=problems.ADAM
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A folder of a run under a rule; each is a copy of one that was trained once."""
    made = {}

    def copied(update, to):
        if update not in made:
            record(made.setdefault(update, tmp_path_factory.mktemp(update)), update)
        shutil.copytree(made[update], to, dirs_exist_ok=True)

    return copied


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("update", VERSIONED)
def test_the_bits_are_those_of_the_run(update, model, tmp_path):
    run = record(tmp_path, update, model)
    result = replay(tmp_path, model)
    assert result.equal
    assert result.digest == result.recorded == run.digest
    assert result.first_difference is None
    assert result.updates == run.updates
    assert result.compared == len(run.seals) + 1 > 10


def test_an_interrupted_run_is_replayed_as_far_as_it_went(tmp_path):
    def evaluate(model):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record(tmp_path, "snapshot", evaluate=evaluate, evaluate_every=20)
    result = replay(tmp_path)
    assert result.equal
    assert 20 <= result.updates < 52


def test_a_stopped_run_that_had_gone_past_a_late_update_is_replayed(tmp_path):
    """Then the journal has updates beyond their number, each of several batches."""

    def late(hook, seat):
        """Until the others have made all versions that they may without it."""
        if hook is Hook.COMPUTING and seat.ticket == 3:
            within(60, lambda: len(seat.state.journal.rows()) >= 20, "the others do not go past it")

    with planted(late):
        run = record(
            tmp_path, "snapshot", "mlp", accumulate=3, epochs=None, updates=100, evaluate=problems.accuracy,
            evaluate_every=5, stop=lambda progress: progress.updates >= 20,
        )  # fmt: skip
    assert run.journal["update"].max() >= run.updates == 20, "update 3 is not among the twenty"
    assert replay(tmp_path, "mlp").equal


@pytest.mark.parametrize("update", VERSIONED)
def test_other_data_is_found_at_the_update_that_first_used_it(update, tmp_path):
    record(tmp_path, update, epochs=None, updates=13 if update != "sync" else 3, shuffle=False)
    x, y = problems.data()
    x = x.clone()
    x[16 * 5] += 0.5  # a sample of batch 5, the first of update 1 under sync
    result = replay(tmp_path, data=(x, y))
    first = result.first_difference
    assert not result.equal
    assert first.update == (5 if update != "sync" else 1)
    assert "1.weight" in first.parameters
    if update != "snapshot":  # there, batch 5 need not be the sixth commit
        assert (first.after, first.version) == ((5, 6) if update == "ordered" else (1, 2))
    told = f"the loss of update {first.update} is another one, on a version with the recorded bits: the data or"
    assert told in result.conclusion


@pytest.mark.parametrize("samples", [100, 300])
def test_fewer_or_more_samples_are_refused(samples, tmp_path):
    record(tmp_path, "ordered", "mlp")
    told = f"the data make {4 * -(-samples // 16)} updates, and the run made 52: they are not those of the run"
    with pytest.raises(hogwild.ArgumentError, match=told):
        replay(tmp_path, "mlp", data=problems.data(samples))


def test_other_data_are_no_other_machine(tmp_path):
    """What makes up for stale gradients follows from the first batches."""
    momentum = {"optimizer": problems.MOMENTUM, "staleness": 7}
    record(tmp_path, "ordered", "mlp", **momentum)
    x, y = problems.data()
    other = hogwild.replay(
        tmp_path, model=problems.mlp(), data=(9 * x, y), loss=problems.cross_entropy, optimizer=problems.MOMENTUM
    )
    assert other.environment == () and "the data or the loss is not that of the run" in other.conclusion


def test_another_optimizer_is_no_other_machine(tmp_path):
    record(tmp_path, "ordered", "mlp", optimizer=problems.SGD)
    other = hogwild.replay(
        tmp_path, model=problems.mlp(), data=problems.data(), loss=problems.cross_entropy, optimizer=problems.MOMENTUM
    )
    assert "made elsewhere" not in other.conclusion
    assert "the optimizer or the schedule is not that of the run (what makes up for stale" in other.conclusion


def test_a_wrong_initial_bit_is_found_and_named(tmp_path, recorded):
    recorded("ordered", tmp_path)
    model = problems.conv_bn()
    with torch.no_grad():
        weight = model[5].weight
        weight.view(torch.int32)[0, 0] ^= 1 << 12  # the lowest may be lost in the first step's rounding
    result = hogwild.replay(
        tmp_path, model=model, data=problems.data(), loss=problems.cross_entropy, optimizer=problems.ADAM
    )
    assert not result.equal
    assert (result.first_difference.after, result.first_difference.version) == (0, 1)
    assert "5.weight" in result.first_difference.parameters


@pytest.mark.parametrize("name", ["journal.npy", "model.safetensors"])
@pytest.mark.parametrize("place", [0.1, 0.5, 0.99])
def test_one_changed_byte_is_caught(name, place, tmp_path, recorded):
    recorded("ordered", tmp_path)
    data = bytearray((tmp_path / name).read_bytes())
    data[int(place * len(data))] ^= 1
    (tmp_path / name).write_bytes(data)
    with pytest.raises(hogwild.RunDirectoryError, match=f"{name} is not the file that was saved"):
        replay(tmp_path)


def reseal(folder, name):
    """Make run.json agree with a changed file, as somebody would who wants it believed."""
    path = folder / "run.json"
    content = json.loads(path.read_text())
    content["sha256"][name] = file_digest(folder / name)
    path.write_text(json.dumps(content))


def test_a_changed_weight_is_found_even_where_the_checksum_was_mended(tmp_path, recorded):
    recorded("ordered", tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["5.bias"].view(torch.int32)[1] ^= 1
    save_file(state, tmp_path / "model.safetensors")
    reseal(tmp_path, "model.safetensors")
    content = json.loads((tmp_path / "run.json").read_text())
    content["digest"] = hogwild.digest(state)
    (tmp_path / "run.json").write_text(json.dumps(content))
    result = replay(tmp_path)
    assert not result.equal
    assert result.first_difference.parameters == ("5.bias",)
    assert result.first_difference.version == result.updates


def test_a_changed_version_read_is_found_even_where_the_checksum_was_mended(tmp_path, recorded):
    recorded("snapshot", tmp_path)
    journal = np.load(tmp_path / "journal.npy")
    row = int(np.flatnonzero(journal["version_read"] > 0)[3])
    journal["version_read"][row] -= 1
    np.save(tmp_path / "journal.npy", journal)
    reseal(tmp_path, "journal.npy")
    result = replay(tmp_path)
    assert not result.equal
    assert result.first_difference.version == row + 1


@pytest.mark.parametrize("how", ["a later version is read", "rows of another form", "a row is missing", "pickled"])
def test_an_impossible_journal_is_one_line(how, tmp_path, recorded):
    recorded("snapshot", tmp_path)
    journal = np.load(tmp_path / "journal.npy")
    if how == "a later version is read":
        journal["version_read"][4] = 9
    elif how == "rows of another form":
        journal = journal["loss"]
    elif how == "a row is missing":
        journal = np.delete(journal, 7)
    else:
        journal = np.array([{"a": 1}], dtype=object)
    np.save(tmp_path / "journal.npy", journal, allow_pickle=how == "pickled")
    reseal(tmp_path, "journal.npy")
    with pytest.raises((hogwild.RunDirectoryError, hogwild.ArgumentError)) as caught:
        replay(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', '{"format": 99}', "[" * 100_000])
def test_a_malformed_record_is_one_line(content, tmp_path, recorded):
    recorded("ordered", tmp_path)
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(hogwild.RunDirectoryError) as caught:
        replay(tmp_path)
    assert "\n" not in str(caught.value)


def test_what_raced_cannot_be_replayed(tmp_path):
    record(tmp_path, "hogwild")
    with pytest.raises(hogwild.ArgumentError, match="what raced is in no journal"):
        replay(tmp_path)


def test_replay_needs_all_of_what_was_trained(tmp_path, recorded):
    recorded("ordered", tmp_path)
    with pytest.raises(hogwild.ArgumentError, match="give all four"):
        hogwild.replay(tmp_path, model=problems.mlp())


def test_memory_is_the_oldest_read_and_two_more(tmp_path):
    from hogwild.rules.replayed import Replayed

    run = record(tmp_path, "snapshot")
    assert Replayed(run.journal).needs(1).slots == run.staleness.max + 2
