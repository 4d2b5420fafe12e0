"""The command line: the verbs in groups, each option declared once, and how they become a grid."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from functools import cache
from textwrap import wrap
from typing import Any, NoReturn

from attnbench.core import format
from impls.errors import CantBeDone
from impls.operators import PARAMETERS

Reader = Callable[[str], Any]


class BadWord(CantBeDone, ValueError):
    """A value that an option doesn't take; a sentence."""


def _reader(what: str, read: Reader, holds: Callable[[Any], bool] = lambda value: True) -> Reader:
    """Reads a value; raises ``… is not WHAT`` where it can't, or the value doesn't hold."""

    def reading(text: str) -> Any:
        try:
            if holds(value := read(text)):
                return value
        except format.NotAnAmount as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        except (ValueError, re.error):
            pass
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")

    return reading


def words(text: str) -> tuple[str, ...]:
    """Words: ``forward,train``; raises ArgumentTypeError where there is none."""
    parts = tuple(w.strip() for w in text.split(",") if w.strip())
    if not parts:
        raise argparse.ArgumentTypeError(f"{text!r} holds nothing")
    return parts


above_zero = _reader("a number above 0, such as 1e-2", float, lambda x: 0 < x < float("inf"))
TYPES: dict[str, Reader] = {
    "words": words,
    "numbers": _reader("whole numbers split by commas", lambda t: tuple(map(int, t.split(",")))),
    "figures": _reader("numbers split by commas", lambda t: tuple(map(float, t.split(",")))),
    "count": _reader("a whole number, 1 or more", int, lambda n: n > 0),
    "seed": _reader("a whole number from 0 to 2**62", int, lambda n: 0 <= n < 2**62),
    "seconds": _reader("a number of seconds between 0 and a day", float, lambda x: 0 < x < 86400),
    "share": _reader("a share between 0 and 1, such as 0.02", float, lambda x: 0 < x < 1),
    "factor": _reader("a number between 1 and 1000, such as 1.05", float, lambda x: 1 < x < 1000),
    "above_zero": above_zero,
    "regex": _reader("a regular expression", lambda text: re.compile(text).pattern),
    "size": _reader("a size", format.parse_size),
    "duration": _reader("a time", format.parse_duration),
}
"""What reads an option's value, by its name in the table."""

TABLE = """
[axes]
--seq N,… words: N tokens, or QxK: queries x keys
--batch N,… numbers
--heads N,… numbers
--kv-heads N,… numbers: as many as heads if not given
--head-dim N,… numbers
--v-head-dim N,… numbers: as head-dim if not given
--dtype T,… words: such as float32,bfloat16
--mask MASK append: none, causal, window:255,0, chunk:128, prefix:64, blocks:1x100,156,
  document:100,156, packed:lognormal,64,0, padding:90,128, leftpad:38,0, alibi, dense:FILE.npy,
  bias:FILE.npy; causal+alibi; causal@upper-left. Give it again for more
--phase P,… words: forward, train, backward, decode
--inputs KIND,… words: normal, peaky, outliers, equal_keys, sunk, captured:FILE.npz
+ parameters
--level L,… words: core, layer, block; those of the variants named if not given
--device DEVICE: cpu, cuda or cuda:1
[variants]
variants VARIANT *: all of the table if none
[tables]
--table FILE append =: a Python file with ROWS of variants; may be given several times
[settings]
+ tables
--seed N seed: of the inputs; 0 if not given
--threads N count: all cores but one if not given
--allocator - plain|kept: freed pages on a CPU: plain, as in a program of its own; or kept
[search]
--budget S seconds =240: seconds of the whole search; 240 if not given
+ settings
[grid]
# the grid: values split by commas; every combination is run
--preset NAME: to start from: cpu, cuda (the defaults), efficient, h200, h200-quick, check, smoke
+ axes
#
--world N count: processes, for variants that run over several
+ settings
[published]
--model NAME: a published model, a kind of attention layer each: gpt-oss-20b, llama-3.1-8b …;
  'attnbench list --models' names all; on a CPU scaled to it
--tp N count: with --model: its heads dealt out to so many ranks, one of which is measured
[pairs]
--margin M share: the least difference that is one; 0.01 or this machine's noise floor if not given
--budget S seconds: of pairs a problem, 30; of two commits, of a measurement, checks included, 240
--variant NAME append: of two commits: a variant to compare; may be given again
--out DIR =results: where 'env' left its file
[model]
+ tables
--dtype T =float32: float32 if not given
--device DEVICE: cpu, cuda or cuda:1
--threads N count: all cores but one if not given
--from FILE as:source: show what an earlier call kept, and ask nothing
--out DIR =results: where it is kept
== see
[list] the table: every variant, what it computes, whether it can run here, or why not
$ attnbench list --why
$ attnbench list --matrix
$ attnbench list --models
+ tables
--why: why a variant can't run here, and what to do about it
--models: the models of --model, their kinds of layer, and where each was read
--matrix: what each takes: masks, devices, dtypes, phases, parameters and shapes
[show] one variant: mathematics, cost, support; with --text, the map it makes
$ attnbench show gla
$ attnbench show longformer --text 'the cat sat on the mat'
name NAME: a variant, as 'list' names it
--text SENTENCE: draw the attention map of a sentence
--embeddings FILE: word vectors in GloVe's format; without it, hashed ones
--mask MASK: none, or the first that the variant takes
+ tables
[env] the machine: fingerprint, clocks, measured ceilings, noise floor
$ attnbench env
--dtype T,… words =float32,bfloat16,float16,float64: dtypes whose matrix product is measured
--device DEVICE
--out DIR =results: where the facts are kept, by machine
--threads N count
--allocator - plain|kept: as of run
== trust
[check] is each variant computing what it says?
$ attnbench check sdpa flex --mask causal --mask window:255,0
$ attnbench check mine --table mine.py
$ attnbench check --model my-model
+ variants
--model FOLDER: instead of a grid: a model of transformers, each of its attention layers by each
  implementation that it can be loaded with, against float64; of the grid it takes --seq, --dtype
  and --device
+ grid
[selfcheck] does attnbench catch injected faults on this machine?
$ attnbench selfcheck
--seed N seed: of the inputs; 0 if not given
--out DIR =results: where runs are kept
== measure
[run] measure a grid: speed, memory and accuracy; the answer at the end
$ attnbench run
$ attnbench run sdpa flex chunked --seq 1024,4096 --phase train
$ attnbench run --model gpt-oss-20b --tp 2
$ attnbench run --resume latest
+ variants
+ grid
+ published
--problems FILE: instead of a grid: the problems of a program, as 'attnbench capture' wrote them
--budget S seconds: seconds of sampling a measurement
--out DIR =results: where runs are kept
--same-bits: try each measurement for them, as 'choose --same-bits' needs
--energy: joules a call too, where the device counts them: seconds more a measurement
--engine - =local local|ray: where: this machine, or the nodes of a Ray cluster
--address HOST:PORT: of the cluster's head node; the one that this machine belongs to if not given
--devices D,… words: measure on several GPUs of this machine at once: cuda:0,cuda:1
--resume RUN: go on with a run folder (or latest), with the same --table FILE, if any
--anyway: with --resume: though the code, a file or a version has changed; ranked apart
--limit TIME duration: after it no more measurements are begun; --resume goes on with the rest: 9min
--no-report: no page at the end
--all|-v: every time, and why others have none; while it runs, a line for each measurement
[limits] the longest sequence each variant can take in a budget
$ attnbench limits --max-memory 2GiB
$ attnbench limits sdpa chunked --phase train --max-time 1s
+ variants
--max-memory SIZE size: bytes above the inputs; 2GiB, or half of a GPU's, if not given
--max-time TIME duration: of a call: 1s; 200ms if not given
--by WHAT =seq seq|batch: what is searched: seq, if not given, or batch
# the problem: one value each, but of phase and mask; the preset's of the device if not given
+ axes
#
+ search
--out DIR =results: where limits are kept
[tune] the fastest values of a variant's options here, which it runs with from then on
$ attnbench tune chunked --seq 1024 --phase train
$ attnbench tune online --seq 512,2048
name NAME: a variant with options that change its speed alone
--margin M share: the least gain that is one; 0.01, or this machine's noise floor, if not given
# the problems: values split by commas; each combination is tuned for itself; as for 'choose'
+ axes
#
+ search
--out DIR =results: where 'env' left its file
[compare] A against B: two variants, two run folders or two commits: verdicts
$ attnbench compare sdpa.flash sdpa.math --seq 1024
$ attnbench compare latest previous
+ grid
a A: a variant, a run folder (or latest, previous) or a commit
b B: what it is held against; of runs and commits, the later
+ pairs
[history] commit by commit, with asv: HEAD~3..HEAD; or compare BASE HEAD, as CI does
$ attnbench history HEAD~3..HEAD
$ attnbench history compare main HEAD --markdown
range RANGE: commits, as HEAD~3..HEAD; or one
+ tables
--bench REGEX regex: of asv's benchmarks, as 'time.*matmul'
--rounds N count =7: through all commits, there and back; with fewer than 7 asv tells nothing apart
--factor F factor =1.05: of another's time, to be called slower; 1.05 if not given
[history compare] two commits in pairs, for a pull request: status 1: slower, wrong or fails
a BASE: a commit
b HEAD: the commit that is held against it
--markdown: a table for a pull request
+ grid
+ pairs
[profile] where the time goes: kernels, a trace, the peak of memory; why one is slower
$ attnbench profile gla --against sdpa --seq 1024
name NAME: a variant, as 'list' names it
--against OTHER: another beside it, and why one of them is slower
# the problem: one value each; 1024 tokens, and training where the variant can, if not given
+ axes
#
+ settings
--out DIR =profiles: where profiles and traces are kept
== decide
[choose] the attention for given shapes and limits: an answer, or why there is none
$ attnbench choose --seq 4096 --heads 16 --phase train
$ attnbench choose --problems calls.json
$ attnbench choose --problems calls.json --verify -- python train.py
$ attnbench choose --model qwen3-next-80b-a3b --seq 4096
$ attnbench choose --seq 4096 --for sdpa_kernel
# the problem: one value each; --seq must be given. Forward, with a causal mask, and one sequence
  of 4 heads of 64 (on a GPU 2 of 16 heads of 128, in bfloat16) if not given
+ axes
#
+ published
--problems FILE: calls as 'attnbench capture' wrote them: an answer each
--verify: run the program that follows -- as it is and with the advice in place, in turn
program PROGRAM *: after --, for --verify: python train.py --epochs 1
--for ENGINE transformers|sdpa_kernel|vllm|diffusers as:engine: in place of Python, what makes this
  engine take it: transformers, sdpa_kernel (torch), vllm, diffusers
# what will do
--max-memory SIZE size: bytes above the inputs, such as 8GiB
--max-error E above_zero: to exact softmax, relative: 1e-2
--same-bits: of a batch element, alone or among others and wherever in the batch it stands
--allow KIND,… words: besides: pattern (softmax on its own pattern), approximate, other (operators)
# what it rests on
--from RUN append as:source: a run folder, or a folder of them; this machine's if not given
--measure: measure, whatever there is
--export FILE: a table for attnbench.dispatch, of all that the run measured
--out DIR =results: where runs are kept
+ settings
[crossover] where one variant overtakes another, measured until the bracket is tight
$ attnbench crossover sdpa linear.elu --seq 128,16384
a A: a variant, as 'list' names it
b B: another
--margin M share: the least lead that is one; 0.01, or this machine's noise floor, if not given
# the problem: one value each, but --seq is the range to look in: 128,16384; as for 'choose'
+ axes
#
+ search
--out DIR =results: where 'env' left its file
[capture] a program's attention calls, as problems: -- python train.py
$ attnbench capture -- python train.py
program PROGRAM *: after --, as you would start it: python train.py --epochs 1
--out FILE =calls.json: where the calls are kept; calls.json if not given
--seconds S seconds: end the program so long after its first call, and answer from what was seen
== evidence
[reproduce] are the claims true? what others said of attention, put to the test here
$ attnbench reproduce --list
$ attnbench reproduce
names NAME *: a claim, as --list names it; all if none
--list: the claims, and what each needs
--points N count: of a claim that is measured point by point, so many, spread over all of them
--budget S seconds: for all that is timed; about four minutes for all claims if not given
+ tables
--seed N seed: of all draws; 0 if not given
--threads N count: 1 if not given
--out DIR =results: where evidence is kept
[quality] what a variant costs: a language model, an encoder, a recall task, layers alone
$ attnbench quality recall --preset cpu-quick
$ attnbench quality model sdpa performer linear.elu
$ attnbench quality lm sdpa topk linear.elu
$ attnbench quality caches int8 'h2o?budget=512'
asked FORM ?: recall, model, real, lm or caches
[quality recall] small models trained from scratch with each variant to recall the values of keys:
  the same steps, and the same time
variants VARIANT *: cores that are causal and train, and always sdpa; the preset's if none
--preset NAME: cpu (six variants, ten minutes on a core), cpu-quick, gpu; what is there if not given
# the task and the model: the preset's if not given
--pairs N,… numbers: pairs to recall, each a share of every batch
--seq N count: tokens of a sequence
--width N count: of the model: with one head, a linear state holds its square
# the training
--seeds N count: trainings of each variant; fewer than 2 give no interval
--seed N seed: the first of them; 0 if not given
--steps N count: that all get
--threads N count: 1 if not given
#
--from FILE as:source: show what an earlier one found
+ tables
--out DIR =results: where evidence is kept
[quality model] a trained model (all-MiniLM-L6-v2), its attention replaced by each variant: how near
  its embeddings stay, and what a step takes
variants VARIANT *: all of the table that take it if none
--texts FILE: your own texts, UTF-8, one a line; built-in ones if not given
--seq N,… numbers: tokens of a step that is timed; 256 if not given
--budget S seconds =3: seconds of pairs a variant and a length; 3 if not given
+ model
[quality real] error and skill of what isn't exact, on that model's own q, k, v, and made-up ones
variants VARIANT *: all of the table that take it if none
--seq N count =512: tokens of a row of text; 512 if not given
--batch N count =2: rows; 2 if not given
--seed N seed =0: of the made-up inputs; 0 if not given
+ model
[quality lm] a causal language model (SmolLM2-135M, or your own), its attention replaced by each
  variant: perplexity, needles, greedy continuation, and what a pass and a decoded token take
variants VARIANT *: all of the table that take a causal mask if none
--model MODEL: smollm2, small (the repository's own), or a folder; smollm2 if it is installed
--texts FILE: your own text, UTF-8; a novel of 1890 if not given
--seq N,… numbers: tokens of a passage; 512 if not given (small: 256)
--passages N count =4: of each length; 4 if not given
--seed N seed =0: of the passages' places, and of what is to be found in them; 0 if not given
--layers N,… numbers: these layers also one by one, the variant in that one alone
--hybrid N,… numbers: also with one layer in N left exact, the variant in the rest: 2,4,8
--distil S seconds: then each that isn't exact learns the original's predictions for so many seconds
--resume FILE: go on from what an earlier call kept, variant by variant
+ model
[quality caches] that language model decoding with each cache, in few bits or with a budget:
  perplexity, needles, greedy continuation, and the time and the bytes of a token
variants CACHE *: all built in if none
--model MODEL: smollm2, small (the repository's own), or a folder; smollm2 if it is installed
--texts FILE: your own text, UTF-8; a novel of 1890 if not given
--seq N,… numbers: tokens of a passage; 2048 if not given (small: 256)
--passages N count =4: of each length; 4 if not given
--seed N seed =0: of the passages' places, and of what is to be found in them; 0 if not given
--resume FILE: go on from what an earlier call kept, cache by cache
+ model
== read
[report] a page that opens with the answer; a summary and the data beside it
$ attnbench report
$ attnbench report results/box/a results/box/b --out reports/a-and-b
runs RUN *: a run folder, or a folder of them, which are compared; the newest run if not given
--open: then show the page in a browser
--out DIR: where the report goes; into the run's folder, as report, if not given and there is one
"""
"""``== GROUP`` of verbs; ``[verb]``, ``[verb form]`` or ``[set of options]`` and what it is for;
``$ example``;
``+ set``; ``# title: description`` of options that follow, until ``#``; and options: the name, how
help shows its value (``-``: by its choices), and in any order what reads it, ``=DEFAULT`` (``=``
alone: an empty list), its choices, ``append``, how many. An option alone takes no value. What is
indented goes on.
"""
Lines = dict[str, list[str]]


def _parts() -> tuple[dict[str, dict[str, str]], Lines]:
    """What each verb is for, by group; and the lines of every part of the table."""
    groups: dict[str, dict[str, str]] = {}
    parts: Lines = {}
    for line in TABLE.strip().replace("\n  ", " ").splitlines():
        if line.startswith("== "):
            verbs = groups[line[3:]] = {}
        elif line.startswith("["):
            name, _, about = line[1:].partition("]")
            at = parts[name] = [about.strip()]
            if about and " " not in name:
                verbs[name] = about.strip()
        else:
            at.append(line)
    parts["parameters"] = ["of operators"]
    for name, parameter in PARAMETERS.items():
        option = f"--{name.replace('_', '-')}"
        form = f"{option} {'A,B words' if parameter.words else 'N,… figures'}"
        form = option if parameter.is_flag else form
        parts["parameters"].append(f"{form}: {parameter.about}")
    return groups, parts


GROUPS, PARTS = _parts()
VERBS = [name for verbs in GROUPS.values() for name in verbs]
WITHOUT_TABLES = ("env", "capture", "report")
"""Verbs whose answer is no table."""
USAGE = {"capture": "attnbench capture [options] -- PROGRAM [ARGUMENT …]"}


def _lines(part: str) -> Iterator[str]:
    """The options of a part and their titles, those of the sets in it included."""
    for line in PARTS[part][1:]:
        if line.startswith("+ "):
            yield from _lines(line[2:])
        elif not line.startswith("$ "):
            yield line


def _epilog(verb: str) -> str:
    """A verb's other forms, and examples."""
    lines = []
    for part in (part for part in PARTS if part.startswith(f"{verb} ")):
        form = f"  attnbench {part}: {PARTS[part][0]}"
        lines += [*wrap(form, 79, subsequent_indent="    ")]
    examples = [f"  {line[2:]}" for line in PARTS[verb] if line.startswith("$ ")]
    forms = ["forms, each with --help:", *lines, ""] if lines else []
    return "\n".join([*forms, "examples:", *examples])


def _option(line: str) -> tuple[str, dict[str, Any]]:
    """An option's names, and what argparse is told of it."""
    head, _, help = line.partition(": ")
    names, *rest = head.split()
    more: dict[str, Any] = {"help": help or None}
    if not rest:
        return names, {**more, "action": "store_true"}
    more["metavar"] = None if rest[0] == "-" else rest[0]
    for word in rest[1:]:
        if word in TYPES:
            more["type"] = TYPES[word]
        elif word in ("*", "+", "?"):
            more["nargs"] = word
        elif word == "append":
            more["action"] = word
        elif word == "=":
            more["default"] = []
        elif word.startswith("="):
            more["default"] = int(word[1:]) if word[1:].isdigit() else word[1:]
        elif word.startswith("as:"):
            more["dest"] = word[3:]
        else:
            more["choices"] = word.split("|")
    return names, more


class Parser(argparse.ArgumentParser):
    """argparse with one sentence and a hint for an error, and with verbs that have forms."""

    def __init__(self, *args: Any, part: str = "", **more: Any) -> None:
        """``part``: of the table, whose options it takes."""
        super().__init__(*args, **more)
        self.part = part
        self.forms: dict[str, Parser] = {}
        """By the first word after the verb; without one of these it is the verb's own form."""
        if not part:
            return
        forms = self.add_mutually_exclusive_group()
        forms.add_argument("--json", action="store_true", help="data as JSON on stdout")
        if part not in WITHOUT_TABLES:
            about = "one table of plain numbers on stdout, a row a measurement or an answer"
            forms.add_argument("--csv", action="store_true", help=about)
            about = "the tables alone, as Markdown, without titles and notes"
            if part != "history compare":  # its own is for a comment on a pull request
                forms.add_argument("--markdown", dest="tables", action="store_true", help=about)
        to: Any = self
        for line in _lines(part):
            if line.startswith("#"):
                title, _, described = line[1:].strip().partition(": ")
                to = self.add_argument_group(title, described or None) if title else self
            else:
                names, more = _option(line)
                of = forms if names == "--markdown" else to
                of.add_argument(*names.split("|"), **more)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Leave it to the form that the first word names, if it names one."""
        if args and args[0] in self.forms:
            return self.forms[args[0]].parse_known_args(args[1:], namespace)
        values, rest = super().parse_known_args(args, namespace)
        if rest and self.part:
            kind = "option" if rest[0].startswith("-") else "argument"
            self.error(f"{self.prog} takes no {kind} {rest[0]}{self._near(rest[0])}")
        return values, rest

    def _near(self, word: str) -> str:
        """``; did you mean --seq?``, or nothing where no option or verb is like it."""
        from difflib import get_close_matches

        options = [*self._option_string_actions] if word.startswith("-") else [*VERBS]
        near = get_close_matches(word.partition("=")[0], options, 1)
        return f"; did you mean {near[0]}?" if near else ""

    def error(self, message: str) -> NoReturn:
        """Raise :class:`BadWord`, with one sentence."""
        if match := re.match("argument VERB: invalid choice: '(.*?)' ", message):
            message = f"there is no verb {match[1]!r}{self._near(match[1])}"
        raise BadWord(f"{message} ('{self.prog} --help' shows what there is)")


@cache
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
    top.add_argument("--completion", choices=("bash", "zsh", "tcsh"))
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser, prog="attnbench")
    for name, line in (each for group in GROUPS.values() for each in group.items()):
        more: dict[str, Any] = {"usage": USAGE.get(name), "epilog": _epilog(name)}
        more["formatter_class"] = argparse.RawDescriptionHelpFormatter
        verb = verbs.add_parser(name, help=line, description=line, part=name, **more)
        for part in PARTS:
            of, _, word = part.partition(" ")
            if word and of == name:
                verb.set_defaults(form="")
                form = Parser(prog=f"{verb.prog} {word}", description=PARTS[part][0], part=part)
                form.set_defaults(form=word)
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
        "attnbench VERB --help shows a verb's options, with examples. For completion by Tab:",
        "  attnbench --completion bash > ~/.local/share/bash-completion/completions/attnbench",
        "Exit status: 0 done, 1 a finding, 2 usage or environment, 130 stopped by Ctrl-C.",
    ]
    return "\n".join(lines)


AXES = (_option(line)[0] for line in _lines("axes"))
GRID = (*(name[2:].replace("-", "_") for name in AXES), "world", "budget")
"""The options that are values of a grid."""


def grid_changes(arguments: argparse.Namespace) -> dict[str, Any]:
    """The values of a grid that the command line sets."""
    changes = {name: getattr(arguments, name, None) for name in GRID}
    if changes["mask"] is not None:
        changes["mask"] = tuple(changes["mask"])
    inputs = {name: (True,) for name in PARAMETERS if changes.get(name) is True}
    changes = {name: value for name, value in changes.items() if value not in (None, False)}
    return changes | inputs
