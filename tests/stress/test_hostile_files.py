"""Files from elsewhere: damaged, hostile or random, each is read or refused in one line, soon and with little memory.

pytest tests/stress/test_hostile_files.py                          some hundred files a reader
HOGWILD_FUZZ=20000 pytest tests/stress/test_hostile_files.py       as many as you like, on new random seeds
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import problems
import pytest
import tomli_w
import torch
from hostile import FUZZ, HOSTILE_NUMBERS, LONG, damaged, fuzz, hostile, read_or_refused
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from hogwild.config import RunConfig
from hogwild.determinism.replay import _rule_of, read_record
from hogwild.determinism.states import digest
from hogwild.rules import Snapshot
from hogwild.run.saved.checkpoint import ResumePoint
from hogwild.run.saved.directory import file_digest
from hogwild.shared.journal import ROW


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory of a whole run, with a checkpoint."""
    folder = tmp_path_factory.mktemp("whole")
    problems.train(update="snapshot", workers=2, updates=12, checkpoint_every=6, out=folder, optimizer=problems.ADAM)
    return folder


@pytest.fixture(scope="module")
def copy(whole, tmp_path_factory):
    """A copy of it, to be spoilt again and again."""
    folder = tmp_path_factory.mktemp("copy") / "run"
    shutil.copytree(whole, folder)
    return folder


@contextmanager
def spoilt(folder, whole, name, content):
    """The folder with one file replaced, and run.json mended to agree with it."""
    (folder / name).write_bytes(content)
    if name in ("journal.npy", "model.safetensors"):
        record = json.loads((whole / "run.json").read_text())
        record["sha256"][name] = file_digest(folder / name)
        (folder / "run.json").write_text(json.dumps(record))
    try:
        yield
    finally:
        for mended in {name, "run.json"}:
            shutil.copy(whole / mended, folder / mended)


# --- config.toml


def load_config(folder, content):
    path = folder / "hostile.toml"
    path.write_bytes(content)
    config = read_or_refused(lambda: RunConfig.load(path))
    if config is not None:
        assert config.workers < 1 << 16 and config.staleness < 1 << 16 and config.micro_batches < 1 << 16
        path.write_text(config.to_toml(), encoding="utf-8")
        assert RunConfig.load(path) == config
    return config


@fuzz
@given(data=st.data())
def test_a_damaged_configuration(whole, copy, data):
    load_config(copy, data.draw(damaged((whole / "config.toml").read_bytes())))


@fuzz
@given(values=st.dictionaries(st.sampled_from(list(RunConfig.__dataclass_fields__)), hostile, max_size=3))
@example({"workers": 1 << 40})
@example({"staleness": 1 << 40})
@example({"micro_batches": 1 << 40})
@example({"name": "x" * 100_000})
def test_hostile_settings(copy, values):
    values = {"updates": 1, **{key: value for key, value in values.items() if value is not None}}
    try:
        content = tomli_w.dumps(values).encode()
    except (ValueError, TypeError):
        reject()
    load_config(copy, content)


@pytest.mark.parametrize(
    "content",
    [b"", b"a" * 2_000_000, b"a = " + b"[" * 50_000, b"seed = " + LONG.encode(), b"\xff\xfe", b"x" * 50_000 + b" = 1"],
    ids=["empty", "long", "deep", "a number of 5000 digits", "no text", "a long key"],
)
def test_what_is_no_configuration(copy, content):
    assert load_config(copy, content) is None


# --- run.json and the journal


def load_record(folder):
    def read():
        record = read_record(folder)
        _rule_of(record)  # where a replay looks at the rows
        return record

    record = read_or_refused(read)
    if record is not None:
        assert len(record.journal) == record.updates
        assert all(0 < version <= record.updates for version in record.seals)
    return record


def test_the_whole_record_is_read(copy):
    record = load_record(copy)
    assert record is not None and record.updates == 12 and len(record.seals) == 12


@fuzz
@given(data=st.data())
def test_a_damaged_record(whole, copy, data):
    with spoilt(copy, whole, "run.json", data.draw(damaged((whole / "run.json").read_bytes()))):
        load_record(copy)


def replaced(content, path, value):
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


PATHS = [
    *((key,) for key in ("format", "updates", "digest", "stopped", "seals", "sha256", "failures")),
    ("seals", "4"),
    ("seals", "-1"),
    ("seals", LONG),
    ("seals", "x"),
    ("sha256", "journal.npy"),
    ("sha256", "../../etc/passwd"),
]


@fuzz
@given(path=st.sampled_from(PATHS), value=hostile)
@example(("updates",), 10**12)
@example(("updates",), -5)
@example(("seals", "4"), [1])
@example(("seals", "4"), [1, 2, 3])
@example(("seals", "4"), {"a": 1, "b": 2})
@example(("seals", "4"), "ab")
@example(("seals", "x"), ["ab", "cd"])
@example(("seals", "-1"), ["ab", "cd"])
@example(("seals", LONG), ["ab", "cd"])
def test_hostile_values_in_a_record(whole, copy, path, value):
    content = json.loads((whole / "run.json").read_text())
    replaced(content, path, value)
    with spoilt(copy, whole, "run.json", json.dumps(content).encode()):
        load_record(copy)


@fuzz
@given(data=st.data())
def test_a_damaged_journal(whole, copy, data):
    with spoilt(copy, whole, "journal.npy", data.draw(damaged((whole / "journal.npy").read_bytes()))):
        load_record(copy)


def npy(header, body=b"", version=(1, 0)):
    """A .npy file with that header."""
    text = header.encode("latin1") + b"\n"
    size = len(text).to_bytes(2 if version == (1, 0) else 4, "little", signed=False)
    return b"\x93NUMPY" + bytes(version) + size + text + body


ROWS = str(ROW.descr)
HEADERS = [
    f"{{'descr': {ROWS}, 'fortran_order': False, 'shape': (1000000000000,), }}",
    f"{{'descr': {ROWS}, 'fortran_order': False, 'shape': (-1,), }}",
    f"{{'descr': {ROWS}, 'fortran_order': False, 'shape': (-9223372036854775808,), }}",
    f"{{'descr': {ROWS}, 'fortran_order': False, 'shape': ({LONG},), }}",
    f"{{'descr': {ROWS}, 'fortran_order': False, 'shape': (0, 99999999), }}",
    f"{{'descr': {ROWS}, 'fortran_order': False, 'shape': 12, }}",
    f"{{'descr': {ROWS}, 'fortran_order': 3, 'shape': (12,), }}",
    f"{{'descr': {ROWS[:-1]}, ('other', 'O')], 'fortran_order': False, 'shape': (12,), }}",
    "{'descr': '|O', 'fortran_order': False, 'shape': (12,), }",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (60,), }",
    "{'descr': [('a', '<f8', (1000000, 1000000))], 'fortran_order': False, 'shape': (1,), }",
    "__import__('os').system('touch /tmp/never')",
    "(" * 9000,
    "[" * 3000 + "]" * 3000,
    "{'descr': '" + "x" * 9000 + "'}",
    "-" * 9000 + "1",
    "",
]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0), (9, 9)])
@pytest.mark.parametrize("header", HEADERS, ids=[header[-70:] for header in HEADERS])
def test_a_hostile_journal_header(whole, copy, header, version):
    with spoilt(copy, whole, "journal.npy", npy(header, b"\0" * 480, version)):
        assert load_record(copy) is None


class Dangerous:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


@pytest.mark.parametrize("name", ["journal.npy", "run.json", "config.toml", "model.safetensors"])
def test_no_code_in_a_run_directory_is_run(whole, copy, name, tmp_path):
    marker = tmp_path / "code ran"
    file = io.BytesIO()
    np.save(file, np.array([Dangerous(marker)] * 12, dtype=object), allow_pickle=True)
    for content in (file.getvalue(), pickle.dumps(Dangerous(marker))):
        with spoilt(copy, whole, name, content):
            read_or_refused(lambda: read_record(copy))
            read_or_refused(lambda: digest(copy / name))
    assert not marker.exists()
    pickle.loads(pickle.dumps(Dangerous(marker)))
    assert marker.exists(), "it was harmless, so this test proved nothing"


@pytest.mark.parametrize("field", ["update", "version_read", "version"])
@pytest.mark.parametrize("value", [-1, 5, 1 << 62, -(1 << 62)])
def test_rows_that_no_run_writes(whole, copy, field, value):
    journal = np.load(whole / "journal.npy")
    journal[field][3] = value
    file = io.BytesIO()
    np.save(file, journal)
    with spoilt(copy, whole, "journal.npy", file.getvalue()):
        record = load_record(copy)
    possible = np.array_equal(journal, np.load(whole / "journal.npy")) or (field, value) == ("update", 1 << 62)
    assert possible == (record is not None)


@pytest.mark.parametrize("name", ["config.toml", "run.json", "journal.npy", "model.safetensors"])
@pytest.mark.parametrize("what", ["pipe", "endless", "folder", "nothing"])
def test_what_is_no_plain_file(whole, tmp_path, name, what):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / name).unlink()
    if what == "pipe":
        os.mkfifo(folder / name)
    elif what == "endless":
        (folder / name).symlink_to("/dev/zero")
    elif what == "folder":
        (folder / name).mkdir()
    assert read_or_refused(lambda: read_record(folder)) is None


# --- a checkpoint


def resume(folder):
    problems.train(update="snapshot", workers=2, updates=12, resume=folder, optimizer=problems.ADAM)
    return True


def test_the_whole_checkpoint_is_read(copy):
    assert read_or_refused(lambda: resume(copy))


@settings(fuzz, max_examples=(FUZZ or 100) // 4)
@given(data=st.data())
def test_a_damaged_checkpoint(whole, copy, data):
    name = "checkpoint.safetensors"
    with spoilt(copy, whole, name, data.draw(damaged((whole / name).read_bytes()))):
        read_or_refused(lambda: resume(copy))


def rewritten(path, metadata=None, **changes):
    """The checkpoint with other metadata or tensors."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()} | changes  # noqa: SIM118
        save_file(tensors, path, {**file.metadata(), **(metadata or {})})


@pytest.mark.parametrize("version", ["-1", "-6", "13", "99999999999999999999", LONG, "6.0", "", "0x6", "NaN", "6\n"])
def test_a_checkpoint_of_an_impossible_version(whole, tmp_path, version):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    rewritten(folder / "checkpoint.safetensors", {"version": version})
    assert version == "6\n" or read_or_refused(lambda: resume(folder)) is None


POSSIBLE_TICKETS = {"next": 12, "again": [], "total": 12}
IMPOSSIBLE_TICKETS = [
    *(POSSIBLE_TICKETS | {"next": value} for value in (7, -1, 12.0, True, "12", 10**30)),
    *(POSSIBLE_TICKETS | {"again": value} for value in ([2], list(range(12)), None, {"0": 1})),
    *(POSSIBLE_TICKETS | {"total": value} for value in (0, -1, 13, 12.0, True, None, "12", 10**30)),
    {"next": 12, "again": []},
    [],
    6,
    None,
]


@pytest.mark.parametrize(
    "tickets", [*map(json.dumps, IMPOSSIBLE_TICKETS), "", "{", "[" * 100_000], ids=lambda text: text[:30]
)
def test_a_checkpoint_of_impossible_tickets(whole, tmp_path, tickets):
    """The run's is of version 12, the last."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    rewritten(folder / "checkpoint.safetensors", {"tickets": json.dumps(POSSIBLE_TICKETS)})
    assert read_or_refused(lambda: resume(folder)) is not None
    rewritten(folder / "checkpoint.safetensors", {"tickets": tickets})
    assert read_or_refused(lambda: resume(folder)) is None


@pytest.mark.parametrize(
    ("following", "again"),
    [(9, [3, 3, 5]), (9, [3, 5, 4]), (8, [4, 8]), (8, [-1, 4]), (8, [True, 4]), (9, [3, 4]), (11, [1, 2, 3, 4, 5])],
)
def test_a_snapshot_of_impossible_tickets(following, again):
    """A rule whose tickets are done in any order has more to say, and so more to lie about."""
    plan = SimpleNamespace(rows=20, spares=4)
    ResumePoint(6, 9, (3, 4, 5), 20).check(plan, Snapshot())
    with pytest.raises(ValueError, match="tickets"):
        ResumePoint(6, following, tuple(again), 20).check(plan, Snapshot())


# --- the state of a model


def states():
    torch.manual_seed(0)
    return {"w": torch.randn(6, 4), "half": torch.randn(3).bfloat16(), "n": torch.tensor(3), "e": torch.empty(0, 2)}


@cache  # the bytes of the legacy format differ from call to call
def written(kind):
    file = io.BytesIO()
    if kind == "safetensors":
        from safetensors.torch import save

        return save(states())
    torch.save(states(), file, _use_new_zipfile_serialization=kind == "zip")
    return file.getvalue()


@pytest.mark.parametrize("kind", ["safetensors", "zip", "legacy"])
@fuzz
@given(data=st.data())
def test_a_damaged_state(copy, kind, data):
    (copy / "state").write_bytes(data.draw(damaged(written(kind))))
    read_or_refused(lambda: digest(copy / "state"))


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@fuzz
@given(
    key=st.sampled_from(["dtype", "shape", "data_offsets", "other"]),
    value=hostile | st.lists(HOSTILE_NUMBERS, max_size=70),
    dtype=st.sampled_from(["F32", "F64", "I64", "BOOL", "F8_E4M3", "F8_E8M0", "F4", "C64", "U16"]),
)
@example("shape", [1 << 62, 4], "F32")
@example("shape", [2, 0, 1 << 63], "F32")
@example("shape", [1] * 60 + [2], "F32")
def test_a_hostile_safetensors_header(copy, key, value, dtype):
    header = json.dumps({"w": {**ENTRY, "dtype": dtype, key: value}}).encode()
    (copy / "state").write_bytes(len(header).to_bytes(8, "little") + header + b"\1" * 8)
    read_or_refused(lambda: digest(copy / "state"))
