"""Named grids. A sweep can be repeated from a preset's name alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from impls.operators import PARAMETERS


class Preset(Struct, frozen=True, forbid_unknown_fields=True):
    """A grid: every combination of its values, for its variants (all of the table if none).

    With ``parts`` it is the union of theirs instead, in their order: of its own values only those
    that say how all of them are measured count, and its variants for parts that name none.
    """

    title: str
    variants: tuple[str, ...] = ()
    seq: tuple[str, ...] = ("256",)
    """``N``, or ``QxK`` for a number of queries against another of keys."""
    batch: tuple[int, ...] = (1,)
    tokens: int | None = None
    """In place of a batch: as many tokens at every length, so the batch is tokens // length."""
    heads: tuple[int, ...] = (8,)
    kv_heads: tuple[int, ...] = ()
    """As many as heads, if none."""
    head_dim: tuple[int, ...] = (64,)
    v_head_dim: tuple[int, ...] = ()
    """The same as head_dim, if none."""
    dtype: tuple[str, ...] = ("float32",)
    mask: tuple[str, ...] = ("causal",)
    phase: tuple[str, ...] = ("forward", "train")
    inputs: tuple[str, ...] = ("normal",)
    level: tuple[str, ...] = ()
    """Those of the variants named, if none; core where no variant is named either."""
    device: str = "cpu"
    world: int = 1
    """Over how many processes those run that can."""
    budget: float = 0.3
    parameters: Mapping[str, tuple[Any, ...]] = {}
    """The values of the operator's parameters that are set."""
    operator: str = ""
    """The one operator whose rows are measured; those of all, if empty."""
    layers: int = 0
    """How many layers of a model are as this part of its grid says."""
    parts: tuple[Preset, ...] = ()

    def with_(self, **changes: Any) -> Preset:
        """This preset, and its parts, with some values replaced; None leaves a value as it is."""
        values = {k: v for k, v in changes.items() if v is not None}
        if "batch" in values:
            values.setdefault("tokens", None)
        for name, as_many in (("heads", "kv_heads"), ("head_dim", "v_head_dim")):
            if name in values:
                values.setdefault(as_many, ())
        parts = tuple(part.with_(**values) for part in self.parts)
        own = {name: values.pop(name) for name in PARAMETERS if name in values}
        return replace(self, **values, parameters={**self.parameters, **own}, parts=parts)

    def but(self, text: str) -> Preset:
        """The same in words: ``seq=128,256 heads=4``, of masks ``mask=none;causal``."""
        changes: dict[str, Any] = {}
        for name, _, value in (word.partition("=") for word in text.split()):
            kind = self.__annotations__[name]
            read = int if "int" in kind else float if kind == "float" else str
            values = tuple(map(read, value.split(";" if name == "mask" else ",")))
            changes[name] = values if kind.startswith("tuple") else values[0]
        return self.with_(**changes)

    def of(self, *parts: Preset) -> Preset:
        """The union of some grids, measured as this one."""
        return replace(self, parts=parts)

    @property
    def products(self) -> tuple[Preset, ...]:
        """The products of values that it is the union of: itself, or its parts."""
        alike = {name: getattr(self, name) for name in ("device", "world", "budget", "level")}
        return tuple(
            replace(part, **alike, variants=part.variants or self.variants) for part in self.parts
        ) or (self,)

    def settings(self) -> Iterator[dict[str, Any]]:
        """Every combination of its parameters' values."""
        for values in product(*self.parameters.values()):
            yield dict(zip(self.parameters, values, strict=True))

    def batches(self, length: int) -> tuple[int, ...]:
        """The batches at a length; at least one sequence, though it be longer than the tokens."""
        return self.batch if self.tokens is None else (max(1, self.tokens // length),)


RAGGED = ("255", "257", "277")
"""A last block of 16 to 256 then lacks one token, holds one alone, or holds neither so few nor so
many, with whole blocks before it: off by one shows in one of these. (277 is 5 more than a multiple
of 8.)
"""
FAR = (
    "sdpa,sdpa.flash,sdpa.efficient,sdpa.cudnn,flash_attn2,flash_attn3,flash_attn4,torch.varlen,"
    "triton.flash,triton.decode,window.blocked,longformer,mean_v,performer,linear.elu,"
    "triton.linear,retention,gla,ssd"
)
"""What holds no score for every pair, and takes seconds to compile at most: it goes far."""
VISIT = "device=cuda budget=0.05"
H200 = Preset("what is alike in a visit's parts").but(
    f"heads=16 head_dim=128 dtype=bfloat16 phase=forward tokens=32768 {VISIT}"
)
QUICKLY = "device=cuda budget=0.04"
QUICK = H200.but(QUICKLY)
HEADLINE = H200.but("seq=512,2048,8192,32768")
MILLION = H200.but("seq=1048576 batch=1 heads=4 head_dim=64")
PROBLEM = {
    "cpu": Preset("the default problem on a CPU").but("seq=512 heads=4 phase=forward"),
    "cuda": Preset("the default problem on a GPU").but(
        "seq=4096 batch=2 heads=16 head_dim=128 dtype=bfloat16 phase=forward device=cuda"
    ),
}
"""What every command starts from, by the kind of device; it changes lengths and phases at most. So
what one has measured answers another."""
CPU = PROBLEM["cpu"].but("phase=forward,train budget=0.05")
CUDA = PROBLEM["cuda"].but("phase=forward,train")
CHECK = Preset("").but(
    "heads=4 head_dim=32 mask=none;causal;window:31,0 phase=forward,train,decode "
    "level=core,layer,block"
)
PRESETS = {
    "cpu": CPU.with_(title="the default on a CPU: a layer's heads, short to middling lengths").of(
        CPU.but("seq=128,512,1024 phase=forward"),
        CPU.but("seq=128,512 phase=train"),
        CPU.but("mask=window:127,0"),
    ),
    "cuda": CUDA.with_(title="the default on a GPU: bfloat16, middling to long sequences").of(
        CUDA.but("seq=1024,4096,8192 phase=forward"),
        CUDA.but("seq=1024,4096 phase=train"),
        CUDA.but("mask=window:1023,0"),
    ),
    "check": CHECK.with_(
        title="what 'attnbench check' asks: ragged lengths, grouped heads, the common masks, all "
        "levels"
    ).of(CHECK.with_(seq=RAGGED), CHECK.but("seq=277 kv_heads=2")),
    "compare-cpu": PROBLEM["cpu"],
    "compare-cuda": PROBLEM["cuda"],
    "history": Preset("what asv measures of each commit on a CPU: one or two of each family").but(
        "variants=matmul,sdpa,chunked,longformer,performer,linear.elu,gla seq=128,256,512 heads=4 "
        "budget=0.1"
    ),
    "history-cuda": Preset("what asv measures of each commit on a GPU").but(
        "variants=matmul,sdpa,chunked,flex,longformer,linear.elu,gla seq=512,1024,2048,4096 "
        "batch=2 heads=16 head_dim=128 dtype=bfloat16 device=cuda"
    ),
    "efficient": Preset(
        "the run behind docs/answer.md: is leaving softmax faster, short to long, with no mask "
        "and with a window that exact variants can use?"
    ).but(
        "variants=sdpa,sdpa.flash,chunked,matmul,window.blocked,lsh,routing,linformer,nystrom,"
        "performer,bigbird,longformer,strided,fixed,dilated,blocksparse.flex,mean_v,linear.elu,"
        "linear.taylor,cosformer,hedgehog,rfa,skyformer "
        "seq=512,2048,4096 heads=4 mask=none;window:127,0 budget=0.1"
    ),
    "h200": Preset("twenty minutes of an H200: what is asked most comes first")
    .but(VISIT)
    .of(
        H200.but("seq=2048,8192"),
        H200.but(f"seq=512,32768 variants={FAR}"),
        H200.but("phase=train seq=2048"),
        H200.but(f"phase=train seq=512,8192,32768 variants={FAR}"),
        H200.but("phase=decode seq=8192,131072 batch=1"),
        H200.but(f"seq=65536,131072 batch=1 variants={FAR}"),
        HEADLINE.but(f"mask=none;window:1023,0 variants={FAR}"),
        HEADLINE.but(f"seq=8192 head_dim=64,256 phase=forward,train variants={FAR}"),
        H200.but(f"seq=512,2048,8192 batch=1 phase=forward,train variants={FAR}"),
        H200.but(f"seq=8192,131072 batch=16 heads=32 kv_heads=8 phase=decode variants={FAR}"),
        H200.but(f"seq=8192 mask=none;window:1023,0 phase=train variants={FAR}"),
        H200.but("seq=8192 mask=none;window:1023,0 phase=forward,train variants=flex,window.flex"),
        H200.but(f"seq=65536 batch=1 phase=train variants={FAR}"),
    ),
    "h200-quick": Preset("five minutes of an H200: the same questions at a few lengths")
    .but(QUICKLY)
    .of(
        QUICK.but("seq=8192"),
        QUICK.but(f"seq=8192 phase=train variants={FAR}"),
        QUICK.but("seq=32768 batch=1 phase=decode"),
        QUICK.but(f"seq=512,2048,32768 variants={FAR}"),
        QUICK.but(f"seq=65536 batch=1 variants={FAR}"),
        QUICK.but(f"seq=8192 mask=none;window:1023,0 variants={FAR}"),
        QUICK.but("seq=8192 mask=window:1023,0 variants=flex,window.flex"),
        QUICK.but(f"seq=8192 head_dim=64,256 variants={FAR}"),
    ),
    "million": Preset(
        "a million tokens, on a GPU: what keeps a state, each checked on sampled rows"
    )
    .but(VISIT)
    .of(
        MILLION.but(
            "variants=triton.linear,linear.elu,linear.identity,cosformer,hedgehog,linear.taylor"
        ),
        MILLION.but("variants=retention,gla,ssd,delta heads=1"),
    ),
    "smoke": Preset("seconds: two lengths forward, to see that everything works").but(
        "seq=64,128 heads=2 phase=forward budget=0.05"
    ),
}


def one_problem(device: str) -> Preset:
    """The default problem on a device."""
    return PROBLEM["cuda" if device.startswith("cuda") else "cpu"].with_(device=device)
