"""Named grids. A sweep can be repeated from a preset's name alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A grid: every combination of its values, for its variants (all of the table if none)."""

    title: str
    variants: tuple[str, ...] = ()
    seq: tuple[str, ...] = ("256",)
    """``N``, or ``QxK`` for a number of queries against another of keys."""
    batch: tuple[int, ...] = (1,)
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

    def with_(self, **changes: Any) -> Preset:
        """This preset with some values replaced; None leaves a value as it is."""
        return replace(self, **{k: v for k, v in changes.items() if v is not None})


PRESETS = {
    "cpu": Preset(
        "the default on a CPU: a layer's heads, short to middling lengths",
        seq=("128", "256", "512", "1024"), heads=(4,), budget=0.1,
    ),
    "cuda": Preset(
        "the default on a GPU: bfloat16, middling to long sequences",
        seq=("512", "1024", "2048", "4096", "8192"), batch=(2,), heads=(16,), head_dim=(128,),
        dtype=("bfloat16",), device="cuda",
    ),
    "check": Preset(
        "what 'attnbench check' asks: an odd length, grouped heads, the common masks, all levels",
        seq=("129",), heads=(4,), kv_heads=(4, 2), head_dim=(32,),
        mask=("none", "causal", "window:31,0"), phase=("forward", "train", "decode"),
        level=("core", "layer", "block"),
    ),
    "compare-cpu": Preset("what 'attnbench compare' asks on a CPU", seq=("512",),
                          phase=("forward",)),
    "compare-cuda": Preset(
        "what 'attnbench compare' asks on a GPU", seq=("4096",), batch=(2,), heads=(16,),
        head_dim=(128,), dtype=("bfloat16",), phase=("forward",), device="cuda",
    ),
    "history": Preset(
        "what asv measures of each commit on a CPU: one or two of each family",
        ("matmul", "sdpa", "chunked", "longformer", "performer", "linear.elu", "gla"),
        seq=("128", "256", "512", "1024"), heads=(4,), budget=0.1,
    ),
    "history-cuda": Preset(
        "what asv measures of each commit on a GPU",
        ("matmul", "sdpa", "chunked", "flex", "longformer", "linear.elu", "gla"),
        seq=("512", "1024", "2048", "4096"), batch=(2,), heads=(16,), head_dim=(128,),
        dtype=("bfloat16",), device="cuda",
    ),
    "efficient": Preset(
        "what docs/answer.md is told from: is leaving softmax faster, short to long, with no mask "
        "and with a window that exact variants can use?",
        ("sdpa", "sdpa.flash", "chunked", "matmul", "window.blocked", "lsh", "routing", "linformer",
         "nystrom", "performer", "bigbird", "longformer", "strided", "fixed", "dilated",
         "blocksparse.flex", "mean_v", "linear.elu", "linear.taylor", "cosformer", "hedgehog",
         "rfa", "skyformer"),
        seq=("512", "2048", "8192"), heads=(4,), mask=("none", "window:127,0"),
    ),
    "smoke": Preset(
        "seconds: two lengths forward, to see that everything works",
        seq=("64", "128"), heads=(2,), phase=("forward",), budget=0.05,
    ),
}  # fmt: skip


def default_preset(devices: tuple[str, ...]) -> str:
    """The preset for what is there."""
    return "cuda" if "cuda" in devices else "cpu"


def one_problem(device: str) -> Preset:
    """Where whoever asks about one problem starts: trained, in what the device computes in."""
    dtype = "bfloat16" if device.startswith("cuda") else "float32"
    return Preset("one problem", phase=("train",), dtype=(dtype,), device=device)
