"""One run from its arguments to its record, in three steps.

job, training       what is to be done, checked; what `train`, experiments and replays come down to
prepare             the first step: plans, refusals and warnings; in `trial/` the one step that is tried before
staleness, averages, agreement    what the plan is about gradients that are old, and about several machines
open                the second step: memory is laid out, what is resumed lies in it (going_on, shown)
conduct             the third step: the workers are supervised to the end; machines is the other machines' part in it
evaluator, follower, divergence    meanwhile: versions are evaluated, callbacks told
audit, result       what came of it; in `saved/` how it lies on disk, and is found and read there
"""

from hogwild._moved import names_from

__getattr__ = names_from("hogwild.run", ("run.result", "run.progress", "run.saved.directory"))  # it was one module
