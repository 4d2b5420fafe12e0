"""How a program makes an attention call: what ran, how its mask is given, how its tensors lie.

A problem says what is to be computed. Two programs with one problem may take times that differ by
half, because one of them gives a causal mask as a tensor, repeats its keys' heads, or forces a slow
kernel. A :class:`CallForm` is that difference, and what a mend changes.
"""

from __future__ import annotations

from math import prod
from typing import Literal

import msgspec

Api = Literal["sdpa", "mha", "fast path", "flex", "flex compiled", "products", "eager", "other"]
"""The function that the program calls; ``products``: it multiplies, takes a softmax and multiplies;
``eager``: a model of transformers does that for it; ``fast path``: torch does more than attention
in one operator."""
BACKENDS = {
    "math": "MATH",
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
}
"""torch's kernels, by what :class:`torch.nn.attention.SDPBackend` calls them."""
RETURNS = {"lse": "log-sum-exp"}
"""What a second result is called in words."""
AXES = "bhnd"


class TensorForm(msgspec.Struct, frozen=True, array_like=True):
    """A tensor without its values."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    gradient: bool = False  # whether it asks for one

    @property
    def last_strided(self) -> bool:
        """Whether the numbers of a token don't lie next to each other."""
        return self.strides[-1:] != (1,) and self.shape[-1:] != (1,)

    @property
    def order(self) -> str:
        """The axes as they follow each other in memory, ``bnhd``; empty for other than four."""
        if len(self.shape) != len(AXES):
            return ""
        by_stride = sorted(range(len(AXES)), key=lambda axis: (-self.strides[axis], axis))
        return "".join(AXES[axis] for axis in by_stride)

    def contiguous(self, shape: tuple[int, ...] | None = None) -> TensorForm:
        """The same, or of another shape, with its numbers one after another."""
        sizes = self.shape if shape is None else shape
        strides = tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))
        return msgspec.structs.replace(self, shape=sizes, strides=strides)


class CallForm(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attention call as a program makes it."""

    api: Api
    q: TensorForm
    k: TensorForm
    v: TensorForm
    mask: TensorForm | None = None
    mask_type: str = ""  # the mask's class, where it is no plain tensor
    is_causal: bool = False
    dropout: float = 0.0
    enable_gqa: bool = False
    repeated: int = 1  # how often each head of the keys stands there, one beside the other
    copied: bool = False  # whether the tensors are made contiguous in the call
    disabled: tuple[str, ...] = ()  # torch's kernels that are switched off, by our words
    autocast: str = ""  # the dtype that autocast turns the tensors into
    returns: str = ""  # what is returned beside the output: ``weights``, ``lse``
    unread: bool = False  # whether nobody reads that
    gradient: bool = False  # whether torch notes what a gradient needs
    asked: bool = True  # whether a gradient was then asked for
    kernel: str = ""  # what ran: ``flash``, ``math``, ``written out`` …
    why: tuple[str, ...] = ()  # what keeps a fused kernel from taking it, in torch's terms

    @property
    def kind(self) -> tuple[object, ...]:
        """What is alike in calls that differ in their lengths alone."""
        mask = self.mask and (self.mask.dtype, len(self.mask.shape), self.mask.gradient)
        lies = tuple((x.order, x.dtype, x.last_strided) for x in (self.q, self.k, self.v))
        rest = ("q", "k", "v", "mask")
        others = tuple(v for f, v in msgspec.structs.asdict(self).items() if f not in rest)
        return mask, lies, others

    def mask_words(self) -> str:
        """How the mask is given: ``a boolean tensor 512x512``."""
        if self.mask is not None and self.api == "products":
            return "a mask, as its scores show"
        if self.mask is None and self.mask_type:
            return f"a {self.mask_type}"
        if self.mask is None:
            return "is_causal=True" if self.is_causal else "no mask"
        kind = self.mask_type or ("boolean" if self.mask.dtype == "bool" else self.mask.dtype)
        text = f"a {kind} tensor {'x'.join(map(str, self.mask.shape))}"
        return text + (" and is_causal=True" if self.is_causal else "")

    def words(self) -> list[str]:
        """What is to be known of it, besides its mask."""
        ends = {"q": self.q, "k": self.k, "v": self.v}
        strided = [name for name, x in ends.items() if x.last_strided]
        some = [f"{', '.join(strided)} strided along head_dim"] if strided else []
        if self.repeated > 1:
            some.append(f"each head of k and v repeated {self.repeated} times")
        some += [f"autocast to {self.autocast}"] if self.autocast else []
        some += [f"dropout {self.dropout:g}"] if self.dropout else []
        if self.disabled:
            some.append(f"{', '.join(BACKENDS[x] for x in self.disabled)} switched off")
        if self.returns:
            what = RETURNS.get(self.returns, self.returns)
            some.append(f"returns its {what}" + (", which nobody reads" if self.unread else ""))
        if self.gradient and not self.asked:
            some.append("gradients are on and nobody asks for one")
        return some
