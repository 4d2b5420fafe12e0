"""Whether the backend that a row forces is the one that ran, by the operators that were seen."""

from __future__ import annotations

from collections.abc import Collection

from impls.spec import Variant

ENTRY = "aten::scaled_dot_product_attention"
"""What torch runs first whatever the backend: it tells nothing."""
BACKENDS = {
    "cudnn_attention": "cuDNN", "flash_attention": "FlashAttention-2",
    "efficient_attention": "memory-efficient attention", "attention_math": "plain products",
}  # fmt: skip
"""What stands behind ``aten::_scaled_dot_product_`` on a GPU."""
ATTENTION = ("attention", "attn", "transformer")
MOST = 4
"""Names that a sentence can carry."""


def unattested(variant: Variant, device: str, ran: Collection[str]) -> str | None:
    """None where what the row says must run did run, else both names in a sentence.

    A name may go on after a colon: regions of compiled code are numbered.
    """
    named = getattr(variant, "attested_by", None)  # rows of an earlier commit do not say
    wanted = named(device) if named else None
    if wanted is None or any(name == wanted or name.startswith(f"{wanted}:") for name in ran):
        return None
    return f"it should run {wanted} and ran {_listed(ran)}"


def chosen(variant: Variant, device: str, ran: Collection[str]) -> str:
    """Of a row that leaves the backend to torch, what ran on a GPU: ``torch chose cuDNN (…)``."""
    if device == "cpu" or getattr(variant, "attested_by", lambda _: None)(device) is not None:
        return ""
    names = {f"aten::_scaled_dot_product_{name}": word for name, word in BACKENDS.items()}
    return "; ".join(f"torch chose {names[op]} ({op})" for op in sorted(ran) if op in names)


def _listed(ran: Collection[str]) -> str:
    """The operators of attention, without the entry and the gradients; else the first of all."""
    telling = sorted(name for name in ran if _tells(name)) or sorted(ran)
    more = f" and {len(telling) - MOST} others" if len(telling) > MOST else ""
    return (", ".join(telling[:MOST]) or "no operator of torch's") + more


def _tells(name: str) -> bool:
    own = any(word in name for word in ATTENTION)
    return own and name != ENTRY and not name.endswith("_backward")
