"""The words for problems: a grid of them, the axes of one, and pairs of calls on them."""

from __future__ import annotations

import argparse

from attnbench.given import count, numbers, seconds, seed, share, words


def grid(verb: argparse.ArgumentParser) -> None:
    """A grid: its preset, its axes, and what it is measured with."""
    group = verb.add_argument_group("the grid", "values split by commas; every combination is run")
    group.add_argument(
        "--preset",
        metavar="NAME",
        help="a named grid to start from: cpu, cuda (the defaults), efficient, h200, h200-quick, "
        "check, smoke",
    )
    axes(group)
    verb.add_argument(
        "--world", type=count, metavar="N", help="processes, for variants that run over several"
    )
    verb.add_argument("--seed", type=seed, metavar="N", help="of the inputs; 0 if not given")
    verb.add_argument("--threads", type=count, metavar="N", help="all cores but one if not given")


def axes(grid: argparse._ArgumentGroup) -> None:
    """What a problem is made of, several values each."""
    grid.add_argument("--seq", type=words, metavar="N,…", help="N tokens, or QxK: queries x keys")
    grid.add_argument("--batch", type=numbers, metavar="N,…")
    grid.add_argument("--heads", type=numbers, metavar="N,…")
    grid.add_argument(
        "--kv-heads", type=numbers, metavar="N,…", help="as many as heads if not given"
    )
    grid.add_argument("--head-dim", type=numbers, metavar="N,…")
    grid.add_argument("--v-head-dim", type=numbers, metavar="N,…", help="as head-dim if not given")
    grid.add_argument("--dtype", type=words, metavar="T,…", help="such as float32,bfloat16")
    grid.add_argument(
        "--mask", action="append", metavar="MASK",
        help="none, causal, window:255,0, prefix:64, document:100,156, padding:90,128, alibi, "
        "dense:FILE.npy, bias:FILE.npy; causal+alibi; causal@upper-left. Give it again for more",
    )  # fmt: skip
    grid.add_argument("--phase", type=words, metavar="P,…", help="forward, train, backward, decode")
    grid.add_argument(
        "--inputs", type=words, metavar="KIND,…",
        help="normal, peaky, outliers, equal_keys, captured:FILE.npz",
    )  # fmt: skip
    grid.add_argument(
        "--level", type=words, metavar="L,…",
        help="core, layer, block; those of the variants named if not given",
    )  # fmt: skip
    grid.add_argument("--device", metavar="DEVICE", help="cpu, cuda or cuda:1")


def pairs(verb: argparse.ArgumentParser) -> None:
    """How two are held against each other in pairs."""
    verb.add_argument("--margin", type=share, metavar="M",
                      help="the least difference that is one: 0.02 is two hundredths; a hundredth "
                      "or this machine's noise floor if not given")  # fmt: skip
    verb.add_argument(
        "--budget",
        type=seconds,
        metavar="S",
        help="seconds of pairs a problem, besides building and checking: 30",
    )
    verb.add_argument("--variant", action="append", metavar="NAME",
                      help="of two commits: a variant to compare; may be given again")  # fmt: skip
    verb.add_argument("--out", default="results", metavar="DIR", help="where 'env' left its file")
