"""The trained model in a process of its own: the original, a variant in it, its layers' inputs.

Texts are embedded in padded batches, or one by one where a variant takes no padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface, AutoTokenizer, BertModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import impls
from attnbench.core.record import Error
from attnbench.core.stats import StopRule
from attnbench.core.stats import compare as compare_in_pairs
from attnbench.core.wire import convert, plain
from attnbench.features.quality.model import LONG
from attnbench.features.quality.pretrained import LONGEST, model_folder
from attnbench.features.quality.swappable import (
    ORIGINAL,
    SwappableModel,
    load_quietly,
    own_words,
)
from attnbench.gate import budget
from attnbench.gate.findings import Wrong
from attnbench.gate.oracle import compare, worse
from attnbench.meter.clocks import clock_for
from attnbench.models.attention import NotServed
from attnbench.models.transformers import register_row
from impls.errors import CantBeDone
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant

Stages = Iterator[dict[str, Any]]
Ids = Sequence[Sequence[int]]
"""Texts as numbers of tokens."""
PADDING, TOGETHER = Mask.parse("padding:4,8"), 16
"""Two texts of different length; the texts of a batch."""


def load_model(dtype: str, device: str, attention: str = ORIGINAL) -> nn.Module:
    """The model with one of transformers' own attentions, in evaluation mode."""
    load_quietly()
    model: nn.Module = BertModel.from_pretrained(
        model_folder(),
        attn_implementation=attention,
        local_files_only=True,
        add_pooling_layer=False,
        dtype=getattr(torch, dtype),
    )
    return model.eval().to(device)


def tokenize(texts: Sequence[str]) -> list[list[int]]:
    """The tokens of each text, with the model's marks at both ends."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder(), local_files_only=True)
    ids: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=LONGEST)["input_ids"]
    return ids


def embed(model: nn.Module, ids: Ids, together: int) -> Tensor:
    """The embeddings in float64, of so many texts together, neighbours in length; raises NotServed
    with the variant's words.
    """
    device, vectors = next(model.parameters()).device, dict[int, Tensor]()
    order = sorted(range(len(ids)), key=lambda n: len(ids[n]))
    for places in (order[n : n + together] for n in range(0, len(order), together)):
        texts = [torch.tensor(ids[n], device=device) for n in places]
        real = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
        mask = None if bool(real.all()) else real
        try:
            with torch.no_grad():
                padded = pad_sequence(texts, batch_first=True)
                states = model(input_ids=padded, attention_mask=mask).last_hidden_state
        except NotServed as why:
            raise NotServed(own_words(why)) from None
        means = (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        vectors |= zip(places, F.normalize(means).cpu().to(torch.float64), strict=True)
    return torch.stack([vectors[n] for n in range(len(ids))])


def together_for(row: Variant, dtype: str, device: str) -> int:
    """The texts of a batch: one where a variant takes no padding."""
    problem = Problem(batch=2, q_len=8, kv_len=8, mask=PADDING, dtype=dtype, device=device)
    return TOGETHER if row.supports(problem) is None else 1


def embedding_error(got_tw: Tensor, want_tw: Tensor) -> Error:
    """The error of all embeddings together."""
    return compare(got_tw[None, None], want_tw[None, None])


def cosines(a_tw: Tensor, b_tw: Tensor) -> list[float | None]:
    """The cosine between both embeddings of each text; None where that is no number."""
    values = F.cosine_similarity(a_tw, b_tw).tolist()
    return [round(x, 12) if np.isfinite(x) else None for x in values]


def judge_embeddings(
    got_tw: Tensor, row: Variant, want_tw: Tensor, original: Error, dtype: str
) -> dict[str, Any]:
    """All figures of the embeddings; a row that computes softmax has to agree."""
    error, texts, wrong = embedding_error(got_tw, want_tw), len(want_tw), ""
    if not_finite := int((~torch.isfinite(got_tw)).any(1).sum()):
        wrong = f"the embeddings of {not_finite} of {texts} texts are not numbers"
    elif row.exact:
        try:
            budget.check("its embeddings", error, budget.Yardstick(original, texts), dtype, None)
        except Wrong as beyond:
            wrong = f"it computes softmax by its row, and {beyond}"
    return {
        "status": "wrong" if wrong else "measured",
        "reason": wrong,
        "cosines": cosines(got_tw, want_tw),
        "error": plain(error),
    }


FIRST, CAP = 20, 80
"""Pairs at the first look, and at the last."""


class StepSide:
    """Steps of the model with one attention: a side of pairs."""

    def __init__(self, swappable: SwappableModel, name: str, ids: Sequence[int]) -> None:
        self._swappable, self._name = swappable, name
        self._tokens = torch.tensor([list(ids)], device=swappable.device)
        self._clock = clock_for(str(swappable.device), "forward")
        self._before: list[Tensor] = []

    def fresh(self) -> None:
        """Move the tokens, and with them what the allocator gives next; warm up."""
        self._before = [*self._before[-1:], self._tokens]
        self._tokens = self._tokens.clone()
        self.sample()

    def sample(self) -> float:
        """Seconds of one step."""
        self._swappable.use(self._name)
        with torch.no_grad():
            return self._clock.samples(lambda: None, self._step, 1)[0]

    def _step(self) -> Any:
        return self._swappable.model(input_ids=self._tokens)


def compare_steps(
    swappable: SwappableModel, name: str, ids: Ids, length: int, question: Mapping[str, Any]
) -> dict[str, Any]:
    """The time of a step, of so many tokens of the longest texts, over that with the original."""
    joined = [token for text in sorted(ids, key=len, reverse=True) for token in text]
    tokens = (joined * (length // len(joined) + 1))[:length]
    rule = StopRule(question["margin"], first=FIRST, cap=CAP, budget_s=question["pairs_s"])
    original, replaced = (StepSide(swappable, each, tokens) for each in (ORIGINAL, name))
    comparison = compare_in_pairs(original, replaced, rule)
    return {"seq": length, "comparison": msgspec.to_builtins(comparison)}


def original(question: Mapping[str, Any]) -> Stages:
    """The original's figures, with the error of plain forms, then the floor of a step's time."""
    folder, dtype, device = Path(question["folder"]), question["dtype"], question["device"]
    ids = tokenize(question["texts"])
    want = embed(load_model("float64", device, "eager"), ids, 1)
    forms = (
        embed(load_model(dtype, device, name), ids, together)
        for name, together in (("eager", TOGETHER), (ORIGINAL, TOGETHER), (ORIGINAL, 1))
    )
    original = reduce(worse, (embedding_error(form, want) for form in forms))
    torch.save({"ids": ids, "vectors": want}, folder / "original.pt")
    yield {"original": {"tokens": [len(x) for x in ids], "plain": plain(original)}}

    def hand_on(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **more: Any
    ) -> tuple[Tensor, None]:
        """Give each token its own value: nothing can be faster."""
        return value.transpose(1, 2).contiguous(), None

    AttentionInterface.register(name := "attnbench_no_attention", hand_on)
    swappable = SwappableModel(load_model(dtype, device))
    for length in question["seq"]:
        yield {"floor": compare_steps(swappable, name, ids, length, question)}


def variant(question: Mapping[str, Any]) -> Stages:
    """A variant's embeddings and its steps; a wrong one ends at the first."""
    dtype, device = question["dtype"], question["device"]
    row = impls.table(question["tables"]).find(question["variant"])
    name = register_row(row)
    original = torch.load(Path(question["folder"]) / "original.pt", weights_only=True)
    ids, want = original["ids"], original["vectors"]
    swappable = SwappableModel(load_model(dtype, device))
    swappable.use(name)
    embeddings = embed(swappable.model, ids, together_for(row, dtype, device))
    figures = judge_embeddings(
        embeddings, row, want, convert(question["original"]["plain"], Error), dtype
    )
    yield figures
    if figures["status"] == "wrong":
        return
    for length in question["seq"]:
        yield {"step": compare_steps(swappable, name, ids, length, question)}


def capture(question: Mapping[str, Any]) -> Stages:
    """Each layer's q, k and v as ``layer-N.npz``, in the form that ``captured:FILE`` reads.

    Of rows filled with long texts, one after the other. Raises CantBeDone where they fill too few.
    """
    seq, batch = question["seq"], question["batch"]
    rows, current = list[list[int]](), list[int]()
    for text in tokenize(question["texts"]):
        if len(text) >= min(LONG, seq):
            current += text
        if len(current) >= seq:
            rows, current = [*rows, current[:seq]], []
    if len(rows) < batch:
        raise CantBeDone(
            f"the texts fill {len(rows)} rows of {seq} tokens, not {batch}: give a smaller --seq"
        )
    model, files = load_model(question["dtype"], question["device"]), []
    for number, qkv in enumerate(capture_layers(model, torch.tensor(rows[:batch]))):
        file = Path(question["folder"]) / f"layer-{number}.npz"
        # NumPy lacks bfloat16, which comes back from float32 as it was
        wide = (x.float() if x.dtype == torch.bfloat16 else x for x in qkv)
        arrays = {name: x.cpu().numpy() for name, x in zip("qkv", wide, strict=True)}
        np.savez(file, **arrays)  # type: ignore[arg-type]
        files.append(str(file))
    _, heads, _, width = qkv[0].shape
    yield {"files": files, "heads": heads, "head_dim": width}


def capture_layers(model: nn.Module, ids_tn: Tensor) -> list[tuple[Tensor, ...]]:
    """The q, k and v that each layer hands to attention, in the order of the layers."""
    captured: list[tuple[Tensor, ...]] = []
    original = ALL_ATTENTION_FUNCTIONS[ORIGINAL]

    def record(module: nn.Module, *tensors: Any, **more: Any) -> Any:
        captured.append(tuple(x.detach().clone() for x in tensors[:3]))
        return original(module, *tensors, **more)

    AttentionInterface.register(name := "attnbench_recorder", record)
    swappable = SwappableModel(model)
    swappable.use(name)
    with torch.no_grad():
        model(input_ids=ids_tn.to(swappable.device))
    return captured
