"""A causal language model in a process of its own: the original, and a variant in it.

A pass over a passage gives its loss, its distance from the original's predictions and its answers,
and is timed in a pair with the original's. In the first pass of each length, and in the first token
that is decoded after it, each layer's output is held against the variant's own definition (the
oracle, for softmax) on what that layer was handed: so a variant that is not what its row says is
found where it stands, in the model.
"""

from __future__ import annotations

import copy
import math
import random
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import impls
from attnbench.core.disk import cache_folder
from attnbench.features.quality.causal import ModelFiles
from attnbench.features.quality.distil import Distillation, blocks_between
from attnbench.features.quality.judged import JudgedVariant
from attnbench.features.quality.passages import (
    CONTINUATION,
    Passage,
    Tokenize,
    draw_passages,
    same_from_start,
)
from attnbench.features.quality.swappable import (
    ORIGINAL,
    SwappableModel,
    load_quietly,
    own_words,
)
from attnbench.gate.budget import EPSILON
from attnbench.gate.findings import Wrong
from attnbench.meter.clocks import clock_for
from attnbench.models.attention import NotServed
from attnbench.models.transformers import register_row
from impls.errors import CantBeDone
from impls.spec import Variant

Stages = Iterator[dict[str, Any]]
REFERENCE = "eager"
"""The attention whose predictions are the truth."""
PLACES = 128
"""Predictions of a passage whose whole distribution is compared."""
CHUNK = 256
"""Predictions that are looked at together."""
TOKENS = 3
"""Pairs of decoded tokens after a passage."""
EXACT = 1e-4
"""By what share the perplexity of what computes softmax may differ; by a spacing in shorter
dtypes."""
SAME = 1e-3
"""How far the original's last logits may be from what they were, as a share; in shorter dtypes
by 16 spacings."""


@cache
def load(files: ModelFiles, dtype: str, device: str) -> tuple[SwappableModel, Tokenize]:
    """The model and its tokenizer, once a process."""
    load_quietly()
    folder = Path(files.folder)
    if files.gguf_file:
        folder = convert(files)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    how: dict[str, Any] = {"local_files_only": True, "dtype": getattr(torch, dtype)}
    model: nn.Module
    try:
        how["attn_implementation"] = ORIGINAL
        model = AutoModelForCausalLM.from_pretrained(folder, **how)
    except ValueError as why:
        if "attention implementation" not in str(why):
            raise
        how["attn_implementation"] = REFERENCE
        model = AutoModelForCausalLM.from_pretrained(folder, **how)

    def tokenize(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    return SwappableModel(model.eval().requires_grad_(False).to(device)), tokenize


def convert(files: ModelFiles) -> Path:
    """The folder of a GGUF file's model as transformers writes it, which loads in a second: made
    once, in the user's cache.
    """
    source = Path(files.folder) / files.gguf_file
    about = source.stat()
    folder = cache_folder() / f"{source.stem}-{about.st_size}-{about.st_mtime_ns}"
    if (folder / "config.json").is_file():
        return folder
    where: dict[str, Any] = {"gguf_file": files.gguf_file, "local_files_only": True}
    model: Any = AutoModelForCausalLM.from_pretrained(files.folder, dtype=torch.float32, **where)
    tokenizer = AutoTokenizer.from_pretrained(files.folder, **where)
    model.hf_quantizer, model.is_quantized = None, False
    del model.config.quantization_config
    draft = folder.with_name(f"{folder.name}.{random.SystemRandom().randrange(1 << 32):08x}")
    tokenizer.save_pretrained(draft)
    model.save_pretrained(draft)
    try:
        draft.rename(folder)
    except OSError:  # another process was first
        shutil.rmtree(draft)
    return folder


def predictions(logits_nV: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """The logarithms of probabilities, some places at a time."""
    for start in range(0, len(logits_nV), CHUNK):
        some = slice(start, min(start + CHUNK, len(logits_nV)))
        yield some, logits_nV[some].float().log_softmax(-1)


def kl_places(passage: Passage) -> Tensor:
    """The places of text whose predictions are compared whole."""
    places = torch.cat([torch.arange(first, past) for first, past in passage.text])
    return places[torch.linspace(0, len(places) - 1, min(PLACES, len(places))).long()]


def outcome(
    logits_nV: Tensor, passage: Passage, whole: Sequence[int], reference_kV: Tensor | None
) -> dict[str, Any]:
    """The loss on the text, the KL from the original's predictions (``reference_kV``, logarithms),
    how much of its continuation is the same, and which answers are found.
    """
    target = torch.tensor(list(whole[1:]), device=logits_nV.device)
    losses, best = [], []
    for some, log_nV in predictions(logits_nV[:-1]):
        losses.append(-log_nV.gather(1, target[some, None])[:, 0])
        best.append(log_nV.argmax(-1))
    loss_n, right_n = torch.cat(losses).double(), torch.cat(best) == target
    text = torch.cat([loss_n[first - 1 : past - 1] for first, past in passage.text])
    first, past = passage.continuation
    loss = float(text.mean())
    found = [bool(right_n[start - 1 : end - 1].all()) for start, end in passage.answers]
    row = {"loss": loss if math.isfinite(loss) else None, "found": found}
    row["same"] = same_from_start(right_n[first - 1 : past - 1].tolist())
    if reference_kV is not None:
        own_kV = logits_nV[kl_places(passage) - 1].float().log_softmax(-1)
        kl = float((reference_kV.exp() * (reference_kV - own_kV)).sum(-1).mean())
        row["kl"] = max(kl, 0.0) if math.isfinite(kl) else None  # rounding may take it below
    return row


class TimedModel:
    """The model, whose passes and steps are timed."""

    def __init__(self, swappable: SwappableModel) -> None:
        self.swappable, self.model = swappable, swappable.model
        self._clock = clock_for(str(swappable.device), "forward")

    def run(self, ids: Sequence[int], cache: Any = None) -> tuple[float, Any]:
        """Seconds, and what the model gives, its cache with it."""
        tokens = torch.tensor([list(ids)], device=self.swappable.device)
        outs: list[Any] = []

        def call() -> None:
            outs.append(self.model(input_ids=tokens, past_key_values=cache, use_cache=True))

        with torch.no_grad():
            seconds = self._clock.samples(lambda: None, call, 1)[0]
        return seconds, outs[0]

    def continuation(self, prompt: Sequence[int]) -> list[int]:
        """The tokens that are the most probable, one after the other."""
        _, out = self.run(prompt)
        tokens = [int(out.logits[0, -1].argmax())]
        while len(tokens) < CONTINUATION:
            _, out = self.run(tokens[-1:], out.past_key_values)
            tokens.append(int(out.logits[0, -1].argmax()))
        return tokens


def all_passages(
    question: Mapping[str, Any], tokenize: Tokenize, tokens: Sequence[int]
) -> Iterator[tuple[int, int, Passage]]:
    """Each with its length, and its number among those."""
    for seq in question["seq"]:
        drawn = draw_passages(tokens, tokenize, seq, question["passages"], question["seed"])
        yield from ((seq, number, passage) for number, passage in enumerate(drawn))


def check_layers(timed: TimedModel) -> None:
    """Raise CantBeDone for a model whose layers don't call the attention that they are given."""
    swappable, row = timed.swappable, impls.table().find(ORIGINAL)
    counted = JudgedVariant(row)
    swappable.use(register_row(row, counted))
    try:
        timed.run([0] * 8)
    except NotServed:  # it was called
        return
    finally:
        register_row(row)
    if not counted.calls or counted.calls != len(swappable.layers):
        raise CantBeDone(
            f"{type(swappable.model).__name__} has layers that compute attention by code of their "
            f"own: {counted.calls} of {len(swappable.layers)} called a variant"
        )


def original(question: Mapping[str, Any]) -> Stages:
    """The passages with the original's continuations, its losses and its answers."""
    folder, files = Path(question["folder"]), ModelFiles(**question["model"])
    swappable, tokenize = load(files, question["dtype"], question["device"])
    timed, layers = TimedModel(swappable), len(swappable.layers)
    check_layers(timed)
    if question["layers"] and max(question["layers"]) >= layers:
        raise CantBeDone(f"--layers {max(question['layers'])}: its layers are 0 to {layers - 1}")
    if question["hybrid"] and max(question["hybrid"]) > layers:
        raise CantBeDone(f"--hybrid {max(question['hybrid'])}: it has {layers} layers")
    tokens = tokenize(question["book"])
    passages = list(all_passages(question, tokenize, tokens))
    rest = blocks_between(tokens, [passage.source for _, _, passage in passages])
    if question["distil_s"] and not len(rest):
        raise CantBeDone(f"the text has nothing left to distil on: {len(tokens):,} tokens in all")
    torch.save(rest, folder / "rest.pt")
    for at, (seq, number, passage) in enumerate(passages):
        swappable.use(swappable.original)
        continuation = timed.continuation(passage.prompt)
        whole = passage.whole(continuation)
        swappable.use(REFERENCE)
        seconds, out = timed.run(whole)
        reference_kV = out.logits[0, kl_places(passage) - 1].float().log_softmax(-1)
        facts = {"whole": whole, "reference": reference_kV, "last": out.logits[0, -1].clone()}
        torch.save({"passage": passage, "seq": seq, "number": number, **facts}, folder / f"{at}.pt")
        row = outcome(out.logits[0], passage, whole, None)
        if row["loss"] is None:
            row = {"status": "failed", "reason": f"its loss on {seq} tokens is not a number"}
            yield row
            return
        yield {"passages": {"seq": seq, "passage": number, "step_s": seconds, **row}}
    yield {"original": {"layers": layers, "vocabulary": len(reference_kV[0])}}


class VariantInModel:
    """One variant in the model, and the original beside it."""

    def __init__(self, row: Variant, question: Mapping[str, Any]) -> None:
        files = ModelFiles(**question["model"])
        self.swappable, _ = load(files, question["dtype"], question["device"])
        self.row, self.timed = row, TimedModel(self.swappable)
        self.original = self.swappable.original
        spacing = EPSILON[question["dtype"]]
        self.exact, self.same = max(EXACT, spacing), max(SAME, 16 * spacing)
        self.judged = JudgedVariant(row)
        self.name = register_row(row, self.judged)
        self.chance = random.SystemRandom()

    def judge(self, ids: Sequence[int]) -> list[str]:
        """Hold a pass, and a decoded token after it, against the definition; raises Wrong.

        What decoding can't be done with is said.
        """
        self.swappable.use(self.name)
        self.judged.judging = True
        try:
            cache = self._all_layers(lambda: self.timed.run(ids))[1].past_key_values
            try:
                self._all_layers(lambda: self.timed.run(ids[-1:], cache))
            except NotServed as why:
                return [f"no decoding: {own_words(why)}"]
        finally:
            self.judged.judging = False
        return []

    def _all_layers(self, run: Callable[[], Any]) -> Any:
        self.judged.calls = 0
        result = run()
        if self.judged.calls != (layers := len(self.swappable.layers)):
            raise Wrong(
                f"it was called by {self.judged.calls} of {layers} layers: the model has an "
                "attention of its own in the others"
            )
        return result

    def pair(
        self, ids: Sequence[int], last_V: Tensor, only: Collection[int] | None
    ) -> tuple[list[float], Any]:
        """Seconds of the original's pass and of the variant's, in random order, and what the
        variant gives; ``only``: the layers that it is in.
        """
        names, outs, seconds = (self.original, self.name), dict[str, Any](), dict[str, float]()
        for name in self.chance.sample(names, 2):
            self.swappable.use(name, only)
            seconds[name], out = self.timed.run(ids)
            if name == self.name:
                outs[name] = out
            elif float((out.logits[0, -1] - last_V).abs().max() / last_V.abs().max()) > self.same:
                raise RuntimeError("the original does not give what it gave before")
        return [seconds[name] for name in names], outs[self.name]

    def token_pairs(
        self, ids: Sequence[int], cache: Any, only: Collection[int] | None
    ) -> list[list[float]]:
        """Seconds of a decoded token with the original and with the variant."""
        pairs: list[list[float]] = []
        for turn in range(TOKENS + 1):  # the first is a warm-up
            seconds = dict[str, float]()
            for name in self.chance.sample((self.original, self.name), 2):
                self.swappable.use(name, only)
                # a copy, since what is added to a cache can't be taken away in every model
                seconds[name], _ = self.timed.run(ids[-1:], copy.deepcopy(cache))
            pairs += [[seconds[self.original], seconds[self.name]]] if turn else []
        return pairs

    def figures(
        self, record: Mapping[str, Any], decodes: bool, only: Collection[int] | None = None
    ) -> dict[str, Any]:
        """What a passage shows of the variant, in all layers or in ``only`` these; raises Wrong."""
        passage, whole = record["passage"], record["whole"]
        seconds, out = self.pair(whole, record["last"], only)
        row = outcome(out.logits[0], passage, whole, record["reference"])
        if row["loss"] is None or row["kl"] is None:
            where = f"passage {record['number']} of {record['seq']} tokens"
            raise Wrong(f"{where} has a loss that is no number")
        tokens = self.token_pairs(whole, out.past_key_values, only) if decodes else []
        return {"step_s": seconds, **row, "token_s": tokens}

    def hybrid_layers(self, ratio: int) -> list[int]:
        """The layers that the variant is in where the last of every ``ratio`` stays exact."""
        return [n for n in range(len(self.swappable.layers)) if (n + 1) % ratio]

    def in_one_layer(self, ids: Sequence[int], number: int) -> Any:
        """What the model gives with the variant in one layer alone."""
        self.swappable.use(self.name, only=[number])
        return self.timed.run(ids)[1]


def variant(question: Mapping[str, Any]) -> Stages:
    """A row's figures passage by passage; a wrong one ends where that shows."""
    row = impls.table(question["tables"]).find(question["variant"])
    try:
        yield from _figures(VariantInModel(row, question), question)
    except Wrong as why:
        says = "it computes softmax by its row, and" if row.exact else "by its own definition"
        yield {"status": "wrong", "reason": f"{says} {why}"}
    except NotServed as why:
        yield {"status": "refused", "reason": own_words(why) or str(why)}


def _distilled(trial: VariantInModel, question: Mapping[str, Any]) -> Stages:
    """The losses once more after a distillation, in the order of the passages."""
    folder, losses = Path(question["folder"]), list[float | None]()
    blocks = torch.load(folder / "rest.pt", weights_only=True)
    distillation = Distillation(trial.swappable, trial.name)
    try:
        facts = distillation.run(blocks, question["distil_s"], question["seed"])
        trial.swappable.use(trial.name)
        for at in range(len(question["original"]["passages"])):
            record = torch.load(folder / f"{at}.pt", weights_only=False)
            _, out = trial.timed.run(record["whole"])
            losses.append(outcome(out.logits[0], record["passage"], record["whole"], None)["loss"])
        yield {"distilled": {**facts, "losses": losses}}
    except NotServed as why:
        yield {"amiss": f"no distillation: {own_words(why)}"}
    finally:
        distillation.restore()


def _figures(trial: VariantInModel, question: Mapping[str, Any]) -> Stages:
    folder, lengths, decodes = Path(question["folder"]), set[int](), True
    losses: dict[int, list[tuple[float, float]]] = {}
    for at, own in enumerate(question["original"]["passages"]):
        record = torch.load(folder / f"{at}.pt", weights_only=False)
        passage, whole, seq = record["passage"], record["whole"], record["seq"]
        if seq not in lengths:
            amiss = trial.judge(whole)
            decodes = not amiss
            lengths.add(seq)
            yield from ({"amiss": words} for words in amiss)
            yield {"error": trial.judged.worst}
        row = trial.figures(record, decodes)
        row["hybrids"] = {
            str(ratio): trial.figures(record, decodes, trial.hybrid_layers(ratio))
            for ratio in question["hybrid"]
            if not trial.row.exact
        }
        row["layers"] = {}
        for number in question["layers"]:
            alone = trial.in_one_layer(whole, number)
            row["layers"][str(number)] = outcome(alone.logits[0], passage, whole, None)["loss"]
        losses.setdefault(seq, []).append((row["loss"], own["loss"]))
        facts = {"seq": seq, "passage": own["passage"]}
        yield {"status": "measured", "reason": "", "passages": {**facts, **row}}
    if question["distil_s"] and not trial.row.exact:
        yield from _distilled(trial, question)
    if trial.row.exact:
        for seq, pairs in losses.items():
            off = math.expm1(sum(loss - own for loss, own in pairs) / len(pairs))
            if abs(off) > trial.exact:
                raise Wrong(f"its perplexity on {seq} tokens is off the original's by {off:.2g}")
