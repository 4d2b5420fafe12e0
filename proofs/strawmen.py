"""Ours beside the public form of the same operator: ``python proofs/strawmen.py [NAME …]``.

A variant that is slow only because it was written badly makes every report a lie. So each of ours
that somebody else has published too is timed against theirs: pairs in random order, adjacent in
time, on the same inputs, in one process, on one thread. Printed: the median of the ratios ours /
theirs with its interval, and how far the two results lie apart. The exit status is 1 where a ratio
is beyond 1.05. Where the two do not compute quite the same, the line says what differs. Leave the
machine alone meanwhile.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from attnbench.measure.settings import Settings, apply, environment  # noqa: E402

LIMIT = 1.05
SECONDS = 4.0
FEWEST, MOST = 9, 60
HEADS, WIDTH, LENGTH, WINDOW = 4, 64, 4096, 256
Function = Callable[..., Any]


@dataclass(frozen=True)
class Match:
    """One operator twice: our row on a problem, and what builds theirs for it."""

    ours: str
    theirs: Callable[[Any], Function]
    library: str
    needs: str = "torch"
    mask: str = "none"
    phases: tuple[str, ...] = ("forward", "train")
    length: int = LENGTH
    level: str = "core"
    differs: str = ""
    changes: dict[str, Any] = field(default_factory=dict)


def local_attention(problem: Any) -> Function:
    from local_attention import LocalAttention

    causal = "causal" in problem.mask.kinds
    layer = LocalAttention(
        WINDOW, causal=causal, exact_windowsize=True, use_rotary_pos_emb=False, autopad=True
    )
    return lambda q, k, v: layer(q, k, v)


def performer(problem: Any) -> Function:
    from performer_pytorch import FastAttention

    return FastAttention(WIDTH, nb_features=256, causal="causal" in problem.mask.kinds)


def linear_elu(problem: Any) -> Function:
    import torch.nn.functional as F
    from performer_pytorch.performer_pytorch import (
        causal_linear_attention_noncuda,
        linear_attention,
    )

    form = causal_linear_attention_noncuda if "causal" in problem.mask.kinds else linear_attention
    return lambda q, k, v: form(F.elu(q) + 1, F.elu(k) + 1, v)


def _without_projections(layer: Any, sources: tuple[str, ...], closing: str) -> None:
    """A layer's inner operator alone: what it would project is handed in ready."""
    import torch

    layer.given = None
    for number, name in enumerate(sources):
        delattr(layer, name)
        setattr(layer, name, lambda x, number=number: layer.given[number])
    setattr(layer, closing, torch.nn.Identity())


def nystrom(problem: Any) -> Function:
    import torch
    from nystrom_attention import NystromAttention

    layer = NystromAttention(
        HEADS * WIDTH, dim_head=WIDTH, heads=HEADS, num_landmarks=64, residual=False
    )
    _without_projections(layer, ("to_qkv",), "to_out")

    def attend(q: Any, k: Any, v: Any) -> Any:
        flat = [x.transpose(1, 2).flatten(2) for x in (q, k, v)]
        layer.given = [torch.cat(flat, -1)]
        return layer(flat[0]).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)

    return attend


def linformer(problem: Any) -> Function:
    from linformer import LinformerSelfAttention

    layer = LinformerSelfAttention(HEADS * WIDTH, problem.kv_len, k=256, heads=HEADS)
    _without_projections(layer, ("to_q", "to_k", "to_v"), "to_out")

    def attend(q: Any, k: Any, v: Any) -> Any:
        layer.given = [x.transpose(1, 2).flatten(2) for x in (q, k, v)]
        return layer(layer.given[0]).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)

    return attend


def reformer(problem: Any) -> Function:
    from reformer_pytorch import LSHAttention

    layer = LSHAttention(bucket_size=64, n_hashes=4, causal=False)

    def attend(q: Any, k: Any, v: Any) -> Any:
        out, _, _ = layer(q.flatten(0, 1), v.flatten(0, 1))
        return out.unflatten(0, q.shape[:2])

    return attend


def routing(problem: Any) -> Function:
    from routing_transformer.routing_transformer import KmeansAttention

    layer = KmeansAttention(64, 64, HEADS, WIDTH)
    layer.eval()
    layer.kmeans.initted.fill_(True)
    return lambda q, k, v: layer(q, k, v)[0]


def flex(pattern: Callable[[], Function]) -> Callable[[Any], Function]:
    """A pattern as torch's FlexAttention runs it: what one would write today."""

    def build(problem: Any) -> Function:
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        torch._dynamo.reset()
        size = (None, None, problem.q_len, problem.kv_len)
        blocks = create_block_mask(pattern(), *size, device="cpu")
        run = torch.compile(flex_attention, fullgraph=True, dynamic=False)
        return lambda q, k, v: run(q, k, v, block_mask=blocks)

    return build


def masked_sdpa(label: str) -> Callable[[Any], Function]:
    """The pattern as a dense mask given to torch's fused attention."""

    def build(problem: Any) -> Function:
        import torch
        import torch.nn.functional as F

        import impls
        from impls.outside import load_function

        row = impls.table().find(label)
        define = load_function(row.definition)(problem, **row.chosen)
        eye = torch.eye(problem.kv_len)[None, None]
        zero = torch.zeros(1, 1, problem.kv_len, problem.head_dim)
        one = problem.with_(batch=1, heads=1, kv_heads=1)
        define = load_function(row.definition)(one, **row.chosen)
        rows = torch.arange(problem.q_len)
        seen = define(zero, zero, eye, rows) > 0
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    return build


def native_mha(problem: Any) -> Function:
    import torch

    layer = torch.nn.MultiheadAttention(HEADS * WIDTH, HEADS, batch_first=True)
    layer.train(problem.gradients)
    return lambda x: layer(x, x, x, need_weights=False)[0]


def native_block(problem: Any) -> Function:
    import torch

    layer = torch.nn.TransformerEncoderLayer(
        HEADS * WIDTH, HEADS, 4 * HEADS * WIDTH, dropout=0.0, batch_first=True, norm_first=True
    )
    layer.train(problem.gradients)
    return layer


def fla(module: str, function: str, arguments: Function) -> Callable[[Any], Function]:
    """The plain chunked or recurrent form that flash-linear-attention tests its kernels with."""

    def build(problem: Any) -> Function:
        import importlib

        form = getattr(importlib.import_module(module), function)
        return lambda q, k, v: form(**arguments(q, k, v))

    return build


def strided_pattern() -> Function:
    stride = round(LENGTH**0.5)
    return lambda b, h, q, k: (q >= k) & ((q - k < stride) | ((q - k) % stride == 0))


def dilated_pattern() -> Function:
    return lambda b, h, q, k: (q >= k) & ((q - k) % 4 == 0) & (q - k <= 4 * 64)


def longformer_pattern() -> Function:
    return lambda b, h, q, k: (q >= k) & ((q - k <= 256) | (k < 16))


MATCHES = [
    Match("window.blocked", local_attention, "local-attention", "local_attention",
          mask=f"causal+window:{WINDOW},0"),
    Match("window.blocked", local_attention, "local-attention", "local_attention",
          mask=f"window:{WINDOW},{WINDOW}"),
    Match("performer", performer, "performer-pytorch", "performer_pytorch",
          differs="theirs adds 1e-4 to each feature; other random features"),
    Match("performer", performer, "performer-pytorch", "performer_pytorch", mask="causal",
          differs="theirs adds 1e-4 to each feature; other random features"),
    Match("nystrom", nystrom, "nystrom-attention", "nystrom_attention"),
    Match("linformer", linformer, "linformer", "linformer",
          differs="theirs learns its projections, so both are full products",
          changes={"options": "projection=random"}),
    Match("linear.elu", linear_elu, "performer-pytorch", "performer_pytorch",
          differs="theirs adds 1e-6 to the sum of keys"),
    Match("linear.elu", linear_elu, "performer-pytorch", "performer_pytorch", mask="causal"),
    Match("lsh", reformer, "reformer-pytorch", "reformer_pytorch",
          changes={"options": "shared=true"}, differs="other random rotations"),
    Match("routing", routing, "routing-transformer", "routing_transformer",
          changes={"options": "clusters=64&window=64"}, differs="other centroids"),
    Match("strided", flex(strided_pattern), "FlexAttention", mask="causal", phases=("forward",)),
    Match("dilated", flex(dilated_pattern), "FlexAttention", mask="causal", phases=("forward",)),
    Match("longformer", flex(longformer_pattern), "FlexAttention", mask="causal",
          phases=("forward",)),
    *(Match(name, masked_sdpa(name), "SDPA with the pattern as its mask", mask="causal")
      for name in ("strided", "fixed", "dilated", "longformer", "bigbird")),
    *(Match(name, masked_sdpa(name), "SDPA with the pattern as its mask")
      for name in ("longformer", "bigbird")),
    Match("mha", native_mha, "nn.MultiheadAttention", level="layer", length=1024,
          differs="other weights"),
    Match("block", native_block, "nn.TransformerEncoderLayer", level="block", length=1024,
          differs="other weights"),
]  # fmt: skip


def problem_of(match: Match, phase: str) -> Any:
    from impls.masks import Mask
    from impls.problem import Problem

    return Problem(
        heads=HEADS, kv_heads=HEADS, q_len=match.length, kv_len=match.length, head_dim=WIDTH,
        v_head_dim=WIDTH, mask=Mask.parse(match.mask), phase=phase, level=match.level,
    )  # fmt: skip


def pair(match: Match, phase: str) -> tuple[list[float], float]:
    """The ratios ours / theirs, and how far apart the results are."""
    import torch

    import impls
    from attnbench.truth.call import Call
    from attnbench.truth.inputs import make
    from impls.outside import load_function

    problem = problem_of(match, phase)
    label = "?".join([match.ours, *filter(None, [match.changes.get("options")])])
    row = impls.table().find(label)
    assert row.supports(problem) is None, row.supports(problem)
    inputs = make(problem, 0)
    torch.manual_seed(0)
    ours = Call(problem, load_function(row.build)(problem, **row.chosen), inputs)
    theirs = Call(problem, match.theirs(problem), inputs)
    dout = torch.randn(problem.output_shape)
    if match.level != "core":  # theirs trains its weights too
        layer = match.theirs(problem)
        theirs = Call(problem, layer, inputs)
        owner = layer if isinstance(layer, torch.nn.Module) else layer.__closure__[0].cell_contents
        theirs.weights = dict(owner.named_parameters())

    def once(call: Any) -> Any:
        out = call.forward()
        if problem.gradients:
            call.backward(out, dout)
        return out

    results = [once(call).detach().double() for call in (ours, theirs)]
    once(ours), once(theirs)
    apart = float((results[0] - results[1]).norm() / results[1].norm())
    ratios: list[float] = []
    start = time.perf_counter()
    while len(ratios) < FEWEST or (len(ratios) < MOST and time.perf_counter() - start < SECONDS):
        taken = {}
        for call in random.sample([ours, theirs], 2):
            before = time.perf_counter()
            once(call)
            taken[call is ours] = time.perf_counter() - before
        ratios.append(taken[True] / taken[False])
    return ratios, apart


def measured(names: list[str]) -> Iterator[tuple[str, float]]:
    """Each line as it is known, and its ratio."""
    from attnbench.statistics import summary

    for match in MATCHES:
        if names and match.ours not in names:
            continue
        if find_spec(match.needs) is None:
            yield f"{match.ours}: {match.library} is not installed", 0.0
            continue
        for phase in match.phases:
            ratios, apart = pair(match, phase)
            s = summary(ratios)
            what = f"{match.ours} {match.mask} n{match.length} {phase} / {match.library}"
            result = f"{s.median:6.3f} [{s.low:.3f}, {s.high:.3f}]  apart {apart:.0e}"
            yield f"{what:84} {result}  {match.differs}", s.median


def main(names: list[str]) -> int:
    """Print every ratio; 1 where ours is slower than it may be."""
    settings = Settings(threads=1)
    wanted = environment(settings.threads)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **wanted})
    apply(settings)
    slow = 0
    for line, ratio in measured(names):
        slow += ratio > LIMIT
        print(line + f"  SLOWER than {LIMIT}" * (ratio > LIMIT), flush=True)
    print(f"{slow} beyond {LIMIT}" if slow else f"none of ours above {LIMIT}")
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
