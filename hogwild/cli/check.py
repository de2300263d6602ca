"""`hogwild check`, its flags: how far do runs of one training diverge, where first, why, and how bad is it?"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from tyro.conf import Positional, UseAppendAction, arg

from hogwild.cli.own import NoOwnFlags
from hogwild.cli.settings import GroupFlag, SettingFlags, given_settings, setting_flags, settings_in
from hogwild.cli.values import whole
from hogwild.config import AUTO
from hogwild.errors import ArgumentError, flag_of
from hogwild.workers.process.early import import_torch, start_server_early

_MORE = """Examples:
  hogwild check digits                      how far do runs that race diverge?
  hogwild check digits --update ordered     the same bits in every run
  hogwild check train.py                    a file of yours
  hogwild check digits --explain            what does each source of differences
                                            do alone?
  hogwild check --command 'python train.py --out {out}'
                                            somebody else's training

Exit status:
  0      all runs have the same bits, or are within the tolerance
  1      they have not
  2      an argument is wrong, told in one line
  3      a repeat could not be made"""
# A check makes an audit of its own, saves nothing on the way, and counts no repeat that lost a worker.
_Training = setting_flags(
    "evaluate_every",
    "keep_best",
    "patience",
    "checkpoint_every",
    "digest_every",
    "audit",
    "tensorboard",
    "on_worker_failure",
    "max_restarts",
)


@dataclass(frozen=True)
class CheckCommand:
    """Repeat a training, and measure how far the runs diverge."""

    more: ClassVar[str] = _MORE
    trains: ClassVar[bool] = True  # so that the fork server may start early

    experiment: Annotated[Positional[str], arg(metavar="EXPERIMENT", help_behavior_hint="")] = ""
    """The name of an experiment (hogwild list shows them), a file of yours that defines one, or a run's folder."""
    runs: Annotated[int | None, whole("N"), arg(help_behavior_hint="(default: 5)")] = None
    """How often to train."""
    fresh_process: Annotated[bool, arg(help_behavior_hint="")] = False
    """Make each repeat in a fresh interpreter."""
    tolerance: Annotated[str, arg(metavar="[MEASURE=]X", help_behavior_hint="(default: the same bits)")] = ""
    """Let runs differ by X in relative_l2 (or max_abs, max_ulp): 1e-3, or max_ulp=4."""
    explain: Annotated[bool, arg(help_behavior_hint="")] = False
    """Vary one source of differences at a time, and say what each does alone."""
    plot: Annotated[bool, arg(help_behavior_hint="")] = False
    """Draw how the runs drift apart, as check.png in the folder of --out."""
    command: Annotated[str, arg(metavar="TEXT", help_behavior_hint="")] = ""
    """Check this command instead; it writes its final state to the path that {out} stands for."""
    other_seed: Annotated[int | None, whole("N"), arg(help_behavior_hint="")] = None
    """Train with this seed too: how far apart unrelated runs are."""
    other_workers: Annotated[int | None, whole("N"), arg(help_behavior_hint="")] = None
    """Train with so many workers too."""
    nodes: Annotated[int | None, whole("N"), arg(help_behavior_hint="")] = None
    """Train on 2 and more machines too, up to so many; they are processes of this one."""
    window: Annotated[int | None, whole("N"), arg(help_behavior_hint="(default: 100)")] = None
    """Updates over which race damage is measured before chaos has grown."""
    own: Annotated[SettingFlags, arg(constructor=NoOwnFlags, name="")] = field(default_factory=NoOwnFlags)
    training: Annotated[SettingFlags, arg(constructor=_Training, name="")] = field(default_factory=_Training)
    set: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="KEY=VALUE", help_behavior_hint="(repeatable)")] = ()
    """A setting, as its flag gives it."""
    group: GroupFlag = ()
    """Options of the optimizer for parameters by name ('*.bias' weight_decay=0); the first that matches holds."""
    out: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="(default: runs/check-NAME-TIME)")] = None
    """Folder to save the verdict in."""
    json: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the result as one JSON object, and nothing else, on standard output."""
    quiet: Annotated[bool, arg(help_behavior_hint="")] = False
    """Show no progress, only the result."""
    verbose: Annotated[bool, arg(help_behavior_hint="")] = False
    """Print the numbers behind what is said in words."""

    def run(self) -> int:
        """Repeat, compare and report."""
        given = {**given_settings(self), **settings_in(self.set, self)}
        self._refuse_what_does_not_fit(given)
        named = {
            "runs": self.runs,
            "explain": self.explain,
            "other_seed": self.other_seed,
            "other_workers": self.other_workers,
            "window": self.window,
            "nodes": self.nodes,
        }
        if self.command or self.fresh_process:
            import_torch()
        else:
            start_server_early(str(given.get("kind", AUTO)))
        from hogwild.cli.checking import check_command, check_settings, command_subject, experiment_subject

        settings = check_settings(self.tolerance, {key: value for key, value in named.items() if value is not None})
        if self.command:
            subject = command_subject(self.command)
        else:
            subject = experiment_subject(self.experiment, given, fresh_process=self.fresh_process, quiet=self.quiet)
        with subject as (name, checked):
            return check_command(
                name,
                checked,
                settings,
                out=self.out,
                plot=self.plot,
                json=self.json,
                quiet=self.quiet,
                verbose=self.verbose,
            )

    def _refuse_what_does_not_fit(self, given: dict[str, object]) -> None:
        """Refuse flags beside each other of which one would do nothing."""
        if not self.command:
            if not self.experiment:
                raise ArgumentError("no experiment named; hogwild check digits is a good first one (hogwild list)")
            return
        if self.plot:
            raise ArgumentError("--plot given beside --command, whose runs leave nothing on the way to draw")
        if self.experiment or given or self.fresh_process:
            other = self.experiment or (flag_of(next(iter(given))) if given else "--fresh-process")
            raise ArgumentError(f"{other} given beside --command, which says by itself how to train")
