"""The words of the command line: verbs in groups, options, and how they become a grid."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from attnbench.core import format


def numbers(text: str) -> tuple[int, ...]:
    """``1,2,4``"""
    try:
        return tuple(int(n) for n in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not whole numbers split by commas") from None


def words(text: str) -> tuple[str, ...]:
    """``forward,train``"""
    found = tuple(w.strip() for w in text.split(",") if w.strip())
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} holds nothing")
    return found


def count(text: str) -> int:
    """A whole number, 1 or more."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return int(text)


def seed(text: str) -> int:
    """A whole number that fits a random generator's state."""
    if not (text.isascii() and text.isdigit() and int(text) < 2**62):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2**62")
    return int(text)


def seconds(text: str) -> float:
    """A number above zero."""
    return _from_nought_to(86400, text, "a number of seconds above 0")


def size(text: str) -> int:
    """Bytes: ``2GiB``."""
    return int(_amount(format.parse_size, text))


def duration(text: str) -> float:
    """Seconds: ``200ms``."""
    return _amount(format.duration, text)


def _amount(read: Callable[[str], float], text: str) -> float:
    try:
        return read(text)
    except format.NotAnAmount as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def share(text: str) -> float:
    """A share between 0 and 1."""
    return _from_nought_to(1, text, "a share between 0 and 1, such as 0.02")


def above_nought(text: str) -> float:
    """An error: a number above 0."""
    return _from_nought_to(float("inf"), text, "a number above 0, such as 1e-2")


def factor(text: str) -> float:
    """How many times as much: a number above 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 1 < value < 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 1, such as 1.05")
    return value


def _from_nought_to(end: float, text: str, what: str) -> float:
    """A number between nought and the end, neither of them."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < end:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value


def reproduce(verb: argparse.ArgumentParser) -> None:
    """Of ``reproduce``."""
    verb.add_argument(
        "names", nargs="*", metavar="NAME", help="a claim, as --list names it; all if none"
    )
    verb.add_argument("--list", action="store_true", help="the claims, and what each needs")
    verb.add_argument(
        "--budget",
        type=seconds,
        metavar="S",
        help="seconds for all that is timed; about four minutes if not given and all are asked for",
    )
    verb.add_argument(
        "--embeddings",
        metavar="FILE",
        help="word vectors in GloVe's format, for the claims about sentences: glove.6B.50d.txt",
    )
    verb.add_argument("--seed", type=seed, metavar="N", help="of all draws; 0 if not given")
    verb.add_argument("--threads", type=count, metavar="N", help="1 if not given")
    verb.add_argument("--out", default="results", metavar="DIR", help="where evidence is kept")


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
        "--mask",
        action="append",
        metavar="MASK",
        help="none, causal, window:255,0, prefix:64, document:100,156, padding:90,128, alibi, "
        "dense:FILE.npy, bias:FILE.npy; causal+alibi; causal@upper-left. Give it again for more",
    )
    grid.add_argument("--phase", type=words, metavar="P,…", help="forward, train, backward, decode")
    grid.add_argument(
        "--inputs",
        type=words,
        metavar="KIND,…",
        help="normal, peaky, outliers, equal_keys, captured:FILE.npz",
    )
    grid.add_argument(
        "--level",
        type=words,
        metavar="L,…",
        help="core, layer, block; those of the variants named if not given",
    )
    grid.add_argument("--device", metavar="DEVICE", help="cpu, cuda or cuda:1")


def pairs(verb: argparse.ArgumentParser) -> None:
    """How two are held against each other in pairs."""
    verb.add_argument(
        "--margin",
        type=share,
        metavar="M",
        help="the least difference that is one: 0.02 is two hundredths; a hundredth "
        "or this machine's noise floor if not given",
    )
    verb.add_argument(
        "--budget",
        type=seconds,
        metavar="S",
        help="seconds of pairs a problem, besides building and checking: 30",
    )
    verb.add_argument(
        "--variant",
        action="append",
        metavar="NAME",
        help="of two commits: a variant to compare; may be given again",
    )
    verb.add_argument("--out", default="results", metavar="DIR", help="where 'env' left its file")


def choose(verb: argparse.ArgumentParser) -> None:
    """Of ``choose``."""
    problem = verb.add_argument_group(
        "the problem",
        "one value each; --seq must be given. Forward, with a causal mask, and one "
        "sequence of 4 heads of 64 (on a GPU 2 of 16 heads of 128, in bfloat16) if not given",
    )
    axes(problem)
    verb.add_argument(
        "--problems", metavar="FILE", help="calls as 'attnbench capture' wrote them: an answer each"
    )
    limits = verb.add_argument_group("what will do")
    limits.add_argument(
        "--max-memory", type=size, metavar="SIZE", help="bytes above the inputs, such as 8GiB"
    )
    limits.add_argument(
        "--max-error", type=above_nought, metavar="E", help="to exact softmax, relative: 1e-2"
    )
    limits.add_argument("--exact", action="store_true", help="exact softmax alone, as without it")
    limits.add_argument(
        "--allow",
        type=words,
        metavar="KIND,…",
        help="besides exact softmax: pattern (softmax on "
        "its own pattern), approximate, other (another operator)",
    )
    rest = verb.add_argument_group("what it rests on")
    rest.add_argument(
        "--from",
        dest="source",
        action="append",
        metavar="RUN",
        help="a run folder, or a folder of them; runs of this machine as it is now "
        "if not given, and where none fits it is measured",
    )
    rest.add_argument("--measure", action="store_true", help="measure, whatever there is")
    rest.add_argument(
        "--export",
        metavar="FILE",
        help="a table for attnbench.dispatch, of all that the run measured",
    )
    rest.add_argument("--out", default="results", metavar="DIR", help="where runs are kept")
    rest.add_argument("--seed", type=seed, metavar="N", help="of the inputs; 0 if not given")
    rest.add_argument("--threads", type=count, metavar="N", help="all cores but one if not given")


def crossover(verb: argparse.ArgumentParser) -> None:
    """Of ``crossover``."""
    verb.add_argument("a", metavar="A", help="a variant, as 'list' names it")
    verb.add_argument("b", metavar="B", help="another")
    verb.add_argument(
        "--margin",
        type=share,
        metavar="M",
        help="the least lead that is one: 0.02 is two hundredths; a hundredth or "
        "this machine's noise floor if not given",
    )
    problem = verb.add_argument_group(
        "the problem",
        "one value each, but --seq is the range to look in: 128,16384; the rest as for 'choose'",
    )
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
        "program",
        nargs="*",
        metavar="PROGRAM",
        help="after --, as you would start it: python train.py --epochs 1",
    )
    verb.add_argument(
        "--out",
        default="calls.json",
        metavar="FILE",
        help="where the calls are kept; calls.json if not given",
    )
    verb.add_argument(
        "--samples",
        action="store_true",
        help="keep real q, k and v of each place, for --inputs captured:FILE.npz",
    )


class Parser(argparse.ArgumentParser):
    """argparse, with errors as one sentence and a hint; and verbs that have several forms."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.forms: dict[str, Parser] = {}
        """By the first word after the verb; without one of these it is the verb's own form."""

    def form(self, name: str, description: str) -> Parser:
        """Another form of this verb."""
        self.forms[name] = Parser(prog=f"{self.prog} {name}", description=description)
        self.forms[name].set_defaults(form=name)
        return self.forms[name]

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As its form does that the first word names."""
        if args and args[0] in self.forms:
            return self.forms[args[0]].parse_known_args(args[1:], namespace)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """One sentence, status 2."""
        message = message.removeprefix("argument VERB: ")
        self.exit(2, f"attnbench: {message} ('{self.prog} --help' shows what there is)\n")


def quality_forms(verb: Parser) -> list[Parser]:
    """All of them; the verb alone says which there are."""
    verb.set_defaults(form="")
    verb.add_argument("asked", nargs="?", metavar="FORM", help="recall, model or real")
    verb.epilog = (
        "Its forms: 'attnbench quality recall', small models trained from scratch with each "
        "variant; 'attnbench quality model', a trained model with each in it; 'attnbench quality "
        "real', errors on what that model's layers hand to attention; each with --help."
    )
    return [_recall(verb), _model(verb), _real(verb)]


def _recall(verb: Parser) -> Parser:
    form = verb.form(
        "recall",
        "small models trained from scratch with each variant to recall the "
        "values of keys: the same steps, and the same time",
    )
    form.add_argument(
        "variants",
        nargs="*",
        metavar="VARIANT",
        help="cores that are causal and "
        "train; the preset's if none. Softmax attention (sdpa) is always among "
        "them",
    )
    form.add_argument(
        "--preset",
        metavar="NAME",
        help="cpu (six variants, ten minutes on a core), "
        "cpu-quick, gpu; what is there if not given",
    )
    task = form.add_argument_group("the task and the model", "the preset's if not given")
    task.add_argument(
        "--pairs", type=numbers, metavar="N,…", help="pairs to recall, each a share of every batch"
    )
    task.add_argument("--seq", type=numbers, metavar="N,…", help="tokens of a sequence")
    task.add_argument(
        "--width",
        type=numbers,
        metavar="N,…",
        help="of the model: with one head, a linear state holds its square",
    )
    told = form.add_argument_group("the training")
    told.add_argument(
        "--seeds",
        type=count,
        metavar="N",
        help="trainings of each variant; fewer than 2 give no interval",
    )
    told.add_argument("--seed", type=seed, metavar="N", help="the first of them; 0 if not given")
    told.add_argument("--steps", type=count, metavar="N", help="that everybody gets")
    told.add_argument(
        "--seconds",
        type=seconds,
        metavar="S",
        help="that everybody gets; what softmax attention takes for its steps if not given",
    )
    told.add_argument("--threads", type=count, metavar="N", help="1 if not given")
    form.add_argument(
        "--scan",
        action="store_true",
        help="one seed of softmax and of linear "
        "attention at several widths and rates of learning: where the one recalls "
        "and the other doesn't",
    )
    form.add_argument("--from", dest="kept", metavar="FILE", help="show what an earlier one found")
    form.add_argument("--out", default="results", metavar="DIR", help="where evidence is kept")
    return form


def _model(verb: Parser) -> Parser:
    form = verb.form(
        "model",
        "a trained model (all-MiniLM-L6-v2), its attention replaced by each "
        "variant: how near its embeddings stay, and what a step takes",
    )
    _variants(form)
    form.add_argument(
        "--texts",
        metavar="FILE",
        help="your own texts, UTF-8, one a line; built-in ones if not given",
    )
    form.add_argument(
        "--seq",
        type=numbers,
        metavar="N,…",
        help="tokens of a step that is timed; 256 if not given",
    )
    form.add_argument("--no-layers", action="store_true", help="leave out each layer alone")
    form.add_argument(
        "--distil",
        type=count,
        default=0,
        metavar="STEPS",
        help="steps in which what isn't exact learns from the original; none if not given",
    )
    form.add_argument(
        "--train",
        choices=("projections", "all"),
        default="projections",
        help="what learns: the four projections around the attention, or every weight",
    )
    form.add_argument(
        "--budget",
        type=seconds,
        metavar="S",
        help="seconds of pairs a variant and a length; 3 if not given",
    )
    _rest(form)
    return form


def _real(verb: Parser) -> Parser:
    form = verb.form(
        "real",
        "error and skill of what isn't exact, on the queries, keys and values "
        "of that model's layers, beside made-up ones",
    )
    _variants(form)
    form.add_argument(
        "--seq",
        type=count,
        default=512,
        metavar="N",
        help="tokens of a row of text; 512 if not given",
    )
    form.add_argument("--batch", type=count, default=2, metavar="N", help="rows; 2 if not given")
    _rest(form)
    return form


def _variants(form: Parser) -> None:
    form.add_argument(
        "variants", nargs="*", metavar="VARIANT", help="all of the table that take it if none"
    )


def _rest(form: Parser) -> None:
    form.add_argument("--dtype", default="float32", metavar="T", help="float32 if not given")
    form.add_argument("--device", metavar="DEVICE", help="cpu, cuda or cuda:1")
    form.add_argument("--seed", type=seed, default=0, metavar="N", help="0 if not given")
    form.add_argument("--threads", type=count, metavar="N", help="all cores but one if not given")
    form.add_argument(
        "--from",
        dest="source",
        metavar="FILE",
        help="show what an earlier call kept, and ask nothing",
    )
    form.add_argument("--out", default="results", metavar="DIR", help="where it is kept")


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
        prog="attnbench",
        add_help=False,
        usage="attnbench VERB [options]",
        description="attnbench tells an engineer which attention to use, and proves it.",
    )
    top.add_argument("-h", "--help", action="store_true")
    top.add_argument("--version", action="store_true")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser, prog="attnbench")
    made = {
        name: verbs.add_parser(name, description=line, help=line)
        for group in GROUPS.values()
        for name, line in group.items()
    }
    forms = [*_forms_of_history(made["history"]), *quality_forms(made["quality"])]
    for each in [*made.values(), *forms]:
        each.add_argument("--json", action="store_true", help="data as JSON on stdout")
        each.add_argument(
            "--table",
            action="append",
            default=[],
            metavar="FILE",
            help="a Python file with ROWS of variants; may be given several times",
        )
    _show(made["show"])
    for name in ("check", "run", "limits"):
        made[name].add_argument(
            "variants", nargs="*", metavar="VARIANT", help="all of the table if none"
        )
        if name != "limits":
            grid(made[name])
    grid(made["compare"])
    _history(made["history"])
    _run(made["run"])
    _limits(made["limits"])
    _compare(made["compare"])
    choose(made["choose"])
    crossover(made["crossover"])
    capture(made["capture"])
    reproduce(made["reproduce"])
    _profile(made["profile"])
    _report(made["report"])
    _selfcheck(made["selfcheck"])
    made["env"].add_argument(
        "--dtype",
        type=words,
        default=("float32", "bfloat16", "float16", "float64"),
        metavar="T,…",
        help="dtypes whose matrix product is measured",
    )
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
        "--embeddings",
        metavar="FILE",
        help="word vectors in GloVe's format; without it, hashed ones",
    )
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
    problem = verb.add_argument_group(
        "the problem",
        "one value each; 1024 tokens, and training where the variant can, if not given",
    )
    axes(problem)
    verb.add_argument("--seed", type=seed, metavar="N", help="of the inputs; 0 if not given")
    verb.add_argument("--threads", type=count, metavar="N", help="all cores but one if not given")
    verb.add_argument(
        "--out", default="profiles", metavar="DIR", help="where traces and pictures are kept"
    )


def _report(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "runs",
        nargs="+",
        metavar="RUN",
        help="a run folder, or a folder of them; several are compared, never mixed in one ranking",
    )
    verb.add_argument(
        "--out",
        metavar="DIR",
        help="where the report goes; into the run's folder, "
        "as report, if not given and there is one",
    )


def _compare(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("a", metavar="A", help="a variant, a run folder or a commit")
    verb.add_argument(
        "b", metavar="B", help="what it is held against; of runs and commits, the later"
    )
    pairs(verb)


def _forms_of_history(verb: Parser) -> list[Parser]:
    """Besides its own: two commits against each other, and runs for asv's pages."""
    verb.set_defaults(form="")
    against = verb.form(
        "compare",
        "two commits in pairs, for a pull request: exit status 1 for what is worse, wrong or fails",
    )
    against.add_argument("a", metavar="BASE", help="a commit")
    against.add_argument("b", metavar="HEAD", help="the commit that is held against it")
    against.add_argument("--markdown", action="store_true", help="a table for a pull request")
    against.add_argument(
        "--instructions",
        action="store_true",
        help="in place of times: how many instructions a call takes on a CPU, counted by valgrind",
    )
    grid(against)
    pairs(against)
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
        "--rounds",
        type=count,
        default=7,
        metavar="N",
        help="times that all commits are measured, in turn and there and back; 7 if not given, "
        "the fewest by which asv can tell two times apart",
    )
    verb.add_argument(
        "--factor",
        type=factor,
        default=1.05,
        metavar="F",
        help="what one commit's time must be of another's to be called slower; 1.05 if not given",
    )
    verb.add_argument("--open", action="store_true", help="then show the pages in a browser")


def _run(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--problems",
        metavar="FILE",
        help="instead of a grid: the problems of a program, as 'attnbench capture' wrote them",
    )
    verb.add_argument("--budget", type=seconds, metavar="S", help="seconds of sampling a cell")
    verb.add_argument("--out", default="results", metavar="DIR", help="where runs are kept")
    verb.add_argument(
        "--energy",
        action="store_true",
        help="joules a call too, where the device counts them: seconds more a cell",
    )
    verb.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="where: this machine, or the nodes of a Ray cluster",
    )
    verb.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="of the cluster's head node; the one that this machine belongs to if not given",
    )
    verb.add_argument(
        "--kind",
        metavar="KIND",
        help="of the cluster's machines, where they are "
        "not alike; those that there are most of if not given",
    )
    verb.add_argument(
        "--devices",
        type=words,
        metavar="D,…",
        help="measure on several GPUs of this machine at once: cuda:0,cuda:1",
    )
    verb.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with a run folder; skips what is done; with the same --table FILE, if any",
    )
    verb.add_argument(
        "--anyway",
        action="store_true",
        help="with --resume: though the code, a file or a version has changed; ranked apart",
    )
    verb.add_argument(
        "--limit",
        type=duration,
        metavar="TIME",
        help="after it no more cells are begun, and the rest is left to --resume: 9min",
    )
    verb.add_argument("--no-report", action="store_true", help="no page at the end")


def _limits(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--max-memory",
        type=size,
        metavar="SIZE",
        help="bytes above the inputs, such as 512MiB; 2GiB, or half of a GPU's, if not given",
    )
    verb.add_argument(
        "--max-time", type=duration, metavar="TIME", help="of a call: 1s; 200ms if not given"
    )
    verb.add_argument(
        "--by", default="seq", metavar="WHAT", help="what is searched: seq, if not given, or batch"
    )
    problem = verb.add_argument_group(
        "the problem",
        "one value each, but of phase and mask; the preset's of the device if not given",
    )
    axes(problem)
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
