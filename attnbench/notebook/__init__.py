"""From a notebook: what ``attnbench.run``, ``load``, ``show`` and ``choose`` are.

Nothing is measured in the notebook's own process, and the records lie in a run folder all the same.
What can't be done is a sentence, raised as :class:`impls.errors.CantBeDone`.
"""
