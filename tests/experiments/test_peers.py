"""The study of peers: what it compares, where they are installed, and what it says where they are not."""

from __future__ import annotations

import sys

import pytest

pytest.importorskip("numba")
try:  # before any test, for implicit sets an environment variable where it is imported
    import gensim  # noqa: F401
    import implicit  # noqa: F401
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True

from hogwild.experiments import peers

from hogwild.cli import main
from hogwild.errors import ArgumentError
from hogwild.experiment import StudySettings


@pytest.mark.skipif(not INSTALLED, reason="gensim and implicit are not installed")
def test_each_trains_the_same_and_is_judged_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "_REPEATS", {False: 1})
    monkeypatch.setattr(peers, "_WORDS", {False: 60_000})
    monkeypatch.setattr(peers, "_KNOWN", 500)
    monkeypatch.setattr(peers, "WORKERS", (1,))
    found = peers.compare(StudySettings(out=tmp_path))
    assert [claim.text.split()[0] for claim in found.claims] == ["word2vec", "bpr"]
    for table, peer in zip(found.tables, ("gensim", "implicit"), strict=True):
        assert [row[0] for row in table.rows] == [f"{peer}, 1", "hogwild, 1", "ordered, 1"]
        aucs = [float(row[-1]) for row in table.rows]
        assert min(aucs) > max(aucs) - 0.03 and min(aucs) > 0.5
        assert table.rows[0][2] == "1.00"


def test_a_claim_is_a_ratio_of_processor_time():
    slow, fast = (peers.Turn(seconds, seconds / 2, {"auc": 0.9}) for seconds in (4.4, 1.0))
    rivalry = peers.Rivalry("word2vec", "gensim", None, None)
    assert peers._claim(rivalry, 1, {"gensim": [slow], "hogwild": [fast]}).settled
    assert not peers._claim(rivalry, 1, {"gensim": [fast], "hogwild": [fast]}).settled


def test_a_peer_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gensim", None)
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(ArgumentError, match=r"gensim.models is not installed; pip install 'hogwild\[peers\]'"):
        peers.compare(StudySettings(out=tmp_path))


def test_a_bench_has_the_peers_too(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gensim", None)
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    assert main(["bench", "--peers"]) == 2
    assert "gensim.models is not installed" in capsys.readouterr().err
    assert main(["bench", "--peers", "--profile"]) == 2
    assert "--profile, --pad-ms and --peers measure different things" in capsys.readouterr().err
