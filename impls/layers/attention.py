"""Multi-head attention as a module, and nn.MultiheadAttention carried over to it.

Legend in :mod:`impls.layers.common`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from impls.layers.common import by_heads, in_bias, projected, side_by_side


class MultiHeadAttention(nn.Module):
    """Multi-head attention as a module: [batch, tokens, width] in and out.

    Grouped heads, keys and values of other widths, dropout on the weights, and as ``core`` any
    ``(q_bhnd, k_bcmd, v_bcmd) -> out_bhnd`` in place of scaled_dot_product_attention.
    ``key_bias=False`` leaves out the bias that no softmax feels.
    """

    in_weight: Tensor
    q_weight: Tensor
    k_weight: Tensor
    v_weight: Tensor
    out_weight: Tensor
    out_bias: Tensor | None

    def __init__(
        self, embed_dim: int, heads: int, kv_heads: int | None = None, *, kdim: int | None = None,
        vdim: int | None = None, bias: bool = True, key_bias: bool = True, dropout: float = 0.0,
        core: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        kv_heads = kv_heads or heads
        if embed_dim % heads or heads % kv_heads:
            raise ValueError(
                f"embed_dim={embed_dim}, heads={heads} and kv_heads={kv_heads}: embed_dim must be "
                "a multiple of heads, and heads of kv_heads"
            )
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout={dropout} must be 0 or more and below 1")
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, embed_dim // heads
        self.dropout, self.core = dropout, core
        keys = kv_heads * self.head_dim
        kdim, vdim = kdim or embed_dim, vdim or embed_dim
        self.packed = kdim == vdim == embed_dim
        if self.packed:
            shapes = {"in_weight": (embed_dim + 2 * keys, embed_dim)}
        else:
            shapes = {"q_weight": (embed_dim, embed_dim), "k_weight": (keys, kdim),
                      "v_weight": (keys, vdim)}  # fmt: skip
        for name, shape in {**shapes, "out_weight": (embed_dim, embed_dim)}.items():
            setattr(self, name, nn.Parameter(nn.init.xavier_uniform_(torch.empty(shape))))
        sizes = {"q": embed_dim, "k": keys if key_bias else 0, "v": keys, "out": embed_dim}
        for name, size in sizes.items():
            parameter = nn.Parameter(torch.zeros(size)) if bias and size else None
            self.register_parameter(f"{name}_bias", parameter)

    def project(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [b, h, n, d], keys and values [b, c, m, d]; of ``query`` alone in one product."""
        bias, d = in_bias(self._parameters), self.head_dim
        same = key is value and (key is None or self.packed)
        if self.packed and same:
            return projected(query, None if key is query else key, self.in_weight, bias, d)
        key = query if key is None else key
        value = key if value is None else value
        keys = self.kv_heads * d
        sizes = (self.heads * d, keys, keys)
        biases: Sequence[Tensor | None] = [None] * 3 if bias is None else bias.split(sizes)
        if self.packed:
            weights: Sequence[Tensor] = self.in_weight.split(sizes)
        else:
            weights = (self.q_weight, self.k_weight, self.v_weight)
        tokens = (query, key, value)
        q, k, v = (
            by_heads(F.linear(x, w, b), d) for x, w, b in zip(tokens, weights, biases, strict=True)
        )
        return q, k, v

    def join(self, out_bhnd: Tensor) -> Tensor:
        """Heads back to tokens."""
        return F.linear(side_by_side(out_bhnd), self.out_weight, self.out_bias)

    def forward(
        self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None,
        attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        """Attention of ``query`` to ``key`` and ``value``, each the one before it where not given.

        Masks are as torch's own module has them, and not as scaled_dot_product_attention does: in
        a boolean one true hides; numbers are added to the scores. ``attn_mask`` is [n, m],
        [b h, n, m] or [b, h, n, m], ``key_padding_mask`` [b, m]. ``is_causal`` is itself a mask,
        the last query at the last key; it needs no ``attn_mask`` beside it. A query that may see
        nothing gets zeros from its heads. Raises ValueError for masks or dropout around a core of
        one's own.
        """
        q, k, v = self.project(query, key, value)
        causal = is_causal and attn_mask is None and key_padding_mask is None
        causal = causal and q.shape[2] == k.shape[2]
        dropout = self.dropout if self.training else 0.0
        if self.core is not None:
            if is_causal or attn_mask is not None or key_padding_mask is not None or dropout:
                raise ValueError(
                    "a core of one's own takes neither masks nor dropout here; "
                    "build it with its mask"
                )
            return self.join(self.core(q, k, v))
        mask = None if causal else _merged(attn_mask, key_padding_mask, is_causal, q, k)
        out = F.scaled_dot_product_attention(
            q, k, v, mask, dropout, is_causal=causal, enable_gqa=self.heads != self.kv_heads
        )
        return self.join(out)


def _merged(attn_mask: Tensor | None, padding: Tensor | None, is_causal: bool, q: Tensor,
            k: Tensor) -> Tensor | None:  # fmt: skip
    """All conditions as one mask for the scores: true sees, or numbers to add."""
    b, h, n, m = *q.shape[:3], k.shape[2]
    parts = []
    if attn_mask is not None:
        parts.append(attn_mask.reshape(b, h, n, m) if attn_mask.dim() == 3 else attn_mask)
    if padding is not None:
        parts.append(padding.reshape(b, 1, 1, m))
    if is_causal:
        parts.append(torch.ones(n, m, dtype=torch.bool, device=q.device).triu(1 + m - n))
    if all(part.dtype == torch.bool for part in parts):
        hidden = None
        for part in parts:
            hidden = part if hidden is None else hidden | part
        return None if hidden is None else ~hidden
    added = q.new_zeros(())
    for part in parts:
        number = q.new_zeros(()).where(~part, -torch.inf) if part.dtype == torch.bool else part
        added = added + number
    return added.to(q.dtype).expand(*added.shape[:-2], n, m)


def from_torch(module: nn.MultiheadAttention, key_bias: bool = True) -> MultiHeadAttention:
    """torch's layer as ours, with the same weights; tokens are batch first whatever its own.

    ``key_bias=False`` drops the keys' bias, which changes no output. Raises ValueError for a layer
    with a key that is no token.
    """
    for name, there in (
        ("bias_k", module.bias_k is not None), ("bias_v", module.bias_v is not None),
        ("add_zero_attn", module.add_zero_attn),
    ):  # fmt: skip
        if there:
            raise ValueError(
                f"a torch layer with {name} attends to a key that is no token; "
                "MultiHeadAttention has no such key"
            )
    bias = module.in_proj_bias is not None
    ours = MultiHeadAttention(
        module.embed_dim, module.num_heads, kdim=module.kdim, vdim=module.vdim, bias=bias,
        key_bias=key_bias, dropout=module.dropout,
    ).to(module.out_proj.weight)  # fmt: skip
    values = torch_parameters(ours, {n: p.detach() for n, p in module.named_parameters()})
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            parameter.copy_(values[name])
    return ours.train(module.training)


def torch_parameters(ours: MultiHeadAttention, theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of torch's layer, or its gradients by name, under our names."""
    names = {"in_proj_weight": "in_weight", "q_proj_weight": "q_weight", "k_proj_weight":
             "k_weight", "v_proj_weight": "v_weight", "out_proj.weight": "out_weight",
             "out_proj.bias": "out_bias"}  # fmt: skip
    parameters = {ours: theirs[name] for name, ours in names.items() if name in theirs}
    if "in_proj_bias" in theirs:
        parts = zip("qkv", theirs["in_proj_bias"].chunk(3), strict=True)
        parameters |= {f"{letter}_bias": part for letter, part in parts}
    return {name: parameters[name] for name, _ in ours.named_parameters()}
