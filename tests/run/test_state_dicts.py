"""A state that a run hands out loads strictly into its model: extra state, versions of modules, and hooks included."""

from __future__ import annotations

import json
import warnings
from functools import partial

import numpy as np
import problems
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hogwild
from hogwild.run.saved.directory import file_digest

SETTINGS = {
    "update": "ordered",
    "evaluate": problems.accuracy,
    "evaluate_every": 10,
    "keep_best": "accuracy",
    "ema": 0.9,
}


class Keeping(nn.Linear):
    """A layer with extra state: whatever it is given."""

    def __init__(self, kept: object) -> None:
        torch.manual_seed(0)
        super().__init__(8, 3)
        self.kept = kept

    def get_extra_state(self):
        return self.kept

    def set_extra_state(self, state):
        self.kept = state


class SecondForm(nn.Linear):
    """A layer whose weights were saved otherwise by its first version, and are mended as they are loaded."""

    _version = 2

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *others):
        if local_metadata.get("version", 1) < 2:
            state_dict[f"{prefix}weight"] = state_dict[f"{prefix}weight"] * 10
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)


def model_keeping(kept: object) -> nn.Module:
    return nn.Sequential(Keeping(kept), nn.BatchNorm1d(3))


def model_of_second_form() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(SecondForm(8, 16), nn.ReLU(), nn.Linear(16, 3))


def states_of(run: hogwild.Run) -> list:
    assert run.best is not None
    return [run.state, run.ema_state, run.best.state]


PLAIN = [3, "words", None, {"of": ["a", 1.5, None, {"b": True}]}, torch.tensor([1.0, float("nan")])]


@pytest.mark.parametrize("kept", PLAIN, ids=["number", "text", "None", "dict", "tensor"])
@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_extra_state_is_handed_out_and_saved(kept, kind, tmp_path):
    model = model_keeping(kept)
    run = problems.train(model, **SETTINGS, kind=kind, workers=2, out=tmp_path, checkpoint_every=10)
    saved = hogwild.load_run(tmp_path)
    for state in states_of(run):
        assert list(state) == list(model.state_dict()), "in the order of the model's own"
    for state in [*states_of(run), *states_of(saved)]:
        fresh = model_keeping("another")
        fresh.load_state_dict(state)
        assert json.dumps(fresh[0].kept, default=str) == json.dumps(kept, default=str)
    assert run.digest == saved.digest == hogwild.digest(saved.state) == hogwild.digest(model)
    assert saved.ema_digest == run.ema_digest and saved.best.digest == run.best.digest


def test_the_best_version_of_a_run_that_goes_on_has_its_extra_state(tmp_path):
    """A checkpoint holds it, for the file of the best version may be a later one's by then."""
    falling = iter([3.0, 2.0])
    settings = {**SETTINGS, "ema": None, "out": tmp_path, "checkpoint_every": 10}
    settings["evaluate"] = lambda _: {"accuracy": next(falling, 0.0)}
    with pytest.raises(KeyboardInterrupt):
        problems.train(model_keeping({"of": 1}), **settings, callbacks=[problems.interrupting_at(20)])
    (tmp_path / "best.safetensors").unlink()
    run = problems.train(model_keeping({"of": 1}), **settings, resume=tmp_path)
    assert run.best.update == 10 and run.best.state["0._extra_state"] == {"of": 1}
    model_keeping(None).load_state_dict(hogwild.load_run(tmp_path).best.state)


def test_extra_state_that_is_no_plain_value_is_in_memory_alone(tmp_path):
    """It is told when the run begins, and is in memory of its own: what becomes of the model's does not matter."""
    kept = {"sums": torch.ones(3)}
    model = model_keeping(kept)
    with pytest.warns(UserWarning, match=r"^0\._extra_state of the model will be in run.state and in no file"):
        run = problems.train(model, **SETTINGS, out=tmp_path)
    kept["sums"].zero_()
    assert run.state["0._extra_state"]["sums"].tolist() == [1, 1, 1]
    saved = hogwild.load_run(tmp_path)
    assert "0._extra_state" not in saved.state
    assert run.digest == saved.digest == hogwild.digest(run.state) == hogwild.digest(model)
    model.load_state_dict(saved.state, strict=False)


def test_extra_state_that_nothing_can_copy_loses_no_run():
    class Uncopied:
        def __deepcopy__(self, memo):
            raise TypeError("not me")

    class Fresh(Keeping):
        def get_extra_state(self):
            return Uncopied()

    run = problems.train(Fresh(None), update="ordered")
    assert isinstance(run.state["_extra_state"], Uncopied)


def test_extra_state_of_plain_values_warns_of_nothing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problems.train(model_keeping([1, 2]), update="ordered", out=tmp_path)


def test_a_module_of_a_later_version_is_not_taken_for_its_first(tmp_path):
    model = model_of_second_form()
    run = problems.train(model, **SETTINGS, out=tmp_path)
    for state in [run.state, hogwild.load_run(tmp_path).state]:
        fresh = model_of_second_form()
        fresh.load_state_dict(state)
        assert hogwild.digest(fresh) == run.digest


def test_a_state_dict_that_is_computed_has_a_moving_average(tmp_path):
    """As where a hook casts what is saved: the average is what the model's state dict is, were its weights those."""
    model = problems.mlp()
    model.register_state_dict_post_hook(lambda module, state, *_: state.update({k: 2 * v for k, v in state.items()}))
    run = problems.train(model, update="ordered", ema=0.9, out=tmp_path)
    plain = problems.train(update="ordered", ema=0.9)
    assert list(run.ema_state) == list(run.state)
    for own, other in zip(run.ema_state.values(), plain.ema_state.values(), strict=True):
        assert torch.equal(own, 2 * other)
    assert hogwild.load_run(tmp_path).ema_digest == run.ema_digest


def test_a_run_that_has_ended_is_loaded_as_its_state_is(tmp_path):
    def scaled():
        """Of which a file holds the weights twice as large."""
        model = model_keeping("before")
        model.register_state_dict_post_hook(
            lambda module, state, *_: state.update({"1.weight": 2 * state["1.weight"]}) and None
        )
        model.register_load_state_dict_pre_hook(
            lambda module, state, *_: state.update({"1.weight": state["1.weight"] / 2}) and None
        )
        return model

    train = partial(problems.train, update="ordered", out=tmp_path)
    first = scaled()
    first[0].kept = "trained"
    train(first)
    again = scaled()
    with pytest.warns(UserWarning, match="has ended"):
        train(again, resume=tmp_path)
    assert hogwild.digest(again) == hogwild.digest(first) and again[0].kept == "trained"


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"extra": {}}', '{"extra": 3, "forms": {}}', "[" * 100_000])
def test_a_file_whose_extra_state_is_nonsense_is_refused(text, tmp_path):
    problems.train(update="ordered", out=tmp_path)
    path = tmp_path / "model.safetensors"
    record = json.loads((tmp_path / "run.json").read_text())
    save_file(load_file(path), path, {"run": record["run"], "beside": text})
    record["sha256"][path.name] = file_digest(path)
    (tmp_path / "run.json").write_text(json.dumps(record))
    with pytest.raises(hogwild.RunDirectoryError, match="is not the record of a run"):
        hogwild.load_run(tmp_path)


def test_a_file_of_tensors_alone_is_read_as_ever(tmp_path):
    run = problems.train(update="ordered", out=tmp_path)
    path = tmp_path / "model.safetensors"
    record = json.loads((tmp_path / "run.json").read_text())
    save_file(load_file(path), path, {"run": record["run"]})
    record["sha256"][path.name] = file_digest(path)
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert hogwild.digest(hogwild.load_run(tmp_path).state) == run.digest


def renaming() -> nn.Module:
    """Whose state dict has names of its own, by which it cannot be loaded again."""
    model = problems.mlp()

    def renamed(module, state, *_):
        for name in [*state]:
            state[f"net.{name}"] = state.pop(name)

    model.register_state_dict_post_hook(renamed)
    return model


class Unloadable(nn.Sequential):
    """Whose `load_state_dict` takes nothing but a state dict."""

    def load_state_dict(self, state):
        return super().load_state_dict(state)


def unloadable() -> nn.Module:
    return Unloadable(*problems.mlp())


class Raising(Keeping):
    def set_extra_state(self, state):
        raise RuntimeError("not any more")


@pytest.mark.parametrize("make", [renaming, unloadable, lambda: nn.Sequential(Raising(3))])
def test_a_run_that_has_ended_fills_a_model_that_cannot_load_its_own_state(make, tmp_path):
    train = partial(problems.train, update="ordered", out=tmp_path)
    first, again = make(), make()
    with torch.no_grad():
        next(again.parameters()).zero_()
    train(first)
    with pytest.warns(UserWarning, match="has ended"):
        train(again, resume=tmp_path)
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), again.parameters(), strict=True))


def test_extra_state_that_no_file_could_hold_is_told_before_and_loses_no_run(tmp_path):
    with pytest.warns(UserWarning, match=r"0\._extra_state of the model will be in run\.state and in no file"):
        run = problems.train(model_keeping("word " * 300_000), update="ordered", out=tmp_path)
    assert "0._extra_state" in run.state and "0._extra_state" not in hogwild.load_run(tmp_path).state


@pytest.mark.parametrize("kept", [np.array([1.5, 2.5]), np.array(["a"]), np.float64(3), {"of": torch.ones(2)}])
def test_extra_state_that_is_no_tensor_does_not_count(kept):
    run = problems.train(model_keeping(kept), update="ordered")
    assert hogwild.digest(run.state) == run.digest
    own = {"w": torch.ones(2), "my_extra_state": {"v": torch.zeros(2)}}
    assert hogwild.digest(own) != hogwild.digest({"w": torch.ones(2)}), "what is called otherwise does"


class WithoutForms(nn.Linear):
    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        state._metadata = None
        state[3, "no name"] = "no tensor"
        return state


def test_a_state_dict_of_another_form_is_handed_out_and_saved(tmp_path):
    run = problems.train(WithoutForms(8, 3), update="ordered", out=tmp_path)
    assert hogwild.load_run(tmp_path).digest == run.digest and set(run.state) == {"weight", "bias"}
