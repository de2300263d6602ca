"""What is tried before a run, in the process of the caller, and what it is refused for.

try_job, try_kernel    one step of what is to be done
dry_run                one gradient on a copy of the model: what it draws, writes to, and has of sparse gradients
one_step               how it is computed, on copies of what a worker is given
kept_by_loss           what the loss keeps that threads must not share; by that which_kind decides
reached_by_layers      what layers compute with beside the model's own parameters
left_out               parameters of a loss that nobody trains
second_look            does a gradient or a step depend on what came before it? (trainee, same_steps)
curvature              how curved the loss is where the run begins
at_batch, batch_digest, holes      what all of them ask of a batch
lone_samples           batches of one sample, where a run fails at one
"""
