"""One run from its arguments to its record."""

from hogwild._moved import names_from

__getattr__ = names_from("hogwild.run", ("run.result", "run.progress", "run.directory"))  # it was one module
