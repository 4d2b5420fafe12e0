"""The project's own answer, from what is committed: ``python proofs/answer.py [--write]``.

``docs/answer.md`` is filled from runs and evidence under ``results/`` and held against what is
committed, byte by byte; ``--write`` puts the new one in its place. The words are written by hand
in ``answer.md.jinja``: what they claim is asked of the figures first, and where those don't say so
any more nothing is made, but a sentence is named that has to be written anew.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from attnbench.features.quality.recall_view import REACHES, SHORT, STEPS, TIME  # noqa: E402
from proofs import answer_figures as figures  # noqa: E402

MACHINE = ROOT / "results" / "amd-epyc-2c"
RUN = "20261123-021508"
PAGE = ROOT / "docs" / "answer.md"
WINDOW = "window:127,0"
WIDTH = 100
UNBROKEN = "\x00"
"""A blank of a command, while lines are filled."""
HALF = 0.5
RECALLED = {
    "sdpa": REACHES,
    "linear.elu": SHORT,
    "performer?features=64": SHORT,
    "dilated?dilation=1&width=32": SHORT,
}
"""What other seeds said too, which is why the page says no more."""
LITTLE = 0.2
"""Of what softmax does beyond averaging."""


class NotSoAnyMore(Exception):
    """A sentence of the page that the figures don't bear out."""


def made(machine: Path = MACHINE, run: str = RUN) -> str:
    """The page."""
    data = figures.Data(machine, run)
    if wrong := [sentence for sentence, holds in claims(data) if not holds]:
        raise NotSoAnyMore("the figures don't say any more that " + "; that ".join(wrong))
    words = Environment(
        loader=FileSystemLoader(HERE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return filled(
        words.get_template("answer.md.jinja").render(
            data=data,
            forward=data.speed("forward"),
            train=data.speed("train"),
            window=data.speed("forward", WINDOW),
            window_train=data.speed("train", WINDOW),
            figures=figures,
            steps=STEPS,
            time=TIME,
        )
    )


def filled(page: str) -> str:
    """Its paragraphs and lists filled to a line's width, now that the figures are in them."""
    blocks = re.split(r"(\n\n+|^```.*?^```$)", page, flags=re.MULTILINE | re.DOTALL)
    return "".join(_filled(block) for block in blocks)


def _filled(block: str) -> str:
    if not block.strip() or block.startswith(("#", "|", "```")):
        return block
    block = re.sub(r"`[^`]+`", lambda span: re.sub(r"\s+", UNBROKEN, span.group()), block)
    items = re.split(r"^(?=- |\d\. )", block, flags=re.MULTILINE)
    return "\n".join(
        textwrap.fill(
            " ".join(item.split()),
            WIDTH,
            subsequent_indent=_indent(item),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for item in items
        if item.strip()
    ).replace(UNBROKEN, " ")


def _indent(item: str) -> str:
    found = re.match(r"- |\d\. ", item)
    return " " * len(found.group()) if found else ""


def claims(data: figures.Data) -> Iterator[tuple[str, bool]]:
    """What the words say that no figure in them shows."""
    forward, train = data.speed("forward"), data.speed("train")
    window, window_train = data.speed("forward", WINDOW), data.speed("train", WINDOW)
    for speed in (forward, train):
        phase = speed.regime.phase
        most = len(speed.others(speed.longest)) / 2
        many, few = (len(speed.ahead(n)) for n in (speed.longest, speed.lengths[0]))
        yield f"most are faster at the longest length, {phase}", many > most
        yield f"most are not at the shortest, {phase}", few < most
    for speed in (window, window_train):
        leads = "window.blocked" in speed.standings[speed.longest].leaders
        _, least, _ = speed.against("window.blocked", "sdpa", speed.longest)
        yield (
            f"window.blocked leads with a window and is ahead of sdpa, {speed.regime.phase}",
            leads and least > 1 + speed.margin,
        )
    for name, p in data.points().items():
        if p.computes == "its own operator":
            kept = data.kept(name)
            yield f"{name} in a trained model ends below half", p.cosine[0] < HALF
            yield f"{name} keeps little of softmax", kept is None or kept[1] < LITTLE
    for name in ("bigbird", "longformer"):
        yield f"{name} keeps most of softmax", (data.kept(name) or (0.0, 0.0))[0] > HALF
    levels = data.levels()[1]
    yield (
        "nobody gains at any quality",
        not any(level.keep and level.keep[0].faster for level in levels),
    )
    recalls = {each.variant: each for each in data.recalls()}
    for budget, (name, said) in product((STEPS, TIME), RECALLED.items()):
        held = recalls[name].accuracy[budget][figures.PAIRS_OF_RECALL].standing == said
        yield f"{name} {said} of recalling 99 % ({budget})", held
    for claim in ("reassociated", "sparse-long", "low-rank"):
        yield f"{claim} is reproduced", data.verdict(claim) == "reproduced"
    yield "one claim was not reproduced", data.claims("not reproduced") == ["one-head"]


def main(words: list[str]) -> int:
    try:
        page = made()
    except NotSoAnyMore as why:
        print(why)
        return 1
    if words == ["--write"]:
        PAGE.parent.mkdir(exist_ok=True)
        PAGE.write_text(page)
        print(f"{PAGE.relative_to(ROOT)}: made")
        return 0
    same = PAGE.is_file() and PAGE.read_text() == page
    print(f"{PAGE.relative_to(ROOT)}: {'as committed' if same else 'not as committed'}")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
