"""Results as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hogwild.bench.cases import ruled_table, width_of
from hogwild.bench.doctor import Finding
from hogwild.determinism.probe import NoProbe, Probe
from hogwild.determinism.replay import Replay
from hogwild.determinism.verdict import Verdict
from hogwild.experiment import Claim, Findings, Study
from hogwild.experiment import Table as Measurements
from hogwild.report.run_words import optimizer_in_words, resumed_in_words, usage_cells
from hogwild.report.words import count, duration, figure, plural, short_digest, training_loss
from hogwild.rules.base import Rule
from hogwild.rules.registry import RULES, SAME_BITS, gives_same_bits
from hogwild.run.result import Run
from hogwild.run.saved.best import kept_lowest
from hogwild.run.saved.notes import read_notes

_SAME = "the same on every run, at any --workers and --kind"
_OTHER = f"differs from run to run; --update {SAME_BITS} gives the same every time"
_PROMISES = (
    "exact: no step is lost, and none applied twice. replayable: exact, and hogwild replay computes the run again to "
    "the bit. same bits: replayable, and the result is the same on every run, at any --workers and --kind."
)
_SEVERITY_STYLES = {"ok": "green", "note": "yellow", "problem": "bold red"}


def run_report(run: Run, usual_lr: str = "") -> RenderableType:
    """What a training came to; `usual_lr` says why its learning rate is the one that its optimizer begins with."""
    head = f"{run.title} · {plural(run.updates, 'update')} in {duration(run.seconds)}"
    parts: list[RenderableType] = [Text(head, "bold"), Padding(named_lines(_results(run, usual_lr)), (1, 0, 1, 2))]
    parts.append(Padding(_Workers(run), (0, 0, 0, 2)))
    parts.extend(Text(f"  {failure.splitlines()[0]}", "yellow") for failure in run.failures)
    return Group(*parts)


def _results(run: Run, usual_lr: str) -> Iterable[tuple[str, str]]:
    if run.stopped:
        yield "ended early", run.stopped
    if run.config.own is not None and run.config.own.parameters:
        own = run.config.own.parameters.items()
        yield "parameters", ", ".join(f"{name} {'none' if value is None else value}" for name, value in own)
    if told := optimizer_in_words(run, usual_lr):
        yield "optimizer", told
    if told := resumed_in_words(run):
        yield "resumed", told
    for change in run.config.changes:
        yield "changed", str(change)
    for name, value in run.metrics.items():
        yield name, figure(value)
    yield from read_notes(run.out).items()
    if run.best is not None:
        which = "lowest" if kept_lowest(run.config.keep_best or "", run.best.metric) else "highest"
        yield f"best {run.best.metric}", f"{figure(run.best.value)} at update {count(run.best.update)}, the {which}"
    yield (
        training_loss(run.metrics),
        f"{figure(run.loss)}, mean of the last {'epoch' if run.config.whole_epochs else 'updates'}",
    )
    if skipped := sum(usage.skipped for usage in run.workers):
        yield "left out", f"{plural(skipped, 'gradient')}, not finite"
    if run.diverged:
        yield "diverged", run.diverged
    yield "speed", f"{count(run.samples_per_second)} {run.unit}/s"
    ages = run.staleness
    yield "staleness", f"mean {ages.mean:.2f}, p99 {ages.p99:.0f}, max {plural(ages.max, 'update')}"
    if run.compensation:
        yield "compensated by", ", ".join(run.compensation)
    if run.audit is not None:
        yield "audit", f"{run.audit.summary()}; it took {duration(run.audit.seconds)} of the workers' time"
    elif run.config.audit:
        yield "audit", "none: it needs plain SGD without clipping, and workers that live to the end"
    if run.rechecked:
        computed = sum(usage.computed for usage in run.workers)
        what = "updates" if run.config.update == SAME_BITS else "gradients"
        yield "computed twice", f"{count(run.rechecked)} of {count(computed)} {what}, all equal"
    yield "start-up", f"{duration(run.startup_seconds)} until the first update"
    yield "digest", short_digest(run.digest)
    if run.config.update in RULES:
        yield "", _promise(run)
    if run.out is not None:
        yield "saved in", str(run.out)


def _promise(run: Run) -> str:
    """What its digest is promised to be when it is made again."""
    if not gives_same_bits(run.config.update):
        return _OTHER
    if run.nodes == 1 or run.config.average_every is None:
        return _SAME
    if any(what.startswith("machine ") for what in run.failures):
        return "differs from run to run: a machine that averaged was lost"
    if run.origin is not None and run.origin.resumed:
        return "not that of a run without a stop: machines that average begin again when they are resumed"
    return f"{_SAME}, on {run.nodes} machines"


def named_lines(rows: Iterable[tuple[str, str]]) -> Table:
    """Findings, each beside its name; one without a name says more of the one before."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, Text(value, "" if name else "dim"))
    return grid


@dataclass(frozen=True)
class _Workers:
    """The workers of a run, a row each; where the window is narrow the columns at the end are left out."""

    run: Run

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = [(heading, [*cells]) for heading, cells in zip(*self._cells(), strict=True)]
        table = self._made(columns)
        while len(columns) > 1 and width_of(table, console, options) > options.max_width:
            columns.pop()
            table = self._made(columns)
        yield table

    def _cells(self) -> tuple[Sequence[str], Iterable[Sequence[str]]]:
        """Headings, and the cells under each."""
        run, rows = self.run, []
        computed = sum(usage.computed for usage in run.workers) or 1
        for usage in run.workers:
            worker, gradients, *others = usage_cells(usage)
            node = [str(usage.node)] if run.nodes > 1 else []
            rows.append([*node, worker, gradients, f"{100 * usage.computed / computed:.0f} %", *others])
        headings = ("machine",) * (run.nodes > 1) + ("worker", "gradients", "share", "CPU time", "waited", "memory")
        return headings, zip(*rows, strict=True) if rows else [()] * len(headings)

    def _made(self, columns: Sequence[tuple[str, Sequence[str]]]) -> Table:
        table = ruled_table(tight=False)
        for heading, _ in columns:
            table.add_column(heading, justify="right", no_wrap=True)
        for cells in zip(*(cells for _, cells in columns), strict=True):
            table.add_row(*cells)
        return table


def study_report(study: Study, findings: Findings) -> RenderableType:
    """What a study found: a row per claim, then the answer."""
    table = ruled_table(tight=False, wide=True)
    table.add_column("claim", ratio=5)
    table.add_column("measured", ratio=4)
    table.add_column("holds", no_wrap=True)
    for claim in findings.claims:
        table.add_row(Text(claim.text), Text(claim.measured, "cyan"), _holds(claim))
    parts: list[RenderableType] = [
        Text.assemble((f"{study.name} · ", "bold"), (study.question, "bold")),
        *_measurements(findings),
        Padding(table, (1, 0)),
        Text(findings.answer),
        Text(),
        _settled(findings.claims),
    ]
    parts.extend(Text(f"drawn in {figure_path}", "dim") for figure_path in findings.figures)
    return Group(*parts)


def _measurements(findings: Findings) -> Iterable[RenderableType]:
    for measured in findings.tables:
        yield Padding(_Fitting(measured), (1, 0))
    if findings.legend:
        yield Text(findings.legend, "dim")


@dataclass(frozen=True)
class _Fitting:
    """Measurements that fit into the window: where it is narrow, words go on in the next line, and a range stands
    under its value."""

    measured: Measurements

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self._made(narrow=False)
        yield table if width_of(table, console, options) <= options.max_width else self._made(narrow=True)

    def _made(self, *, narrow: bool) -> Table:
        measured = self.measured
        table = _table(*measured.headings, left=measured.left, wraps=narrow)
        for row in measured.rows:
            values = [value.replace(" [", "\n[") if narrow else value for value in row[measured.left :]]
            table.add_row(*map(Text, (*row[: measured.left], *values)))  # brackets are no markup
        return table


def _holds(claim: Claim) -> Text:
    word = "yes" if claim.holds else "no"
    if not claim.settled:
        return Text(f"{word}, unexpectedly", "bold red")
    return Text(word if claim.expected else f"{word}, as shown", "green")


def _settled(claims: Sequence[Claim]) -> Text:
    failed = sum(not claim.settled for claim in claims)
    if failed:
        return Text(f"{failed} of {len(claims)} claims came out otherwise than expected", "bold red")
    return Text(f"all {len(claims)} claims came out as expected", "green")


def list_report(experiments: Sequence[tuple[str, str, str]], rules: Sequence[type[Rule]]) -> RenderableType:
    """What there is to run, (name, what it is, its question) each; and the rules to run it by."""
    table = _list_table("experiment", "what", "question")
    for name, what, question in experiments:
        table.add_row(name, Text(what, "red" if what == "broken" else "cyan"), Text(question))
    ruled = _list_table("--update", "promises", "the gradient, and how it reaches the shared model")
    for rule in rules:
        ruled.add_row(rule.name, Text(_promises(rule), "cyan"), Text(rule.summary))
    return Group(table, Text(), ruled, Text(), Text(_PROMISES, "dim"))


def _list_table(name: str, what: str, told: str) -> Table:
    table = ruled_table(tight=False, wide=True)
    table.add_column(name, no_wrap=True, style="bold")
    table.add_column(what, no_wrap=True)
    table.add_column(told, ratio=1)
    return table


def _promises(rule: type[Rule]) -> str:
    """The strongest promise: each includes those before it."""
    if rule.same_bits:
        return "same bits"
    if rule.versioned:
        return "replayable"
    return "exact" if rule.exact else "–"


def doctor_report(findings: Sequence[Finding]) -> RenderableType:
    """What was found out about this machine."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column()
    for finding in findings:
        told = Text(finding.found)
        if finding.advice:
            told.append(f"\n{finding.advice}", "dim")
        grid.add_row(Text(finding.verdict, _SEVERITY_STYLES[finding.verdict]), finding.name, told)
    return Padding(grid, (1, 0, 1, 2))


def check_report(verdict: Verdict, *, verbose: bool = False) -> RenderableType:
    """What a check found, line by line, and the verdict; `verbose` with all numbers."""
    parts: list[RenderableType] = [
        Text(verdict.headline, "bold"),
        Padding(named_lines(verdict.lines(verbose=verbose)), (1, 0, 1, 2)),
    ]
    if verdict.sources:
        parts.append(Padding(_sources(verdict), (0, 0, 1, 2)))
    style = "green" if verdict.passed else "bold yellow"
    parts.append(Text.assemble(("verdict: ", "bold"), (verdict.conclusion, style)))
    return Group(*parts)


def _sources(verdict: Verdict) -> Table:
    """What each source of differences does alone."""
    table = _table("source", "varied alone", "relative L2", "churn", left=2)
    for source in verdict.sources:
        if source.comparison is None:
            table.add_row(source.name, Text(source.note or "–"), "", "")
            continue
        found, predictions = source.comparison.divergence, source.comparison.predictions
        apart = "identical" if source.comparison.identical else f"{found.relative_l2:.2g}"
        churn = "–" if predictions is None else f"{100 * predictions.churn:.2g} %"
        table.add_row(source.name, Text(source.varied), apart, churn)
    table.columns[1].no_wrap = False
    return table


def probe_report(experiment: str, probes: Sequence[Probe | NoProbe]) -> RenderableType:
    """How many updates each rule lost or doubled: a row per rule and kind, one of which at least was probed."""
    what = f"at the size and step time of {experiment}" if experiment else "on a model that takes no time"
    first = next(one for one in probes if isinstance(one, Probe))
    updates, values = plural(first.updates, "update"), plural(first.values, "value")
    head = f"{updates} of {values} by {plural(first.workers, 'worker')}, {what}"
    table = _table("rule", "kind", "applied", "values off", "lost", "doubled", "a value got", left=2)
    reasons: list[str] = []
    for one in probes:
        if isinstance(one, NoProbe):
            if one.why not in reasons:
                reasons.append(one.why)
            table.add_row(one.update, one.kind, Text(f"not probed [{1 + reasons.index(one.why)}]", "yellow"))
            continue
        off = Text(count(one.touched), "green" if one.exact else "yellow")
        got = count(one.least) if one.exact else f"{count(one.least)}–{count(one.most)}"
        table.add_row(one.update, one.kind, f"{100 * one.applied:.6g} %", off, count(one.lost), count(one.doubled), got)
    told = (
        "Every gradient is exactly one, so each value counts the updates that were applied to it. "
        "lost, doubled: updates missing or too many, summed over the values that are off."
    )
    notes = [Text(f"[{number}] {why}", "yellow") for number, why in enumerate(reasons, start=1)]
    return Group(Text(head, "bold"), Padding(table, (1, 0)), *notes, Text(told, "dim"))


def _table(*headings: str, left: int = 0, wraps: bool = False) -> Table:
    """A table whose first `left` columns are words and the others numbers; in a narrow window what does not fit is cut,
    or goes on in the next line where it `wraps`."""
    table = ruled_table(tight=False)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < left else "right", no_wrap=not wraps)
    return table


def replay_report(name: str, replay: Replay) -> RenderableType:
    """Whether a recorded run has the bits it was recorded with, and where it first has not."""
    called = "elsewhere" if replay.moved else "otherwise"
    rows = [(called, text) for text in replay.environment] if not replay.equal else []
    rows += [
        ("bits", "equal" if replay.equal else "different"),
        ("compared", f"{plural(replay.compared, 'version')} of {plural(replay.updates, 'update')}"),
        ("recorded", short_digest(replay.recorded)),
        ("replayed", short_digest(replay.digest)),
    ]
    first = replay.first_difference
    if first is not None:
        rows.append(("first difference", f"after version {first.after}, by version {first.version}"))
        rows.append(("parameters", ", ".join(first.parameters) or "none: only the journal differs"))
        if first.update is not None:
            rows.append(("loss", f"first differs at update {first.update}"))
    head = Text(f"{name} · replayed in {duration(replay.seconds)}", "bold")
    style = "green" if replay.equal else "bold red"
    return Group(head, Padding(named_lines(rows), (1, 0, 1, 2)), Text(f"verdict: {replay.conclusion}", style))
