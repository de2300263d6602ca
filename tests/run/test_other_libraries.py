"""Models and data of other libraries, where they are installed (`tox -e libraries`): trained as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hogwild import NotReproducible, scheduler, train

# peft asks transformers for what newer versions of it have renamed.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

_TOKENS = 100
_ADAMW = partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.1)


def _texts() -> dict[str, Tensor]:
    ids = torch.randint(5, _TOKENS, (48, 12), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}


def _bert() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=_TOKENS, **sizes)
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config).train()


def _gpt2(**options: Any) -> nn.Module:
    """It has one weight for what goes in and what comes out, and no dropout unless the options say so."""
    transformers = pytest.importorskip("transformers")
    without = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=_TOKENS, **sizes, **without | options))


def _adapted(dropout: float) -> nn.Module:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(
        _gpt2(), peft.LoraConfig(r=4, lora_dropout=dropout, target_modules=["c_attn"], fan_in_fan_out=True)
    )


def _loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return model(**batch).loss


def _digest(
    model: nn.Module, data: Any, loss: Callable[[Any, Any], Tensor], workers: int, kind: str, **settings: Any
) -> str:
    run = train(
        model,
        data,
        loss,
        optimizer=_ADAMW,
        update="ordered",
        epochs=2,
        batch_size=8,
        workers=workers,
        kind=kind,
        **settings,
    )
    assert run.updates == 12
    return run.digest


def test_dropout_of_bert_is_the_same_in_any_number_of_processes_and_refused_in_threads():
    data = {"input_ids": _texts()["input_ids"], "labels": torch.arange(48) % 2}
    assert len({_digest(_bert(), data, _loss, workers, "processes") for workers in (1, 2)}) == 1
    with pytest.raises(NotReproducible, match=r"bert\.embeddings\.dropout \(Dropout\), .* and \d more"):
        _digest(_bert(), data, _loss, 2, "threads")


def test_gpt2_is_trained_as_by_a_loop_of_its_own_schedule_clipping_and_tied_weights_included():
    transformers = pytest.importorskip("transformers")
    warm_up = partial(transformers.get_linear_schedule_with_warmup, num_warmup_steps=4, num_training_steps=12)
    by_hand = _gpt2()
    optimizer = _ADAMW(by_hand.parameters())
    schedule, texts = warm_up(optimizer), _texts()
    for _ in range(2):
        for start in range(0, 48, 8):
            optimizer.zero_grad()
            _loss(by_hand, {name: ids[start : start + 8] for name, ids in texts.items()}).backward()
            nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    model = _gpt2()
    _digest(
        *(model, texts, _loss, 1, "processes"),
        staleness=0,
        shuffle=False,
        clip_grad_norm=1.0,
        lr_schedule=scheduler(warm_up),
    )
    assert model.lm_head.weight is model.transformer.wte.weight
    for (name, ours), theirs in zip(model.named_parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5, msg=name)


def test_recomputed_activations_give_the_bits_of_kept_ones():
    def made(recomputed: bool) -> Any:
        model: Any = _gpt2()
        if recomputed:
            getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
        return model

    runs = [(False, 1, "threads"), (True, 1, "processes"), (True, 2, "threads")]
    assert len({_digest(made(recomputed), _texts(), _loss, *who) for recomputed, *who in runs}) == 1


@pytest.mark.parametrize(("dropout", "kinds"), [(0.0, ("threads", "processes")), (0.2, ("processes", "processes"))])
def test_an_adapter_is_trained_and_nothing_else(dropout, kinds):
    frozen = {name: p.clone() for name, p in _adapted(dropout).named_parameters() if not p.requires_grad}
    assert frozen
    models = [_adapted(dropout) for _ in kinds]
    found = {_digest(m, _texts(), _loss, 1 + i, kind) for i, (m, kind) in enumerate(zip(models, kinds, strict=True))}
    assert len(found) == 1
    for name, parameter in models[0].named_parameters():
        assert not parameter.requires_grad or "lora_A" in name or parameter.any(), name
        assert parameter.requires_grad or torch.equal(parameter, frozen[name]), name


def _padded(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    longest = max(len(sample["text"]) for sample in samples)
    rows = [sample["text"] + [0] * (longest - len(sample["text"])) for sample in samples]
    return {"input_ids": torch.tensor(rows), "labels": torch.tensor([sample["label"] for sample in samples])}


def test_a_data_set_of_ragged_texts_is_put_together_by_collate():
    datasets = pytest.importorskip("datasets")
    texts = {"text": [[5 + i % 7] * (2 + i % 5) for i in range(48)], "label": [i % 2 for i in range(48)]}
    data = datasets.Dataset.from_dict(texts)
    assert len({_digest(_bert(), data, _loss, workers, "processes", collate=_padded) for workers in (1, 2)}) == 1


def test_graphs_are_put_together_by_collate():
    geometric, layers = pytest.importorskip("torch_geometric.data"), pytest.importorskip("torch_geometric.nn")
    generator = torch.Generator().manual_seed(0)
    graphs = [
        geometric.Data(
            x=torch.randn(5 + i % 3, 4, generator=generator),
            edge_index=torch.randint(0, 5, (2, 12), generator=generator),
            y=torch.tensor([i % 2]),
        )
        for i in range(48)
    ]

    class Convolutions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.out = layers.GCNConv(4, 16), nn.Linear(16, 2)

        def forward(self, graph: Any) -> Tensor:
            found = self.convolution(graph.x, graph.edge_index).relu()
            return self.out(layers.global_mean_pool(found, graph.batch))

    def loss(model: nn.Module, graph: Any) -> Tensor:
        return nn.functional.cross_entropy(model(graph), graph.y)

    def digest(workers: int, kind: str) -> str:
        torch.manual_seed(0)
        return _digest(Convolutions(), graphs, loss, workers, kind, collate=geometric.Batch.from_data_list)

    assert len({digest(1, "processes"), digest(2, "processes"), digest(2, "threads")}) == 1
