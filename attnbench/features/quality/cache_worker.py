"""A causal language model that decodes with a cache, in a process of its own.

A prompt runs once, by the original, and its queries, keys and values are saved for each layer. Each
cache takes them and the model goes on from there token by token, so all that it predicts after the
prompt comes out of the cache. The first and the last token of the first passage of each length are
held against the cache's own definition, and what its tensors hold against what it says.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

import impls
from attnbench.features.quality.caches import DECODED, cache_table
from attnbench.features.quality.causal import ModelFiles
from attnbench.features.quality.lm_worker import (
    EXACT,
    SAME,
    TimedModel,
    all_passages,
    check_layers,
    kl_places,
    load,
    outcome,
)
from attnbench.features.quality.passages import Passage
from attnbench.features.quality.swappable import ORIGINAL, own_words
from attnbench.gate.budget import EPSILON
from attnbench.gate.findings import Wrong
from attnbench.models.attention import NotServed
from attnbench.models.transformers import forward_by, mask_as_eager
from impls.errors import CantBeDone
from impls.loading import load_function
from impls.problem import Problem
from impls.spec import Unsupported, Variant

Stages = Iterator[dict[str, Any]]
Layers = dict[int, tuple[Tensor, Tensor, Tensor]]
"""Queries, keys and values of the prompt by layer."""
PAIRED, WARM_UP = 24, 4
"""Decoded tokens that are timed in pairs with the full cache, and how many ahead of them."""
SAVED, DECODING = "attnbench:saved", "attnbench:cache"
HELD, SMALL = 1.02, 4096
"""The most that a cache's tensors may hold, over what it says, and bytes a layer besides."""
NOT_IN_A_CACHE = ("softcap", "s_aux", "position_bias", "indices", "sliding_window")
"""Arguments of a layer that caches here know nothing of."""


def refuse_more(module: Any, more: Mapping[str, Any]) -> None:
    """Raise CantBeDone for a layer whose attention is more than causal softmax."""
    for name in NOT_IN_A_CACHE:
        if more.get(name) is not None:
            raise CantBeDone(
                f"layer {module.layer_idx} of the model has {name}, and caches are tried in layers "
                "of plain causal attention"
            )


def scaled(q: Tensor, more: Mapping[str, Any]) -> Tensor:
    """Queries whose usual scale makes the scores that the layer's own would."""
    usual: float = q.shape[-1] ** -0.5
    return q * ((more.get("scaling") or usual) / usual)


def save_layers(name: str) -> Layers:
    """Register the original's attention under a name; what layers pass to it comes to be here."""
    layers: Layers = {}
    plain = forward_by(impls.table().find(ORIGINAL))

    def forward(
        module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **more: Any
    ) -> tuple[Tensor, None]:
        refuse_more(module, more)
        layers[module.layer_idx] = (scaled(q, more), k, v)
        return plain(module, q, k, v, mask, **more)

    AttentionMaskInterface.register(name, mask_as_eager)
    AttentionInterface.register(name, forward)
    return layers


class TokenCount(DynamicLayer):  # type: ignore[misc]  # transformers leaves it untyped
    """A layer's cache as transformers sees it: the number of tokens, and none of them."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> Any:
        """The new tokens alone."""
        self.tokens += key_states.shape[-2]
        return key_states, value_states

    def get_seq_length(self) -> int:
        """All so far."""
        return self.tokens


def tensors_in(*roots: Any) -> dict[int, int]:
    """Bytes of the memory behind all tensors that some objects lead to, by its place."""
    bytes_at, seen, waiting = dict[int, int](), set[int](), list[Any](roots)
    while waiting:
        some = waiting.pop()
        if id(some) in seen or isinstance(some, type | ModuleType | BuiltinFunctionType):
            continue
        seen.add(id(some))
        if isinstance(some, Tensor):
            storage = some.untyped_storage()
            bytes_at[storage.data_ptr()] = storage.nbytes()
        elif isinstance(some, FunctionType):  # not the module around it
            waiting += [some.__closure__, some.__defaults__, some.__kwdefaults__]
        elif isinstance(some, MethodType):
            waiting += [some.__self__, some.__func__]
        else:
            waiting += gc.get_referents(some)
    return bytes_at


def decoded_part(passage: Passage, first: int) -> Passage:
    """What is decoded of a passage, from a place on: text, then all that comes after the text."""
    text = [(max(a - first, 1), b - first) for a, b in passage.text if b > first + 1]
    return Passage(passage.prompt[first:], text, passage.needles, passage.source)


def original(question: Mapping[str, Any]) -> Stages:
    """The passages with the prompt's layers, the original's continuations, losses and answers."""
    folder, files = Path(question["folder"]), ModelFiles(**question["model"])
    swappable, tokenize = load(files, question["dtype"], question["device"])
    timed = TimedModel(swappable)
    check_layers(timed)
    layers = save_layers(SAVED)
    for at, (seq, number, passage) in enumerate(
        all_passages(question, tokenize, tokenize(question["book"]))
    ):
        first = len(passage.prompt) - min(DECODED, seq // 4)
        swappable.use(SAVED)
        _, out = timed.run(passage.prompt)
        saved = {n: tuple(x[:, :, :first].clone() for x in qkv) for n, qkv in layers.items()}
        layers.clear()
        torch.save(saved, folder / f"{at}-layers.pt")
        swappable.use(swappable.original)
        logits, cache = [out.logits[0, first:]], out.past_key_values
        tokens = [int(out.logits[0, -1].argmax())]
        while len(tokens) < passage.continuation[1] - passage.continuation[0]:
            _, out = timed.run(tokens[-1:], cache)
            logits.append(out.logits[0])
            tokens.append(int(out.logits[0, -1].argmax()))
        whole = passage.whole(tokens)
        _, out = timed.run(whole[passage.continuation[1] - 1 :], cache)
        logits_nV, part = torch.cat([*logits, out.logits[0]]), decoded_part(passage, first)
        reference_kV = logits_nV[kl_places(part) - 1].float().log_softmax(-1)
        record = {"passage": part, "before": first, "tokens": whole[first:], "seq": seq}
        record |= {"number": number, "reference": reference_kV, "first": logits_nV[0].clone()}
        torch.save(record, folder / f"{at}.pt")
        row = outcome(logits_nV, part, whole[first:], None)
        if row["loss"] is None:
            yield {"status": "failed", "reason": f"its loss on {seq} tokens is not a number"}
            return
        full = sum(x.nbytes for _, *kv in saved.values() for x in kv) / first
        facts = {"seq": seq, "passage": number, "bytes": full}
        yield {"passages": {**facts, **row}}
    yield {"original": {"layers": len(saved), "vocabulary": logits_nV.shape[1]}}


class ModelWithCache:
    """A model that decodes with a cache of one kind, and with the full one beside it."""

    def __init__(self, row: Variant, question: Mapping[str, Any]) -> None:
        files = ModelFiles(**question["model"])
        self.swappable, _ = load(files, question["dtype"], question["device"])
        self.row, self.timed, self.question = row, TimedModel(self.swappable), question
        spacing = EPSILON[question["dtype"]]
        self.exact, self.same = max(EXACT, spacing), max(SAME, 16 * spacing)
        self.chance = random.SystemRandom()
        self.memories: dict[int, Any] = {}
        self.judge: Callable[[int, tuple[Tensor, ...], Tensor], None] | None = None
        self.build = load_function(row.build)
        AttentionMaskInterface.register(DECODING, lambda **_: None)
        AttentionInterface.register(DECODING, self._attend)

    def _attend(
        self, module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **more: Any
    ) -> tuple[Tensor, None]:
        refuse_more(module, more)
        memory, number = self.memories[module.layer_idx], module.layer_idx
        out = memory.step(q := scaled(q, more), k, v)
        if self.judge is not None:
            self.judge(number, (q, k, v), out)
        return out.transpose(1, 2).contiguous(), None

    def problem(self, layers: Layers) -> Problem:
        """A layer's attention call after the prompt."""
        q, k, _ = next(iter(layers.values()))
        heads, (kv_heads, tokens, width) = q.shape[1], k.shape[1:]
        dtype, device = self.question["dtype"], self.question["device"]
        sizes = (1, heads, kv_heads, 1, tokens, width, width)
        return Problem(*sizes, dtype, device=device, phase="decode")

    def figures(self, record: Mapping[str, Any], layers: Layers, judged: bool) -> dict[str, Any]:
        """What a passage shows of the cache; raises Wrong."""
        problem, passage, tokens = self.problem(layers), record["passage"], record["tokens"]
        full = DynamicCache()
        self.memories.clear()
        for number, (q, k, v) in layers.items():
            full.update(k.clone(), v.clone(), number)
            self.memories[number] = self.build(problem, **self.row.chosen)
            self.memories[number].prefill(q, k, v)
        count = Cache(layers=[TokenCount(record["before"]) for _ in self.swappable.layers])
        judge = CacheJudge(self, problem, layers) if judged else None
        logits, pairs = [], list[list[float]]()
        for n, token in enumerate(tokens):
            if judge is not None:
                judge.active = n in (0, len(tokens) - 1)
            self.judge = judge
            seconds, out = self._step(token, count, full if n < WARM_UP + PAIRED else None, record)
            logits.append(out)
            if WARM_UP <= n < WARM_UP + PAIRED and (judge is None or not judge.active):
                pairs.append(seconds)
        self.judge = None
        row = outcome(torch.cat(logits), passage, tokens, record["reference"])
        where = f"passage {record['number']} of {record['seq']} tokens"
        if row["loss"] is None or row["kl"] is None:
            raise Wrong(f"{where} has a loss that is no number")
        held = self._bytes() / (record["before"] + len(tokens))
        return {**row, "token_s": pairs, "bytes": held}

    def _step(
        self, token: int, count: Cache, full: DynamicCache | None, record: Mapping[str, Any]
    ) -> tuple[list[float], Tensor]:
        """Seconds of a token with the full cache and with this one, in random order, and what the
        model gives with this one; without ``full`` only that.
        """
        sides = {self.swappable.original: full, DECODING: count}
        seconds, outs = dict[str, float](), dict[str, Any]()
        for name in self.chance.sample([*sides], 2):
            if sides[name] is not None:
                self.swappable.use(name)
                seconds[name], outs[name] = self.timed.run([token], sides[name])
        first, own = record["first"], outs.get(self.swappable.original)
        if own is not None and full is not None and full.get_seq_length() == record["before"] + 1:
            off = (own.logits[0, -1] - first).abs().max() / first.abs().max()
            if float(off) > self.same:
                raise RuntimeError("the original does not give what it gave before")
        return [seconds[name] for name in sides if name in seconds], outs[DECODING].logits[0]

    def _bytes(self) -> int:
        """Of all that the caches hold; raises Wrong where that is more than they say."""
        total = sum(tensors_in(list(self.memories.values())).values())
        says = sum(memory.bytes for memory in self.memories.values())
        if total > HELD * says + SMALL * len(self.memories):
            raise Wrong(f"its tensors hold {total:,} bytes, and it says that it holds {says:,}")
        return total


class CacheJudge:
    """Holds a cache's output in each layer against its definition, over all that came before."""

    def __init__(self, model: ModelWithCache, problem: Problem, layers: Layers) -> None:
        row = model.row
        self.active, self._model = False, model
        self._keys = {n: [k] for n, (_, k, _) in layers.items()}
        self._values = {n: [v] for n, (_, _, v) in layers.items()}
        self._recall: Callable[[Tensor], Tensor] = lambda x: x
        if row.definition is not None:
            self._recall = load_function(row.definition)(problem, **row.chosen)

    def __call__(self, number: int, qkv: tuple[Tensor, ...], out: Tensor) -> None:
        """Raises Wrong."""
        q, k, v = qkv
        self._keys[number].append(k)
        self._values[number].append(v)
        if not self.active:
            return
        k, v = (self._recall(torch.cat(x[number], 2)) for x in (self._keys, self._values))
        places = self._model.memories[number].positions
        if places is not None:  # [kv_heads, tokens held]
            if not bool((places == k.shape[2] - 1).any(-1).all()):
                raise Wrong(f"in layer {number} a token does not see itself")
            k, v = (
                x.gather(2, places[None, :, :, None].expand(-1, -1, -1, x.shape[3])) for x in (k, v)
            )
        want = sdpa(q.double(), k.double(), v.double(), enable_gqa=True)
        off = float((out.double() - want).norm() / want.norm())
        if not off <= self._model.same:  # a nan is not
            raise Wrong(
                f"layer {number}'s output is off by {off:.2g}, as a share, from attention over "
                "what it says that it holds"
            )


def variant(question: Mapping[str, Any]) -> Stages:
    """A cache's figures passage by passage; a wrong one ends where that shows."""
    row = cache_table(question["tables"]).find(question["variant"])
    folder, lengths = Path(question["folder"]), set[int]()
    losses: dict[int, list[float]] = {}
    try:
        model = ModelWithCache(row, question)
        for at, own in enumerate(question["original"]["passages"]):
            record = torch.load(folder / f"{at}.pt", weights_only=False)
            layers = torch.load(folder / f"{at}-layers.pt", weights_only=True, mmap=True)
            figures = model.figures(record, layers, record["seq"] not in lengths)
            lengths.add(record["seq"])
            losses.setdefault(record["seq"], []).append(figures["loss"] - own["loss"])
            facts = {"seq": record["seq"], "passage": own["passage"]}
            yield {"status": "measured", "reason": "", "passages": {**facts, **figures}}
        for seq, lost in losses.items() if row.exact else ():
            if abs(off := math.expm1(sum(lost) / len(lost))) > model.exact:
                raise Wrong(
                    f"its perplexity after {seq} tokens is off the full cache's by {off:.2g}"
                )
    except Wrong as why:
        yield {"status": "wrong", "reason": str(why)}
    except (NotServed, Unsupported) as why:
        words = own_words(why) if isinstance(why, NotServed) else ""
        yield {"status": "refused", "reason": words or str(why)}
