"""Files: every kind that is read, and every damaged or hostile one, refused without running its code."""

from __future__ import annotations

import collections
import json
import pathlib
import pickle
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hogwild.determinism.distance import digest, distance
from hogwild.errors import ArgumentError, RunDirectoryError


def example():
    torch.manual_seed(0)
    return {
        "w": torch.randn(30, 20),
        "half": torch.randn(7).bfloat16(),
        "mask": torch.tensor([True, False]),
        "count": torch.tensor(3),
        "empty": torch.empty(0, 2),
    }


def write(path, kind, state):
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind == "zip")
    return path


KINDS = ["safetensors", "zip", "legacy"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("as_text", [True, False])
def test_a_file_is_the_state_it_holds(tmp_path, kind, as_text):
    state = example()
    path = write(tmp_path / "state.bin", kind, state)
    given = str(path) if as_text else path
    assert digest(given) == digest(state)
    assert distance(given, state).identical
    state["w"][3, 4] += 1
    divergence = distance(given, state)
    assert (divergence.worst, divergence.differing) == ("w", 1)
    state["w"][0, 0] = 1e9
    assert digest(given) != digest(state)


def test_transposed_tensors_survive_a_file(tmp_path):
    state = {"w": torch.arange(6.0).view(2, 3).t()}
    assert distance(write(tmp_path / "a.pt", "zip", state), state).identical


def test_files_of_two_kinds_are_compared(tmp_path):
    a = write(tmp_path / "a", "safetensors", example())
    b = write(tmp_path / "b", "zip", example())
    assert distance(a, b).identical


@pytest.mark.parametrize("kind", ["zip", "legacy"])
def test_containers_are_entered_and_other_entries_named(tmp_path, kind):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    divergence = distance(write(tmp_path / "a.pt", kind, saved), saved)
    names = [tensor.name for tensor in divergence.tensors]
    assert divergence.identical
    assert "model.weight" in names
    assert "optimizer.state.0.exp_avg" in names
    assert "epoch" in divergence.unmeasured
    assert "optimizer.param_groups.0.lr" in divergence.unmeasured


def refused(path):
    with pytest.raises(RunDirectoryError) as caught:
        digest(path)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    assert str(path) in message
    with pytest.raises(RunDirectoryError):
        distance(path, path)
    return message


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path, kind, share):
    path = write(tmp_path / "state", kind, example())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    refused(path)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 100, b"{}", b"hello, this is no model at all\n" * 9, b"PK\x03\x04zip"]
)
def test_another_file_is_refused(tmp_path, content):
    (tmp_path / "state").write_bytes(content)
    assert "neither" in refused(tmp_path / "state")


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    assert "No such file" in refused(tmp_path / "nothing.pt")
    assert "directory" in refused(tmp_path)


class Dangerous:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return pathlib.Path.touch, (self.marker,)


@pytest.mark.parametrize("kind", ["zip", "legacy"])
def test_no_code_of_a_file_is_run(tmp_path, kind):
    marker = tmp_path / "code ran"
    path = write(tmp_path / "state.pt", kind, {"w": torch.ones(1), "x": Dangerous(marker)})
    refused(path)
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists(), "the file was harmless, so this test proved nothing"


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_plain_pickle_is_refused_without_running_it(tmp_path):
    marker = tmp_path / "code ran"
    (tmp_path / "state.pkl").write_bytes(pickle.dumps({"x": Dangerous(marker)}))
    refused(tmp_path / "state.pkl")
    assert not marker.exists()


def test_a_saved_module_is_refused_with_what_would_work(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "model.pt")
    message = refused(tmp_path / "model.pt")
    assert "torch.nn.modules.linear.Linear" in message
    assert "model.state_dict()" in message


@pytest.mark.parametrize("value", [torch.ones(2), 3, [], {}, {"epoch": 3}, "text"], ids=str)
def test_a_file_without_a_state_is_refused(tmp_path, value):
    torch.save(value, tmp_path / "state.pt")
    refused(tmp_path / "state.pt")


def test_an_empty_safetensors_file_is_refused(tmp_path):
    save_file({}, tmp_path / "empty.safetensors")
    assert "none of its 0 entries" in refused(tmp_path / "empty.safetensors")


def test_a_compressed_archive_is_refused(tmp_path):
    plain = write(tmp_path / "plain.pt", "zip", example())
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(tmp_path / "z.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in source.namelist():
            packed.writestr(name, source.read(name))
    assert "compressed" in refused(tmp_path / "z.pt")


def test_a_small_file_that_claims_to_be_huge_is_refused(tmp_path):
    torch.save({"w": torch.zeros(1).expand(1 << 40)}, tmp_path / "huge.pt")
    assert "claims 4,398,046,511,104 bytes" in refused(tmp_path / "huge.pt")
    torch.save({"w": torch.zeros(1).expand(1000)}, tmp_path / "fair.pt")
    assert distance(tmp_path / "fair.pt", {"w": torch.zeros(1000)}).identical


def test_a_header_that_claims_more_than_the_file_is_refused(tmp_path):
    header = json.dumps({"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    (tmp_path / "h").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 64)
    assert "safetensors" in refused(tmp_path / "h")


def test_containers_that_hold_themselves_end():
    chain = {"w": torch.ones(1)}
    chain["again"] = chain
    with pytest.raises(ArgumentError, match="deep"):
        digest(chain)
    wide = {"w": torch.ones(1)}
    for _ in range(40):
        wide = collections.OrderedDict((str(i), wide) for i in range(10))
    with pytest.raises(ArgumentError, match="1,000,000 entries"):
        digest(wide)


def test_names_in_a_file_cannot_write_to_the_terminal(tmp_path):
    state = {"a\n\x1b[31mred" + "x" * 1000: torch.ones(1)}
    path = write(tmp_path / "s.pt", "zip", state)
    shown = distance(path, {"w": torch.ones(1)}).summary()
    assert "\n" not in shown
    assert "\x1b" not in shown
    assert len(shown) < 400
