"""Machines for tests: programs of their own that meet at a port of this one, as torchrun would start them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from programs import Program, started

from hogwild.bench.links import Host
from hogwild.nodes.loopback import LOOPBACK, free_port

_SOURCE = """
import json, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which the background of a shell ignores
sys.path.insert(0, {tests!r})
arguments = json.loads(sys.argv[1])
if (host := arguments.pop("host", None)) is not None:
    from hogwild.bench.links import Host
    from hogwild.workers.process.early import fork_server
    Host(*host).move_in()
    fork_server("processes")
import problems
{before}
try:
    model = getattr(problems, arguments.pop("model", "mlp"))()
    if (optimizer := arguments.pop("optimizer", None)) is not None:
        arguments["optimizer"] = getattr(problems, optimizer)
    arguments.update(extra)
    run = problems.train(model, **{{"kind": "processes", **arguments}})
    told = {{
        "digest": run.digest,
        "updates": run.updates,
        "stopped": run.stopped,
        "nodes": run.nodes,
        "workers": [[usage.node, usage.worker, usage.computed] for usage in run.workers],
        "journal": run.journal["worker"].tolist(),
        "evaluations": len(run.evaluations),
        "rechecked": run.rechecked,
        "skipped": sum(usage.skipped for usage in run.workers),
        "accuracy": run.metrics.get("accuracy"),
        "best": run.best and run.best.update,
        "samples": run.samples,
        "failures": list(run.failures),
        **more,
    }}
except (hogwild.HogwildError, KeyboardInterrupt) as error:
    told = {{"error": type(error).__name__, "message": str(error)}}
print(json.dumps(told), flush=True)
"""
_BEFORE = "import hogwild, torch\nextra, more = {}, {}\n"
_PATIENCE = 60.0  # seconds
WAITS_LONG = """
from hogwild.nodes import party
from hogwild.run import machines
machines._TELLING = machines._LEAVING = party._LEAVING = party._SILENT = 1e6
"""  # to be run before: where a machine waits for what another one tells in the end, or leaves, it does not end


@contextmanager
def machines(
    nodes: int,
    folder: Path,
    before: str = "",
    own: Sequence[dict[str, Any]] = (),
    hosts: Sequence[Host] = (),
    **arguments: Any,
) -> Iterator[Machines]:
    """So many machines that train together by `problems.train` with these arguments, and with those that each has of
    its own, each at one of the hosts, where there are some; `before` runs in each first, and may put arguments that are
    no JSON into `extra`, and what is to be told besides into `more`. One that says nothing is waited for longer than a
    busy computer lets it wait."""
    address = hosts[0].address if hosts else LOOPBACK
    variables = {"WORLD_SIZE": str(nodes), "MASTER_ADDR": address, "MASTER_PORT": str(free_port())}
    source = _SOURCE.format(tests=str(Path(__file__).parent), before=_BEFORE + before)

    def start(node: int, **changed: Any) -> AbstractContextManager[Program]:
        special = {**(own[node] if own else {}), **changed}
        if hosts:
            special["host"] = [hosts[node].address, hosts[node].path]
        environment = {**variables, "RANK": str(node), **special.pop("environment", {})}
        text = json.dumps({"node_timeout": _PATIENCE, **arguments, **special})
        errors = folder / f"errors {node}"
        warm = not hosts  # a server that is there does not move to a host, so it is forked at that
        return started(source, text, errors=errors, environment=environment, warm=warm)

    with ExitStack() as stack:
        yield Machines(
            [stack.enter_context(start(node)) for node in range(nodes)],
            lambda node, **changed: stack.enter_context(start(node, **changed)),
        )


_SLOW = """
import time
def loss(model, batch):
    time.sleep(0.005)
    while hogwild.worker_info().update >= {last} and not os.path.exists({gate!r}):
        time.sleep(0.005)
    return problems.cross_entropy(model, batch)
extra["loss"] = loss
"""


def slow(gate: Path, updates: int) -> str:
    """To be run before: a run of so many updates takes a while, and does not end before that file is there."""
    return _SLOW.format(gate=str(gate), last=updates - 20)


class Machines(list[Program]):
    """Machines that were started; one that has ended can be started again by the same arguments, or changed ones."""

    def __init__(self, programs: list[Program], start: Callable[..., Program]) -> None:
        super().__init__(programs)
        self._start = start

    def again(self, node: int, **changed: Any) -> Program:
        """Start that machine again."""
        self[node] = self._start(node, **changed)
        return self[node]


def told_by(program: Program) -> dict[str, Any]:
    """What a machine says in the end."""
    line = program.output.readline()
    assert line, "it ended without a word"
    told: dict[str, Any] = json.loads(line)
    return told


def together(nodes: int, folder: Path, *arguments: Any, **named: Any) -> list[dict[str, Any]]:
    """What so many machines say at the end of a training together."""
    with machines(nodes, folder, *arguments, **named) as programs:
        told = [told_by(program) for program in programs]
        assert [program.ended() for program in programs] == [0] * nodes
    for node in range(nodes):
        print((folder / f"errors {node}").read_text())
    return told


_MANY = """
found = []
for settings in json.loads({runs!r}):
    model = getattr(problems, settings.pop("model", "mlp"))()
    if "optimizer" in settings:
        settings["optimizer"] = getattr(problems, settings["optimizer"])
    own = settings.pop("own", None)
    try:
        run = problems.train(model, **settings, **(own[int(os.environ["RANK"])] if own else {{}}))
        found.append([run.digest, run.updates])
    except hogwild.HogwildError as error:
        found.append([type(error).__name__, str(error)])
print(json.dumps(found), flush=True)
os._exit(0)
"""


def without_machine_0(programs: Machines) -> dict[str, Any]:
    """What machine 1 says of these two when the first is killed, after a word of both that they train."""
    for program in programs:
        program.output.readline()
    programs[0].killed()
    return told_by(programs[1])


def one_after_another(nodes: int, folder: Path, runs: Sequence[dict[str, Any]]) -> list[list[tuple[str, Any]]]:
    """For each of these trainings, what each machine says: (digest, updates), or what was raised; the same machines
    make them all. `own`: arguments of each machine."""
    told = together(nodes, folder, _MANY.format(runs=json.dumps(runs)))
    return [[tuple(one) for one in of_run] for of_run in zip(*told, strict=True)]


def refusals(told: list[dict[str, Any]]) -> str:
    """The message with which all machines refused to train."""
    assert {one.get("error") for one in told} == {"ArgumentError"}, told
    message: str = told[0]["message"]
    return message
