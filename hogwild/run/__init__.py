"""One run from its arguments to its record, in three steps.

job, training          what is to be done, checked; what `train`, experiments, checks and replays come down to
kernel_training, kernel_settings      the same of a compiled function
prepare                the first step: plans, refusals and warnings; in `trial/` the one step that is tried before
staleness              the plan for gradients that are old
averages, agreement    the plan for several machines, and what they agree upon
going_on, owed         what a resumed run takes over, and which evaluations it owes
open                   the second step: memory is laid out, what is resumed lies in it, workers are ready
conduct                the third step: the workers are supervised to the end
machines, courier_main the other machines in it
evaluator, asked       meanwhile: the versions that workers show are evaluated
loss_watch, divergence           a loss that rises is told
callback, follower, progress     and what your objects and functions are told
early_stopping, tensorboard      two such objects
outcome, result, audit, state_dicts   what came of it; in `saved/` how it lies on disk, and is read there
figures                the style of all figures
"""

from hogwild._moved import names_from

__getattr__ = names_from("hogwild.run", ("run.result", "run.progress", "run.saved.directory"))  # it was one module
