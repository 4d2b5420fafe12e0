"""The command line: the verbs in groups, each option declared once, and how they become a grid."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from attnbench.core import format

Reader = Callable[[str], Any]


def _reader(what: str, read: Reader, holds: Callable[[Any], bool] = lambda value: True) -> Reader:
    """Reads a value; raises ``… is not WHAT`` where it can't, or the value doesn't hold."""

    def reading(text: str) -> Any:
        with suppress(ValueError):
            if holds(value := read(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")

    return reading


def _between(low: float, high: float, what: str) -> Reader:
    """A number between the two; neither of them counts, nor does NaN."""
    return _reader(what, float, lambda value: low < value < high)


def _amount(read: Callable[[str], float]) -> Reader:
    def reading(text: str) -> float:
        try:
            return read(text)
        except format.NotAnAmount as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return reading


def words(text: str) -> tuple[str, ...]:
    """Words: ``forward,train``."""
    parts = tuple(w.strip() for w in text.split(",") if w.strip())
    if not parts:
        raise argparse.ArgumentTypeError(f"{text!r} holds nothing")
    return parts


numbers = _reader("whole numbers split by commas", lambda text: tuple(map(int, text.split(","))))
count = _reader("a whole number, 1 or more", int, lambda n: n > 0)
seed = _reader("a whole number from 0 to 2**62", int, lambda n: 0 <= n < 2**62)
seconds = _between(0, 86400, "a number of seconds above 0")
share = _between(0, 1, "a share between 0 and 1, such as 0.02")
above_nought = _between(0, float("inf"), "a number above 0, such as 1e-2")
factor = _between(1, 1000, "a number above 1, such as 1.05")
size = _amount(format.parse_size)
duration = _amount(format.duration)


class Option(NamedTuple):
    """One argument of a verb: its name, and what argparse is told about it."""

    name: str
    """``--seq``; without the dashes, an argument by position."""
    more: dict[str, Any]


class Group(NamedTuple):
    """Options with a title of their own in a verb's help."""

    title: str
    description: str | None
    options: tuple[Option, ...]


Options = tuple[Option | Group, ...]


def option(
    name: str,
    metavar: str | None = None,
    help: str | None = None,
    read: Reader | None = None,
    **more: Any,
) -> Option:
    """An argument that takes a value."""
    return Option(name, {"metavar": metavar, "help": help, "type": read, **more})


def flag(name: str, help: str) -> Option:
    """An option without a value."""
    return Option(name, {"action": "store_true", "help": help})


AXES = (
    option("--seq", "N,…", "N tokens, or QxK: queries x keys", read=words),
    option("--batch", "N,…", read=numbers),
    option("--heads", "N,…", read=numbers),
    option("--kv-heads", "N,…", "as many as heads if not given", read=numbers),
    option("--head-dim", "N,…", read=numbers),
    option("--v-head-dim", "N,…", "as head-dim if not given", read=numbers),
    option("--dtype", "T,…", "such as float32,bfloat16", read=words),
    option("--mask", "MASK",
           "none, causal, window:255,0, prefix:64, document:100,156, padding:90,128, alibi, "
           "dense:FILE.npy, bias:FILE.npy; causal+alibi; causal@upper-left. Give it again for "
           "more", action="append"),
    option("--phase", "P,…", "forward, train, backward, decode", read=words),
    option("--inputs", "KIND,…", "normal, peaky, outliers, equal_keys, captured:FILE.npz",
           read=words),
    option("--level", "L,…", "core, layer, block; those of the variants named if not given",
           read=words),
    option("--device", "DEVICE", "cpu, cuda or cuda:1"),
)  # fmt: skip
"""What a problem is made of."""
WORLD = option("--world", "N", "processes, for variants that run over several", read=count)


def _budget(help: str) -> Option:
    return option("--budget", "S", help, read=seconds)


CELL_BUDGET = _budget("seconds of sampling a cell")
SEARCH_BUDGET = _budget("seconds of the whole search; 240 if not given")
SEED = option("--seed", "N", "of the inputs; 0 if not given", read=seed)
THREADS = option("--threads", "N", "all cores but one if not given", read=count)
ONE_THREAD = option("--threads", "N", "1 if not given", read=count)
NAME = option("name", "NAME", "a variant, as 'list' names it")
VARIANTS = option("variants", "VARIANT", "all of the table if none", nargs="*")
MODEL_VARIANTS = option("variants", "VARIANT", "all of the table that take it if none", nargs="*")


def _out(help: str, default: str | None = "results", metavar: str = "DIR") -> Option:
    return option("--out", metavar, help, default=default)


def _margin(what: str) -> Option:
    return option(
        "--margin",
        "M",
        f"the least {what} that is one: 0.02 is two hundredths; a hundredth or this machine's "
        "noise floor if not given",
        read=share,
    )


def _problem(description: str) -> Group:
    return Group("the problem", description, AXES)


GRID_OF_RUN: Options = (
    Group("the grid", "values split by commas; every combination is run", (
        option("--preset", "NAME",
               "a named grid to start from: cpu, cuda (the defaults), efficient, h200, "
               "h200-quick, check, smoke"),
        *AXES,
    )),
    WORLD, SEED, THREADS,
)  # fmt: skip
IN_PAIRS = (
    _margin("difference"),
    _budget("seconds of pairs a problem, besides building and checking: 30"),
    option("--variant", "NAME", "of two commits: a variant to compare; may be given again",
           action="append"),
    _out("where 'env' left its file"),
)  # fmt: skip
MODEL = (
    option("--dtype", "T", "float32 if not given", default="float32"),
    option("--device", "DEVICE", "cpu, cuda or cuda:1"),
    option("--seed", "N", "0 if not given", read=seed, default=0),
    THREADS,
    option("--from", "FILE", "show what an earlier call kept, and ask nothing", dest="source"),
    _out("where it is kept"),
)  # fmt: skip
EVERY_VERB = (
    flag("--json", "data as JSON on stdout"),
    option("--table", "FILE", "a Python file with ROWS of variants; may be given several times",
           action="append", default=[]),
)  # fmt: skip

OPTIONS: dict[str, Options] = {
    "list": (),
    "show": (
        NAME,
        option("--text", "SENTENCE", "draw the attention map of a sentence"),
        option("--embeddings", "FILE", "word vectors in GloVe's format; without it, hashed ones"),
        option("--mask", "MASK", "none, or the first that the variant takes"),
        _out("also draw the map into a .png or .svg", None, "FILE"),
    ),
    "env": (
        option("--dtype", "T,…", "dtypes whose matrix product is measured", read=words,
               default=("float32", "bfloat16", "float16", "float64")),
        option("--device", "DEVICE"),
        _out("where the facts are kept, by machine"),
        option("--threads", "N", read=count),
    ),
    "check": (VARIANTS, *GRID_OF_RUN),
    "selfcheck": (SEED, _out("where runs are kept")),
    "run": (
        VARIANTS, *GRID_OF_RUN,
        option("--problems", "FILE",
               "instead of a grid: the problems of a program, as 'attnbench capture' wrote them"),
        CELL_BUDGET,
        _out("where runs are kept"),
        flag("--energy", "joules a call too, where the device counts them: seconds more a cell"),
        option("--engine", None, "where: this machine, or the nodes of a Ray cluster",
               choices=("local", "ray"), default="local"),
        option("--address", "HOST:PORT",
               "of the cluster's head node; the one that this machine belongs to if not given"),
        option("--kind", "KIND",
               "of the cluster's machines, where they are not alike; those that there are most of "
               "if not given"),
        option("--devices", "D,…", "measure on several GPUs of this machine at once: cuda:0,cuda:1",
               read=words),
        option("--resume", "RUN",
               "go on with a run folder; skips what is done; with the same --table FILE, if any"),
        flag("--anyway",
             "with --resume: though the code, a file or a version has changed; ranked apart"),
        option("--limit", "TIME",
               "after it no more cells are begun, and the rest is left to --resume: 9min",
               read=duration),
        flag("--no-report", "no page at the end"),
    ),
    "limits": (
        VARIANTS,
        option("--max-memory", "SIZE",
               "bytes above the inputs, such as 512MiB; 2GiB, or half of a GPU's, if not given",
               read=size),
        option("--max-time", "TIME", "of a call: 1s; 200ms if not given", read=duration),
        option("--by", "WHAT", "what is searched: seq, if not given, or batch", default="seq"),
        _problem("one value each, but of phase and mask; the preset's of the device if not given"),
        SEARCH_BUDGET, SEED, THREADS,
        _out("where limits are kept"),
    ),
    "compare": (
        *GRID_OF_RUN,
        option("a", "A", "a variant, a run folder or a commit"),
        option("b", "B", "what it is held against; of runs and commits, the later"),
        *IN_PAIRS,
    ),
    "history": (
        option("range", "RANGE", "commits, as HEAD~3..HEAD; or one"),
        option("--bench", "REGEX", "of asv's benchmarks, as 'time.*matmul'"),
        option("--rounds", "N",
               "times that all commits are measured, in turn and there and back; 7 if not given, "
               "the fewest by which asv can tell two times apart", read=count, default=7),
        option("--factor", "F",
               "what one commit's time must be of another's to be called slower; 1.05 if not given",
               read=factor, default=1.05),
        flag("--open", "then show the pages in a browser"),
    ),
    "profile": (
        NAME,
        option("--against", "OTHER", "another beside it, and why one of them is slower"),
        _problem("one value each; 1024 tokens, and training where the variant can, if not given"),
        SEED, THREADS,
        _out("where traces and pictures are kept", "profiles"),
    ),
    "choose": (
        _problem("one value each; --seq must be given. Forward, with a causal mask, and one "
                 "sequence of 4 heads of 64 (on a GPU 2 of 16 heads of 128, in bfloat16) if not "
                 "given"),
        option("--problems", "FILE", "calls as 'attnbench capture' wrote them: an answer each"),
        Group("what will do", None, (
            option("--max-memory", "SIZE", "bytes above the inputs, such as 8GiB", read=size),
            option("--max-error", "E", "to exact softmax, relative: 1e-2", read=above_nought),
            flag("--exact", "exact softmax alone, as without it"),
            option("--allow", "KIND,…",
                   "besides exact softmax: pattern (softmax on its own pattern), approximate, "
                   "other (another operator)", read=words),
        )),
        Group("what it rests on", None, (
            option("--from", "RUN",
                   "a run folder, or a folder of them; runs of this machine as it is now if not "
                   "given, and where none fits it is measured", dest="source", action="append"),
            flag("--measure", "measure, whatever there is"),
            option("--export", "FILE",
                   "a table for attnbench.dispatch, of all that the run measured"),
            _out("where runs are kept"),
            SEED,
            THREADS,
        )),
    ),
    "crossover": (
        option("a", "A", "a variant, as 'list' names it"),
        option("b", "B", "another"),
        _margin("lead"),
        _problem("one value each, but --seq is the range to look in: 128,16384; the rest as for "
                 "'choose'"),
        SEARCH_BUDGET, SEED, THREADS,
        _out("where 'env' left its file"),
    ),
    "capture": (
        option("program", "PROGRAM", "after --, as you would start it: python train.py --epochs 1",
               nargs="*"),
        _out("where the calls are kept; calls.json if not given", "calls.json", "FILE"),
        flag("--samples", "keep real q, k and v of each place, for --inputs captured:FILE.npz"),
    ),
    "reproduce": (
        option("names", "NAME", "a claim, as --list names it; all if none", nargs="*"),
        flag("--list", "the claims, and what each needs"),
        _budget("seconds for all that is timed; about four minutes if not given and all are asked "
                "for"),
        option("--embeddings", "FILE",
               "word vectors in GloVe's format, for the claims about sentences: glove.6B.50d.txt"),
        option("--seed", "N", "of all draws; 0 if not given", read=seed),
        ONE_THREAD,
        _out("where evidence is kept"),
    ),
    "quality": (option("asked", "FORM", "recall, model or real", nargs="?"),),
    "report": (
        option("runs", "RUN",
               "a run folder, or a folder of them; several are compared, never mixed in one "
               "ranking", nargs="+"),
        _out("where the report goes; into the run's folder, as report, if not given and there is "
             "one", None),
    ),
}  # fmt: skip


FORMS: dict[str, dict[str, tuple[str, Options]]] = {
    "history": {
        "compare": (
            "two commits in pairs, for a pull request: exit status 1 for what is worse, wrong or "
            "fails",
            (
                option("a", "BASE", "a commit"),
                option("b", "HEAD", "the commit that is held against it"),
                flag("--markdown", "a table for a pull request"),
                flag("--instructions",
                     "in place of times: how many instructions a call takes on a CPU, counted by "
                     "valgrind"),
                *GRID_OF_RUN, *IN_PAIRS,
            ),
        ),
        "export": (
            "sweeps into asv's results, so that its pages show them too",
            (option("runs", "RUN", "a run folder", nargs="+"),),
        ),
    },
    "quality": {
        "recall": (
            "small models trained from scratch with each variant to recall the values of keys: "
            "the same steps, and the same time",
            (
                option("variants", "VARIANT",
                       "cores that are causal and train; the preset's if none. Softmax attention "
                       "(sdpa) is always among them", nargs="*"),
                option("--preset", "NAME",
                       "cpu (six variants, ten minutes on a core), cpu-quick, gpu; what is there "
                       "if not given"),
                Group("the task and the model", "the preset's if not given", (
                    option("--pairs", "N,…", "pairs to recall, each a share of every batch",
                           read=numbers),
                    option("--seq", "N,…", "tokens of a sequence", read=numbers),
                    option("--width", "N,…",
                           "of the model: with one head, a linear state holds its square",
                           read=numbers),
                )),
                Group("the training", None, (
                    option("--seeds", "N",
                           "trainings of each variant; fewer than 2 give no interval", read=count),
                    option("--seed", "N", "the first of them; 0 if not given", read=seed),
                    option("--steps", "N", "that everybody gets", read=count),
                    option("--seconds", "S",
                           "that everybody gets; what softmax attention takes for its steps if "
                           "not given", read=seconds),
                    ONE_THREAD,
                )),
                flag("--scan",
                     "one seed of softmax and of linear attention at several widths and rates of "
                     "learning: where the one recalls and the other doesn't"),
                option("--from", "FILE", "show what an earlier one found", dest="source"),
                _out("where evidence is kept"),
            ),
        ),
        "model": (
            "a trained model (all-MiniLM-L6-v2), its attention replaced by each variant: how near "
            "its embeddings stay, and what a step takes",
            (
                MODEL_VARIANTS,
                option("--texts", "FILE",
                       "your own texts, UTF-8, one a line; built-in ones if not given"),
                option("--seq", "N,…", "tokens of a step that is timed; 256 if not given",
                       read=numbers),
                flag("--no-layers", "leave out each layer alone"),
                option("--distil", "STEPS",
                       "steps in which what isn't exact learns from the original; none if not "
                       "given", read=count, default=0),
                option("--train", None,
                       "what learns: the four projections around the attention, or every weight",
                       choices=("projections", "all"), default="projections"),
                _budget("seconds of pairs a variant and a length; 3 if not given"),
                *MODEL,
            ),
        ),
        "real": (
            "error and skill of what isn't exact, on the queries, keys and values of that model's "
            "layers, beside made-up ones",
            (
                MODEL_VARIANTS,
                option("--seq", "N", "tokens of a row of text; 512 if not given", read=count,
                       default=512),
                option("--batch", "N", "rows; 2 if not given", read=count, default=2),
                *MODEL,
            ),
        ),
    },
}  # fmt: skip

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
USAGE = {"capture": "attnbench capture [options] -- PROGRAM [ARGUMENT …]"}
EPILOGS = {
    "history": "Other forms: 'attnbench history compare BASE HEAD', two commits in pairs, and "
    "'attnbench history export RUN …', sweeps into asv's results; each with --help.",
    "quality": "Its forms: 'attnbench quality recall', small models trained from scratch with each "
    "variant; 'attnbench quality model', a trained model with each in it; 'attnbench quality "
    "real', errors on what that model's layers hand to attention; each with --help.",
}


class Parser(argparse.ArgumentParser):
    """argparse with one sentence and a hint for an error, and with verbs that have forms."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.forms: dict[str, Parser] = {}
        """By the first word after the verb; without one of these it is the verb's own form."""

    def add(self, options: Iterable[Option | Group]) -> None:
        """Add options, and groups of them."""
        for each in options:
            if isinstance(each, Option):
                self.add_argument(each.name, **each.more)
            else:
                group = self.add_argument_group(each.title, each.description)
                for one in each.options:
                    group.add_argument(one.name, **one.more)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Leave it to the form that the first word names, if it names one."""
        if args and args[0] in self.forms:
            return self.forms[args[0]].parse_known_args(args[1:], namespace)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Print one sentence, and exit with status 2."""
        message = message.removeprefix("argument VERB: ")
        self.exit(2, f"attnbench: {message} ('{self.prog} --help' shows what there is)\n")


def parser() -> Parser:
    """The whole command line."""
    top = Parser(
        prog="attnbench",
        add_help=False,
        usage="attnbench VERB [options]",
        description="attnbench tells an engineer which attention to use, and proves it.",
    )
    top.add_argument("-h", "--help", action="store_true")
    top.add_argument("--version", action="store_true")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser, prog="attnbench")
    for group in GROUPS.values():
        for name, line in group.items():
            verb = verbs.add_parser(
                name,
                description=line,
                help=line,
                usage=USAGE.get(name),
                epilog=EPILOGS.get(name),
            )
            verb.add((*EVERY_VERB, *OPTIONS[name]))
            for word, (description, options) in FORMS.get(name, {}).items():
                verb.set_defaults(form="")
                form = Parser(prog=f"{verb.prog} {word}", description=description)
                form.set_defaults(form=word)
                form.add((*EVERY_VERB, *options))
                verb.forms[word] = form
    return top


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


def _readers(options: Iterable[Option | Group]) -> Iterator[tuple[str, Reader]]:
    for each in options:
        if isinstance(each, Group):
            yield from _readers(each.options)
        elif each.name.startswith("--"):
            yield each.name[2:].replace("-", "_"), each.more.get("type") or str


READERS = dict(_readers((*OPTIONS["run"], *OPTIONS["choose"])))
"""What reads the text of an option that Python takes too, by its name there."""
GRID = tuple(name for name, _ in _readers((*AXES, WORLD, CELL_BUDGET)))
"""The options that are values of a grid."""


def grid_changes(given: argparse.Namespace) -> dict[str, Any]:
    """The values of a grid that the command line sets."""
    changes = {name: getattr(given, name, None) for name in GRID}
    if changes["mask"] is not None:
        changes["mask"] = tuple(changes["mask"])
    return {name: value for name, value in changes.items() if value is not None}
