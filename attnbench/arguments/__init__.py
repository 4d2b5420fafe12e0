"""The words of the command line: verbs in groups, options, and how they become a grid."""

from __future__ import annotations

import argparse
from typing import Any

from attnbench.arguments import deciding, evidence, problems, quality
from attnbench.forms import Parser
from attnbench.given import count, duration, factor, seconds, seed, size, words

GROUPS = {
    "see": {
        "list": "the table: every variant, what it computes, whether it can run here, or why not",
        "show": "one variant: mathematics, cost, support; with --text, the map it makes",
        "env": "the machine: fingerprint, clocks, measured ceilings, noise floor",
    },
    "trust": {
        "check": "is each variant computing what it says?",
        "selfcheck": "does this ruler measure right, here? planted faults and planted slow-downs",
    },
    "measure": {
        "run": "measure a grid: speed, memory and accuracy; the answer at the end",
        "limits": "the longest sequence each variant can take in a budget",
        "compare": "A against B: two variants, two run folders or two commits: verdicts",
        "history": "commit by commit, with asv: HEAD~3..HEAD; or compare BASE HEAD, as CI does",
        "profile": "where the time and the memory go: kernels, a trace, a memory timeline",
    },
    "decide": {
        "choose": "the attention for given shapes and limits: an answer, or why there is none",
        "crossover": "where one variant overtakes another, measured until the bracket is tight",
        "capture": "a program's attention calls, as problems: -- python train.py",
    },
    "evidence": {
        "reproduce": "are the claims true? what others said of attention, put to the test here",
        "quality": "what a variant costs a model: a recall task, a trained model, its own q, k, v",
    },
    "read": {
        "report": "a page that opens with the answer: figures, data, a table for a paper",
    },
}


def parser() -> Parser:
    """The whole command line."""
    top = Parser(
        prog="attnbench", add_help=False, usage="attnbench VERB [options]",
        description="attnbench tells an engineer which attention to use, and proves it.",
    )  # fmt: skip
    top.add_argument("-h", "--help", action="store_true")
    top.add_argument("--version", action="store_true")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser, prog="attnbench")
    made = {
        name: verbs.add_parser(name, description=line, help=line)
        for group in GROUPS.values()
        for name, line in group.items()
    }
    forms = [*_forms_of_history(made["history"]), *quality.forms(made["quality"])]
    for each in [*made.values(), *forms]:
        each.add_argument("--json", action="store_true", help="data as JSON on stdout")
        each.add_argument(
            "--table", action="append", default=[], metavar="FILE",
            help="a Python file with ROWS of variants; may be given several times",
        )  # fmt: skip
    _show(made["show"])
    for name in ("check", "run", "limits"):
        made[name].add_argument(
            "variants", nargs="*", metavar="VARIANT", help="all of the table if none"
        )
        if name != "limits":
            problems.grid(made[name])
    problems.grid(made["compare"])
    _history(made["history"])
    _run(made["run"])
    _limits(made["limits"])
    _compare(made["compare"])
    deciding.choose(made["choose"])
    deciding.crossover(made["crossover"])
    deciding.capture(made["capture"])
    evidence.reproduce(made["reproduce"])
    _profile(made["profile"])
    _report(made["report"])
    _selfcheck(made["selfcheck"])
    made["env"].add_argument(
        "--dtype", type=words, default=("float32", "bfloat16", "float16", "float64"),
        metavar="T,…", help="dtypes whose matrix product is measured",
    )  # fmt: skip
    made["env"].add_argument("--device", default=None, metavar="DEVICE")
    made["env"].add_argument(
        "--out", default="results", metavar="DIR", help="where the facts are kept, by machine"
    )
    made["env"].add_argument("--threads", type=count, default=None, metavar="N")
    return top


def _show(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", metavar="NAME", help="a variant, as 'list' names it")
    verb.add_argument("--text", metavar="SENTENCE", help="draw the attention map of a sentence")
    verb.add_argument(
        "--embeddings", metavar="FILE",
        help="word vectors in GloVe's format; without it, hashed ones",
    )  # fmt: skip
    verb.add_argument("--mask", metavar="MASK", help="none, or the first that the variant takes")
    verb.add_argument("--out", metavar="FILE", help="also draw the map into a .png or .svg")


def _selfcheck(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--seed", type=seed, metavar="N", help="of the inputs; 0 if not given")
    verb.add_argument("--out", default="results", metavar="DIR", help="where runs are kept")


def _profile(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("name", metavar="NAME", help="a variant, as 'list' names it")
    verb.add_argument(
        "--against", metavar="OTHER", help="another beside it, and why one of them is slower"
    )
    problem = verb.add_argument_group("the problem", "one value each; 1024 tokens, and training "
                                      "where the variant can, if not given")  # fmt: skip
    problems.axes(problem)
    verb.add_argument("--seed", type=seed, metavar="N", help="of the inputs; 0 if not given")
    verb.add_argument("--threads", type=count, metavar="N", help="all cores but one if not given")
    verb.add_argument(
        "--out", default="profiles", metavar="DIR", help="where traces and pictures are kept"
    )


def _report(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("runs", nargs="+", metavar="RUN", help="a run folder, or a folder of them; "
                      "several are compared, never mixed in one ranking")  # fmt: skip
    verb.add_argument("--out", metavar="DIR", help="where the report goes; into the run's folder, "
                      "as report, if not given and there is one")  # fmt: skip


def _compare(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("a", metavar="A", help="a variant, a run folder or a commit")
    verb.add_argument("b", metavar="B", help="what it is held against; of runs and commits, the "
                      "later")  # fmt: skip
    problems.pairs(verb)


def _forms_of_history(verb: Parser) -> list[Parser]:
    """Besides its own: two commits against each other, and runs for asv's pages."""
    verb.set_defaults(form="")
    against = verb.form("compare", "two commits in pairs, for a pull request: exit status 1 for "
                        "what is worse, wrong or fails")  # fmt: skip
    against.add_argument("a", metavar="BASE", help="a commit")
    against.add_argument("b", metavar="HEAD", help="the commit that is held against it")
    against.add_argument("--markdown", action="store_true", help="a table for a pull request")
    against.add_argument("--instructions", action="store_true", help="in place of times: how many "
                         "instructions a call takes on a CPU, counted by valgrind")  # fmt: skip
    problems.grid(against)
    problems.pairs(against)
    runs = verb.form("export", "sweeps into asv's results, so that its pages show them too")
    runs.add_argument("runs", nargs="+", metavar="RUN", help="a run folder")
    return [against, runs]


def _history(verb: Parser) -> None:
    verb.epilog = (
        "Other forms: 'attnbench history compare BASE HEAD', two commits in pairs, and 'attnbench "
        "history export RUN …', sweeps into asv's results; each with --help."
    )
    verb.add_argument("range", metavar="RANGE", help="commits, as HEAD~3..HEAD; or one")
    verb.add_argument("--bench", metavar="REGEX", help="of asv's benchmarks, as 'time.*matmul'")
    verb.add_argument(
        "--rounds", type=count, default=7, metavar="N",
        help="times that all commits are measured, in turn and there and back; 7 if not given, "
        "the fewest by which asv can tell two times apart",
    )  # fmt: skip
    verb.add_argument(
        "--factor", type=factor, default=1.05, metavar="F",
        help="what one commit's time must be of another's to be called slower; 1.05 if not given",
    )  # fmt: skip
    verb.add_argument("--open", action="store_true", help="then show the pages in a browser")


def _run(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--problems", metavar="FILE", help="instead of a grid: the problems of a "
                      "program, as 'attnbench capture' wrote them")  # fmt: skip
    verb.add_argument("--budget", type=seconds, metavar="S", help="seconds of sampling a cell")
    verb.add_argument("--out", default="results", metavar="DIR", help="where runs are kept")
    verb.add_argument(
        "--energy",
        action="store_true",
        help="joules a call too, where the device counts them: seconds more a cell",
    )
    verb.add_argument("--engine", choices=("local", "ray"), default="local",
                      help="where: this machine, or the nodes of a Ray cluster")  # fmt: skip
    verb.add_argument("--address", metavar="HOST:PORT", help="of the cluster's head node; the one "
                      "that this machine belongs to if not given")  # fmt: skip
    verb.add_argument("--kind", metavar="KIND", help="of the cluster's machines, where they are "
                      "not alike; those that there are most of if not given")  # fmt: skip
    verb.add_argument(
        "--devices", type=words, metavar="D,…",
        help="measure on several GPUs of this machine at once: cuda:0,cuda:1",
    )  # fmt: skip
    verb.add_argument("--resume", metavar="RUN", help="go on with a run folder; skips what is "
                      "done; with the same --table FILE, if any")  # fmt: skip
    verb.add_argument(
        "--anyway",
        action="store_true",
        help="with --resume: though the code, a file or a version has changed; ranked apart",
    )
    verb.add_argument("--limit", type=duration, metavar="TIME", help="after it no more cells are "
                      "begun, and the rest is left to --resume: 9min")  # fmt: skip
    verb.add_argument("--no-report", action="store_true", help="no page at the end")


def _limits(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--max-memory", type=size, metavar="SIZE",
        help="bytes above the inputs, such as 512MiB; 2GiB, or half of a GPU's, if not given",
    )  # fmt: skip
    verb.add_argument(
        "--max-time", type=duration, metavar="TIME", help="of a call: 1s; 200ms if not given"
    )
    verb.add_argument(
        "--by", default="seq", metavar="WHAT", help="what is searched: seq, if not given, or batch"
    )
    problem = verb.add_argument_group("the problem", "one value each, but of phase and mask; the "
                                      "preset's of the device if not given")  # fmt: skip
    problems.axes(problem)
    verb.add_argument(
        "--budget", type=seconds, metavar="S", help="seconds of the whole search; 240 if not given"
    )
    verb.add_argument("--seed", type=seed, metavar="N", help="of the inputs; 0 if not given")
    verb.add_argument("--threads", type=count, metavar="N", help="all cores but one if not given")
    verb.add_argument("--out", default="results", metavar="DIR", help="where limits are kept")


def help_text() -> str:
    """All verbs, in their groups, a line each."""
    lines = ["attnbench tells an engineer which attention to use, and proves it.", ""]
    for group, verbs in GROUPS.items():
        lines.append(f"{group}:")
        lines += [f"  {name:12}{line}" for name, line in verbs.items()]
    lines += [
        "",
        "attnbench VERB --help shows a verb's options; every verb takes --json and --table FILE.",
        "Exit status: 0 done, 1 a finding, 2 usage or environment, 130 stopped by Ctrl-C.",
    ]
    return "\n".join(lines)


GRID = (
    "seq", "batch", "heads", "kv_heads", "head_dim", "v_head_dim", "dtype", "mask", "phase",
    "inputs", "level", "device", "world", "budget",
)  # fmt: skip
"""The options that are values of a grid."""


def grid_changes(given: argparse.Namespace) -> dict[str, Any]:
    """The values of a grid that the command line sets."""
    changes = {name: getattr(given, name, None) for name in GRID}
    if changes["mask"] is not None:
        changes["mask"] = tuple(changes["mask"])
    return {name: value for name, value in changes.items() if value is not None}
