"""RunConfig: to TOML and back, and every wrong value in a message of one line that names it."""

from __future__ import annotations

import tomllib
from dataclasses import FrozenInstanceError, asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hogwild import ArgumentError
from hogwild import config as module
from hogwild.config import KINDS, MAX_CONFIG_BYTES, ON_NONFINITE, ON_WORKER_FAILURE, RunConfig
from hogwild.groups import Group
from hogwild.own_code import OwnCode

positive = st.integers(1, 2**31)
optional = st.none() | positive
above_zero = st.none() | st.floats(min_value=0, exclude_min=True, allow_nan=False)
text = st.text(st.characters(exclude_categories=["Cs"]))
option = text.filter(lambda name: name not in ("match", "params"))
value = st.booleans() | positive | text
path = text.map(lambda name: f"/{name}.py")
configs = st.builds(
    RunConfig,
    name=text,
    workers=st.integers(1, 4096),
    kind=st.sampled_from(KINDS),
    staleness=st.integers(0, 99),
    micro_batches=st.integers(1, 65_000),
    accumulate=st.integers(1, 65_000),
    gradient=st.sampled_from([None, "backward", "grad"]),
    updates=positive,
    limit_updates=optional,
    batch_size=positive,
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
    optimizer=text,
    lr=st.none() | st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False),
    data=st.none() | text,
    clip_grad_norm=above_zero,
    ema=st.none() | st.floats(0, 1, exclude_min=True, exclude_max=True),
    evaluate_every=optional,
    checkpoint_every=optional,
    digest_every=optional,
    audit=st.booleans(),
    on_nonfinite=st.sampled_from(ON_NONFINITE),
    on_worker_failure=st.sampled_from(ON_WORKER_FAILURE),
    max_restarts=st.integers(0, 99),
    worker_timeout=above_zero,
    groups=st.lists(st.builds(Group, text, st.dictionaries(option, value, min_size=1))).map(tuple),
    own=st.none() | st.builds(OwnCode, path, path, text, text, st.dictionaries(text, text | st.booleans() | positive)),
)


def refused(message: str, **values: Any) -> None:
    with pytest.raises(ArgumentError, match=message) as caught:
        RunConfig(**{"updates": 1, **values})
    assert "\n" not in str(caught.value)


@given(configs)
def test_toml_and_back(config):
    assert RunConfig.from_mapping(tomllib.loads(config.to_toml())) == config


def test_a_file_and_back(tmp_path):
    config = RunConfig(name='Δ "quoted"\n', epochs=3, lr=0.1, seed=2**62)
    path = tmp_path / "config.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert RunConfig.load(path) == config


def test_what_is_none_is_left_out():
    assert None not in tomllib.loads(RunConfig(updates=1).to_toml()).values()
    assert "epochs" not in RunConfig(updates=1).to_toml()


def test_a_configuration_does_not_change():
    with pytest.raises(FrozenInstanceError):
        RunConfig(updates=1).workers = 3


def test_an_integer_is_a_fine_float():
    assert RunConfig.from_mapping({"updates": 1, "lr": 1, "clip_grad_norm": 5}).lr == 1


@pytest.mark.parametrize("key", ["wrokers", "Workers", "", "loss", "workers "])
def test_a_wrong_key_is_named_beside_the_right_ones(key):
    with pytest.raises(ArgumentError, match=r"is not a setting; the settings are name, update, workers, ") as caught:
        RunConfig.from_mapping({"updates": 1, key: 2})
    assert str(caught.value).startswith(repr(key))
    assert all(field.name in str(caught.value) for field in fields(RunConfig))


WRONG_TYPES: list[tuple[str, Any, str]] = [
    ("workers", "2", "a str"),
    ("workers", 2.0, "a float"),
    ("workers", True, "a bool"),
    ("workers", [2], "a list"),
    ("kind", 3, "an int"),
    ("shuffle", 1, "an int"),
    ("shuffle", "no", "a str"),
    ("audit", 0, "an int"),
    ("lr", "fast", "a str"),
    ("lr", True, "a bool"),
    ("name", 5, "an int"),
    ("updates", {"a": 1}, "a dict"),
    ("clip_grad_norm", "1", "a str"),
    ("worker_timeout", "5 s", "a str"),
]


@pytest.mark.parametrize(("key", "value", "kind"), WRONG_TYPES)
def test_a_value_of_another_type_is_named_with_its_type(key, value, kind):
    with pytest.raises(ArgumentError) as caught:
        RunConfig.from_mapping({"updates": 1, key: value})
    assert str(caught.value).startswith(f"{key} {value!r} is {kind}; it must be ")


@pytest.mark.parametrize(("key", "value", "kind"), WRONG_TYPES)
def test_the_same_from_python(key, value, kind):
    refused(rf"^{key} ", **{key: value})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("workers", 0, "workers 0 is below 1; 1 or more works"),
        ("workers", -1, "workers -1 is below 1; 1 or more works"),
        ("batch_size", 0, "batch_size 0 is below 1; 1 or more works"),
        ("staleness", -1, "staleness -1 is below 0; 0 or more works"),
        ("micro_batches", 0, "micro_batches 0 is below 1; 1 or more works"),
        ("max_restarts", -2, "max_restarts -2 is below 0; 0 or more works"),
        ("updates", 0, "updates 0 is below 1; 1 or more works"),
        ("evaluate_every", 0, "evaluate_every 0 is below 1; 1 or more works"),
        ("checkpoint_every", -5, "checkpoint_every -5 is below 1; 1 or more works"),
        ("digest_every", 0, "digest_every 0 is below 1; 1 or more works"),
        ("seed", -3, "seed -3 is below 0; 0 or more works"),
        ("clip_grad_norm", 0.0, "clip_grad_norm 0.0 is not above 0; a positive number works"),
        ("clip_grad_norm", float("nan"), "clip_grad_norm nan is not above 0; a positive number works"),
        ("worker_timeout", -1, "worker_timeout -1 is not above 0; a positive number works"),
        ("lr", -0.1, "lr -0.1 is not above 0; a positive number works"),
        ("kind", "fork", "kind 'fork' is not known; 'auto', 'threads', 'processes' are"),
        ("kind", "process", r"kind 'process' is not known; did you mean 'processes'\? 'auto', 'threads', .* are"),
        ("gradient", "autograd", r"gradient 'autograd' is not known; did you mean 'grad'\? 'backward', 'grad' are"),
        ("on_nonfinite", "warn", "on_nonfinite 'warn' is not known; 'raise', 'skip', 'ignore' are"),
        ("on_worker_failure", "", "on_worker_failure '' is not known; 'replace', 'continue', 'raise' are"),
    ],
)
def test_a_value_that_cannot_work_is_named_with_what_would(key, value, message):
    refused(f"^{message}$", **{key: value})


def test_exactly_one_of_epochs_and_updates():
    refused("^both of epochs and updates given; exactly one says how long to train$", epochs=1)
    refused("^neither of epochs and updates given; exactly one says how long to train$", updates=None)
    assert RunConfig(epochs=2).updates is None


def test_every_field_tells_what_it_is_for():
    """The docstrings are the help texts of the flags."""
    source = Path(module.__file__).read_text(encoding="utf-8")
    for field in fields(RunConfig):
        declared = source[source.index(f"\n    {field.name}: ") + 1 :].splitlines()
        assert declared[1].strip().startswith('"""'), field.name


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"workers = ", "is not a configuration that can be read"),
        (b"\xff\xfe", "is not a configuration that can be read"),
        (b"workers = 2\nworkers = 3", "is not a configuration that can be read"),
        (b"updates = 1\nwrokers = 2", r"'wrokers' is not a setting"),
        (b"updates = 1\nworkers = 0", "workers 0 is below 1"),
        (b"updates = 1\n[workers]\na = 1", r"workers {'a': 1} is a dict"),
        (b"", "neither of epochs and updates given"),
        (b"# " + b"x" * MAX_CONFIG_BYTES, f"is over {MAX_CONFIG_BYTES} bytes"),
    ],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path, content, message):
    path = tmp_path / "config.toml"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match=message) as caught:
        RunConfig.load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(ArgumentError, match="is not a configuration that can be read"):
            RunConfig.load(path)


def test_nothing_of_a_configuration_is_lost_in_a_dictionary():
    config = RunConfig(epochs=1)
    assert RunConfig(**asdict(config)) == config


@pytest.mark.parametrize(
    "own", [3, {}, {"file": "/a.py"}, {"file": "a.py", "sha256": ""}, {"file": "/a.py", "sha256": "", "parameters": 3}]
)
def test_a_file_of_ones_own_that_is_none_is_refused(own):
    with pytest.raises(ArgumentError, match="is not a file of one's own; it has the absolute path of a file") as caught:
        RunConfig.from_mapping({"updates": 1, "own": own})
    assert "\n" not in str(caught.value)


def test_a_file_without_the_key_is_of_exact_delayed_sgd(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("".join(line for line in RunConfig(updates=1).to_toml().splitlines(True) if "compens" not in line))
    assert RunConfig.load(path).compensation == "none"
    assert RunConfig(updates=1).compensation == "auto"


def test_a_scalar_of_numpy_is_the_number_that_it_is():
    config = RunConfig(epochs=np.int64(2), clip_grad_norm=np.float32(0.5), seed=np.uint8(3))
    assert [type(v) for v in (config.epochs, config.clip_grad_norm, config.seed)] == [int, float, int]
    assert RunConfig.from_mapping(tomllib.loads(config.to_toml())) == config


@pytest.mark.parametrize("name", ["recheck", "clip_grad_norm", "worker_timeout", "ema"])
def test_nan_is_no_setting(name):
    with pytest.raises(ArgumentError, match=f"{name} nan is n"):
        RunConfig(epochs=1, **{name: float("nan")})
