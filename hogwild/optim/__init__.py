"""Any optimizer as a step from one place in shared memory into another.

factory, plan          the caller's optimizer, made and tried: what state it keeps, and how it is stepped
several                optimizers of parameters of their own, as one
stepping, sharded      a step, and that of one shard
kernels, step_form, row_adagrad      steps that are written out
torch_step             those that the optimizer makes itself
sparse, table_steps    gradients of single rows
gradients, copies      what a step is given: looked at, clipped, in memory of its own
rates                  the number of an update → learning rates
compensation, stability       what is done for gradients that are τ updates old
"""
