"""``attnbench tune``: the fastest values of a variant's options, kept for this device."""
