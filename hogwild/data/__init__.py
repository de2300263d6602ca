"""A number → the batch of that number, whoever asks."""
