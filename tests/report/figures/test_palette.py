"""The palette: every two colours can be told apart by every eye, and all from their paper."""

import math
from itertools import combinations

import numpy as np
import pytest

from attnbench.report.figures import sheet

BLINDNESS = {  # Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB
    "none": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
               [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
               [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                   [0.0193339, 0.1191920, 0.9503041]])  # fmt: skip
SETS = {"light": sheet.LIGHT, "dark": sheet.DARK}
COLOURED = [*sheet.FAMILIES, "other"]
PAIRS = [  # Sharma, Wu and Dalal 2005, table 1
    ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
    ((50, 2.5, 0), (50, 0, -2.5), 4.3065),
    ((50, 2.5, 0), (61, -5, 29), 22.8977),
    ((2.0776, 0.0795, -1.135), (0.9033, -0.0636, -0.5514), 0.9082),
]


def linear(colour):
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def seen(colour, blindness):
    """CIELAB of a colour, as an eye sees it."""
    rgb = np.clip(np.array(BLINDNESS[blindness]) @ linear(colour), 0, 1)
    t = TO_XYZ @ rgb / (TO_XYZ @ np.ones(3))
    f = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def ciede2000(one, other):
    (l1, a1, b1), (l2, a2, b2) = one, other
    c = (math.hypot(a1, b1) + math.hypot(a2, b2)) / 2
    g = 0.5 * (1 - math.sqrt(c**7 / (c**7 + 25**7)))
    a1, a2 = a1 * (1 + g), a2 * (1 + g)
    c1, c2 = math.hypot(a1, b1), math.hypot(a2, b2)
    h1, h2 = math.degrees(math.atan2(b1, a1)) % 360, math.degrees(math.atan2(b2, a2)) % 360
    turn = 0.0 if c1 * c2 == 0 else (h2 - h1 + 180) % 360 - 180
    dl, dc = l2 - l1, c2 - c1
    dh = 2 * math.sqrt(c1 * c2) * math.sin(math.radians(turn / 2))
    light, c = (l1 + l2) / 2, (c1 + c2) / 2
    h = h1 + h2 if c1 * c2 == 0 else (h1 + turn / 2) % 360
    t = (
        1
        - 0.17 * math.cos(math.radians(h - 30))
        + 0.24 * math.cos(math.radians(2 * h))
        + 0.32 * math.cos(math.radians(3 * h + 6))
        - 0.20 * math.cos(math.radians(4 * h - 63))
    )
    sl = 1 + 0.015 * (light - 50) ** 2 / math.sqrt(20 + (light - 50) ** 2)
    sc, sh = 1 + 0.045 * c, 1 + 0.015 * c * t
    rc = 2 * math.sqrt(c**7 / (c**7 + 25**7))
    rt = -rc * math.sin(math.radians(60 * math.exp(-(((h - 275) / 25) ** 2))))
    return math.sqrt((dl / sl) ** 2 + (dc / sc) ** 2 + (dh / sh) ** 2 + rt * (dc / sc) * (dh / sh))


def contrast(one, other):
    dark, light = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def mixed(colour, paper, share):
    """A colour over a paper, as thin as that."""
    parts = [(int(colour[i : i + 2], 16), int(paper[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in parts)


def test_the_distance_is_the_published_one():
    for one, other, expected in PAIRS:
        assert ciede2000(one, other) == pytest.approx(expected, abs=1e-4)
        assert ciede2000(other, one) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("theme", SETS)
@pytest.mark.parametrize("blindness", BLINDNESS)
def test_every_two_colours_can_be_told_apart(theme, blindness):
    names = [*COLOURED, "faint"]  # what is pale is no family either
    labs = {name: seen(SETS[theme][name], blindness) for name in names}
    apart = {(a, b): ciede2000(labs[a], labs[b]) for a, b in combinations(names, 2)}
    assert {pair: distance for pair, distance in apart.items() if distance < 10} == {}


@pytest.mark.parametrize("theme", SETS)
def test_colours_stand_out_and_words_can_be_read_on_paper_and_on_the_deepest_of_each(theme):
    colours = SETS[theme]
    paper = colours["paper"]
    assert contrast("#000000", "#ffffff") == pytest.approx(21, abs=0.01)
    assert min(contrast(colours[name], paper) for name in COLOURED) >= 3
    assert min(contrast(colours[ink], paper) for ink in ("ink", "faint")) >= 4.5
    for name in COLOURED:
        ground = mixed(colours[name], paper, sheet.DEEPEST)
        assert contrast(colours["ink"], ground) >= 4.5, name
