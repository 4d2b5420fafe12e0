"""Which models of transformers a variant can attend in: ``python proofs/models.py [--write]``.

Every model class that can be made small is asked the same questions under eager attention and
under exact variants, set at load and afterwards: without padding, padded on either side, with
gradients, writing tokens with a cache, and with other tokens later in the sequence. What is
expected comes from eager attention alone. ``docs/models.md`` is made from what comes out;
``--write`` puts the new one in its place, and names on the command line sweep those types alone.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
import transformers  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import attnbench.models.transformers  # noqa: E402, F401 - it registers the names
from impls.errors import CantBeDone  # noqa: E402
from proofs import models_small as small  # noqa: E402

PAGE = ROOT / "docs" / "models.md"
AT_LOAD, AFTERWARDS = "attnbench:chunked", "attnbench:matmul"
CLOSE, CLOSE_HALF = 2e-4, 0.1
"""The largest difference over the largest number, in float32 and in bfloat16."""
LIMIT_S = 40
CHANGED = 6
"""The place from which on tokens are exchanged."""
TEMPLATE = """# Variants in the models of transformers

Made by `python proofs/models.py --write` with transformers {transformers}, in which {types} model
types have models. One class of each was made small on a CPU, where its configuration could be
shrunk ({made} could), and run under eager attention, with `attnbench:chunked` set at load and with
`attnbench:matmul` set afterwards: without padding, padded left and right, with its later tokens
exchanged, with gradients, writing tokens with a cache, set back to eager, and every tenth in
bfloat16. Of {cases} cases {agree} agree with eager attention, {refused} are refused by a sentence,
{differ} differ, and {errors} end in any other error.

Where transformers' eager attention and its own SDPA mean different things, a variant does as eager
attention does: padded places get what they get there, for one. Two things it does as SDPA does. A
boolean mask of four dimensions (GroundingDino and SeamlessM4Tv2 make some) says what may be seen;
eager attention adds it to the scores. And attention weights that a model hands out unasked
(BridgeTower, Kosmos-2) are None; where they are asked for, the model is refused.

## Variants attend ({counts[0]} types)

transformers runs these by torch's SDPA too:

{called}

transformers itself refuses SDPA for these:

{beyond}

## The model keeps an attention of its own ({counts[1]} types)

What is set makes no difference, and the first forward pass warns of that. transformers refuses SDPA
for these, or they have no attention:

{own}

These say that they support SDPA:

{own_sdpa}

## Refused by attnbench ({counts[2]} types)

| class | why |
|---|---|
{why}

## Not tried ({counts[3]} types)

They could not be made small, or did not run under eager attention on what they were given.

| type | what was raised |
|---|---|
{skipped}
"""
AGREES, REFUSED, DIFFERS, ERROR = "agrees", "refused", "differs", "error"


CALLS: Counter[str] = Counter()
"""How often each of the two was called in this process."""


def count_calls() -> None:
    """Count the calls of the two variants from now on."""
    for name in (AT_LOAD, AFTERWARDS):
        counted = _counted(name, transformers.AttentionInterface()[name])
        transformers.AttentionInterface.register(name, counted)


def _counted(name: str, attend: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        CALLS[name] += 1
        return attend(*args, **more)

    return call


@dataclass
class Outcome:
    """What came out for one model class."""

    model_type: str
    model: str
    skipped: str = ""
    """Why it could not be made or run under eager attention."""
    sdpa: bool = False
    """Whether transformers runs it by torch's SDPA."""
    calls: int = 0
    """How often variants were called in it."""
    cases: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By case: the outcome, and its sentence."""


def outputs(model: nn.Module, question: small.Question) -> list[Tensor]:
    """All the numbers of a forward pass, without caches."""
    torch.manual_seed(0)
    made = model(**question)
    return list(_numbers(made.to_tuple() if hasattr(made, "to_tuple") else made))


def _numbers(found: Any) -> Iterator[Tensor]:
    if isinstance(found, Tensor) and found.is_floating_point():
        yield found
    elif isinstance(found, list | tuple):
        for one in found:
            yield from _numbers(one)
    elif isinstance(found, transformers.utils.ModelOutput):
        yield from _numbers(found.to_tuple())


def forward(model: nn.Module, question: small.Question) -> list[Tensor]:
    """The numbers of a forward pass, those at padded places too."""
    with torch.no_grad():
        return outputs(model, question)


def gradients(model: nn.Module, question: small.Question) -> list[Tensor]:
    """The gradient of every parameter, for a sum of the outputs with fixed weights."""
    model.zero_grad()
    total = sum(
        (x * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum()
        for x in outputs(model, question)
        if x.requires_grad
    )
    if isinstance(total, Tensor):
        total.backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


def tokens(model: nn.Module, question: small.Question) -> list[Tensor]:
    """The logits of tokens that are written with a cache."""
    given = {k: v for k, v in question.items() if k != "decoder_input_ids"}
    made = model.generate(
        **given,
        max_new_tokens=4,
        min_new_tokens=4,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return [made.sequences.float(), *made.logits]


def past(model: nn.Module, question: small.Question) -> list[Tensor]:
    """The outputs at places before those whose tokens are exchanged."""
    name = "decoder_input_ids" if "decoder_input_ids" in question else "input_ids"
    ids = question[name].clone()
    at = min(CHANGED, ids.shape[1] - 2)
    ids[:, at:] = 157 - ids[:, at:]
    with torch.no_grad():
        found = outputs(model, {**question, name: ids})
    return [x[:, :at] for x in found if x.dim() > 2 and x.shape[:2] == ids.shape]


def halves(model: nn.Module, question: small.Question) -> list[Tensor]:
    """A forward pass in bfloat16."""
    half = {
        k: v.bfloat16() if isinstance(v, Tensor) and v.is_floating_point() else v
        for k, v in question.items()
    }
    found = forward(copy.deepcopy(model).bfloat16(), half)
    return [x.float() for x in found]


Ask = Callable[[nn.Module, small.Question], list[Tensor]]


def asks(model: nn.Module) -> dict[str, tuple[Ask, str]]:
    """What is asked of a model: how, and with which padding."""
    found: dict[str, tuple[Ask, str]] = {
        "no padding": (forward, "none"),
        "gradients": (gradients, "none"),
    }
    words = inspect.signature(model.forward).parameters
    if "input_ids" in words:
        found["later tokens"] = (past, "none")
        if "attention_mask" in words:
            found["padded right"], found["padded left"] = (forward, "right"), (forward, "left")
    if model.can_generate():
        found["written"] = (tokens, "none")
        if "padded left" in found:
            found["written, padded left"] = (tokens, "left")
    return found


def swept(model_type: str, names: Sequence[str], sample: bool = False) -> Outcome:
    """Every case of the first class that eager attention runs; ``sample``: in bfloat16 too."""
    first: Outcome | None = None
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
            outcome.skipped = said(why)
            first = first or outcome
            continue
        _compare(outcome, cls, config, eager, form, expected)
        return outcome
    assert first is not None
    return first


def usable_form(eager: nn.Module) -> str:
    """The first way of laying images and sounds out that the model takes."""
    refused: Exception | None = None
    for form in small.FORMS:
        try:
            forward(eager, small.question(eager, "none", form))
        except Exception as why:
            refused = refused or why
            continue
        return form
    assert refused is not None
    raise refused


Expected = dict[str, tuple[Ask, str, list[Tensor]]]


def _compare(
    outcome: Outcome, cls: Any, config: Any, eager: nn.Module, form: str, expected: Expected
) -> None:
    """Fill in what each case gives with a variant that was set at load, and afterwards."""
    ways = {"at load": lambda: _loaded(cls, config, eager), "afterwards": lambda: _set(eager)}
    before = CALLS.total()
    for way, made in ways.items():
        try:
            model = made()
        except Exception as why:
            outcome.cases[way] = judged(why)
            continue
        for case, (ask, pad, wanted) in expected.items():
            if way == "at load" and ask in (tokens, gradients):
                continue
            outcome.cases[f"{way}, {case}"] = _held(model, ask, pad, form, wanted)
    outcome.calls = CALLS.total() - before
    eager.set_attn_implementation("eager")
    ask, pad, wanted = expected["no padding"]
    outcome.cases["back to eager"] = _held(eager, ask, pad, form, wanted)


def _expected(eager: nn.Module, form: str, sample: bool) -> Expected:
    """What eager attention gives, for each case that it serves."""
    found = {}
    cases = {**asks(eager), **({"bfloat16": (halves, "none")} if sample else {})}
    for case, (ask, pad) in cases.items():
        try:
            wanted = ask(eager, small.question(eager, pad, form))
        except Exception:
            if case == "no padding":
                raise
            continue
        if wanted and all(bool(x.isfinite().all()) for x in wanted):
            found[case] = ask, pad, wanted
    if "no padding" not in found:
        raise ValueError("under eager attention it gives no finite numbers")
    return found


def _loaded(cls: Any, config: Any, eager: nn.Module) -> nn.Module:
    model = cls._from_config(
        type(config).from_dict(config.to_dict()), attn_implementation=AT_LOAD
    ).eval()
    model.load_state_dict(eager.state_dict())
    return model


def _set(eager: nn.Module) -> nn.Module:
    eager.set_attn_implementation(AFTERWARDS)
    return eager


def _held(model: nn.Module, ask: Ask, pad: str, form: str, wanted: list[Tensor]) -> tuple[str, str]:
    try:
        given = ask(model, small.question(model, pad, form))
    except Exception as why:
        return judged(why)
    close = CLOSE_HALF if ask is halves else CLOSE
    if len(given) != len(wanted):
        return DIFFERS, f"{len(given)} outputs, not {len(wanted)}"
    largest = max((float(x.abs().max()) for x in wanted if x.numel()), default=0.0)
    for one, other in zip(given, wanted, strict=True):
        if one.shape != other.shape:
            return DIFFERS, f"shape {tuple(one.shape)}, not {tuple(other.shape)}"
        if one.numel():
            scale = largest if ask is gradients else float(other.abs().max())
            off = float((one - other).abs().max())
            if not off <= close * scale + 1e-6:
                return DIFFERS, f"off by {off:.1e} of {scale:.1e}"
    return AGREES, ""


def judged(why: Exception) -> tuple[str, str]:
    """A refusal of ours, or an error that is none."""
    return (REFUSED if isinstance(why, CantBeDone) else ERROR), said(why)


def said(why: BaseException) -> str:
    """The beginning of what was raised, so far as it is the same in every process."""
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
        return Outcome(task[0], task[1][0], skipped=said(why))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _quiet() -> None:
    torch.set_num_threads(1)
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    warnings.simplefilter("ignore")
    # a tenth of the time goes into texts of configurations for a log that nobody reads
    transformers.PreTrainedConfig.__repr__ = object.__repr__
    gc.set_threshold(50_000)
    count_calls()


def sweep(types: Sequence[str] = ()) -> list[Outcome]:
    """Every class, or those of some types, in processes that give their memory back."""
    tasks = [
        (model_type, names, number % 10 == 0)
        for number, (model_type, names) in enumerate(small.classes())
        if not types or model_type in types
    ]
    context = multiprocessing.get_context("fork")
    with context.Pool(os.cpu_count(), initializer=_quiet, maxtasksperchild=25) as pool:
        found = list(pool.imap(_one, tasks, chunksize=1))
        pool.close()  # so that its processes end by themselves, with what they registered for that
        pool.join()
    return found


def reasons(outcome: Outcome) -> list[str]:
    """Why cases of it were refused, without the layer and the variant, each reason once."""
    found = []
    for case, (result, text) in outcome.cases.items():
        if result == REFUSED:
            text = re.sub(
                r"^\w+( of layer \d+)?: \w+: |; (take|load it with) attn_impl.*", "", text
            )
            text = re.sub(r"^\w+ can't be loaded with \S+: ", "at load: ", text)
            found.append(text if case != "at load" else text.split(",")[0])
    return list(dict.fromkeys(found))


def page(found: Sequence[Outcome]) -> str:
    """``docs/models.md``."""
    made = [x for x in found if not x.skipped]
    refused = [x for x in made if reasons(x)]
    whole = [x for x in made if x not in refused]
    called, own = [x for x in whole if x.calls], [x for x in whole if not x.calls]
    cases = Counter(result for x in made for result, _ in x.cases.values())
    return TEMPLATE.format(
        transformers=transformers.__version__,
        types=len(found),
        made=len(made),
        cases=f"{cases.total():,}",
        agree=f"{cases[AGREES]:,}",
        refused=cases[REFUSED],
        differ=cases[DIFFERS],
        errors=cases[ERROR],
        called=_listed(x for x in called if x.sdpa),
        beyond=_listed(x for x in called if not x.sdpa),
        own=_listed(x for x in own if not x.sdpa),
        own_sdpa=_listed(x for x in own if x.sdpa),
        why=_rows((x.model, "; ".join(reasons(x))) for x in refused),
        skipped=_rows((x.model_type, x.skipped) for x in found if x.skipped),
        counts=[len(called), len(own), len(refused), len(found) - len(made)],
    )


def _listed(found: Iterable[Outcome]) -> str:
    names = ", ".join(sorted({x.model for x in found}))
    return textwrap.fill(names, 100, break_long_words=False) or "None."


def _rows(found: Iterable[tuple[str, str]]) -> str:
    """Rows of a table, by what was said; whoever it was said of in one cell."""
    of: dict[str, set[str]] = {}
    for name, text in found:
        of.setdefault(text.replace("|", "/"), set()).add(name)
    return "\n".join(f"| {', '.join(sorted(of[text]))} | {text} |" for text in sorted(of))


def main() -> None:
    """Sweep, say what came out, and write the page where that is asked."""
    found = sweep([x for x in sys.argv[1:] if not x.startswith("-")])
    for x in found:
        for case, (result, text) in x.cases.items():
            if result in (DIFFERS, ERROR):
                print(f"{result}: {x.model_type}, {x.model}, {case}: {text}")
    print(Counter("skipped" if x.skipped else "made" for x in found))
    print(Counter(result for x in found for result, _ in x.cases.values()))
    if "--write" in sys.argv:
        PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
