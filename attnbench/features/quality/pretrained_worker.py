"""The process that has the model: the original and its truth, or one variant, stage by stage.

{"do": "original", …}  -> {"original": …}, {"floor": …} a length
{"do": "variant", …}   -> {"quality": …}, {"step": …} a length, {"layers": …}, {"distilled": …}
"""

from __future__ import annotations

import copy
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

import impls
from attnbench.core.process_child import serve_forked
from attnbench.core.record import Error
from attnbench.core.stats import StopRule
from attnbench.core.stats import compare as compare_stepped
from attnbench.features.quality import pretrained
from attnbench.features.quality.pretrained import LONGEST
from attnbench.gate import budget
from attnbench.gate.oracle import compare, worse
from attnbench.meter.clocks import clock_for
from attnbench.models.attention import NotServed
from attnbench.models.transformers import OTHERS, register_row
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant

MOST_TOKENS = 8192
"""Of a batch, padding included."""


@dataclass
class Embedded:
    """What became of some texts."""

    vectors_tw: Tensor
    """Rows of texts that were refused are not numbers."""
    together: bool
    """Whether they went in batches, under a padding mask."""
    refused: dict[int, str] = field(default_factory=dict)
    """By the text's place: the variant's own sentence."""

    @property
    def served(self) -> list[int]:
        """The places of texts that have a vector."""
        return [n for n in range(len(self.vectors_tw)) if n not in self.refused]


def tokens(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """The numbers of each text's tokens, the model's marks at both ends."""
    found: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=LONGEST)[
        "input_ids"
    ]
    return found


def batches(lengths: Sequence[int], *, together: bool) -> list[list[int]]:
    """Which texts go at once: neighbours in length, as many as there is room for."""
    order = sorted(range(len(lengths)), key=lambda n: lengths[n])
    if not together:
        return [[n] for n in order]
    made: list[list[int]] = []
    for n in order:
        if made and (len(made[-1]) + 1) * lengths[n] <= MOST_TOKENS:
            made[-1].append(n)
        else:
            made.append([n])
    return made


def hidden(model: nn.Module, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """The last layer's states of a batch, and which of them are of real tokens."""
    device = next(model.parameters()).device
    longest = max(map(len, ids))
    words = torch.tensor([[*some, *[0] * (longest - len(some))] for some in ids], device=device)
    real = torch.tensor(
        [[1] * len(some) + [0] * (longest - len(some)) for some in ids], device=device
    )
    mask = None if all(len(some) == longest for some in ids) else real
    states: Tensor = model(input_ids=words, attention_mask=mask).last_hidden_state
    return states, real[..., None].to(states.dtype)


def own_words(why: NotServed) -> str:
    """What a variant says of a call, without the layer that called and what else there is."""
    return str(why).partition(": ")[2].removesuffix(f"; {OTHERS}")


def embedded(model: nn.Module, ids: Sequence[Sequence[int]], *, together: bool) -> Embedded:
    """The embeddings of some texts, without gradients; a refusal costs its batch alone."""
    made: list[Tensor | None] = [None] * len(ids)
    refused: dict[int, str] = {}
    for some in batches([len(x) for x in ids], together=together):
        try:
            with torch.no_grad():
                states, real = hidden(model, [ids[n] for n in some])
        except NotServed as why:
            refused |= dict.fromkeys(some, own_words(why))
            continue
        means = (states * real).sum(1) / real.sum(1)
        for n, vector in zip(some, F.normalize(means), strict=True):
            made[n] = vector.cpu()
    width = int(model.config.hidden_size)  # type: ignore[union-attr, arg-type]
    nothing = torch.full((width,), torch.nan)
    vectors = torch.stack([nothing if x is None else x.to(torch.float64) for x in made])
    return Embedded(vectors, together, refused)


ORIGINAL = "sdpa"
"""What transformers takes by itself."""
NOTHING = "attnbench_hands_v_on"
"""No attention at all: each token gets its own value. What no variant can be faster than."""


def register_nothing() -> str:
    """What transformers calls no attention."""

    def hand_on(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any
    ) -> tuple[Tensor, None]:
        return value.transpose(1, 2).contiguous(), None

    AttentionInterface.register(NOTHING, hand_on)
    return NOTHING


class Replaced:
    """A model whose layers can be given another attention, again and again."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._layers: list[Any] = [layer.attention.self for layer in model.encoder.layer]  # type: ignore[union-attr]
        self._configs: dict[str, Any] = {}

    @property
    def layers(self) -> int:
        """How many there are."""
        return len(self._layers)

    def use(self, name: str, layers: Collection[int] | None = None) -> None:
        """Another attention in these layers, all if none are named, and the original elsewhere."""
        for number, layer in enumerate(self._layers):
            here = layers is None or number in layers
            layer.config = self._config(name if here else ORIGINAL)

    def _config(self, name: str) -> Any:
        if name not in self._configs:
            config: Any = copy.deepcopy(self.model.config)
            config._attn_implementation = name
            self._configs[name] = config
        return self._configs[name]


def takes_padding(row: Variant, dtype: str, device: str) -> bool:
    """Whether a variant serves texts of unequal length under a mask, as far as its row tells."""
    problem = Problem(
        batch=2, q_len=8, kv_len=8, mask=Mask.parse("padding:4,8"), dtype=dtype, device=device
    )
    return row.supports(problem) is None


def no_dropout(model: nn.Module) -> None:
    """Train a model without dropping anything: not every variant drops weights."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


FILE = "original.npz"
FORMS = (("eager", True), ("sdpa", True), ("sdpa", False))
"""The original's: which attention, and whether texts share batches."""


def make(texts: Sequence[str], dtype: str, device: str, folder: Path) -> dict[str, Any]:
    """Leave tokens and embeddings in a folder; how long the texts are, and how near it gets."""
    ids = tokens(pretrained.tokenizer(), texts)
    wide = pretrained.load("float64", device, "eager")
    want = embedded(wide, ids, together=False).vectors_tw
    del wide
    plain: Error | None = None
    for attention, together in FORMS:
        model = pretrained.load(dtype, device, attention)
        error = difference(embedded(model, ids, together=together).vectors_tw, want)
        plain = error if plain is None else worse(plain, error)
    assert plain is not None
    lengths = [len(x) for x in ids]
    np.savez(
        folder / FILE,
        ids=np.concatenate([np.asarray(x) for x in ids]),
        lengths=np.asarray(lengths),
        vectors=want.numpy(),
    )
    return {"tokens": lengths, "plain": plain.to_dict()}


def read(folder: Path) -> tuple[list[list[int]], Tensor]:
    """The tokens of each text, and the original's embeddings in float64."""
    with np.load(folder / FILE) as kept:
        ends = np.cumsum(kept["lengths"])
        ids = [part.tolist() for part in np.split(kept["ids"], ends[:-1])]
        return ids, torch.from_numpy(kept["vectors"])


def difference(got_tw: Tensor, want_tw: Tensor) -> Error:
    """How far embeddings are from what they should be, all of them together."""
    return compare(got_tw[None, None], want_tw[None, None])


def disagrees(error: Error, plain: Error, dtype: str, texts: int) -> str:
    """Empty where softmax may be so far off, else a sentence."""
    tests = (
        ("together", error.relative, plain.relative, budget.RELATIVE_FACTOR),
        ("at worst", error.worst_row, plain.worst_row, budget.WORST_ROW_FACTOR),
    )
    for what, got, base, factor in tests:
        most = budget.allowed(base, factor, dtype, texts)
        if got is None or not got <= most:
            said = "something not finite" if got is None else f"{got:.2g}"
            return (
                f"it computes softmax by its row, and {what} its embeddings are off the original's "
                f"by {said}, above the {most:.2g} allowed (transformers' own forms make "
                f"{base or 0.0:.2g} in {dtype})"
            )
    return ""


Places = Sequence[Sequence[int]]
"""Pairs of texts, by their places."""


def cosines(found: Embedded, want_tw: Tensor) -> list[float | None]:
    """Of each text, the cosine between its embedding and the original's; None: it was refused."""
    each = F.cosine_similarity(found.vectors_tw, want_tw)
    return [None if n in found.refused else _number(each[n]) for n in range(len(each))]


def similarities(vectors_tw: Tensor, pairs: Places) -> list[float | None]:
    """The cosine between the embeddings of both texts of a pair."""
    return [_number(F.cosine_similarity(vectors_tw[a], vectors_tw[b], 0)) for a, b in pairs]


def of_texts(replaced: Replaced, row: Variant, ids: Places, dtype: str) -> Embedded:
    """The embeddings with the attention in use: together where the row takes that, else alone."""
    device = str(next(replaced.model.parameters()).device)
    found = None
    if takes_padding(row, dtype, device):
        found = embedded(replaced.model, ids, together=True)
    if found is None or not found.served:
        found = embedded(replaced.model, ids, together=False)
    if not found.served:
        raise NotServed(next(iter(found.refused.values())))
    return found


def quality(
    found: Embedded, row: Variant, want_tw: Tensor, plain: Error, pairs: Places, dtype: str
) -> dict[str, Any]:
    """All that is said of them; whoever computes softmax has to agree with the original."""
    served = found.served
    error = difference(found.vectors_tw[served], want_tw[served])
    wrong = _not_numbers(found)
    off = disagrees(error, plain, dtype, len(served))
    if row.exact and not wrong:
        wrong = off
    return {
        "cosines": cosines(found, want_tw),
        "similarities": similarities(found.vectors_tw, pairs),
        "error": error.to_dict(),
        "together": found.together,
        "wrong": wrong,
        "equal": not off,
        "left_out": _told(found.refused),
    }


def _not_numbers(found: Embedded) -> str:
    """Empty where every text that was served has an embedding, else a sentence."""
    lost = [n for n in found.served if not bool(torch.isfinite(found.vectors_tw[n]).all())]
    return f"the embeddings of {len(lost)} of {len(found.served)} texts are not numbers" * bool(
        lost
    )


def _told(refused: dict[int, str]) -> dict[str, list[int]]:
    """By the sentence: the places of the texts that were refused with it."""
    made: dict[str, list[int]] = {}
    for place, why in refused.items():
        made.setdefault(why, []).append(place)
    return made


def _number(value: Tensor) -> float | None:
    """A number as JSON has it; nine digits are more than any of them is good for."""
    return round(float(value), 12) if bool(torch.isfinite(value)) else None


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(x, float) and not torch.isfinite(torch.tensor(x)) else x
        for name, x in values.items()
    }


FIRST, CAP = 20, 80
"""Pairs at the first look, and at the last."""


class StepSide:
    """Steps with one attention: a side of pairs."""

    WARM = 1

    def __init__(self, replaced: Replaced, name: str, ids: Sequence[int]) -> None:
        self._replaced, self._name = replaced, name
        device = next(replaced.model.parameters()).device
        self._words = torch.tensor([list(ids)], device=device)
        self._clock = clock_for(str(device), "forward")
        self._kept: list[torch.Tensor] = []

    def fresh(self) -> None:
        """Tokens elsewhere, and what the allocator gives next with them."""
        self._kept = [*self._kept[-1:], self._words]
        self._words = self._words.clone()
        self._samples(self.WARM)

    def sample(self) -> float:
        """Seconds of one step."""
        return self._samples(1)[0]

    def _samples(self, count: int) -> list[float]:
        self._replaced.use(self._name)
        with torch.no_grad():
            return self._clock.samples(_nothing, self._step, count)

    def _step(self) -> Any:
        return self._replaced.model(input_ids=self._words)


def _nothing() -> None:
    """Before a step there is nothing to do."""


def as_long(ids: Sequence[Sequence[int]], length: int) -> list[int]:
    """So many tokens of real text: the longest texts, one after the other."""
    order = sorted(ids, key=len, reverse=True)
    joined = [token for text in order for token in text]
    while len(joined) < length:
        joined += joined
    return joined[:length]


def in_pairs(
    replaced: Replaced,
    original: str,
    name: str,
    ids: Sequence[Sequence[int]],
    length: int,
    margin: float,
    budget_s: float,
) -> dict[str, Any]:
    """The step with this attention over the original's, at one length."""
    tokens = as_long(ids, length)
    rule = StopRule(margin, first=FIRST, cap=CAP, budget_s=budget_s)
    pairs = compare_stepped(
        StepSide(replaced, original, tokens), StepSide(replaced, name, tokens), rule
    )
    pairs.names = (original, name)
    return {"seq": length, **pairs.to_dict()}


PROJECTIONS = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
)
RATE = 3e-4
"""AdamW's."""
A_STEP = 4
"""Texts to a step."""
MOST = 256
"""Tokens of a text that are learnt from."""


def trained(model: nn.Module, which: str) -> list[nn.Parameter]:
    """The weights that may move: the projections around the attention, or all."""
    found = []
    for name, weight in model.named_parameters():
        moves = which == "all" or any(part in name for part in PROJECTIONS)
        weight.requires_grad_(moves)
        found += [weight] * moves
    return found


def distil(
    replaced: Replaced,
    teacher: nn.Module,
    ids: Sequence[Sequence[int]],
    steps: int,
    which: str,
    seed: int,
) -> list[float]:
    """Train in place; the loss of each step, before it. The variant is already in use."""
    torch.manual_seed(seed)
    chance, model = random.Random(seed), replaced.model
    no_dropout(model)
    optimiser = torch.optim.AdamW(trained(model, which), lr=RATE)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad(set_to_none=True)
        some = chance.sample(range(len(ids)), min(A_STEP, len(ids)))
        total = 0.0
        for n in some:
            loss = _loss(model, teacher, [ids[n][:MOST]]) / len(some)
            loss.backward()
            total += float(loss.detach())
        optimiser.step()
        losses.append(total)
    _rest(model.parameters())
    return losses


def _loss(model: nn.Module, teacher: nn.Module, ids: Sequence[Sequence[int]]) -> Tensor:
    with torch.no_grad():
        want, _ = hidden(teacher, ids)
    got, _ = hidden(model, ids)
    return (got - want).square().sum() / want.square().sum()


def _rest(weights: Iterable[nn.Parameter]) -> None:
    for weight in weights:
        weight.requires_grad_(False)


def one_by_one(
    replaced: Replaced,
    name: str,
    row: Variant,
    ids: Sequence[Sequence[int]],
    want_tw: Tensor,
    dtype: str,
) -> list[list[Any]]:
    """By layer: the cosine of each text's embedding to the original's."""
    found = []
    for layer in range(replaced.layers):
        replaced.use(name, [layer])
        found.append(cosines(of_texts(replaced, row, ids, dtype), want_tw))
    return found


Stages = Iterator[dict[str, Any]]


def answer(asked: Mapping[str, Any]) -> Stages:
    """Whatever was asked."""
    return {"original": _original, "variant": _variant}[asked["do"]](asked)


def _original(asked: Mapping[str, Any]) -> Stages:
    folder, dtype, device = Path(asked["folder"]), asked["dtype"], asked["device"]
    found = make(asked["texts"], dtype, device, folder)
    ids, want = read(folder)
    found["similarities"] = similarities(want, asked["pairs"])
    yield {"original": found}
    replaced = Replaced(pretrained.load(dtype, device, ORIGINAL))
    nothing = register_nothing()
    for length in asked["seq"]:
        yield {
            "floor": in_pairs(
                replaced, ORIGINAL, nothing, ids, length, asked["margin"], asked["pairs_s"]
            )
        }


def _variant(asked: Mapping[str, Any]) -> Stages:
    dtype, device = asked["dtype"], asked["device"]
    row = impls.table(asked["tables"]).find(asked["variant"])
    name = register_row(row)
    ids, want = read(Path(asked["folder"]))
    replaced = Replaced(pretrained.load(dtype, device, ORIGINAL))
    replaced.use(name)
    found = of_texts(replaced, row, ids, dtype)
    plain = Error.from_dict(asked["plain"])
    said = quality(found, row, want, plain, asked["pairs"], dtype)
    yield {"quality": said}
    if said["wrong"]:
        return  # what is wrong has no time
    for length in asked["seq"]:
        try:
            yield {
                "step": in_pairs(
                    replaced, ORIGINAL, name, ids, length, asked["margin"], asked["pairs_s"]
                )
            }
        except NotServed as why:
            yield {"step": {"seq": length, "why": own_words(why)}}
    if asked["layers"] and not row.exact:
        some = asked["layer_texts"]
        yield {"layers": one_by_one(replaced, name, row, [ids[n] for n in some], want[some], dtype)}
    if asked["distil"] and not row.exact:
        yield {"distilled": _distilled(asked, replaced, name, row, ids, want)}


def _distilled(
    asked: Mapping[str, Any],
    replaced: Replaced,
    name: str,
    row: Variant,
    ids: list[list[int]],
    want: Any,
) -> dict[str, Any]:
    """Before and after, on texts that were not learnt from; or why it can't be trained."""
    learn, judged = asked["learn"], asked["judged"]
    some, wanted = [ids[n] for n in judged], want[judged]
    replaced.use(name)
    before = cosines(of_texts(replaced, row, some, asked["dtype"]), wanted)
    teacher = pretrained.load(asked["dtype"], asked["device"], ORIGINAL)
    try:
        losses = distil(
            replaced,
            teacher,
            [ids[n] for n in learn],
            asked["distil"],
            asked["train"],
            asked["seed"],
        )
    except NotServed as why:
        return {"why": own_words(why)}
    after = cosines(of_texts(replaced, row, some, asked["dtype"]), wanted)
    return {"before": before, "after": after, "losses": losses, "texts": judged}


if __name__ == "__main__":
    serve_forked(answer)
