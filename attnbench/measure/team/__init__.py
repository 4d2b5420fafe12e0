"""Variants that run over several processes: a team of ranks, and the one attend that stands for it.

The worker computes no attention of its own here. It lays the tensors of a call into memory that all
see, wakes the ranks, waits, and takes the whole output from there; so whoever judges an ``attend``
judges these too. Each rank is a process that imports the variant, takes its share, and times its
own part by the ruler's own code.
"""
