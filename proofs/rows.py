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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.core.settings import Settings, apply, environment

os.environ |= environment(1)

import numpy as np
import torch
import torch.nn.functional as F

import impls
from attnbench.core.machine import this_machine, why_not
from attnbench.core.stats import paired, summary
from attnbench.gate.inputs import Call, cache_bytes, make
from attnbench.meter.memory import observe
from impls.loading import load_function
from impls.operators import inputs as inputs_of
from impls.problem import Problem
from impls.spec import Variant
from proofs.ruler import Figure, show
from tests.answer.build import problem as problem_of

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
    return LocalAttention(WINDOW, causal=causal, **options)


def performer(problem: Problem) -> Function:
    from performer_pytorch import FastAttention

    return FastAttention(WIDTH, nb_features=256, causal="causal" in problem.mask.kinds)


def linear_elu(problem: Problem) -> Function:
    from performer_pytorch import performer_pytorch as theirs

    causal = "causal" in problem.mask.kinds
    form = theirs.causal_linear_attention_noncuda if causal else theirs.linear_attention
    return lambda q, k, v: form(F.elu(q) + 1, F.elu(k) + 1, v)


def _without_projections(layer: Any, sources: Sequence[str], closing: str) -> list[Any]:
    """Leave a layer its inner operator alone; what it would project is taken from the list."""
    projected: list[Any] = []
    for number, name in enumerate(sources):
        delattr(layer, name)
        setattr(layer, name, lambda x, number=number: projected[number])
    setattr(layer, closing, torch.nn.Identity())
    return projected


def nystrom(problem: Problem) -> Function:
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

    def pattern_as_mask(problem: Problem) -> Function:
        row = impls.table().find(label)
        eye = torch.eye(problem.kv_len)[None, None]
        zero = torch.zeros(1, 1, problem.kv_len, problem.head_dim)
        one = problem.with_(batch=1, heads=1, kv_heads=1)
        define = load_function(row.definition or "")(one, **row.chosen)
        visible = define(zero, zero, eye, torch.arange(problem.q_len)) > 0
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=visible)

    return pattern_as_mask


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
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    def attend(q: Any, k: Any, v: Any, g: Any, dt: Any) -> Any:
        q, k, v, dt = (x.transpose(1, 2) for x in (q * problem.scale, k, v, dt))
        rates = -torch.ones(problem.heads)
        return mamba2_chunk_scan(v, dt, rates, k, q, chunk_size=64).transpose(1, 2)

    return attend


def native_mha(problem: Problem) -> Function:
    layer = torch.nn.MultiheadAttention(HEADS * WIDTH, HEADS, batch_first=True)
    return _with_weights(layer, problem, lambda x: layer(x, x, x, need_weights=False)[0])


def native_block(problem: Problem) -> Function:
    more = {"dropout": 0.0, "batch_first": True, "norm_first": True}
    layer = torch.nn.TransformerEncoderLayer(HEADS * WIDTH, HEADS, 4 * HEADS * WIDTH, **more)
    return _with_weights(layer, problem, lambda x: layer(x))


def _with_weights(layer: torch.nn.Module, problem: Problem, attend: Any) -> Function:
    """A layer's call, which has gradients of its weights too."""
    layer.train(problem.gradients)
    attend.weights = dict(layer.named_parameters())
    return attend


@dataclass(frozen=True)
class Match:
    """One operator twice: our row on a problem, and what builds theirs for it."""

    ours: str
    theirs: Callable[[Problem], Function]
    mask: str = "none"
    differs: str = ""


PATTERNS = ("strided", "fixed", "dilated", "longformer", "bigbird")
FEATURES = "theirs adds 1e-4 to each feature; other random features"
FULL = "theirs learns its projections, so both are full products"
DECAYS = "theirs sums decays in float32"
MATCHES = [
    Match("window.blocked", local_attention, f"causal+window:{WINDOW},0"),
    Match("window.blocked", local_attention, f"window:{WINDOW},{WINDOW}"),
    Match("performer", performer, "none", FEATURES),
    Match("performer", performer, "causal", FEATURES),
    Match("nystrom", nystrom),
    Match("linformer?projection=random", linformer, "none", FULL),
    Match("linear.elu", linear_elu, "none", "theirs adds 1e-6 to the sum of keys"),
    Match("linear.elu", linear_elu, "causal"),
    Match("lsh?shared=true", reformer, "none", "other random rotations"),
    Match("routing?clusters=64&window=64", routing, "none", "other centroids"),
    *(Match(name, masked_sdpa(name), "causal") for name in PATTERNS),
    *(Match(name, masked_sdpa(name)) for name in ("longformer", "bigbird")),
    Match("gated_delta", gated_delta, "causal", DECAYS),
    Match("kda", kda, "causal", DECAYS),
    Match("ssd", ssd, "causal", "theirs makes each decay of dt"),
    Match("mha", native_mha, "none", "other weights"),
    Match("block", native_block, "none", "other weights"),
]


class Calls:
    """Calls of a row, or of another function, on one problem; with gradients where it has them."""

    def __init__(self, row: Variant, problem: Problem, attend: Function | None = None) -> None:
        self.problem, self.inputs = problem, make(problem, 0, inputs_of(row.operator, problem))
        if "dt" in self.inputs:  # of which Mamba-2 makes each decay
            self.inputs["g"].copy_(-self.inputs["dt"])
        self.attend = attend or load_function(row.build)(problem, **row.chosen)
        self.call = Call(problem, self.attend, self.inputs)
        torch.manual_seed(0)
        self.dout = torch.randn(problem.output_shape) if problem.gradients else None

    def once(self) -> Any:
        """The output of a call."""
        out = self.call.forward()
        if self.dout is not None:
            self.call.backward(out, self.dout)
        return out

    def seconds(self) -> float:
        """The time of a call."""
        start = time.perf_counter()
        self.once()
        return time.perf_counter() - start


def ratios_of(ours: Calls, theirs: Calls) -> list[float]:
    """The ratios ours / theirs of calls next to each other, in random order."""
    ours.once(), theirs.once()
    ratios: list[float] = []
    start = time.perf_counter()
    while len(ratios) < FEWEST or (len(ratios) < MOST and time.perf_counter() - start < SECONDS):
        seconds = {side: side.seconds() for side in random.sample([ours, theirs], 2)}
        ratios.append(seconds[ours] / seconds[theirs])
    return ratios


def strawmen(names: Sequence[str]) -> Iterator[Figure]:
    """Each ratio, with its interval."""
    for match in MATCHES:
        row = impls.table().find(match.ours)
        if names and row.name not in names:
            continue
        for phase in ("forward", "train"):
            length = LENGTH if row.level == "core" else 1024
            problem = problem_of(length, mask=match.mask, phase=phase, level=row.level)
            assert row.supports(problem) is None, row.supports(problem)
            try:
                sides = Calls(row, problem), Calls(row, problem, match.theirs(problem))
            except ImportError as why:
                print(f"{row.name}: {why}")
                break
            one, other = (side.once().detach().double() for side in sides)
            apart, s = float((one - other).norm() / other.norm()), summary(ratios_of(*sides))
            what = f"{row.name} {match.mask} {phase} / {match.theirs.__name__}, apart {apart:.0e}"
            interval = f"[{s.low:.3f}, {s.high:.3f}]"
            yield f"{what} {match.differs} {interval}", s.median, MOST_RATIO, ""


def claims(names: Sequence[str]) -> Iterator[tuple[Variant, list[Problem]]]:
    """Rows and problems of all lengths, over which linear growth is claimed."""
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
                some = [problem_of(n, heads=2, mask=mask, phase=phase) for n in LENGTHS]
                if all(row.supports(p) is None for p in some):
                    flops = [load_function(row.cost)(p, **row.chosen).flops for p in some]
                    if flops[-1] <= 1.05 * flops[0] * LENGTHS[-1] / LENGTHS[0]:
                        yield row, some


def exponents(row: Variant, problems: Sequence[Problem]) -> tuple[float, float]:
    """The exponents of the least time of a few rounds and of the peak memory, by least squares."""
    lengths, peaks = [Calls(row, problem) for problem in problems], []
    for calls in lengths:
        calls.once()
        view = observe(calls.problem, calls.attend, calls.inputs, calls.dout, None)
        peaks.append(float(view.memory.peak_bytes))
    best = [math.inf] * len(lengths)
    for _ in range(ROUNDS):
        for n, calls in enumerate(lengths):
            start, count = time.perf_counter(), 0
            while count < LEAST or time.perf_counter() - start < ROUND_S:
                best[n] = min(best[n], calls.seconds())
                count += 1
    of_time, of_memory = np.polyfit(np.log(LENGTHS), np.log([best, peaks]).T, 1)[0]
    return float(of_time), float(of_memory)


def scaling(names: Sequence[str]) -> Iterator[Figure]:
    """Each claim's exponents."""
    for row, problems in claims(names):
        what = f"{row.label} {problems[0].mask} {problems[0].phase}, exponent of"
        of_time, of_memory = exponents(row, problems)
        yield f"{what} time", of_time, MOST_EXPONENT, ""
        yield f"{what} memory", of_memory, MOST_EXPONENT, ""


def caches(names: Sequence[str]) -> Iterator[Figure]:
    """Each row and cache, and the bytes that it takes of each token."""
    find = impls.table().find
    for length in (4096, 16384):
        plain = problem_of(length, mask="none", phase="decode")
        sdpa = Calls(find("sdpa"), plain)
        for kv_dtype, bits in (("int8", 8), ("int4", 4), ("fp8", 8)):
            for row in map(find, names or ("cache.sdpa", "cache.online")):
                calls = Calls(row, plain.with_(kv_dtype=kv_dtype))
                c = paired([math.log(x) for x in ratios_of(calls, sdpa)], 0.05)
                each = cache_bytes(calls.call) / length
                text = f"{row.label} {kv_dtype} {length:6}: {c.ratio:.2f} [{c.low:.2f}, "
                text += f"{c.high:.2f}] of the time, {each:.0f} bytes a token; these are off by"
                yield text, abs(each - 2 * HEADS * (WIDTH * bits / 8 + 4)), 0, ""


def main(what: str, names: Sequence[str]) -> int:
    """Print every figure; 1 where one is beyond its limit."""
    apply(Settings(threads=1))
    return show({"strawmen": strawmen, "scaling": scaling, "caches": caches}[what](names))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
