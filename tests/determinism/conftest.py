"""Interpreters of a check that start in milliseconds."""

from __future__ import annotations

import os

import pytest
from warm_pythons import warm_pythons

from hogwild.determinism import fresh


@pytest.fixture
def forked_interpreters(monkeypatch):
    """Those that make a repeat, or are a machine, are forked, where another test shows that those that are started do
    the same."""

    def in_own_groups(commands, folder, environments):
        variables = [{**os.environ, **own} for own in environments]
        done = warm_pythons([command[1:] for command in commands], [folder] * len(commands), variables)
        return [(one.returncode, one.stdout + one.stderr) for one in done]

    monkeypatch.setattr(fresh, "in_own_groups", in_own_groups)
