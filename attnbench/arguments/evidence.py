"""The words of the verbs that gather evidence: reproduce."""

from __future__ import annotations

import argparse

from attnbench.given import count, seconds, seed


def reproduce(verb: argparse.ArgumentParser) -> None:
    """Of ``reproduce``."""
    verb.add_argument(
        "names", nargs="*", metavar="NAME", help="a claim, as --list names it; all if none"
    )
    verb.add_argument("--list", action="store_true", help="the claims, and what each needs")
    verb.add_argument(
        "--budget", type=seconds, metavar="S", help="seconds for all that is timed; about four "
        "minutes if not given and all are asked for",
    )  # fmt: skip
    verb.add_argument(
        "--embeddings", metavar="FILE",
        help="word vectors in GloVe's format, for the claims about sentences: glove.6B.50d.txt",
    )  # fmt: skip
    verb.add_argument("--seed", type=seed, metavar="N", help="of all draws; 0 if not given")
    verb.add_argument("--threads", type=count, metavar="N", help="1 if not given")
    verb.add_argument("--out", default="results", metavar="DIR", help="where evidence is kept")
