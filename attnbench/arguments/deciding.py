"""The words of the verbs that decide: choose, crossover, capture."""

from __future__ import annotations

import argparse

from attnbench.arguments.problems import axes
from attnbench.given import above_nought, count, seconds, seed, share, size, words


def choose(verb: argparse.ArgumentParser) -> None:
    """Of ``choose``."""
    problem = verb.add_argument_group(
        "the problem", "one value each; --seq must be given. Forward, with a causal mask, and one "
        "sequence of 4 heads of 64 (on a GPU 2 of 16 heads of 128, in bfloat16) if not given"
    )  # fmt: skip
    axes(problem)
    verb.add_argument(
        "--problems", metavar="FILE", help="calls as 'attnbench capture' wrote them: an answer each"
    )
    limits = verb.add_argument_group("what will do")
    limits.add_argument("--max-memory", type=size, metavar="SIZE",
                        help="bytes above the inputs, such as 8GiB")  # fmt: skip
    limits.add_argument("--max-error", type=above_nought, metavar="E",
                        help="to exact softmax, relative: 1e-2")  # fmt: skip
    limits.add_argument("--exact", action="store_true", help="exact softmax alone, as without it")
    limits.add_argument(
        "--allow", type=words, metavar="KIND,…", help="besides exact softmax: pattern (softmax on "
        "its own pattern), approximate, other (another operator)"
    )  # fmt: skip
    rest = verb.add_argument_group("what it rests on")
    rest.add_argument("--from", dest="source", action="append", metavar="RUN",
                      help="a run folder, or a folder of them; runs of this machine as it is now "
                      "if not given, and where none fits it is measured")  # fmt: skip
    rest.add_argument("--measure", action="store_true", help="measure, whatever there is")
    rest.add_argument("--export", metavar="FILE", help="a table for attnbench.dispatch, of all "
                      "that the run measured")  # fmt: skip
    rest.add_argument("--out", default="results", metavar="DIR", help="where runs are kept")
    rest.add_argument("--seed", type=seed, metavar="N", help="of the inputs; 0 if not given")
    rest.add_argument("--threads", type=count, metavar="N", help="all cores but one if not given")


def crossover(verb: argparse.ArgumentParser) -> None:
    """Of ``crossover``."""
    verb.add_argument("a", metavar="A", help="a variant, as 'list' names it")
    verb.add_argument("b", metavar="B", help="another")
    verb.add_argument("--margin", type=share, metavar="M",
                      help="the least lead that is one: 0.02 is two hundredths; a hundredth or "
                      "this machine's noise floor if not given")  # fmt: skip
    problem = verb.add_argument_group("the problem", "one value each, but --seq is the range to "
                                      "look in: 128,16384; the rest as for 'choose'")  # fmt: skip
    axes(problem)
    verb.add_argument(
        "--budget", type=seconds, metavar="S", help="seconds of the whole search; 240 if not given"
    )
    verb.add_argument("--seed", type=seed, metavar="N", help="of the inputs; 0 if not given")
    verb.add_argument("--threads", type=count, metavar="N", help="all cores but one if not given")
    verb.add_argument("--out", default="results", metavar="DIR", help="where 'env' left its file")


def capture(verb: argparse.ArgumentParser) -> None:
    """Of ``capture``."""
    verb.usage = "attnbench capture [options] -- PROGRAM [ARGUMENT …]"
    verb.add_argument(
        "program", nargs="*", metavar="PROGRAM",
        help="after --, as you would start it: python train.py --epochs 1",
    )  # fmt: skip
    verb.add_argument("--out", default="calls.json", metavar="FILE",
                      help="where the calls are kept; calls.json if not given")  # fmt: skip
    verb.add_argument(
        "--samples", action="store_true",
        help="keep real q, k and v of each place, for --inputs captured:FILE.npz",
    )  # fmt: skip
