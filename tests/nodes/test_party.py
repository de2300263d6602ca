"""How machines are invited: what the environment and the flags may say, and what is compared."""

from __future__ import annotations

import math

import problems
import pytest
from clocks import Clock
from side_by_side import within
from torch.distributed import HashStore

import hogwild
import hogwild.nodes.party as module
from hogwild import ArgumentError, NodeError
from hogwild.cli.running import Meeting
from hogwild.nodes.invitation import Invitation, invitation_from_environment, invitation_to
from hogwild.nodes.party import Party
from hogwild.run.agreement import differences
from hogwild.shared.dealing import Dealing, turns_of


def test_the_environment_of_torchrun_is_an_invitation(monkeypatch):
    assert invitation_from_environment(None, 5.0) is None
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ArgumentError, match="WORLD_SIZE is '3', and 'MASTER_ADDR' is not as torchrun sets it"):
        invitation_from_environment(None, 5.0)
    for name, value in (("RANK", "2"), ("MASTER_ADDR", "host"), ("MASTER_PORT", "29500"), ("HOGWILD_TOKEN", "secret")):
        monkeypatch.setenv(name, value)
    found = invitation_from_environment(None, 5.0)
    assert (found.nodes, found.node, found.host, found.port, found.token) == (3, 2, "host", 29500, "secret")
    assert invitation_from_environment("another", 5.0).token == "another"
    with pytest.raises(ArgumentError, match="node_timeout 0 is not above 0"):
        invitation_from_environment(None, 0)


@pytest.mark.parametrize(("nodes", "rank"), [("0", "0"), ("-3", "0"), ("2", "5"), ("2", "-1")])
def test_a_machine_that_is_none_of_them_is_one_line(nodes, rank, monkeypatch):
    for name, value in (("WORLD_SIZE", nodes), ("RANK", rank), ("MASTER_ADDR", "host"), ("MASTER_PORT", "29500")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=f"WORLD_SIZE is '{nodes}', and RANK {rank} is not as torchrun sets it"):
        invitation_from_environment(None, 5.0)


@pytest.mark.parametrize("port", ["0", "99999", "-1"])
def test_a_port_that_there_is_not_is_one_line(port, monkeypatch):
    """Machine 0 could not listen there, and the others would wait for it."""
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_ADDR", "host"), ("MASTER_PORT", port)):
        monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=f"WORLD_SIZE is '2', and MASTER_PORT {port} is not as torchrun sets it"):
        invitation_from_environment(None, 5.0)


WRONG = [
    (None, math.nan, "node_timeout nan is not above 0; 5 seconds"),
    (None, -1, "node_timeout -1 is not above 0; 5 seconds"),
    (None, math.inf, "node_timeout inf is not finite; 5 seconds"),
    (None, "5", "node_timeout '5' is a str; it must be a number of seconds"),
    (None, None, "node_timeout None is a NoneType; it must be a number of seconds"),
    ("", 5.0, "token '' is empty, and would keep nobody out; give a secret, or leave it out"),
    (b"secret", 5.0, "token is a bytes; it must be text"),
]


@pytest.mark.parametrize("nodes", ["1", "2"])
@pytest.mark.parametrize(("token", "timeout", "message"), WRONG, ids=str)
def test_what_is_no_time_and_no_secret_is_told_of_itself(nodes, token, timeout, message, monkeypatch):
    """And not as if the variables of torchrun were wrong; on one machine too, where nobody is waited for."""
    for name, value in (("WORLD_SIZE", nodes), ("RANK", "0"), ("MASTER_ADDR", "host"), ("MASTER_PORT", "29500")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=f"^{message}"):
        invitation_from_environment(token, timeout)


def test_a_file_of_a_secret_that_is_empty_keeps_nobody_out(tmp_path):
    (tmp_path / "token").write_text("\n")
    meeting = Meeting(2, "host:29500", tmp_path / "token", 5.0)
    with pytest.raises(ArgumentError, match="^--token .*token is empty, and would keep nobody out"):
        meeting.party()


def test_too_many_machines_are_told_as_that(monkeypatch):
    for name, value in (("WORLD_SIZE", "64"), ("RANK", "0"), ("MASTER_ADDR", "host"), ("MASTER_PORT", "29500")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match="^64 machines are over the 63 that one run can have"):
        invitation_from_environment(None, 5.0)


@pytest.mark.parametrize("address", ["host", "host:", ":29500", "host:0", "host:70000", "host:port"])
def test_an_address_is_a_host_and_a_port(address):
    with pytest.raises(ArgumentError, match=r"--join '.*' is not HOST:PORT; 10\.0\.0\.1:29500 is"):
        invitation_to(2, address, None, 5.0)


def test_one_machine_joins_nobody():
    assert invitation_to(2, "[::1]:29500", None, 5.0).host == "::1"
    with pytest.raises(ArgumentError, match="--join given for 1 machine; --nodes says how many"):
        invitation_to(1, "host:29500", None, 5.0)


def test_who_waits_for_others_to_come_says_so(monkeypatch, caplog):
    monkeypatch.setattr(module, "time", Clock())
    alone = Party(Invitation(3, "host", 29500), 0, HashStore(), "run")
    with pytest.raises(NodeError, match="machine 1, 2 of 3 did not come within 300 s"):
        module._check_secret(alone)
    assert caplog.text.count("waiting for machine 1, 2 of 3 at host:29500, 300 s at most") == 1


def test_who_gives_signs_of_life_is_waited_for_however_long_it_prepares(monkeypatch):
    monkeypatch.setattr(module, "_BEAT", 0.001)
    store = HashStore()
    here, there = (Party(Invitation(2, "host", 29500), node, store, "run") for node in range(2))
    seen = [0]

    def signs():
        return here._added(f"{module._ALIVE}/1", 0)

    def meanwhile():
        """It gives one more, and after a quarter of an hour it is ready."""
        within(30, lambda: signs() > seen[-1], "it gives no sign of life")
        seen.append(signs())
        if len(seen) == 60:
            there.tell("ready", True)

    clock = Clock(meanwhile)
    monkeypatch.setattr(module, "_LOOK_EVERY", 15.0)
    monkeypatch.setattr(module, "time", clock)
    there.live()
    try:
        assert here.hear_all("ready", 3600.0, [1]) == {1: True}
    finally:
        there.leave()
    assert clock.now >= 1000 + 59 * 15


def test_who_has_given_signs_of_life_and_gives_none_any_more_is_not_waited_for(monkeypatch):
    store = HashStore()
    here, there = (Party(Invitation(2, "host", 29500), node, store, "run") for node in range(2))
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    with pytest.raises(NodeError, match="did not come"):
        here.hear_all("ready", 100.0, [1])
    there._added(f"{module._ALIVE}/1", 1)
    began = clock.now
    with pytest.raises(NodeError, match="^machine 1 of 2 has given no sign of life for 60 s"):
        here.hear_all("ready", 3600.0, [1])
    assert 60 < clock.now - began < 63


def test_what_differs_is_told_with_both_values():
    facts = {0: {"lr": 0.1, "torch": "2"}, 1: {"lr": 0.1, "torch": "2"}, 2: {"lr": 0.2, "torch": "2"}}
    assert differences(facts) == ["lr is 0.2 on machine 2 and 0.1 on machine 0"]
    assert differences({0: {"a": float("nan")}, 1: {"a": float("nan")}}) == []


def test_of_long_texts_that_differ_is_told_where():
    """Of two groups with many options and names, one number is another."""

    def groups(lr):
        names = [f"layer {number}.weight" for number in range(50)]
        return str([{"lr": 0.1, "params": names}, {"params": names, "lr": lr, "betas": [0.9, 0.999]}])

    [told] = differences({0: {"optimizer.groups": groups(0.01)}, 1: {"optimizer.groups": groups(0.02)}})
    assert "'lr': 0.02, 'betas'" in told.partition(" on machine 1 and ")[0], told
    assert "'lr': 0.01, 'betas'" in told.partition(" on machine 1 and ")[2], told
    assert len(told) < 300


def test_of_runs_of_another_length_no_rates_are_told_that_one_has_not():
    factors = "lr_schedule.factors"
    told = {0: {"updates": 200, f"{factors}.0": 1.0, f"{factors}.199": 0.1}, 1: {"updates": 100, f"{factors}.0": 0.5}}
    assert differences(told) == [
        "updates is 100 on machine 1 and 200 on machine 0",
        f"{factors}.0 is 0.5 on machine 1 and 1.0 on machine 0",
    ]


def test_of_batches_that_differ_the_first_is_named_and_what_follows_is_not():
    one, other = (
        {"curvature": 0.5 * digit, "batch 9": f"{digit}" * 64, "batch 20": f"{digit}" * 64} for digit in (1, 2)
    )
    assert differences({0: one, 1: other}) == ["batch 9 is '22222222…' on machine 1 and '11111111…' on machine 0"]
    assert differences({0: {"curvature": 0.5}, 1: {"curvature": 1.0}}) != []


def test_tickets_of_the_lost_go_to_the_next_that_lives():
    dealing = Dealing(nodes=3, node=0)
    assert [dealing.owner(ticket, 0b111) for ticket in range(4)] == [0, 1, 2, 0]
    assert [dealing.owner(ticket, 0b101) for ticket in range(4)] == [0, 2, 2, 0]
    assert [dealing.owner(ticket, 0b001) for ticket in range(4)] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("speeds", "turns"),
    [
        ([1.0, 1.0, 1.0], (0, 1, 2)),
        ([100.0, 90.0, 93.0], (0, 1, 2)),  # hardly unequal
        ([2.0, 1.0], (0, 1, 0)),
        ([1.0, 1.0, 2.0, 4.0], (3, 2, 3, 0, 1, 3, 2, 3)),
        ([3.0, 4.0], (1, 0, 1, 0, 1, 0, 1)),
        ([10.0, 1.0], (0,) * 5 + (1,) + (0,) * 5),
        ([1000.0, 1.0], (0,) * 32 + (1,) + (0,) * 32),
    ],
)
def test_who_is_faster_is_dealt_more(speeds, turns):
    assert turns_of(speeds) == turns


def test_tickets_of_the_lost_go_to_the_next_that_lives_whoever_has_turns():
    dealing = Dealing(nodes=3, node=0, turns=(0, 1, 0, 2))
    assert [dealing.owner(ticket, 0b111) for ticket in range(6)] == [0, 1, 0, 2, 0, 1]
    assert [dealing.owner(ticket, 0b101) for ticket in range(4)] == [0, 2, 0, 2]
    assert [dealing.owner(ticket, 0b110) for ticket in range(4)] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("started", "words"),
    [
        (lambda: hogwild.check(problems.mlp, runs=2), "a check is for one machine, and WORLD_SIZE is '2'"),
        (lambda: hogwild.train_kernel(problems.mlp(), None), "train_kernel is for one machine, and WORLD_SIZE"),
    ],
)
def test_what_would_train_on_each_machine_alone_is_refused_under_torchrun(started, words, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ArgumentError, match=words):
        started()
