"""The colours of a report, light and dark: one for each family of variants, and the paper's own.

Any two differ by 10 (CIEDE2000) or more to any eye and stand out from their paper by 3:1 or more;
words are in ink. ``tests/report/figures/test_palette.py`` measures that, under three simulations of
colour blindness.
"""

from __future__ import annotations

from collections.abc import Mapping

INK, FAINT, GRID, PAPER = "#1c2129", "#68707c", "#dde1e7", "#ffffff"
"""Text, lesser text, lines to measure by, and the ground of everything."""
FAMILIES = {
    "dense": "#186294", "sparse": "#db7900", "lowrank": "#009e73", "linear": "#d92151",
    "layers": "#8a59da", "parallel": "#6e4621", "external": "#676f00",
}  # fmt: skip
OTHER = "#3d4f60"
"""Of a family that is not ours."""
NAMES = {
    INK: "ink", FAINT: "faint", GRID: "grid", PAPER: "paper", OTHER: "other",
    **{colour: family for family, colour in FAMILIES.items()},
}  # fmt: skip
"""What a colour is called in the page's style sheet, as ``var(--dense)``."""
LIGHT = {name: colour for colour, name in NAMES.items()}
DARK = {
    "ink": "#e6e9ee", "faint": "#98a1ad", "grid": "#2b323c", "paper": "#14171c",
    "other": "#cfd9e4", "dense": "#538cb9", "sparse": "#f89848", "lowrank": "#39d3ac",
    "linear": "#ee5d86", "layers": "#b68df9", "parallel": "#a8744a", "external": "#e7e553",
}  # fmt: skip
"""The same by their names, where the paper is dark."""
DEEPEST = 0.38
"""How much of a family's colour may lie under words that are still to be read."""


def css() -> str:
    """The colours by their names: as the system has it, as the reader chose, and light on paper.

    A reader's choice is an attribute of the page: ``<html data-theme="dark">``.
    """
    light, dark = _set(LIGHT, "light"), _set(DARK, "dark")
    return "\n".join((
        f":root{light}",
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){dark}}}",
        f":root[data-theme=dark]{dark}",
        f"@media print{{:root:root:root{light}}}",
    ))  # fmt: skip


def _set(colours: Mapping[str, str], scheme: str) -> str:
    said = "".join(f"--{name}:{colour};" for name, colour in sorted(colours.items()))
    return f"{{color-scheme:{scheme};{said}}}"
