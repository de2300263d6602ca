"""BPR: its kernels against a slow twin, its files, its judge, and runs from the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from hogwild.experiments import _bpr_kernels as kernels
from hogwild.experiments import bpr

from hogwild.cli import main
from hogwild.errors import ArgumentError


def test_a_step_is_its_slow_twin():
    generator = np.random.default_rng(0)
    user, item = generator.random((20, 6), np.float32) - 0.5, generator.random((30, 7), np.float32) - 0.5
    users = generator.integers(20, size=60).astype(np.int32)
    liked, other = generator.integers(30, size=(2, 60)).astype(np.int32)
    other[::7] = liked[::7]  # no triple
    rate, decay = 0.1, 0.02
    wanted = user.astype(float), item.astype(float)
    for u, i, j in zip(users, liked, other, strict=True):
        if i == j:
            continue
        own, good, bad = wanted[0][u].copy(), wanted[1][i].copy(), wanted[1][j].copy()
        error = 1 / (1 + np.exp(own @ (good - bad)[:-1] + good[-1] - bad[-1]))
        wanted[0][u] += rate * (error * (good - bad)[:-1] - decay * own)
        wanted[1][i] += rate * (error * np.append(own, 1) - decay * good)
        wanted[1][j] += rate * (-error * np.append(own, 1) - decay * bad)
    kernels.descend(user, item, users, liked, other, rate, decay)
    np.testing.assert_allclose(user, wanted[0], atol=1e-5)
    np.testing.assert_allclose(item, wanted[1], atol=1e-5)


def test_vectors_that_are_no_numbers_make_a_loss_that_is_none():
    user, item = np.full((2, 4), np.nan, np.float32), np.full((3, 5), np.nan, np.float32)
    users, liked, other = np.array([[0, 1], [0, 1], [1, 2]], np.int32)
    assert not np.isfinite(kernels.descend(user, item, users, liked, other, 0.05, 0.01))


def test_no_item_stands_against_itself_and_none_that_is_liked():
    likes = bpr.made()
    known = set(zip(likes.users.tolist(), likes.items.tolist(), strict=True))
    drawn = bpr.Draws(likes.users, likes.items, likes.starts)(3, 12345)
    triples = list(zip(*(drawn[name].tolist() for name in ("users", "liked", "other")), strict=True))
    assert all((user, liked) in known for user, liked, _ in triples)
    assert not any((user, other) in known for user, liked, other in triples if other != liked)
    assert sum(other != liked for _, liked, other in triples) > bpr.TICKET / 2


def test_the_judge_counts_what_can_be_counted_by_hand():
    likes = bpr.Likes.of(np.array([0, 0, 0]), np.array([0, 1, 2]), 1, 5)
    train, held = likes.part(likes.items == 0), likes.part(likes.items != 0)
    tastes = bpr.Tastes(1, 5, 2)
    with torch.no_grad():
        tastes.user.zero_()
        tastes.item[:, -1] = torch.tensor([9.0, 5.0, 1.0, 3.0, 2.0])  # held 1 before both others, held 2 before none
        found = bpr.Judge(train, held)(tastes)
    assert found == {"auc": 0.5, "precision": 1.0}


def test_a_user_who_knows_every_other_item_has_no_auc_and_those_of_the_end_are_judged():
    pairs = np.array([(user, item) for user in range(1200) for item in range(3)] + [(1200, 0)])
    likes = bpr.Likes.of(*pairs.T, 1201, 3)
    held = likes.items == 0
    judge = bpr.Judge(likes.part(~held), likes.part(held))
    assert len(judge.users) == 1000 and judge.users[-1] > 1190
    one = bpr.Judge(likes.part(~held & (likes.users < 1200)), likes.part(held & (likes.users >= 1199)))
    tastes = bpr.Tastes(1201, 3, 2)
    with torch.no_grad():
        tastes.user.zero_()
        tastes.item[:, -1] = torch.tensor([3.0, 2.0, 1.0])
        assert one(tastes) == {"auc": 1.0, "precision": 1.0}  # of user 1199 no item is left to be put behind
        all_known = bpr.Judge(likes.part(~held), likes.part(held & (likes.users < 1200)))
        assert all_known(tastes) == {"precision": 1.0}


def test_users_are_judged_a_few_at_a_time(monkeypatch):
    """All at once took 3.4 GB for 100,000 items."""
    rows = []
    real = bpr.Tastes.scores
    monkeypatch.setattr(bpr.Tastes, "scores", lambda *given: rows.append(len(found := real(*given))) or found)
    likes = bpr.made()
    held = (np.arange(len(likes.users)) % 10 == 0) & (likes.users < 130)
    judge, tastes = bpr.Judge(likes.part(~held), likes.part(held)), bpr.Tastes(likes.user_count, likes.item_count, 4)
    with torch.no_grad():
        found = judge(tastes)
        assert rows == [50, 50, 30]
        each = (likes.part(held & (likes.users == user)) for user in range(130))
        alone = [bpr.Judge(likes.part(~held), own)(tastes) for own in each]
    assert found == pytest.approx({name: np.mean([one[name] for one in alone]) for name in found}, rel=1e-4)


def test_likes_are_read_from_csv_and_npz(tmp_path):
    (tmp_path / "likes.csv").write_text("ann, tea\nbob, milk\nann, milk\nann, tea\n")
    found = bpr.read(tmp_path / "likes.csv")
    assert (found.user_count, found.item_count) == (2, 2)
    assert found.users.tolist() == [0, 0, 1] and found.items.tolist() == [0, 1, 1]
    sparse = pytest.importorskip("scipy.sparse")
    sparse.save_npz(tmp_path / "likes.npz", sparse.csr_matrix(([1.0, 1, 1], (found.users, found.items)), (2, 2)))
    again = bpr.read(tmp_path / "likes.npz")
    assert again.users.tolist() == found.users.tolist() and again.items.tolist() == found.items.tolist()
    (tmp_path / "wrong.csv").write_text("ann, tea\nbob\n")
    with pytest.raises(ArgumentError, match="wrong.csv:2: 'bob' is no pair"):
        bpr.read(tmp_path / "wrong.csv")
    (tmp_path / "quoted.csv").write_text('"ann, b.", tea\n"bob",milk\n')
    assert bpr.read(tmp_path / "quoted.csv").user_count == 2
    (tmp_path / "rated.csv").write_text("ann,tea,5\n")
    with pytest.raises(ArgumentError, match="rated.csv:1: 'ann,tea,5' is no pair"):
        bpr.read(tmp_path / "rated.csv")
    with pytest.raises(ArgumentError, match="--data names a .csv"):
        bpr.read(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    ("text", "users"),
    [
        ("user,item\n7,3\n8,3\n", 2),
        ("user,item\nann,tea\n", 2),
        ("7,3\n8,3\n", 2),
        ("user,item\n", 1),
        ("u,1\n7,3\n", 2),
    ],
)
def test_words_above_numbers_are_a_header(text, users, tmp_path):
    (tmp_path / "likes.csv").write_text(text)
    assert bpr.read(tmp_path / "likes.csv").user_count == users


def test_it_finds_the_groups(tmp_path, capsys, fonts):
    assert main(["run", "bpr", "--quiet", "--json", "--width", "16", "--out", str(tmp_path / "run")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["metrics"]["auc"] > 0.85
    assert found["metrics"]["precision"] > 0.12


def test_the_same_bits(tmp_path, capsys, undrawn):
    digests = set()
    for more in (["--workers", "1"], ["--workers", "2"], ["--kind", "processes"]):
        flags = ["--update", "ordered", "--epochs", "2", "--width", "8", "--quiet", "--json"]
        assert main(["run", "bpr", *flags, "--out", str(tmp_path / more[1]), *more]) == 0
        digests.add(json.loads(capsys.readouterr().out)["digest"])
    assert len(digests) == 1


def test_few_likes_train_at_the_rate_of_the_run(tmp_path, capsys, undrawn):
    """The kernel's own, 1, is too high for them: its loss is infinite at once."""
    random = np.random.default_rng(0)
    lines = [f"u{user},i{item}" for user, item in random.integers((30, 20), size=(400, 2))]
    (tmp_path / "likes.csv").write_text("\n".join(lines))
    flags = ["--data", str(tmp_path / "likes.csv"), "--epochs", "1", "--quiet", "--out", str(tmp_path / "run")]
    assert main(["run", "bpr", *flags]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--held-out", "1"], "held_out 1 leaves none of 3 pairs to train on; 0 trains on all"),
        (["--held-out", "-5"], "held_out -5 is below 0"),
        (["--width", "0"], "width 0 is below 1"),
        (["--decay", "-1"], "decay -1.0 is below 0"),
        (["--data", "likes.npz"], "likes.npz cannot be read (BadZipFile); --data names a matrix as scipy.sparse"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_it_cannot_train_on_is_refused_without_a_place_in_its_file(flags, told, tmp_path, monkeypatch, capsys):
    pytest.importorskip("scipy.sparse")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "likes.csv").write_text("ann,tea\nbob,milk\nann,milk\n")
    (tmp_path / "likes.npz").write_bytes(b"PK\x03\x04 no zip")
    assert main(["run", "bpr", "--data", "likes.csv", *flags]) == 2
    assert capsys.readouterr().err.startswith(
        f"hogwild: {tmp_path}/{told}" if told.startswith("likes") else f"hogwild: {told}"
    )
