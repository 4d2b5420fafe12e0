"""From a notebook: ``attnbench.run``, ``attnbench.load`` and ``attnbench.show``.

    import attnbench

    df = attnbench.run(["sdpa", "matmul"], seq=[256, 512], phase="forward")
    df.groupby("variant")["time.median_s"].min()
    attnbench.show(df)

Nothing is measured in the notebook's own process: a worker of its own does it, as for the verb
``run``, and the records lie in a run folder all the same. What can't be done is a sentence, raised
as :class:`impls.asked.CantBeDone`; a word that can't be is a ``ValueError`` too.
"""

from attnbench.notebook.frames import load
from attnbench.notebook.measured import run
from attnbench.notebook.shown import show

__all__ = ["load", "run", "show"]
