"""Runs made by hand as figures take them, and what a figure says and where."""

import csv
import io
import re
from pathlib import Path
from xml.etree import ElementTree

from attnbench.core.record import Distance, Error, Memory, Work
from attnbench.report.figures.sheet import width
from attnbench.report.figures.style import looks
from attnbench.report.scenes import ReportRun, scenes
from impls.loading import load_file

made = load_file(Path(__file__).parent.with_name("records.py"))
at, timed, untimed = made.at, made.timed, made.untimed
SVG = "{http://www.w3.org/2000/svg}"
LENGTHS = (256, 512, 1024, 2048, 4096)
FAMILIES = ("dense", "sparse", "lowrank", "linear", "layers", "parallel", "external", "theirs")


def run(records, number=0, machine="box"):
    """A run as it is read."""
    header = {"run": f"run-{number}", "machine": {"name": machine}}
    path = Path(f"results/{machine}/run-{number}")
    return ReportRun(number, path, header, records, range(1, len(records) + 1))


def staged(records, **more):
    """A run, its scenes and the looks of its variants."""
    ran = run(records, **more)
    return ran, scenes([ran]), looks(records)


def memory(nbytes):
    """The memory of a call."""
    return Memory(peak_bytes=nbytes, saved_bytes=None, expected_bytes=None, method="m")


def error(value):
    """The error of an output."""
    return {"forward": Error(relative=value, max=1.0, worst_row=1.0, cosine=1.0)}


def exact(name, length, median, problem=None, **more):
    """A record of exact softmax with all that is drawn of it."""
    given = {
        "family": "dense",
        "cost": Work(flops=4 * length**2, bytes=length),
        "computes": "softmax",
        "memory": memory(length * 1024),
        **more,
    }
    return timed(name, median, problem or at(length), **given)


def other(name, length, median, distance=0.5, skill=0.6, **more):
    """A record of another operator."""
    far = Distance(relative=distance, max=1.0, worst_row=1.0, cosine=0.9, skill=skill)
    given = {"family": "linear", "computes": "its own operator", "distance": far, **more}
    return exact(name, length, median, **given)


def crowd(count=45, lengths=LENGTHS):
    """Many variants of every sort, in a bunch; some end early."""
    records = []
    for number in range(count):
        make = (exact, exact, other, other)[number % 4]
        name = f"variant.{number}" + "?features=128" * (number % 7 == 0)
        for length in lengths[: len(lengths) - (number % 11 == 5)]:
            median = 1e-8 * length**2 * (1 + number % 9 / 5) / (1 + 3 * (make is other))
            more = {"error": error(2e-7 * (1 + number / 90))}
            if make is other:
                more["distance"] = 0.2 + number / 50
            more["memory"] = memory((1 + number) * length * 300)
            records.append(make(name, length, median, family=FAMILIES[number % 8], **more))
    return records


def tree(drawn):
    """The figure, as a tree."""
    return ElementTree.fromstring(drawn.svg)


def said(drawn):
    """All words in the figure."""
    return [text.text for text in tree(drawn).iter(f"{SVG}text")]


def rows(drawn):
    """What its CSV says."""
    return list(csv.DictReader(io.StringIO(drawn.csv)))


def boxes(drawn):
    """Each word with its box, x to the right and y down, as the widest of fonts shows it."""
    found = []
    for text in tree(drawn).iter(f"{SVG}text"):
        style = text.get("style", "")
        size = float(re.search(r"([\d.]+)px", style)[1])
        weight = "bold" if re.search(r"bold|700", style) else "normal"
        wide = width(text.text, size, weight)
        anchor = re.search(r"text-anchor:(\w+)", style)
        share = {"start": 0, "middle": 0.5, "end": 1}[anchor[1] if anchor else "start"]
        x, y = float(text.get("x")) - share * wide, float(text.get("y"))
        found.append((text.text, (x, y - size * 0.75, x + wide, y + size * 0.1)))
    return found


def untidy(drawn):
    """Words that lie on others, or are cut off."""
    found = boxes(drawn)
    wide, high = map(float, tree(drawn).get("viewBox").split()[2:])
    bad = [
        f"{text!r} is cut off"
        for text, (a, b, c, d) in found
        if a < 0 or b < 0 or c > wide or d > high
    ]
    for number, (text, (a, b, c, d)) in enumerate(found):
        bad += [
            f"{text!r} lies on {before!r}"
            for before, (e, f, g, h) in found[:number]
            if a < g - 0.5 and e < c - 0.5 and b < h - 0.5 and f < d - 0.5
        ]
    return bad
