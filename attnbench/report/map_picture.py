"""The attention map as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attnbench.report.figures.sheet import save
from impls.asked import CantBeDone


class BadPicture(CantBeDone):
    """A picture that can't be written; a sentence."""


def draw(words: Sequence[str], weights: Sequence[Sequence[float | None]], title: str,
         file: Path) -> None:  # fmt: skip
    """Write a .png or .svg of the map."""
    if file.suffix not in (".png", ".svg"):
        raise BadPicture(f"--out {file}: a picture ends in .png or .svg")
    import matplotlib as mpl

    mpl.use("Agg")
    import numpy as np
    from matplotlib import pyplot as plt

    values = np.array([[np.nan if w is None else w for w in row] for row in weights], float)
    side = 1.6 + 0.42 * len(words)
    figure, axes = plt.subplots(figsize=(side, side), layout="constrained")
    image = axes.imshow(values, cmap="cividis")
    axes.set_xticks(range(len(words)), words, rotation=60, ha="left", rotation_mode="anchor")
    axes.set_yticks(range(len(words)), words)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.set_ylabel("this word")
    axes.set_xlabel(f"looks at · {title}")
    figure.colorbar(image, shrink=0.7)
    try:
        save(figure, file, dpi=150)
    except OSError as error:
        raise BadPicture(f"can't write {file}: {error.strerror}") from None
    plt.close(figure)
