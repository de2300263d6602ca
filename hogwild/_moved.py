"""Where modules went in version 0.2: an import of an old one works for one version more, with a DeprecationWarning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES: Mapping[str, tuple[str, ...]] = {
    "arithmetic": ("optim.kernels",),
    "audit": ("run.audit", "shared.totals", "workers.account"),
    "checkpoint": ("run.saved.checkpoint",),
    "control": ("shared.tickets", "shared.words", "shared.locks"),
    "copying": ("shared.copying",),
    "doctor": ("bench.doctor",),
    "hashing": ("shared.hashing",),
    "journal": ("shared.journal",),
    "limits": ("shared.limits",),
    "memory": ("shared.arena", "shared.layout"),
    "optimizer": ("optim.stepping", "optim.gradients"),
    "optimizer_state": ("optim.plan", "optim.factory", "shared.optimizer_state"),
    "recipe": ("experiment", "run.saved.directory"),
    "replica": ("model.replica", "model.anatomy", "model.buffers"),
    "rows": ("shared.tables",),
    "rules.inplace": ("rules.in_place",),
    "rules.lockfree": ("rules.hogwild",),
    "rules.ring": ("rules.versioned",),
    "run.best": ("run.saved.best",),
    "run.directory": ("run.saved.directory",),
    "run.origin": ("run.saved.origin",),
    "schedule": ("data.schedule", "data.sources"),
    "seeding": ("data.seeding", "workers.surroundings.bit_flags"),
    "session": ("run.conduct", "run.prepare", "run.open", "run.job"),
    "sparse": ("optim.sparse",),
    "state": ("shared.state", "shared.slots", "shared.gradient_slots"),
    "state_copy": ("shared.optimizer_state",),
    "trainer": ("api", "run.training"),
    "trial": ("run.trial.dry_run",),
    "watcher": ("run.evaluator", "run.progress"),
    "workers.events": ("workers.team",),
    "workers.generator": ("workers.surroundings.shared_generator",),
    "workers.grad": ("workers.surroundings.no_grad",),
    "workers.locks": ("shared.locks",),
    "workers.observer": ("workers.milestones",),
}
"""Old module → where its names are now, all under `hogwild`. Names that only other modules of ours used have other
names in places: `CHANGELOG.md` has them."""


def names_from(
    old: str, homes: Sequence[str], renamed: Mapping[str, str] | None = None, *, warn: bool = True
) -> Callable[[str], Any]:
    """A module's `__getattr__`: the names that it had are looked for in `homes`, with a DeprecationWarning."""

    def get(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        for home in homes:
            module = import_module(f"hogwild.{home}")
            found = (renamed or {}).get(name, name)
            if hasattr(module, found):
                if warn:
                    _warn(f"{old}.{name} is now hogwild.{home}.{found}")
                return getattr(module, found)
        raise AttributeError(f"module {old!r} has no attribute {name!r}")

    return get


def _warn(text: str) -> None:
    """Warn whoever called the caller of this function."""
    warnings.warn(f"{text}; the old name goes in the next version", DeprecationWarning, stacklevel=3)


class _OldModules:
    """Finds the old modules; what is imported is empty, and looks for each name where it is now."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        package, _, old = fullname.partition(".")
        found = package == "hogwild" and old in MODULES
        return ModuleSpec(fullname, self) if found else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:  # noqa: ARG002
        return None

    def exec_module(self, module: ModuleType) -> None:
        homes = MODULES[module.__name__.removeprefix("hogwild.")]
        _warn(f"{module.__name__} is now {', '.join(f'hogwild.{home}' for home in homes)}")
        module.__getattr__ = names_from(module.__name__, homes, warn=False)  # type: ignore[method-assign]


def keep_old_imports() -> None:
    """Let the old modules be imported."""
    sys.meta_path.append(_OldModules())
