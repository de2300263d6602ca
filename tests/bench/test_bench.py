"""The benchmark's arithmetic, on contenders whose speed is made up; its settings; the command."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch import nn

from hogwild.bench import measure
from hogwild.bench.contenders import FAMILIES, Contender, counts
from hogwild.bench.measure import Attempt, BenchProgress, Case, CaseResult, FailedMeasurement, Plan, Spread, crossing
from hogwild.bench.plan import BenchSettings, plan_of
from hogwild.bench.plot import plot
from hogwild.bench.problems import BenchProblem, clusters, cross_entropy
from hogwild.bench.summary import Machine, bench_summary, failed, warnings_of
from hogwild.bench.table import bench_report, following_bench
from hogwild.bench.work import ContenderError, Measurement, StartContender, Work
from hogwild.cli.bench import BenchCommand
from hogwild.errors import ArgumentError

IDLE = Machine("a system", "a processor", 4, "3", "2", 0.1)


def tiny() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 10))


TINY = BenchProblem("tiny", "for tests", tiny, partial(clusters, 512, 32), cross_entropy, sgd_lr=1.0)
CASE = Case(TINY, "sgd", 16)


# --- contenders whose speed is made up


def outcome(work: Work, seconds: float, **rest: Any) -> Measurement:
    return Measurement(work.batches, work.batches * work.batch_size, seconds, 0.1, 1.0, **rest)


def paced(
    name: str, seconds: Callable[[Work], float], family: str | None = None, called: list[str] | None = None
) -> Contender:
    """Takes so many seconds for a batch, and notes that it was called."""

    def start(work: Work) -> Measurement:
        if called is not None:
            called.append(f"{name} {work.seed}")
        curve = tuple((step * seconds(work), 2.0 - step / 10) for step in range(21)) if work.looks else ()
        return outcome(work, work.batches * seconds(work), curve=curve)

    return Contender(name, "made up", family or name, 1, start)


def raising(error: Exception) -> StartContender:
    def start(work: Work) -> Measurement:
        raise error

    return start


def measured(*everyone: Contender, repeats: int = 5, curves: int = 0, **rest: Any) -> tuple[Plan, CaseResult]:
    plan = Plan([CASE], everyone, repeats=repeats, seconds=0.5, curves=curves, **rest)
    (result,) = measure.measure_cases(plan)
    return plan, result


def test_ratios_are_of_one_repeat() -> None:
    """The machine slows from repeat to repeat, one contender is always twice as fast: each pair must say 2."""
    slower = [1.0, 4.0, 2.0, 16.0, 8.0]
    serial = paced("serial", lambda work: 0.01 * slower[work.seed])
    double = paced("double", lambda work: 0.005 * slower[work.seed])
    _, result = measured(serial, double)
    ratio = result.ratio("double", "serial")
    assert ratio is not None
    assert (ratio.median, ratio.least, ratio.most, ratio.number) == pytest.approx((2, 2, 2, 5))
    speed = result.spread("serial", lambda outcome: outcome.samples_per_second)
    assert speed is not None
    assert (speed.median, speed.least, speed.most) == pytest.approx((400, 100, 1600))


def test_contenders_take_turns() -> None:
    called: list[str] = []
    everyone = [paced(name, lambda work: 0.01, called=called) for name in ("serial", "b", "c")]
    measured(*everyone, repeats=2)
    assert called[-6:] == ["serial 0", "b 0", "c 0", "serial 1", "b 1", "c 1"]


@pytest.mark.parametrize("per_batch", [1e-5, 1e-3, 0.2])
def test_the_serial_loop_takes_about_the_wanted_time(per_batch: float) -> None:
    _, result = measured(paced("serial", lambda work: per_batch), workers=3)
    assert result.batches % 6 == 0
    assert 0.5 <= result.batches * per_batch < 0.5 + 6 * per_batch + 1e-9


def test_median_and_range() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 10.0]) == Spread(2.5, 1.0, 10.0, 4)
    assert Spread.of([]) is None


def test_the_time_to_a_loss() -> None:
    curve = [(0.0, 3.0), (1.0, 2.0), (3.0, 1.0), (4.0, 2.5)]
    assert crossing(curve, 1.5) == 2.0
    assert crossing(curve, 3.5) == 0.0
    assert crossing(curve, 0.5) is None


def test_the_target_is_what_the_serial_loop_reaches() -> None:
    _, result = measured(paced("serial", lambda work: 0.02), paced("fast", lambda work: 0.01), curves=3)
    assert result.target == 1.0
    spread, missed = result.seconds_to_target("fast")
    assert spread is not None
    assert spread.median == pytest.approx(0.1) and (spread.number, missed) == (3, 0)


def test_what_fails_is_reported() -> None:
    calls: list[int] = []

    def sometimes(work: Work) -> Measurement:
        calls.append(work.seed)
        if work.seed == 1:
            raise ContenderError("it fell over")
        return outcome(work, 0.1)

    def lazy(work: Work) -> Measurement:
        return replace(outcome(work, 0.1), batches=work.batches - 1)

    def diverges(work: Work) -> Measurement:
        return replace(outcome(work, 0.1), loss=float("nan"))

    broken = {
        "sometimes": sometimes,
        "always": raising(RuntimeError("no luck")),
        "refuses": raising(ArgumentError("not with this model")),
        "lazy": lazy,
        "diverges": diverges,
    }
    everyone = [Contender(name, "breaks", name, 1, start) for name, start in broken.items()]
    plan, result = measured(paced("serial", lambda work: 0.01), *everyone)
    assert calls == [0, 1, 2, 3, 4], "one that failed is tried again"
    ratio = result.ratio("sometimes", "serial")
    assert ratio is not None and ratio.number == 4
    assert [failure.message for failure in result.failures("sometimes")] == ["ContenderError: it fell over"]
    assert result.attempts["refuses"] == [FailedMeasurement("not with this model", refused=True)] * 5

    found = bench_summary(IDLE, plan, [result])
    rows = {row["name"]: row for row in found["cases"][0]["results"]}
    assert list(rows) == ["serial", *broken]
    assert rows["sometimes"]["samples_per_second"]["runs"] == 4 and rows["sometimes"]["failed_runs"] == 1
    assert rows["always"]["samples_per_second"] is None and rows["always"]["failures"] == ["RuntimeError: no luck"]
    assert rows["refuses"]["refused"] and not rows["always"]["refused"]
    assert found["failed"] == failed(plan, [result]) == 4, "a refusal is no failure"
    shown = text_of(found)
    for words in ("it fell over", "no luck", "not with this model", "instead of", "its loss is nan"):
        assert words in shown


def test_a_serial_loop_that_fails_ends_the_benchmark() -> None:
    with pytest.raises(ContenderError, match="broken"):
        measured(Contender("serial", "", "serial", 1, raising(ContenderError("broken"))))
    with pytest.raises(ArgumentError, match="serial"):
        measured(paced("other", lambda work: 0.01))


def text_of(found: dict[str, Any], width: int = 200) -> str:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as captured:
        console.print(bench_report(found))
    return captured.get()


def made_up_result(attempts: Callable[[Contender], Attempt]) -> tuple[Plan, CaseResult]:
    plan = plan_of(BenchSettings(problems=["mlp"], batch_sizes=[64], optimizers=["sgd"]))
    rows = {contender.name: [attempts(contender)] * 5 for contender in plan.contenders}
    return plan, CaseResult(plan.cases[0], 10, rows, rows)


def test_the_best_alternative_and_the_pairs_that_are_asked_for() -> None:
    speed = {"serial": 1.0, "intra-op": 1.5, "recipe": 1.2, "ddp": 0.5, "hogwild": 1.8, "ordered": 1.71}

    def attempts(contender: Contender) -> Attempt:
        return Measurement(
            10, 640, 1 / speed.get(contender.family, 1.0), 0.1, 1.0, (2 << 20, 4 << 20), ((0.0, 2.0), (1.0, 1.0))
        )

    plan, result = made_up_result(attempts)
    case = bench_summary(IDLE, plan, [result])["cases"][0]
    assert case["best_alternative"] == "intra-op, 2 threads"
    rows = {row["name"]: row for row in case["results"]}
    assert rows["hogwild, 2 processes"]["over_best_alternative"]["median"] == pytest.approx(1.2)
    assert rows["hogwild, 2 processes"]["over_serial"]["median"] == pytest.approx(1.8)
    assert rows["hogwild, 2 processes"]["memory_per_worker"] == 3 << 20
    pairs = {(pair["of"], pair["over"]): pair["ratio"]["median"] for pair in case["comparisons"]}
    assert pairs["ordered, 2 processes", "hogwild, 2 processes"] == pytest.approx(0.95)
    assert pairs["hogwild, 2 processes", "recipe, 2 processes"] == pytest.approx(1.5)
    assert pairs["hogwild, 2 threads", "ddp, 2 processes"] == pytest.approx(3.6)


def test_an_alternative_that_did_not_finish_is_reported_and_no_failure() -> None:
    done = Measurement(10, 640, 1.0, 0.1, 1.0)
    late = FailedMeasurement("did not finish: ended after 60 s", late=True)
    plan, result = made_up_result(lambda contender: late if contender.family == "ddp" else done)
    found = bench_summary(IDLE, plan, [result])
    row = next(row for row in found["cases"][0]["results"] if row["name"] == "ddp, 2 processes")
    assert found["failed"] == 0 and row["unfinished"] == row["failed_runs"] == 10
    assert "unfinished" in text_of(found) and "did not finish: ended after 60 s" in text_of(found)


def test_the_number_of_workers_as_a_curve() -> None:
    assert [counts(number) for number in (1, 2, 3, 16)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8, 16]]
    plan = plan_of(
        BenchSettings(
            problems=["mlp"], batch_sizes=[64], optimizers=["sgd"], contenders=["apart", "ordered"], workers=4
        )
    )
    seconds = {"serial": {1: 1.0}, "cut": {1: 1.0}, "apart": {2: 0.5, 4: 0.32}, "ordered": {1: 1.0, 2: 0.5, 4: 0.4}}
    rows = {c.name: [Measurement(10, 640, seconds[c.family][c.workers], 0.1, 1.0)] * 5 for c in plan.contenders}
    found = bench_summary(IDLE, plan, [CaseResult(plan.cases[0], 10, rows, {})])
    *apart, threads, processes = found["cases"][0]["scaling"]
    assert [(curve["rule"], curve["kind"]) for curve in apart] == [("apart", "threads"), ("apart", "processes")]
    assert [point["over_one"]["median"] for point in apart[1]["points"]] == [1, 2, 3.125]
    pairs = {(pair["of"], pair["over"]): pair["ratio"]["median"] for pair in found["cases"][0]["comparisons"]}
    assert pairs["ordered, 4 threads", "apart, 4 threads"] == pytest.approx(0.8)
    assert ("ordered, 4 threads", "apart, 4 processes") not in pairs
    assert (threads["kind"], processes["kind"], threads["rule"]) == ("threads", "processes", "ordered")
    assert [(point["workers"], point["over_one"]["median"]) for point in processes["points"]] == [
        (1, 1),
        (2, 2),
        (4, 2.5),
    ]
    assert [point["efficiency"] for point in processes["points"]] == [1, 1, 0.625]
    assert "ordered, processes, workers: 1: 1.00 × (100 %)  2: 2.00 × (100 %)  4: 2.50 × (62 %)" in text_of(found)


def test_the_table_fits_a_terminal_and_json_and_figure_can_be_made(tmp_path: Path) -> None:
    made = Measurement(10, 640, 0.012, 0.1, 1.0, (150 << 20,), ((0.0, 2.0), (1.0, 1.0)))
    plan, result = made_up_result(lambda c: FailedMeasurement("RuntimeError: x") if c.family == "sync" else made)
    found = bench_summary(IDLE, plan, [result])
    json.dumps(found, allow_nan=False)
    lines = text_of(found, width=80).splitlines()
    row = next(line for line in lines if "snapshot, 2 processes" in line)
    assert "…" not in "".join(lines) and "53,333" in row and "1.00 1.00–1.00" in row and "150" in row
    plot(found, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_warnings() -> None:
    plan = plan_of(BenchSettings(quick=True))
    assert warnings_of(IDLE, plan.workers, plan.repeats) == []
    assert "load average was 3.0" in warnings_of(replace(IDLE, load=3.0), plan.workers, plan.repeats)[0]
    assert "share 1 cores" in warnings_of(replace(IDLE, cores=1), plan.workers, plan.repeats)[0]
    assert "repeats 2" in warnings_of(IDLE, plan.workers, 2)[0]
    assert warnings_of(replace(IDLE, load=None), plan.workers, plan.repeats) == []


def test_progress_names_what_runs_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    steps: list[BenchProgress] = []
    plan = Plan([CASE, CASE], [paced("serial", lambda work: 0.01)], repeats=2, curves=1)
    list(measure.measure_cases(plan, steps.append))
    assert [step.done for step in steps] == [0, 0, 1, 2, 3, 3, 4, 5]
    assert {step.total for step in steps} == {6}
    assert "repeat 2 of 2, serial" in steps[2].what
    with following_bench(Console(stderr=True)) as tell:
        tell(steps[2])
    out, err = capsys.readouterr()
    assert out == "" and "1 of 6 measurements" in err


@pytest.mark.parametrize(("at", "repeats", "curves"), [(5, 2, 0), (8, 4, 0), (11, 4, 1)])
def test_an_interrupted_case_has_the_repeats_that_are_whole(at: int, repeats: int, curves: int) -> None:
    plan = Plan([CASE], [paced("serial", lambda work: 0.01), paced("a", lambda work: 0.01)], repeats=4, curves=3)

    def tell(step: BenchProgress) -> None:
        if step.done == at:
            raise KeyboardInterrupt

    found: list[CaseResult] = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - what came before it is kept
        for case in measure.measure_cases(plan, tell):
            found.append(case)  # noqa: PERF402
    (case,) = found
    assert {name: len(mine) for name, mine in case.attempts.items()} == {"serial": repeats, "a": repeats}
    assert min(map(len, case.curves.values())) == curves
    json.dumps(bench_summary(IDLE, plan, found), allow_nan=False)


# --- settings


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (BenchSettings(problems=["mpl"]), "'mpl'"),
        (BenchSettings(optimizers=["sdg"]), "'sdg'"),
        (BenchSettings(contenders=["fast"]), "'fast'"),
        (BenchSettings(kinds=["fibres"]), "'fibres'"),
        (BenchSettings(batch_sizes=[0]), "batch size 0"),
        (BenchSettings(batch_sizes=[10_000]), "10000"),
        (BenchSettings(workers=0), "workers 0"),
        (BenchSettings(workers=1, contenders=["apart", "hogwild"]), "apart is of two loops"),
        (BenchSettings(repeats=0), "repeats 0"),
        (BenchSettings(seconds=float("nan")), "seconds nan"),
    ],
)
def test_settings_that_cannot_work(settings: BenchSettings, named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        plan_of(settings)


def test_all_is_every_alternative_and_every_rule_of_both_kinds() -> None:
    plan = plan_of(BenchSettings())
    assert len(plan.cases) == 4 * 3 * 2
    assert len(plan.contenders) == len({c.name for c in plan.contenders}) == 5 + 2 + 6 * 2 * 2
    assert {c.family for c in plan.contenders} == set(FAMILIES)
    assert len(plan_of(BenchSettings(workers=1)).contenders) == 5 + 6 * 2


def test_quick_is_few() -> None:
    plan = plan_of(BenchSettings(quick=True))
    assert [case.name for case in plan.cases] == [
        "mlp · batch 64 · sgd",
        "small-mlp · batch 16 · sgd",
        "conv · batch 16 · sgd",
    ]
    assert [c.name for c in plan.contenders] == [
        "serial",
        "serial, batches cut",
        *(f"{rule}, {who}" for rule in ("hogwild", "ordered") for who in ("1 process", "2 processes")),
    ]
    assert plan.curves == 0
    assert [case.optimizer for case in plan_of(BenchSettings(quick=True, optimizers=["adam"])).cases] == ["adam"] * 3


# --- the command


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = BenchCommand(
        problems=("small-mlp",),
        batch_size=(16,),
        optimizer=("sgd",),
        contenders=("hogwild",),
        kind=("threads",),
        repeats=1,
        seconds=0.02,
        json=True,
        plot=tmp_path / "figure.png",
    )
    assert command.run() == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [row["name"] for row in found["cases"][0]["results"]] == [
        "serial",
        "serial, batches cut",
        "hogwild, 1 thread",
        "hogwild, 2 threads",
    ]
    assert all(row["over_serial"]["median"] > 0 for row in found["cases"][0]["results"])
    assert all(row["over_cut"]["median"] > 0 for row in found["cases"][0]["results"])
    first = found["cases"][0]["comparisons"][0]
    assert (first["of"], first["over"]) == ("hogwild, 1 thread", "serial, batches cut")
    assert "measurements" in err and "repeats 1" in err and "\x1b" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]


@pytest.mark.parametrize("path", ["nowhere/figure.png", "figure", "."])
def test_a_figure_that_cannot_be_written_is_told_first(path: str) -> None:
    with pytest.raises(ArgumentError, match="--plot"):
        BenchCommand(plot=Path(path)).run()
