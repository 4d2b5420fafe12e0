"""What others have published of the same operators, as functions of q, k and v, or of tokens.

``MATCHES`` sets each beside ours; ``python proofs/strawmen.py`` times them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
        from impls.loading import load_function

        row = impls.table().find(label)
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
