"""Knowledge graphs: the kernels against autograd, the judge, files, and runs from the command line."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

from hogwild.experiments import _kg_kernels as kernels
from hogwild.experiments import kg

import hogwild
from hogwild.cli import main
from hogwild.errors import ArgumentError

FORMS = kernels.MODELS


def graph(form, width=8):
    torch.manual_seed(0)
    return kg.Graph(12, 3, width, form).requires_grad_(True)


@pytest.mark.parametrize("form", FORMS)
def test_a_step_is_that_of_autograd(form):
    """One triple at a time: the gradients of each entity, then of the known one and the relation."""
    own, rate = graph(form), 0.1
    tables = [getattr(own, name).detach().numpy() for name in ("entity", "relation", "entity_sum", "relation_sum")]
    known, relations, sides = (
        np.array([0, 1, 2], np.int32),
        np.array([0, 1, 0], np.int32),
        np.array([1, -1, 1], np.int8),
    )
    candidates = np.array([[3, 4, 5, 6], [7, 8, 9, 7], [10, 11, 3, 4]], np.int32)
    twin = graph(form)
    for a, r, side, row in zip(known, relations, sides, candidates, strict=True):
        twin.zero_grad()
        distinct = torch.from_numpy(row[(np.arange(4) == 0) | (row != row[0])]).long()
        scores = twin.scores(torch.tensor([int(a)]), torch.tensor([int(r)]), int(side))[0, distinct]
        torch.nn.functional.cross_entropy(scores[None], torch.tensor([0])).backward()
        with torch.no_grad():
            for table, sums in ((twin.entity, twin.entity_sum), (twin.relation, twin.relation_sum)):
                sums += table.grad.square().mean(1, keepdim=True)
                table -= rate * table.grad / (sums.sqrt() + 1e-10)
    kernels.descend(FORMS.index(form), *tables, known, relations, sides, candidates, rate)
    for found, name in zip(tables, ("entity", "relation", "entity_sum", "relation_sum"), strict=True):
        np.testing.assert_allclose(found, getattr(twin, name).detach().numpy(), atol=2e-4, err_msg=name)


@pytest.mark.parametrize("form", FORMS)
def test_vectors_that_are_no_numbers_make_a_loss_that_is_none(form):
    tables = [np.full(shape, np.nan, np.float32) for shape in ((5, 4), (2, 4), (5, 1), (2, 1))]
    drawn = np.array([0], np.int32), np.array([1], np.int32), np.array([1], np.int8), np.array([[2, 3, 4]], np.int32)
    assert not np.isfinite(kernels.descend(FORMS.index(form), *tables, *drawn, 0.1))


@pytest.mark.parametrize("form", FORMS)
def test_head_and_tail_are_sought_by_one_score(form):
    """The score of a fact is the same whichever end is asked for."""
    own = graph(form)
    head, relation, tail = torch.tensor([1]), torch.tensor([2]), torch.tensor([5])
    with torch.no_grad():
        assert own.scores(head, relation, 1)[0, 5].item() == pytest.approx(
            own.scores(tail, relation, -1)[0, 1].item(), abs=1e-5
        )


def test_every_epoch_has_each_fact_once():
    draws = kg.Draws(kg.made(), 3)
    seen = []
    for ticket in range(draws.tickets, 2 * draws.tickets):
        drawn = draws(ticket, ticket)
        tails = np.where(drawn["sides"] == 1, drawn["candidates"][:, 0], drawn["known"])
        heads = np.where(drawn["sides"] == 1, drawn["known"], drawn["candidates"][:, 0])
        seen += zip(heads.tolist(), drawn["relations"].tolist(), tails.tolist(), strict=True)
    assert sorted(seen) == sorted(map(tuple, draws.facts.triples.tolist()))


def test_ranks_leave_out_what_is_known():
    facts = kg.Facts(np.array([[0, 0, 1], [0, 0, 2], [0, 0, 3]], np.int32), 5, 1)
    own = kg.Graph(5, 1, 2, "distmult")
    with torch.no_grad():
        own.relation.fill_(1.0)
        own.entity.copy_(torch.tensor([[1.0, 0], [5, 0], [3, 0], [4, 0], [2, 0]]))
        judged = kg.Judge(np.array([[0, 0, 2]]), facts)(own)
    # the tail 2 has 1 and 3 before it, both known; the head 0 has all four others before it
    assert judged["mrr"] == pytest.approx((1 + 1 / 5) / 2)
    assert judged["hits"] == 1.0


def test_vectors_that_are_no_numbers_rank_last():
    facts = kg.made()
    own = kg.Graph(facts.entities, facts.relations, 4, "distmult")
    torch.nn.init.constant_(own.entity, torch.nan)
    with torch.no_grad():
        assert kg.Judge(facts.triples[:20], facts)(own) == {"mrr": pytest.approx(1 / (1 + facts.entities)), "hits": 0.0}


def test_facts_are_judged_a_few_at_a_time(monkeypatch):
    """All at once took 6 GB for a million entities."""
    rows = []
    real = kg.Graph.scores
    monkeypatch.setattr(kg.Graph, "scores", lambda *given: rows.append(len(found := real(*given))) or found)
    facts = kg.made()
    held, own = facts.triples[:60], kg.Graph(facts.entities, facts.relations, 4, "distmult")
    judged = kg.Judge(held, facts)
    with torch.no_grad():
        found = judged(own)
        assert rows == [50, 50, 10, 10]
        alone = [kg.Judge(fact[None], facts)(own) for fact in held]
    assert found["mrr"] == pytest.approx(np.mean([one["mrr"] for one in alone]), rel=1e-4)
    assert found["hits"] == pytest.approx(np.mean([one["hits"] for one in alone]), rel=1e-4)


def test_facts_are_read(tmp_path):
    (tmp_path / "facts.tsv").write_text("a\tlikes\tb\nb\tlikes\tc d\n")
    found = kg.read(tmp_path / "facts.tsv")
    assert found.triples.tolist() == [[0, 0, 1], [1, 0, 2]]
    assert (found.entities, found.relations) == (3, 1)
    assert found.names == {"entity": ["a", "b", "c d"], "relation": ["likes"]}
    (tmp_path / "wrong.tsv").write_text("a likes b\n")
    with pytest.raises(ArgumentError, match="wrong.tsv:1: 'a likes b' is no triple"):
        kg.read(tmp_path / "wrong.tsv")
    with pytest.raises(ArgumentError, match="width 5 is odd"):
        kg.build(0, None, width=5)
    with pytest.raises(ArgumentError, match="held_out 1 leaves none of 2 facts"):
        kg.build(0, tmp_path / "facts.tsv", held_out=1)


def test_a_fact_that_comes_twice_is_one_and_is_not_held_out_and_trained_on(tmp_path):
    (tmp_path / "facts.tsv").write_text("".join(f"{n % 30}\tr\t{n % 30 + 1}\n" for n in range(300)))
    problem = kg.build(0, tmp_path / "facts.tsv", held_out=3)
    trained, held = problem.data.draw.facts.triples, problem.evaluate.held
    assert len(trained) == 20 and len(held) == 10
    assert not set(map(tuple, trained.tolist())) & set(map(tuple, held.tolist()))


def test_those_that_are_judged_come_from_all_of_the_file():
    """Files are sorted at times: the first 500 may be of one relation."""
    triples = np.stack([np.arange(2100), np.zeros(2100, int), np.arange(2100)], 1)
    judged = kg.Judge(triples, kg.Facts(triples.astype(np.int32), 2100, 1)).held[:, 0]
    assert len(judged) == 500 == len(judged.unique())
    assert judged.min() == 0 and judged.max() > 2090
    few = kg.Judge(triples[:7], kg.Facts(triples.astype(np.int32), 2100, 1)).held[:, 0]
    assert few.tolist() == list(range(7))


def test_it_finds_the_groups(tmp_path, capsys, fonts):
    assert main(["run", "kg", "--quiet", "--json", "--width", "40", "--out", str(tmp_path / "run")]) == 0
    found = json.loads(capsys.readouterr().out)["metrics"]
    assert found["mrr"] > 0.12 and found["hits"] > 0.4  # of all entities by chance: 0.02 and 0.03


def test_the_same_bits(tmp_path, capsys, undrawn):
    digests = set()
    for more in (["--workers", "1"], ["--workers", "2"], ["--kind", "processes"]):
        flags = ["--update", "ordered", "--epochs", "2", "--width", "8", "--quiet", "--json"]
        assert main(["run", "kg", *flags, "--out", str(tmp_path / more[1]), *more]) == 0
        digests.add(json.loads(capsys.readouterr().out)["digest"])
    assert len(digests) == 1


def test_what_entities_and_relations_are_called_is_saved(tmp_path, capsys, undrawn):
    facts = "".join(f"{a}\tbefore\t{b}\n" for a in range(6) for b in range(a + 1, 6))
    (tmp_path / "facts.tsv").write_text(facts)
    out = tmp_path / "run"
    flags = ["--data", str(tmp_path / "facts.tsv"), "--width", "4", "--negatives", "2", "--epochs", "2"]
    assert main(["run", "kg", *flags, "--quiet", "--out", str(out)]) == 0
    assert (out / "entity.txt").read_text() == "0\n1\n2\n3\n4\n5\n"
    assert (out / "relation.txt").read_text() == "before\n"


def test_a_kernel_steps_by_itself_and_its_record_names_no_optimizer(tmp_path, capsys, undrawn):
    flags = ["--update", "ordered", "--width", "8", "--updates", "4", "--kind", "threads", "--quiet"]
    assert main(["run", "kg", *flags, "--out", str(tmp_path / "run")]) == 0
    assert re.search("optimizer +the kernel's own, lr 0.1 *\n", capsys.readouterr().out)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (record["optimizer"], record["lr"]) == (None, 0.1)
    assert main(["runs", str(tmp_path), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    assert "optimizer" not in found["settings"] and found["settings"]["lr"] == 0.1


def test_the_rate_of_a_kernel_that_a_program_trained_is_recorded(tmp_path):
    problem = kg.build(0, None, width=8)
    kernel = replace(problem.data, lr=0.07)
    run = hogwild.train_kernel(problem.model, kernel, updates=4, kind="threads", out=tmp_path / "run")
    assert run.optimizer_settings == {"optimizer": None, "lr": 0.07}
