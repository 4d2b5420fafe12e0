"""Small problems for the tests of ``impls``, their inputs, and what a row makes of them."""

import torch

import impls
from impls.loading import load_function
from impls.masks import Mask
from impls.problem import Problem

SMALL = {
    "batch": 2, "heads": 4, "kv_heads": 2, "q_len": 45, "kv_len": 45, "head_dim": 16,
    "v_head_dim": 12, "dtype": "float64",
}  # fmt: skip


def problem(mask="none", length=45, **changes):
    """In float64; ``length`` is that of queries and keys."""
    extent = {**SMALL, "q_len": length, "kv_len": length}
    return Problem(**{**extent, **changes}, mask=Mask.parse(mask))


def made(label, given):
    """``(attend, define)`` of a row and a problem; None for what it computes as softmax does."""
    row = impls.table().find(label)
    paths = (row.build, row.definition)
    return tuple(path and load_function(path)(given, **row.chosen) for path in paths)


def cost(label, given):
    row = impls.table().find(label)
    return load_function(row.cost)(given, **row.chosen)


def inputs(given, factor=1.0, seed=0):
    """q, k, v, standard normal; queries and keys times a factor."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(heads, length, width):
        shape = (given.batch, heads, length, width)
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        return x.to(getattr(torch, given.dtype))

    q = drawn(given.heads, given.q_len, given.head_dim)
    k = drawn(given.kv_heads, given.kv_len, given.head_dim)
    return q * factor, k * factor, drawn(given.kv_heads, given.kv_len, given.v_head_dim)


def differentiated(function, tensors, seed=1):
    """The output, and the gradients of the tensors under one drawn from above."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    out = function(*leaves)
    up = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    above = up.to(out.dtype)
    return [out.detach(), *torch.autograd.grad(out, leaves, above, materialize_grads=True)]


def kept_bytes(function, tensors):
    """What autograd keeps between forward and backward, each storage once."""
    kept = {}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage()  # alive: no address twice
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        function(*(x.detach().requires_grad_() for x in tensors))
    return sum(storage.nbytes() for storage in kept.values())


def softmax(given, q, k, v, mask=None):
    """Exact attention by torch; ``mask`` as torch takes it."""
    k, v = (x.repeat_interleave(given.group, 1) for x in (k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)


def layer(mask="none", phase="forward", length=33, level="layer", **more):
    """A small problem of a layer or a block, in float32; queries and keys as long as each other."""
    extent = {"heads": 4, "kv_heads": 4, "q_len": length, "kv_len": length, "head_dim": 8, **more}
    extent |= {"v_head_dim": extent["head_dim"], "level": level}
    return Problem(**extent, phase=phase, mask=Mask.parse(mask))
