"""Mistakes in the arguments of a training are told in one line that names the argument and what would work."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import problems
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from traits import IN_PLACE, KINDS, VERSIONED

import hogwild
from hogwild.cli import main


def refused(match: str, **arguments: Any) -> None:
    with pytest.raises(hogwild.ArgumentError, match=match) as refusal:
        problems.train(**{"updates": 6, **arguments})
    assert "\n" not in str(refusal.value)


# --- evaluate and stop


@pytest.mark.parametrize("at", ["on the way", "in the end"])
def test_what_evaluate_raised_says_that_it_was_evaluate(at):
    def evaluate(model: nn.Module) -> dict[str, float]:
        raise KeyError("accuracy")

    with pytest.raises(KeyError) as raised:
        problems.train(updates=6, evaluate=evaluate, evaluate_every=3 if at == "on the way" else 60)
    (note,) = raised.value.__notes__
    assert note.startswith("raised by evaluate=, which was given version ")


@pytest.mark.parametrize("answer", [torch.tensor([True, False]), torch.tensor([]), np.array([1, 2])])
def test_an_answer_that_is_neither_true_nor_false_names_who_gave_it(answer):
    class Stopping(hogwild.Callback):
        def should_stop(self, progress: hogwild.Progress) -> bool:
            return answer

    how = (
        rf"a {type(answer).__name__} that is neither true nor false \(.* is ambiguous.*\); it must return True or False"
    )
    refused(f"^stop= returned {how}", evaluate_every=3, stop=lambda _: answer)
    refused(f"^Stopping.should_stop returned {how}", evaluate_every=3, callbacks=[Stopping()])
    assert problems.train(updates=6, evaluate_every=3, stop=lambda _: torch.tensor([True])).stopped == "stop"


def test_what_stop_raised_says_that_it_was_stop_and_that_there_are_no_metrics():
    with pytest.raises(KeyError) as raised:
        problems.train(updates=6, evaluate_every=3, stop=lambda progress: progress.metrics["accuracy"] > 0.9)
    assert raised.value.__notes__ == ["raised by stop=; without evaluate= there are no metrics"]


def test_a_stop_that_would_never_be_asked_is_refused():
    class Endless:
        def batch(self, update: int, generator: torch.Generator) -> Any:
            return problems.data()

    refused("stop given, and nothing says when.*evaluate_every", data=Endless(), stop=lambda progress: True)


@pytest.mark.parametrize("update", [IN_PLACE[0], VERSIONED[0]])
def test_evaluate_is_called_in_eval_mode_without_grad(update):
    seen: list[tuple[bool, bool]] = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.append((any(module.training for module in model.modules()), torch.is_grad_enabled()))
        return {}

    model = problems.dropout()
    model[2].eval()
    with torch.enable_grad():
        problems.train(model, updates=6, evaluate=evaluate, evaluate_every=3, update=update)
        assert torch.is_grad_enabled()
    assert set(seen) == {(False, False)}
    assert [module.training for module in model] == [True, True, False, True]


def test_evaluate_may_choose_otherwise():
    def evaluate(model: nn.Module) -> dict[str, float]:
        model.train()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(model(problems.data()[0]).sum(), [model[0].weight])
        return {"norm": gradient.norm().item()}

    model = problems.dropout().eval()
    with pytest.warns(UserWarning, match=r"the model is in eval mode, and trains in it; model.train\(\) turns dropout"):
        run = problems.train(model, updates=6, evaluate=evaluate)
    assert run.metrics["norm"] > 0
    assert not model.training


# --- loss


@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.functional.cross_entropy, nn.MSELoss()])
def test_a_loss_of_outputs_and_targets(loss):
    name = getattr(loss, "__name__", type(loss).__name__)
    refused(rf"^loss is .*{name}.* compares outputs with targets.*lambda model, batch", loss=loss)


@pytest.mark.parametrize("told", [{}, {"accuracy": 0.5}])
def test_numbers_beside_a_loss(told):
    refused(
        r"loss returned \(loss, a mapping\), which tells gradients .* return the loss alone, and record numbers by "
        r"hogwild.worker_info\(\).log",
        loss=lambda model, batch: (problems.cross_entropy(model, batch), told),
    )


def test_a_tuple_of_losses():
    def loss(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        x, y = batch
        outputs = model(x)
        return nn.functional.cross_entropy(outputs, y), outputs.mean()

    refused(r"loss returned a tuple.*a list, whose mean is taken", loss=loss)


@pytest.mark.parametrize("loss", [lambda model, x, y: x.sum(), lambda model: model, lambda: None])
def test_a_loss_of_other_arguments(loss):
    told = r"^loss raised at the first step: TypeError: .*argument.* \(it is called as loss\(model, batch\)\)$"
    refused(told, loss=loss)


class Plain(nn.Module):
    """A model that cannot be indexed, as an `nn.Sequential` can."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x):
        return self.layer(x)


def of_a_pair(batch, model):
    x, _ = batch
    return model(x).sum()


@pytest.mark.parametrize("loss", [lambda batch, model: model(batch[0]).sum(), of_a_pair])
def test_a_loss_of_the_same_arguments_in_the_other_order(loss):
    told = r"TypeError: .*Plain'? object.* \(it is called as loss\(model, batch\)\)$"
    refused(told, model=Plain(), loss=loss)


@pytest.mark.parametrize("loss", [lambda model, batch: int([]), lambda model, batch: (lambda one: one)()])
def test_a_type_error_in_the_loss_is_not_of_its_arguments(loss):
    refused("^loss raised at the first step: TypeError: .*[^)]$", loss=loss)


@pytest.mark.parametrize("data", [problems.data(), problems.data()[0], {"x": problems.data()[0]}])
def test_data_and_loss_in_each_others_place(data):
    told = f"^loss is a {type(data).__name__}, and data is a function; pass data, then loss$"
    refused(told, data=problems.cross_entropy, loss=data)


def test_of_what_is_no_function_the_type_is_told_and_no_more_of_it_than_fits():
    refused("^loss is a tuple; pass a function$", loss=problems.data())
    refused("^evaluate is a Tensor; pass a function, or leave it out$", evaluate=problems.data()[0])
    refused(r"^loss is a str, 'm+…; pass a function$", loss=1000 * "m")


# --- data


def test_tensors_side_by_side_in_a_list():
    refused(r"data is a list.*a tuple, \(x, y\)", data=list(problems.data()))
    refused(r"data is a list.*a tuple, \(x, y\)", data=[x.numpy() for x in problems.data()])
    samples = [(x, y) for x, y in zip(*problems.data(), strict=True)]
    assert problems.train(data=samples, updates=3).updates == 3


def test_a_short_list_of_tensors_that_are_alike():
    x = torch.randn(100, 8)
    refused(r"batch_size 16 is over the 2 samples.*a tuple", data=[x, x])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_in_the_data_that_are_none(value):
    x, y = problems.data()
    x[:, 3] = value
    refused(rf"data: the first batch holds {'NaN' if value != value else 'infinity'}, in its tensor 0", data=(x, y))


# --- lr_schedule


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        (lambda number: None, r"lr_schedule returned None for update 0; .* factor"),
        (lambda number: undefined * number, r"lr_schedule raised NameError for update 0: .*undefined"),  # noqa: F821
        (lambda number: 1 / (5 - number), r"lr_schedule raised ZeroDivisionError for update 5"),
        (lambda number: float("nan"), r"lr_schedule returned nan for update 0"),
    ],
)
def test_a_schedule_that_cannot_work_is_told_before_the_run(schedule, told, kind):
    with pytest.raises(hogwild.ArgumentError, match=told):
        problems.train(updates=6, lr_schedule=schedule, kind=kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("late", [None, "NameError"])
def test_one_that_fails_later_is_not_tried_again(late, kind):
    def schedule(number: int) -> Any:
        if number != 3:
            return 1.0
        return undefined if late else None  # noqa: F821

    told = "lr_schedule raised NameError for update 3" if late else "lr_schedule returned None for update 3"
    with pytest.raises(hogwild.ArgumentError, match=told):
        problems.train(updates=6, lr_schedule=schedule, kind=kind, workers=1)


def test_a_factor_may_be_a_tensor_or_a_number_of_numpy():
    import numpy as np

    for factor in (np.float32(0.5), torch.tensor(0.5), 1):
        assert problems.train(updates=3, lr_schedule=lambda number, factor=factor: factor).updates == 3


# --- what is something else than it should be


def test_a_loss_and_an_optimizer_that_are_no_functions():
    refused("^loss is a str, 'mse'; pass a function$", loss="mse")
    made = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    refused("^optimizer is a SGD, and the run makes its own; pass a function of the named", optimizer=made)


def test_a_folder_without_a_run_to_go_on_with(tmp_path):
    refused("^resume '.*' is not the folder of a run: there is no config.toml in it$", resume=tmp_path)
    nowhere = "^resume '.*nowhere': there is no such folder; hogwild runs lists the runs that are there$"
    refused(nowhere, resume=tmp_path / "nowhere")


def test_a_data_set_that_cannot_be_sent_is_called_by_its_argument():
    class Locked(torch.utils.data.Dataset):
        def __init__(self) -> None:
            self.lock, self.data = threading.Lock(), problems.data()

        def __len__(self) -> int:
            return len(self.data[0])

        def __getitem__(self, index: int) -> Any:
            return self.data[0][index], self.data[1][index]

    refused("^data cannot be sent to worker processes: TypeError: .*lock", data=Locked(), kind="processes")


# --- the command line, replay, notebooks


def test_a_name_that_is_almost_one(capsys):
    assert main(["run", "digit"]) == 2
    assert "did you mean 'digits'?" in capsys.readouterr().err


def test_the_bare_command_is_a_question_for_help(capsys):
    assert main([]) == 0
    shown = capsys.readouterr()
    assert "To begin:" in shown.out and shown.err == ""


def test_a_replay_from_another_initial_model(tmp_path):
    settings = {"loss": problems.cross_entropy, "optimizer": problems.SGD}
    problems.train(update="ordered", updates=20, out=tmp_path / "run", **settings)
    torch.manual_seed(9)
    other = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    found = hogwild.replay(tmp_path / "run", model=other, data=problems.data(), **settings)
    assert not found.equal
    assert "initial" in str(found)


@pytest.mark.parametrize("what", ["run", "verdict"])
def test_a_notebook_and_a_prompt_show_the_summary(what):
    shown = (
        problems.train(updates=3)
        if what == "run"
        else hogwild.check(
            problems.mlp(),
            problems.data(),
            problems.cross_entropy,
            optimizer=problems.SGD,
            updates=3,
            runs=2,
            kind="threads",
            controls=False,
            batch_size=16,
        )
    )
    html = shown._repr_html_()
    assert html.startswith("<pre") and len(html) < 3000
    assert ("samples/s" if what == "run" else "verdict:") in html
    assert (
        repr(shown).startswith(f"<{type(shown).__name__} run · ") and len(repr(shown)) < 300 and "\n" not in repr(shown)
    )


def test_what_autograd_grad_cannot_do_names_the_way_out():
    def hooked(model: nn.Module, batch: Any) -> Tensor:
        register_multi_grad_hook([*model.parameters()], lambda _: None)
        return problems.cross_entropy(model, batch)

    way_out = (
        r"loss raised at the first step: RuntimeError: .*autograd\.grad\(\).* \(by gradient='backward' it does not\)"
    )
    refused(way_out, loss=hooked, gradient="grad")
    assert problems.train(updates=6, loss=hooked, gradient="backward").updates == 6


@pytest.mark.parametrize("by", ["grad", "backward"])
def test_a_loss_that_calls_backward_is_told_to_leave_it_out(by):
    def doubly(model: nn.Module, batch: Any) -> Tensor:
        loss = problems.cross_entropy(model, batch)
        loss.backward()
        return loss

    refused(
        r"loss raised at the first step: RuntimeError: .* backward through the graph a second time.*[^)] "
        r"\(return the loss alone: the run calls backward, and steps, by itself\)$",
        loss=doubly,
        gradient=by,
    )


# --- what is called with other arguments


@pytest.mark.parametrize("name", ["evaluate", "stop", "progress"])
def test_a_function_that_takes_other_arguments_is_refused_before_anything_is_trained(name):
    given = {"evaluate_every": 3, name: lambda first, second: {}}
    refused(rf"^{name} is called as {name}\(.*\), and its arguments are \(first, second\): ", **given)


@pytest.mark.parametrize("name", ["out", "resume"])
def test_a_folder_that_is_no_path_is_refused(name):
    refused(rf"^{name} 3 is an int; pass a path, such as 'runs/mine'$", **{name: 3})


def test_a_loop_without_arguments_is_told_to_take_the_worker():
    with pytest.raises(hogwild.ArgumentError, match=r"^work is called as work\(worker\), and takes no arguments; "):
        hogwild.launch(lambda: None, problems.mlp(), optimizer=problems.SGD, updates=4)


def test_model_and_data_in_each_others_place_are_refused():
    data, model = problems.data(), problems.mlp()
    with pytest.raises(
        hogwild.ArgumentError, match=r"^model is a tuple, and data is a Sequential; pass model, then data$"
    ):
        hogwild.train(data, model, problems.cross_entropy, optimizer=problems.SGD, updates=4)


def test_a_loop_of_ones_own_that_may_stop_is_told_that_it_has_no_epochs():
    with pytest.raises(hogwild.ArgumentError, match="for a loop of your own has no epochs; set evaluate_every$"):
        hogwild.launch(lambda worker: None, problems.mlp(), optimizer=problems.SGD, updates=4, stop=lambda _: True)


def test_a_function_whose_signature_cannot_be_read_is_called():
    class Odd:
        __signature__ = "none"

        def __call__(self, model):
            return {"one": 1.0}

    assert problems.train(evaluate=Odd()).metrics == {"one": 1.0}
