"""The words of ``quality``: a form for each way of asking what a variant costs a model."""

from __future__ import annotations

from attnbench.forms import Parser
from attnbench.given import count, numbers, seconds, seed


def forms(verb: Parser) -> list[Parser]:
    """The forms; the verb alone says which there are."""
    verb.set_defaults(form="")
    verb.add_argument("asked", nargs="?", metavar="FORM", help="recall")
    verb.epilog = "'attnbench quality FORM --help' shows a form's options."
    return [_recall(verb)]


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
