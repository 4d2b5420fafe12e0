"""Are the rows written well? ``python -m proofs.rows strawmen|scaling|caches``, on one thread.

The first two take names of rows too.

``strawmen``: a variant that is slow only because it was written badly makes every report a lie. So
each of ours that somebody else has published too is timed against theirs: pairs in random order,
adjacent in time, on the same inputs. Printed: the median of the ratios ours / theirs with its
interval, how far the two results lie apart, and what else differs. Limit: 1.05.

``scaling``: what claims to be linear is. Every row whose own cost formula grows with the length and
no faster, and the windows, run from 4,096 to 32,768 tokens, forward and train, under each mask that
keeps them linear. The exponent is the slope of log time, or log peak memory, over log length.
Limit: 1.15. Leave the machine alone meanwhile.

``caches``: the time of a step of decoding from a cache in few bits over that of ``sdpa`` on keys
and values in float32, in such pairs, and the bytes that the cache takes of each token, which must
be those of its codes and scales.
"""

from __future__ import annotations

import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import impls
from attnbench.core.machine import this_machine, why_not
from attnbench.core.settings import Settings, apply, environment
from impls.loading import load_function
from impls.masks import Mask
from impls.operators import inputs as inputs_of
from impls.problem import Problem
from impls.spec import Variant

Function = Callable[..., Any]
HEADS, WIDTH, LENGTH, WINDOW = 4, 64, 4096, 256
MOST_RATIO, MOST_EXPONENT = 1.05, 1.15
SECONDS, FEWEST, MOST = 4.0, 9, 60
LENGTHS = (4096, 8192, 16384, 32768)
ROUND_S, ROUNDS, LEAST = 0.3, 2, 3


def local_attention(problem: Problem) -> Function:
    from local_attention import LocalAttention

    causal = "causal" in problem.mask.kinds
    options = {"exact_windowsize": True, "use_rotary_pos_emb": False, "autopad": True}
    layer = LocalAttention(WINDOW, causal=causal, **options)
    return lambda q, k, v: layer(q, k, v)


def performer(problem: Problem) -> Function:
    from performer_pytorch import FastAttention

    return FastAttention(WIDTH, nb_features=256, causal="causal" in problem.mask.kinds)


def linear_elu(problem: Problem) -> Function:
    import torch.nn.functional as F
    from performer_pytorch import performer_pytorch as theirs

    causal = "causal" in problem.mask.kinds
    form = theirs.causal_linear_attention_noncuda if causal else theirs.linear_attention
    return lambda q, k, v: form(F.elu(q) + 1, F.elu(k) + 1, v)


def _without_projections(layer: Any, sources: Sequence[str], closing: str) -> list[Any]:
    """Leave a layer its inner operator alone; what it would project is taken from the list."""
    import torch

    projected: list[Any] = []
    for number, name in enumerate(sources):
        delattr(layer, name)
        setattr(layer, name, lambda x, number=number: projected[number])
    setattr(layer, closing, torch.nn.Identity())
    return projected


def nystrom(problem: Problem) -> Function:
    import torch
    from nystrom_attention import NystromAttention

    sizes = {"dim_head": WIDTH, "heads": HEADS, "num_landmarks": 64}
    layer = NystromAttention(HEADS * WIDTH, residual=False, **sizes)
    projected = _without_projections(layer, ("to_qkv",), "to_out")

    def attend(q: Any, k: Any, v: Any) -> Any:
        flat = [x.transpose(1, 2).flatten(2) for x in (q, k, v)]
        projected[:] = [torch.cat(flat, -1)]
        return layer(flat[0]).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)

    return attend


def linformer(problem: Problem) -> Function:
    from linformer import LinformerSelfAttention

    layer = LinformerSelfAttention(HEADS * WIDTH, problem.kv_len, k=256, heads=HEADS)
    projected = _without_projections(layer, ("to_q", "to_k", "to_v"), "to_out")

    def attend(q: Any, k: Any, v: Any) -> Any:
        projected[:] = [x.transpose(1, 2).flatten(2) for x in (q, k, v)]
        return layer(projected[0]).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)

    return attend


def reformer(problem: Problem) -> Function:
    from reformer_pytorch import LSHAttention

    layer = LSHAttention(bucket_size=64, n_hashes=4, causal=False)
    return lambda q, k, v: layer(q.flatten(0, 1), v.flatten(0, 1))[0].unflatten(0, q.shape[:2])


def routing(problem: Problem) -> Function:
    from routing_transformer.routing_transformer import KmeansAttention

    layer = KmeansAttention(64, 64, HEADS, WIDTH)
    layer.eval()
    layer.kmeans.initted.fill_(True)
    return lambda q, k, v: layer(q, k, v)[0]


def masked_sdpa(label: str) -> Callable[[Problem], Function]:
    """The pattern as a dense mask of torch's fused attention."""

    def build(problem: Problem) -> Function:
        import torch
        import torch.nn.functional as F

        row = impls.table().find(label)
        eye = torch.eye(problem.kv_len)[None, None]
        zero = torch.zeros(1, 1, problem.kv_len, problem.head_dim)
        one = problem.with_(batch=1, heads=1, kv_heads=1)
        define = load_function(row.definition or "")(one, **row.chosen)
        visible = define(zero, zero, eye, torch.arange(problem.q_len)) > 0
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=visible)

    return build


def _by_token(library: Function) -> Function:
    """A rule of tokens before heads, whose gates come by name."""

    def attend(q: Any, k: Any, v: Any, **gates: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        by_name = {name: gate.transpose(1, 2) for name, gate in gates.items()}
        return library(q, k, v, **by_name)[0].transpose(1, 2)

    return attend


def gated_delta(problem: Problem) -> Function:
    from transformers.models.qwen3_next import modeling_qwen3_next as theirs

    return _by_token(theirs.torch_chunk_gated_delta_rule)


def kda(problem: Problem) -> Function:
    from transformers.models.kimi_linear import modeling_kimi_linear as theirs

    return _by_token(theirs.chunk_kimi_delta_attention)


def ssd(problem: Problem) -> Function:
    import torch
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    def attend(q: Any, k: Any, v: Any, g: Any, dt: Any) -> Any:
        q, k, v, dt = (x.transpose(1, 2) for x in (q * problem.scale, k, v, dt))
        rates = -torch.ones(problem.heads)
        return mamba2_chunk_scan(v, dt, rates, k, q, chunk_size=64).transpose(1, 2)

    return attend


def native_mha(problem: Problem) -> Function:
    import torch

    layer = torch.nn.MultiheadAttention(HEADS * WIDTH, HEADS, batch_first=True)
    layer.train(problem.gradients)
    return lambda x: layer(x, x, x, need_weights=False)[0]


def native_block(problem: Problem) -> Function:
    import torch

    more = {"dropout": 0.0, "batch_first": True, "norm_first": True}
    layer = torch.nn.TransformerEncoderLayer(HEADS * WIDTH, HEADS, 4 * HEADS * WIDTH, **more)
    return layer.train(problem.gradients)


@dataclass(frozen=True)
class Match:
    """One operator twice: our row on a problem, and what builds theirs for it."""

    ours: str
    theirs: Callable[[Problem], Function]
    library: str
    mask: str = "none"
    level: str = "core"
    differs: str = ""
    opposites: Mapping[str, str] = field(default_factory=dict)
    """Inputs that are another one's negative, where theirs knows one of the two."""

    @property
    def name(self) -> str:
        """The row without its options."""
        return self.ours.partition("?")[0]


FEATURES = "theirs adds 1e-4 to each feature; other random features"
FULL = "theirs learns its projections, so both are full products"
MATCHES = [
    Match("window.blocked", local_attention, "local-attention", f"causal+window:{WINDOW},0"),
    Match("window.blocked", local_attention, "local-attention", f"window:{WINDOW},{WINDOW}"),
    *(Match("performer", performer, "performer-pytorch", m, differs=FEATURES)
      for m in ("none", "causal")),
    Match("nystrom", nystrom, "nystrom-attention"),
    Match("linformer?projection=random", linformer, "linformer", differs=FULL),
    Match("linear.elu", linear_elu, "performer-pytorch",
          differs="theirs adds 1e-6 to the sum of keys"),
    Match("linear.elu", linear_elu, "performer-pytorch", "causal"),
    Match("lsh?shared=true", reformer, "reformer-pytorch", differs="other random rotations"),
    Match("routing?clusters=64&window=64", routing, "routing-transformer",
          differs="other centroids"),
    *(Match(name, masked_sdpa(name), "SDPA with the pattern as its mask", "causal")
      for name in ("strided", "fixed", "dilated", "longformer", "bigbird")),
    *(Match(name, masked_sdpa(name), "SDPA with the pattern as its mask")
      for name in ("longformer", "bigbird")),
    Match("gated_delta", gated_delta, "transformers", "causal",
          differs="theirs sums decays in float32"),
    Match("kda", kda, "transformers", "causal", differs="theirs sums decays in float32"),
    Match("ssd", ssd, "transformers", "causal", opposites={"g": "dt"},
          differs="theirs makes each decay of dt"),
    Match("mha", native_mha, "nn.MultiheadAttention", level="layer", differs="other weights"),
    Match("block", native_block, "nn.TransformerEncoderLayer", level="block",
          differs="other weights"),
]  # fmt: skip


def problem_of(length: int, mask: str, phase: str, heads: int = 2, level: str = "core") -> Problem:
    return Problem(
        heads=heads,
        kv_heads=heads,
        q_len=length,
        kv_len=length,
        mask=Mask.parse(mask),
        phase=phase,
        level=level,
    )


def once(call: Any, dout: Any) -> Any:
    """One call, with its gradients where there are some to hand back."""
    out = call.forward()
    if dout is not None:
        call.backward(out, dout)
    return out


def ratios_of(ours: Any, theirs: Any, dout: Any = None) -> list[float]:
    """The ratios ours / theirs of calls next to each other, in random order."""
    once(ours, dout), once(theirs, dout)
    ratios: list[float] = []
    start = time.perf_counter()
    while len(ratios) < FEWEST or (len(ratios) < MOST and time.perf_counter() - start < SECONDS):
        seconds = {}
        for call in random.sample([ours, theirs], 2):
            before = time.perf_counter()
            once(call, dout)
            seconds[call is ours] = time.perf_counter() - before
        ratios.append(seconds[True] / seconds[False])
    return ratios


def pair(match: Match, phase: str) -> tuple[list[float], float]:
    """The ratios ours / theirs, and how far apart the results are."""
    import torch

    from attnbench.gate.inputs import Call, make

    length = LENGTH if match.level == "core" else 1024
    problem = problem_of(length, match.mask, phase, HEADS, match.level)
    row = impls.table().find(match.ours)
    assert row.supports(problem) is None, row.supports(problem)
    inputs = make(problem, 0, inputs_of(row.operator, problem))
    for name, other in match.opposites.items():
        inputs[name].copy_(-inputs[other])
    torch.manual_seed(0)
    ours = Call(problem, load_function(row.build)(problem, **row.chosen), inputs)
    layer = match.theirs(problem)
    theirs = Call(problem, layer, inputs)
    dout = torch.randn(problem.output_shape) if problem.gradients else None
    if match.level != "core":  # theirs trains its weights too
        owner = layer if isinstance(layer, torch.nn.Module) else layer.__closure__[0].cell_contents
        theirs.weights = dict(owner.named_parameters())
    one, other = (once(call, dout).detach().double() for call in (ours, theirs))
    ratios = ratios_of(ours, theirs, dout)
    return ratios, float((one - other).norm() / other.norm())


def strawmen(names: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """A line for each ratio, and whether it is within the limit."""
    from attnbench.core.stats import summary

    for match in MATCHES:
        package = match.library.replace("-", "_")
        if names and match.name not in names:
            continue
        if package.islower() and find_spec(package) is None:
            yield f"{match.name}: {match.library} is not installed", True
            continue
        for phase in ("forward", "train"):
            ratios, apart = pair(match, phase)
            s = summary(ratios)
            what = f"{match.name} {match.mask} {phase} / {match.library}"
            result = f"{s.median:6.3f} [{s.low:.3f}, {s.high:.3f}]  apart {apart:.0e}"
            yield f"{what:70} {result}  {match.differs}", s.median <= MOST_RATIO


def claims(names: Sequence[str]) -> Iterator[tuple[Variant, str, str]]:
    """Rows, masks and phases of which linear growth is claimed."""
    for row in impls.table().rows.values():
        window = row.name.startswith("window.")
        if (names and row.name not in names) or row.level != "core" or row.cost is None:
            continue
        if row.family == "external" or row.name == "mean_v" or why_not(row, this_machine()):
            continue  # what others' kernels claim is theirs to show
        if row.exact and not window:
            continue  # what they do is the problem's, not theirs
        for mask in [f"causal+window:{WINDOW - 1},0"] if window else ["none", "causal"]:
            for phase in ("forward", "train"):
                ends = [problem_of(n, mask, phase) for n in (LENGTHS[0], LENGTHS[-1])]
                if all(row.supports(p) is None for p in ends):
                    few, many = (load_function(row.cost)(p, **row.chosen).flops for p in ends)
                    if many <= 1.05 * few * LENGTHS[-1] / LENGTHS[0]:
                        yield row, mask, phase


def slope(values: Sequence[float]) -> float:
    """By least squares, on logarithms."""
    import numpy as np

    return float(np.polyfit(np.log(LENGTHS), np.log(values), 1)[0])


def exponents(row: Variant, mask: str, phase: str) -> tuple[float, float]:
    """The exponents of the least time of a few rounds, and of the peak memory."""
    import torch

    from attnbench.gate.inputs import Call, make
    from attnbench.meter.memory import observe

    best, peaks, calls = dict.fromkeys(LENGTHS, math.inf), [], {}
    for n in LENGTHS:
        problem = problem_of(n, mask, phase)
        inputs = make(problem, 0, inputs_of(row.operator, problem))
        attend = load_function(row.build)(problem, **row.chosen)
        dout = torch.randn(problem.output_shape) if problem.gradients else None
        calls[n] = Call(problem, attend, inputs), dout
        once(*calls[n])
        peaks.append(float(observe(problem, attend, inputs, dout, None).memory.peak_bytes))
    for _ in range(ROUNDS):
        for n, (call, dout) in calls.items():
            start, count = time.perf_counter(), 0
            while count < LEAST or time.perf_counter() - start < ROUND_S:
                before = time.perf_counter()
                once(call, dout)
                best[n] = min(best[n], time.perf_counter() - before)
                count += 1
    return slope(list(best.values())), slope(peaks)


def scaling(names: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """A line for each claim's exponents, and whether both are within the limit."""
    for row, mask, phase in claims(names):
        of_time, of_memory = exponents(row, mask, phase)
        what = f"{row.label} {mask} {phase}"
        holds = max(of_time, of_memory) <= MOST_EXPONENT
        yield f"{what:48} time {of_time:5.2f}  memory {of_memory:5.2f}", holds


def caches(names: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """A line for each row and cache, and whether it takes the bytes that it must."""
    from attnbench.core.stats import paired
    from attnbench.gate.inputs import Call, cache_bytes, make

    for length in (4096, 16384):
        plain = problem_of(length, "none", "decode", HEADS).with_(q_len=1)
        sdpa = Call(plain, load_function("impls.dense.sdpa:build")(plain), make(plain, 0))
        for kv_dtype, bits in (("int8", 8), ("int4", 4), ("fp8", 8)):
            problem = plain.with_(kv_dtype=kv_dtype)
            for row in map(impls.table().find, names or ("cache.sdpa", "cache.online")):
                attend = load_function(row.build)(problem, **row.chosen)
                call = Call(problem, attend, make(problem, 0))
                ratios = ratios_of(call, sdpa)
                found = paired([math.log(x) for x in ratios], 0.05)
                each, whole = (cache_bytes(x) / length for x in (call, sdpa))  # type: ignore[operator]
                text = f"{row.label:12} {kv_dtype} {length:6}: {found.ratio:5.2f}"
                text += f" [{found.low:.2f}, {found.high:.2f}] of the time, n={len(ratios)}"
                text += f"; {each:.0f} of {whole:.0f} bytes a token"
                yield text, each == 2 * HEADS * (WIDTH * bits / 8 + 4)


def main(what: str, names: Sequence[str]) -> int:
    """Print every figure; 1 where one is beyond its limit."""
    variables = environment(1)
    if any(os.environ.get(name) != value for name, value in variables.items()):
        command = [sys.executable, "-m", "proofs.rows", what, *names]
        os.execve(sys.executable, command, {**os.environ, **variables})
    apply(Settings(threads=1))
    beyond = 0
    for line, holds in {"strawmen": strawmen, "scaling": scaling, "caches": caches}[what](names):
        beyond += not holds
        print(f"{'holds' if holds else 'BEYOND':7} {line}", flush=True)
    print(f"{beyond} beyond the limit" if beyond else "all within the limit")
    return int(beyond > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
