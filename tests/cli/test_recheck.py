"""`--recheck`: gradients that are computed twice, on the command line."""

from __future__ import annotations

import json
import re

import pytest
import sklearn.datasets  # noqa: F401 - it sets environment variables when it is first imported

from hogwild.cli import main


def refused(capsys, *arguments):
    assert main(["run", "digits", *arguments]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(("share", "wrong"), [("-0.1", "is below 0"), ("1.5", "is over 1"), ("often", "often")])
def test_a_share_that_is_none_is_refused(share, wrong, capsys):
    assert wrong in refused(capsys, "--update", "ordered", f"--recheck={share}")


def test_the_command_says_how_many_were_computed_twice(capsys, tmp_path):
    arguments = ["run", "digits", "--update", "ordered", "--updates", "400", "--kind", "threads", "--quiet"]
    assert main([*arguments, "--json", "--out", str(tmp_path / "a")]) == 0
    assert json.loads(capsys.readouterr().out)["rechecked"] == 2
    assert main([*arguments, "--out", str(tmp_path / "b")]) == 0
    assert re.search(r"computed twice +2 of 400 updates, all equal", capsys.readouterr().out)


def test_a_rule_that_promises_no_bits_has_no_recheck(capsys):
    wrong = refused(capsys, "--update", "hogwild", "--recheck", "0.1")
    assert "recheck 0.1 given, and update is 'hogwild'" in wrong and "'ordered' and 'sync'" in wrong
