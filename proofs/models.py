"""Which models of transformers a variant can attend in: ``python -m proofs.models [--write]``.

Every model class that can be made small is asked the same questions under eager attention and
under exact variants, set at load and afterwards: without padding, padded on either side, with
gradients, writing tokens with a cache, and with other tokens later in the sequence. What is
expected comes from eager attention alone. ``--write`` makes ``docs/models.md`` of what comes out;
names on the command line sweep those types alone.
"""

from __future__ import annotations

import copy
import gc
import inspect
import multiprocessing
import os
import re
import signal
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import transformers
from jinja2 import Environment, FileSystemLoader
from torch import Tensor, nn

import attnbench.models.transformers  # noqa: F401 - it registers the names
from impls.errors import CantBeDone
from tests.models.transformers import small
from tests.models.transformers.small import Question, forward, gradients, outputs, tokens

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PAGE = ROOT / "docs" / "models.md"
AT_LOAD, AFTERWARDS = "attnbench:chunked", "attnbench:matmul"
CLOSE, CLOSE_HALF = 2e-4, 0.1
"""The largest difference over the largest number, in float32 and in bfloat16."""
LIMIT_S = 40
CHANGED = 6
"""The place from which on tokens are exchanged."""
AGREES, REFUSED, DIFFERS, ERROR = "agrees", "refused", "differs", "error"
CALLS: Counter[str] = Counter()
"""How often the two were called in this process."""
Ask = Callable[[nn.Module, Question], list[Tensor]]
Expected = dict[str, tuple[Ask, str, list[Tensor]]]
"""By case: the question, its padding, and the numbers of eager attention."""


@dataclass
class Outcome:
    """The result for one model class."""

    model_type: str
    model: str
    skipped: str = ""
    """Why it could not be made or run under eager attention."""
    sdpa: bool = False
    """True where transformers runs it by torch's SDPA."""
    calls: int = 0
    """How often variants were called in it."""
    cases: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By case: the outcome, and its sentence."""

    @property
    def reasons(self) -> list[str]:
        """Why cases were refused, without the layer and the variant, each reason once."""
        lines = []
        for case, (result, text) in self.cases.items():
            if result == REFUSED:
                text = re.sub(
                    r"^\w+( of layer \d+)?: \w+: |; (take|load it with) attn_impl.*", "", text
                )
                text = re.sub(r"^\w+ can't be loaded with \S+: ", "at load: ", text)
                lines.append(text if case != "at load" else text.split(",")[0])
        return list(dict.fromkeys(lines))


def past(model: nn.Module, question: Question) -> list[Tensor]:
    """The outputs at places before those whose tokens are exchanged."""
    name = "decoder_input_ids" if "decoder_input_ids" in question else "input_ids"
    ids = question[name].clone()
    at = min(CHANGED, ids.shape[1] - 2)
    ids[:, at:] = 157 - ids[:, at:]
    with torch.no_grad():
        numbers = outputs(model, {**question, name: ids})
    return [x[:, :at] for x in numbers if x.dim() > 2 and x.shape[:2] == ids.shape]


def halves(model: nn.Module, question: Question) -> list[Tensor]:
    """A forward pass in bfloat16."""
    half = {
        k: v.bfloat16() if isinstance(v, Tensor) and v.is_floating_point() else v
        for k, v in question.items()
    }
    return [x.float() for x in forward(copy.deepcopy(model).bfloat16(), half)]


def questions(model: nn.Module, sample: bool) -> dict[str, tuple[Ask, str]]:
    """The cases of a model: a question each, and its padding."""
    cases: dict[str, tuple[Ask, str]] = {
        "no padding": (forward, "none"),
        "gradients": (gradients, "none"),
    }
    words = inspect.signature(model.forward).parameters
    if "input_ids" in words:
        cases["later tokens"] = (past, "none")
        if "attention_mask" in words:
            cases["padded right"], cases["padded left"] = (forward, "right"), (forward, "left")
    if model.can_generate():
        cases["written"] = (tokens, "none")
        if "padded left" in cases:
            cases["written, padded left"] = (tokens, "left")
    if sample:
        cases["bfloat16"] = (halves, "none")
    return cases


def swept(model_type: str, names: Sequence[str], sample: bool = False) -> Outcome:
    """Every case of the first class that eager attention runs; ``sample``: in bfloat16 too."""
    failures = []
    for name in names:
        outcome = Outcome(model_type, name)
        try:
            cls = getattr(transformers, name)
            config = small.small_config(model_type)
            eager = small.small_model(cls, config, "eager")
            form = usable_form(eager)
            expected = _expected(eager, form, sample)
            outcome.sdpa = bool(cls._supports_sdpa)
        except Exception as why:
            outcome.skipped = beginning(why)
            failures.append(outcome)
            continue
        _compare(outcome, cls, config, eager, form, expected)
        return outcome
    return failures[0]


def usable_form(eager: nn.Module) -> str:
    """The first way of laying images and sounds out that the model takes."""
    refusals = []
    for form in small.FORMS:
        try:
            forward(eager, small.question(eager, "none", form))
        except Exception as why:
            refusals.append(why)
            continue
        return form
    raise refusals[0]


def _expected(eager: nn.Module, form: str, sample: bool) -> Expected:
    expected = {}
    for case, (ask, pad) in questions(eager, sample).items():
        try:
            numbers = ask(eager, small.question(eager, pad, form))
        except Exception:
            if case == "no padding":
                raise
            continue
        if numbers and all(bool(x.isfinite().all()) for x in numbers):
            expected[case] = ask, pad, numbers
    if "no padding" not in expected:
        raise ValueError("under eager attention it gives no finite numbers")
    return expected


def _compare(
    outcome: Outcome, cls: Any, config: Any, eager: nn.Module, form: str, expected: Expected
) -> None:
    """Fill in the result of each case with a variant that was set at load, and afterwards."""

    def loaded() -> nn.Module:
        fields = type(config).from_dict(config.to_dict())
        model: nn.Module = cls._from_config(fields, attn_implementation=AT_LOAD).eval()
        model.load_state_dict(eager.state_dict())
        return model

    def changed() -> nn.Module:
        eager.set_attn_implementation(AFTERWARDS)
        return eager

    before = CALLS.total()
    for way, make in {"at load": loaded, "afterwards": changed}.items():
        try:
            model = make()
        except Exception as why:
            outcome.cases[way] = judged(why)
            continue
        for case, (ask, pad, numbers) in expected.items():
            if way == "afterwards" or ask not in (tokens, gradients):
                outcome.cases[f"{way}, {case}"] = _case(model, ask, pad, form, numbers)
    outcome.calls = CALLS.total() - before
    eager.set_attn_implementation("eager")
    ask, pad, numbers = expected["no padding"]
    outcome.cases["back to eager"] = _case(eager, ask, pad, form, numbers)


def _case(
    model: nn.Module, ask: Ask, pad: str, form: str, expected: list[Tensor]
) -> tuple[str, str]:
    try:
        numbers = ask(model, small.question(model, pad, form))
    except Exception as why:
        return judged(why)
    if [x.shape for x in numbers] != [x.shape for x in expected]:
        return DIFFERS, f"{len(numbers)} outputs, or other shapes, for {len(expected)}"
    largest = max((float(x.abs().max()) for x in expected if x.numel()), default=0.0)
    for one, other in zip(numbers, expected, strict=True):
        if one.numel():
            scale = largest if ask is gradients else float(other.abs().max())
            off = float((one - other).abs().max())
            if not off <= (CLOSE_HALF if ask is halves else CLOSE) * scale + 1e-6:
                return DIFFERS, f"off by {off:.1e} of {scale:.1e}"
    return AGREES, ""


def judged(why: Exception) -> tuple[str, str]:
    """A refusal of ours, or an error that is none."""
    return (REFUSED if isinstance(why, CantBeDone) else ERROR), beginning(why)


def beginning(why: BaseException) -> str:
    """The beginning of an error, so far as it is the same in every process."""
    text = " ".join(str(why).split())
    if isinstance(why, CantBeDone):
        return text[:400]
    needs = re.match(r"\w+ requires the (\w+) library|cannot import name .* from '(\w+)", text)
    if needs:
        return f"needs {needs[1] or needs[2]}"
    return f"{type(why).__name__}: {text.partition('{')[0][:160]}".rstrip()


def _one(task: tuple[str, list[str], bool]) -> Outcome:
    def over(*_: Any) -> None:
        raise TimeoutError(f"more than {LIMIT_S} s of a processor")

    signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        return swept(*task)
    except Exception as why:
        return Outcome(task[0], task[1][0], skipped=beginning(why))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _prepare() -> None:
    """Make a process of the sweep quiet and quick, and let it count calls of the variants."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    warnings.simplefilter("ignore")
    # a tenth of the time goes into texts of configurations for a log that nobody reads
    transformers.PreTrainedConfig.__repr__ = object.__repr__
    gc.set_threshold(50_000)
    for name in (AT_LOAD, AFTERWARDS):
        attend = transformers.AttentionInterface()[name]

        def count_call(*args: Any, attend: Callable[..., Any] = attend, **more: Any) -> Any:
            CALLS["all"] += 1
            return attend(*args, **more)

        transformers.AttentionInterface.register(name, count_call)


def sweep(types: Sequence[str] = ()) -> list[Outcome]:
    """Every class, or those of some types, in processes that give their memory back."""
    tasks = [
        (model_type, names, number % 10 == 0)
        for number, (model_type, names) in enumerate(small.classes())
        if not types or model_type in types
    ]
    context = multiprocessing.get_context("fork")
    with context.Pool(os.cpu_count(), initializer=_prepare, maxtasksperchild=25) as pool:
        outcomes = list(pool.imap(_one, tasks, chunksize=1))
        pool.close()  # so that its processes end by themselves, with what they registered for that
        pool.join()
    return outcomes


def page(outcomes: Sequence[Outcome]) -> str:
    """``docs/models.md``."""
    tried = [x for x in outcomes if not x.skipped]
    refused, whole = [x for x in tried if x.reasons], [x for x in tried if not x.reasons]
    words = Environment(loader=FileSystemLoader(HERE), keep_trailing_newline=True)
    words.filters["names"] = _names
    return words.get_template("models.md.jinja").render(
        transformers=transformers.__version__,
        cases=Counter(result for x in tried for result, _ in x.cases.values()),
        types=len(outcomes),
        made=len(tried),
        called=[x for x in whole if x.calls],
        own=[x for x in whole if not x.calls],
        refused=len(refused),
        why=_rows((x.model, "; ".join(x.reasons)) for x in refused),
        skipped=_rows((x.model_type, x.skipped) for x in outcomes if x.skipped),
    )


def _names(outcomes: Iterable[Outcome]) -> str:
    names = ", ".join(sorted({x.model for x in outcomes}))
    return textwrap.fill(names, 100, break_long_words=False) or "None."


def _rows(lines: Iterable[tuple[str, str]]) -> str:
    """Rows of a table, by their sentence; the names of all that it is about in one cell."""
    names: dict[str, set[str]] = {}
    for name, text in lines:
        names.setdefault(text.replace("|", "/"), set()).add(name)
    return "\n".join(f"| {', '.join(sorted(names[text]))} | {text} |" for text in sorted(names))


def main() -> None:
    """Sweep, print what came out, and write the page on request."""
    outcomes = sweep([x for x in sys.argv[1:] if not x.startswith("-")])
    for x in outcomes:
        for case, (result, text) in x.cases.items():
            if result in (DIFFERS, ERROR):
                print(f"{result}: {x.model_type}, {x.model}, {case}: {text}")
    print(Counter("skipped" if x.skipped else "tried" for x in outcomes))
    print(Counter(result for x in outcomes for result, _ in x.cases.values()))
    if "--write" in sys.argv:
        PAGE.write_text(page(outcomes))


if __name__ == "__main__":
    main()
