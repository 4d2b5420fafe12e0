"""A model of transformers in a process of its own, and what each implementation makes of it."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModel

from attnbench.answer.paste import PREFIX
from attnbench.core.process_child import Answers, serve
from attnbench.core.settings import Settings, apply
from attnbench.core.wire import plain
from attnbench.features.selfcheck.model import FLEX, MASKED, PACKED
from attnbench.features.selfcheck.model_layers import (
    SEES,
    WRITTEN_OUT,
    Batch,
    Call,
    Judge,
    Named,
    Size,
    Truth,
    seen_alone,
)
from attnbench.models.attention import NotServed
from attnbench.models.transformers import OTHERS, mask_as_eager, register
from impls.errors import CantBeDone

PROBE = f"{PREFIX}layers"
"""The attention that only notes which layers call one."""
PICKS = "index_topk"
FITTED = {"sliding_window": 8, "attention_chunk_size": 8, PICKS: 1 << 20}
"""Values of a configuration that fit short documents: at most, and of keys picked at least."""
LONGEST_REASON = 300


class CheckedModel:
    """A model, its attention layers, and what each gives on each document in float64."""

    def __init__(self, folder: str, dtype: str, device: str, tokens: int, seed: int) -> None:
        transformers.logging.set_verbosity_error()
        self.notes: list[str] = []
        self.dtype, self.device = dtype, device
        self.model = self._loaded(Path(folder)).eval().to(device)
        self._seed, config = seed, self.model.config.get_text_config()
        places = getattr(config, "max_position_embeddings", None) or tokens
        tokens = min(tokens, places)
        self._lengths = (tokens, max(1, tokens * 5 // 8), tokens)
        self._ids = self._token_ids(config)
        self.layers, self._names = self._find_layers(), dict[int, str]()
        if self.weights == "random":
            source = torch.Generator().manual_seed(seed)
            for p in (p for x in self.layers for p in x.parameters() if p.dim() > 1):
                wide = torch.randn(p.shape, generator=source) / math.sqrt(p[0].numel())
                p.data.copy_(wide)  # so that attention tells tokens apart
        self.truth = self._find_truth()
        self.batches = self._find_batches()
        self._yardstick = self._find_yardstick()

    def facts(self) -> Named:
        """What was loaded, and how it is looked at."""
        return {
            "class": type(self.model).__name__,
            "weights": self.weights,
            "layers": [self.label(n) for n in range(len(self.truth[0]))],
            "batches": [batch.name for batch in self.batches],
            "tokens": self._lengths[0],
            "notes": self.notes,
        }

    def label(self, number: int) -> Named:
        """A call's place, the layer's number and its name in the model."""
        calls = [call.module for call in self.truth[0]]
        indices = [getattr(module, "layer_idx", None) for module in calls]
        own = None not in indices and len({*indices}) == len(calls)
        name = self._names[id(calls[number])]
        return {"call": number, "layer": indices[number] if own else number, "name": name}

    def _loaded(self, folder: Path) -> Any:
        """The class that its configuration names, or the type's base model."""
        try:
            config = AutoConfig.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:
            raise CantBeDone(f"--model {folder} can't be loaded: {first_sentence(error)}") from None
        self._fit_masks(config)
        named = (config.architectures or [""])[0]
        saved = any(next(folder.glob(kind), None) for kind in ("*.safetensors", "pytorch_model*"))
        self.weights = "of the folder" if saved else "random"
        how: Named = {"dtype": getattr(torch, self.dtype), "attn_implementation": "eager"}
        own, why = getattr(transformers, named, None), None
        for kind in (own, AutoModel):
            if kind is None:
                continue
            try:
                if saved:
                    return kind.from_pretrained(folder, config=config, local_files_only=True, **how)
                make = kind.from_config if kind is AutoModel else kind._from_config
                return make(config, **how)
            except Exception as error:
                why = why or error
        raise CantBeDone(f"--model {folder} can't be loaded: {first_sentence(why)}")

    def _fit_masks(self, config: Any) -> None:
        """Shorten windows, and have layers that pick keys pick all: near ties fall either way.
        No cache either, which a call made again would fill again.
        """
        parts = [getattr(config, name, None) for name in getattr(config, "sub_configs", {})]
        for part in filter(None, (config, *parts)):
            if getattr(part, "use_cache", None):
                part.use_cache = False
            for name, size in FITTED.items():
                old = getattr(part, name, None)
                if isinstance(old, int) and (old < size if name == PICKS else old > size):
                    setattr(part, name, size)
                    self.notes.append(f"{name} {old:,} is set to {size:,}, to fit short documents")

    def _token_ids(self, config: Any) -> list[Tensor]:
        """The documents, without tokens that mean something of their own."""
        if "input_ids" not in inspect.signature(self.model.forward).parameters:
            raise CantBeDone(f"{type(self.model).__name__} takes no token ids: it is not checked")
        values = {**self.model.config.to_dict(), **config.to_dict()}
        own = {x for name, x in values.items() if "token" in name and isinstance(x, int)}
        usable = torch.tensor([n for n in range(config.vocab_size) if n not in own])
        source = torch.Generator().manual_seed(self._seed)
        picks = (torch.randint(len(usable), (n,), generator=source) for n in self._lengths)
        return [usable[pick][None].to(self.device) for pick in picks]

    def _alone(self, number: int) -> Batch:
        return Batch("alone", ((number, 0, 0),), self._lengths)

    def _find_layers(self) -> list[nn.Module]:
        """The modules that call an attention, in the order in which they do."""
        layers: dict[int, nn.Module] = {}

        def note(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Any:
            layers.setdefault(id(module), module)
            return q.new_zeros(q.shape[0], q.shape[2], q.shape[1], v.shape[3]), None

        AttentionInterface.register(PROBE, note)
        AttentionMaskInterface.register(PROBE, mask_as_eager)
        kind = type(self.model).__name__
        if not self._use(PROBE):
            raise CantBeDone(f"{kind} has an attention of its own, and so one implementation alone")
        try:
            with torch.no_grad():
                self.model(**self.question(self._alone(0)))
        except Exception as error:
            raise CantBeDone(f"{kind} can't be run on token ids: {first_sentence(error)}") from None
        if not layers:
            raise CantBeDone(f"{kind} has no layer that calls an attention")
        return [*layers.values()]

    def _use(self, name: str) -> bool:
        """Set an attention; False where the model keeps its own."""
        self.model.set_attn_implementation(name)
        return bool(self.model.config._attn_implementation == name)

    def question(self, batch: Batch) -> Named:
        """The arguments of the model for a batch."""
        owners = batch.owners().to(self.device)
        seen, words = owners >= 0, inspect.signature(self.model.forward).parameters
        ids = batch.spread(self._ids, torch.zeros_like(owners))
        question: Named = {"input_ids": ids}
        if batch.name in MASKED:
            question["attention_mask"] = seen.long()
        if self.model.config.is_encoder_decoder:
            question["decoder_input_ids"] = ids
            if batch.name in MASKED:
                question["decoder_attention_mask"] = seen.long()
        if batch.name != "alone":
            counted = [torch.arange(n, device=self.device)[None] for n in batch.lengths]
            positions = batch.spread(counted, torch.zeros_like(owners))
            question |= {"position_ids": positions, "decoder_position_ids": positions}
        return {name: x for name, x in question.items() if name in words}

    def _find_truth(self) -> list[list[Call]]:
        """Each document's calls, by attention written out."""
        self._names = {id(module): name for name, module in self.model.named_modules()}
        self._use(WRITTEN_OUT)
        truth = []
        for number in range(len(self._lengths)):
            run = Truth(self.layers, self._lengths[number], self._seed + number)
            try:
                run.run(self.model, self.question(self._alone(number)))
            except Exception as error:
                kind = type(self.model).__name__
                raise CantBeDone(f"{kind}: truth can't be had: {first_sentence(error)}") from None
            truth.append(run.calls_made)
        return truth

    def _find_batches(self) -> list[Batch]:
        """Without padding, padded and packed, those that this model knows."""
        long, short, _ = self._lengths
        layouts = {
            "plain": ((0, 0, 0), (2, 1, 0)),
            "padded left": ((0, 0, 0), (1, 1, long - short)),
            "padded right": ((0, 0, 0), (1, 1, 0)),
            PACKED: ((1, 0, 0), (0, 0, short)),
        }
        words = inspect.signature(self.model.forward).parameters
        call = self.truth[0][0]
        later = seen_alone(call, [*call.tokens][-1]).triu(1) > SEES
        for lacks, names, why in (
            ("attention_mask" not in words, MASKED, "the model takes no attention_mask"),
            ("position_ids" not in words, (PACKED,), "the model takes no position_ids"),
            (bool(later.any()), (PACKED,), "rows see later keys, and position_ids part nothing"),
        ):
            left_out = [name for name in names if lacks and name in layouts]
            layouts = {name: x for name, x in layouts.items() if name not in left_out}
            if left_out:
                self.notes.append(f"left out: {', '.join(left_out)}: {why}")
        return [Batch(name, layout, self._lengths) for name, layout in layouts.items()]

    def _find_yardstick(self) -> list[dict[str, Size]]:
        """The errors of attention written out in the dtype at hand, each document alone: a fault
        in the mask of a batch is none of them.
        """
        self._use(WRITTEN_OUT)
        runs = []
        for number in range(len(self._lengths)):
            run = Judge(self.truth, alone := self._alone(number), self.dtype)
            run.run(self.model, self.question(alone))
            runs.append(run.sizes)
        return [
            {what: Size(*map(max, *(sizes[what] for sizes in some))) for what in some[0]}
            for some in zip(*runs, strict=True)
        ]

    def check(self, name: str, batch: Batch) -> Named:
        """What one implementation makes of a batch: without gradients where it has none."""
        why = ""
        about: Named = {"implementation": name, "batch": batch.name}
        for gradients in (True, False):
            run = Judge(self.truth, batch, self.dtype, self._yardstick, gradients=gradients)
            try:
                run.run(self.model, self.question(batch))
            except Exception as error:
                why = first_sentence(error)
                continue
            errors = [size.relative for sizes in run.sizes for size in sizes.values()]
            status = "differs" if run.findings else "agrees"
            worst = {"error": max(errors, key=_or_infinite), "of_allowed": run.worst}
            layers = [self.label(finding["call"]) | finding for finding in run.findings]
            about |= {"status": status, **worst, "layers": layers}
            return about | {"no_gradients": "" if gradients else why, "reason": ""}
        return about | {"status": "refused", "reason": why}

    def results(self, name: str) -> Iterator[Named]:
        """Batch by batch."""
        about = {"implementation": name, "status": "refused"}
        try:
            if not self._use(name):
                raise CantBeDone(f"{type(self.model).__name__} can't be loaded with it")
        except Exception as error:
            yield from (
                about | {"batch": b.name, "reason": first_sentence(error)} for b in self.batches
            )
            return
        with ExitStack() as stack:
            if name == FLEX:  # compiling takes a minute, and kernels are not what is asked about
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            for batch in self.batches:
                yield self.check(name, batch)


def _or_infinite(error: float) -> float:
    return math.inf if math.isnan(error) else error


def first_sentence(error: BaseException | None) -> str:
    """The first sentence of what an exception says; a variant's own words."""
    text = str(error).strip() or type(error).__name__
    if isinstance(error, NotServed):
        text = text.partition(": ")[2].removesuffix(f"; {OTHERS}")
    return text.splitlines()[0].split(". ")[0][:LONGEST_REASON].rstrip(".")


loaded = cache(CheckedModel)


def answer(question: Mapping[str, Any]) -> Iterator[Named]:
    """The facts of the model, or what an implementation makes of each batch."""
    names = ("folder", "dtype", "device", "tokens", "seed")
    checked = loaded(*(question[name] for name in names))
    name = question.get("implementation")
    if name is None:
        yield {"facts": checked.facts()}
        return
    if (variant := question.get("variant")) is not None:
        name = register(variant, question["tables"])
    yield from ({"result": plain(result)} for result in checked.results(name))


def respond(question: dict[str, Any], answers: Answers) -> dict[str, Any]:
    """Send the stages; the last may say why there are no more."""
    apply(Settings(threads=int(os.environ["OMP_NUM_THREADS"])))
    try:
        for stage in answer(question):
            answers.stage(stage)
    except CantBeDone as why:
        answers.stage({"refused": str(why)})
    return {}


if __name__ == "__main__":
    serve(respond)
