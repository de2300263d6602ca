"""Which rules there are, where each is at home, and which settings it takes.

What a rule is and may do it declares itself, as class attributes (`hogwild.rules.base.Rule`). Everyone else asks here,
and nobody spells a rule's name. A rule is imported when somebody asks what it is, so that the names, for a help text,
do not wait for torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from hogwild.config import RunConfig
from hogwild.errors import ArgumentError, guess, in_a_sentence

if TYPE_CHECKING:
    from hogwild.rules.base import Rule


@dataclass(frozen=True)
class RuleEntry:
    """Where a rule is: the module and the class; `options` are its fields of `RunConfig`, and how a title says
    each, if it does."""

    module: str
    class_name: str
    options: Mapping[str, str] = field(default_factory=dict)


RULES: Mapping[str, RuleEntry] = {
    "racing": RuleEntry("hogwild.rules.racing", "Racing"),
    "hogwild": RuleEntry("hogwild.rules.hogwild", "Hogwild", {"compensation": ""}),
    "locked": RuleEntry("hogwild.rules.locked", "Locked", {"compensation": ""}),
    "snapshot": RuleEntry("hogwild.rules.snapshot", "Snapshot", {"compensation": ""}),
    "ordered": RuleEntry("hogwild.rules.ordered", "Ordered", {"staleness": "staleness {}", "compensation": ""}),
    "sync": RuleEntry("hogwild.rules.sync", "Sync", {"micro_batches": "{} micro-batches"}),
}
"""Name → where the rule is, from the fewest guarantees to the most."""

NAMES = tuple(RULES)
LEAST_OVERHEAD = RunConfig.update
"""The default rule, which takes no lock; what others are compared with."""
SAME_BITS = "ordered"
"""The rule that is named to whoever wants the same bits every time."""


def rule_class(name: str) -> type[Rule]:
    """The class of the rule of that name.

    Raises:
        ArgumentError: no rule has that name.
    """
    if name not in RULES:
        raise ArgumentError(f"update {name!r} is not a rule; {guess(name, NAMES)}the rules are {', '.join(NAMES)}")
    found: type[Rule] = getattr(import_module(RULES[name].module), RULES[name].class_name)
    return found


def is_ours(rule: Rule) -> bool:
    """True where that is one of our rules itself, and no subclass of one."""
    return rule.name in RULES and type(rule) is rule_class(rule.name)


def names_where(is_so: Callable[[type[Rule]], bool]) -> tuple[str, ...]:
    """The names of the rules of which that is so."""
    return tuple(name for name in NAMES if is_so(rule_class(name)))


def stepping_by_row() -> tuple[str, ...]:
    """The rules in place whose gradients are each worker's own: of a table they touch the rows of a batch alone."""
    return names_where(lambda rule: not rule.versioned and not rule.shares_gradients)


def quoted(names: tuple[str, ...], last: str) -> str:
    """Names in a sentence: 'a', 'b' and 'c'."""
    return in_a_sentence([*map(repr, names)], last)


def gives_same_bits(name: str) -> bool:
    """True where that is the name of one of our rules, and it promises the same bits."""
    return name in RULES and rule_class(name).same_bits


def owners_of(option: str) -> tuple[str, ...]:
    """The names of the rules that have that setting; of one that is nobody's in particular, all."""
    return tuple(name for name, entry in RULES.items() if option in entry.options) or NAMES


def make_rule(update: str | Rule, config: RunConfig) -> Rule:
    """The rule of that name with its options in the configuration, or the given rule itself; both take the gradient as
    the configuration says, of as many batches.

    Raises:
        ArgumentError: no rule has that name, or it cannot take its gradient that way.
    """
    if isinstance(update, str):
        make = rule_class(update)
        rule = make(**{name: getattr(config, name) for name in RULES[update].options})
    else:
        rule = update
    if config.gradient == "grad" and rule.shares_gradients:
        raise ArgumentError(
            f"gradient 'grad' leaves .grad alone, and {rule.name} is a race for .grad; it needs 'backward'"
        )
    if config.gradient is not None:
        rule.gradient_by = config.gradient
    rule.batches_per_ticket = config.accumulate
    return rule


def rule_for(update: str | Rule, workers: int) -> Rule:
    """The rule of that name, with options that keep so many workers busy; or the given rule itself.

    Raises:
        ArgumentError: no rule has that name.
    """
    if not isinstance(update, str):
        return update
    make = rule_class(update)
    return make(**make.options_for(workers))


def rule_name(update: str | Rule) -> str:
    """The name of a rule that is given by name or as itself.

    Raises:
        ArgumentError: it is neither.
    """
    from hogwild.rules.base import Rule

    if isinstance(update, Rule):
        return update.name
    if isinstance(update, str):
        return update
    raise ArgumentError(f"update {update!r} is not a rule; the rules are {', '.join(NAMES)}, or a Rule of yours")


def rule_title(config: RunConfig) -> str:
    """The rule of a run and its options, in a few words."""
    options = RULES[config.update].options if config.update in RULES else {}
    return ", ".join([config.update, *(said.format(getattr(config, name)) for name, said in options.items() if said)])


def title_of(config: RunConfig, kind: str = "") -> str:
    """What is run, on one line: name, rule, and who does it; `kind`: the one chosen, where it was open."""
    return f"{config.name} · {rule_title(config)} · {config.crew(kind)}"


def refuse_idle(given: Mapping[str, object], update: str) -> None:
    """Refuse a setting that its rule does not have: it was surely meant to do something.

    Raises:
        ArgumentError: one of those given belongs to another rule than `update`.
    """
    if "recheck" in given and update in RULES and not rule_class(update).same_bits:
        having = names_where(lambda rule: rule.same_bits)
        raise ArgumentError(
            f"recheck {given['recheck']} given, and update is {update!r}, which promises no bits to compare; "
            f"{quoted(having, 'and')} have it"
        )
    from hogwild.rules.any_age import AnyAge

    for name in given:
        owners = owners_of(name)
        if update in RULES and update not in owners:
            some = f"only {owners[0]!r} has" if len(owners) == 1 else f"{quoted(owners, 'and')} have"
            raise ArgumentError(
                f"{name} {given[name]} given, and update is {update!r}; {some} it (--update {owners[-1]})"
            )
    if given.get("compensation") == "auto" and update in RULES and issubclass(rule_class(update), AnyAge):
        raise ArgumentError(
            f"compensation auto given, and update is {update!r}, whose gradients have no fixed age; compensation "
            f"'workers' takes them to be workers - 1 updates old"
        )
