"""The words of ``quality``, a form for each thing that is asked of a model."""

from __future__ import annotations

from attnbench.forms import Parser
from attnbench.given import count, numbers, seconds, seed


def forms(verb: Parser) -> list[Parser]:
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
    form = verb.form("recall", "small models trained from scratch with each variant to recall the "
                     "values of keys: the same steps, and the same time")  # fmt: skip
    form.add_argument("variants", nargs="*", metavar="VARIANT", help="cores that are causal and "
                      "train; the preset's if none. Softmax attention (sdpa) is always among "
                      "them")  # fmt: skip
    form.add_argument("--preset", metavar="NAME", help="cpu (six variants, ten minutes on a core), "
                      "cpu-quick, gpu; what is there if not given")  # fmt: skip
    task = form.add_argument_group("the task and the model", "the preset's if not given")
    task.add_argument("--pairs", type=numbers, metavar="N,…", help="pairs to recall, each a share "
                      "of every batch")  # fmt: skip
    task.add_argument("--seq", type=numbers, metavar="N,…", help="tokens of a sequence")
    task.add_argument("--width", type=numbers, metavar="N,…", help="of the model: with one head, "
                      "a linear state holds its square")  # fmt: skip
    told = form.add_argument_group("the training")
    told.add_argument("--seeds", type=count, metavar="N", help="trainings of each variant; fewer "
                      "than 2 give no interval")  # fmt: skip
    told.add_argument("--seed", type=seed, metavar="N", help="the first of them; 0 if not given")
    told.add_argument("--steps", type=count, metavar="N", help="that everybody gets")
    told.add_argument("--seconds", type=seconds, metavar="S", help="that everybody gets; what "
                      "softmax attention takes for its steps if not given")  # fmt: skip
    told.add_argument("--threads", type=count, metavar="N", help="1 if not given")
    form.add_argument("--scan", action="store_true", help="one seed of softmax and of linear "
                      "attention at several widths and rates of learning: where the one recalls "
                      "and the other doesn't")  # fmt: skip
    form.add_argument("--from", dest="kept", metavar="FILE", help="show what an earlier one found")
    form.add_argument("--out", default="results", metavar="DIR", help="where evidence is kept")
    return form


def _model(verb: Parser) -> Parser:
    form = verb.form("model", "a trained model (all-MiniLM-L6-v2), its attention replaced by each "
                     "variant: how near its embeddings stay, and what a step takes")  # fmt: skip
    _variants(form)
    form.add_argument("--texts", metavar="FILE", help="your own texts, UTF-8, one a line; built-in "
                      "ones if not given")  # fmt: skip
    form.add_argument("--seq", type=numbers, metavar="N,…",
                      help="tokens of a step that is timed; 256 if not given")  # fmt: skip
    form.add_argument("--no-layers", action="store_true", help="leave out each layer alone")
    form.add_argument("--distil", type=count, default=0, metavar="STEPS",
                      help="steps in which what isn't exact learns from the original; none if not "
                      "given")  # fmt: skip
    form.add_argument("--train", choices=("projections", "all"), default="projections",
                      help="what learns: the four projections around the attention, or every "
                      "weight")  # fmt: skip
    form.add_argument("--budget", type=seconds, metavar="S",
                      help="seconds of pairs a variant and a length; 3 if not given")  # fmt: skip
    _rest(form)
    return form


def _real(verb: Parser) -> Parser:
    form = verb.form("real", "error and skill of what isn't exact, on the queries, keys and values "
                     "of that model's layers, beside made-up ones")  # fmt: skip
    _variants(form)
    form.add_argument("--seq", type=count, default=512, metavar="N",
                      help="tokens of a row of text; 512 if not given")  # fmt: skip
    form.add_argument("--batch", type=count, default=2, metavar="N",
                      help="rows; 2 if not given")  # fmt: skip
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
    form.add_argument("--from", dest="source", metavar="FILE",
                      help="show what an earlier call kept, and ask nothing")  # fmt: skip
    form.add_argument("--out", default="results", metavar="DIR", help="where it is kept")
