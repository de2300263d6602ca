"""Where machines meet: who is no store, who is nobody, and who was told of another number of machines."""

from __future__ import annotations

import socket

import pytest
from clocks import Clock
from torch.distributed import HashStore

from hogwild import ArgumentError
from hogwild.nodes import meeting
from hogwild.nodes.invitation import Invitation
from hogwild.nodes.loopback import LOOPBACK


def test_whoever_was_told_of_another_number_is_refused():
    store = HashStore()
    meeting._refuse_another_number(store, Invitation(2, "host", 29500))
    meeting._refuse_another_number(store, Invitation(2, "host", 29500))
    with pytest.raises(ArgumentError, match="this machine is one of 3, and those that meet at host:29500 are 2"):
        meeting._refuse_another_number(store, Invitation(3, "host", 29500))
    meeting._refuse_another_number(store, Invitation(3, "host", 29500, attempt=1))  # torchrun started anew


@pytest.mark.parametrize("node", [None, 1])
def test_a_host_that_is_not_known_yet_is_waited_for(node, monkeypatch, caplog):
    def unknown(*arguments, **named):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(meeting, "time", Clock())
    with pytest.raises(ArgumentError, match="nobody listens at nowhere:29500 within 300 s: Name or service not known"):
        meeting.open_store(Invitation(2, "nowhere", 29500, node))
    assert "waiting for machine 0 at nowhere:29500, 300 s at most (Name or service not known)" in caplog.text


def test_nobody_is_waited_for_no_longer_than_machines_have_to_come(monkeypatch, caplog):
    clock = Clock()
    monkeypatch.setattr(meeting, "time", clock)
    began = clock.now
    with socket.socket() as deaf:  # which keeps its port from everybody else
        deaf.bind((LOOPBACK, 0))
        port = deaf.getsockname()[1]
        with pytest.raises(ArgumentError, match=f"nobody listens at {LOOPBACK}:{port} within 300 s"):
            meeting.open_store(Invitation(2, LOOPBACK, port, node=1))
    assert 300 <= clock.now - began < 301
    assert caplog.text.count(f"waiting for machine 0 at {LOOPBACK}:{port}, 300 s at most") == 1


def test_somebody_else_who_listens_there_is_told(monkeypatch):
    monkeypatch.setattr(meeting, "_ANSWERING", 1.0)
    with socket.create_server((LOOPBACK, 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ArgumentError, match=f"what listens at {LOOPBACK}:{port} (is no store|does not answer)"):
            meeting.open_store(Invitation(2, LOOPBACK, port, node=1))
