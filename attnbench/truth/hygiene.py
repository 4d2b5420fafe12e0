"""Is what came back a plain tensor of the right form, and are the inputs as they were?"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from attnbench.truth.call import Call
from attnbench.truth.findings import Wrong, place
from attnbench.truth.inputs import Inputs
from impls.problem import Problem


def check_form(problem: Problem, out: object) -> Tensor:
    """A dense torch.Tensor of the right shape, dtype and device, and not a subclass of it."""
    if type(out) is not Tensor:
        raise Wrong(f"the output is a {type(out).__name__}, not a plain torch.Tensor")
    want = (problem.batch, problem.heads, problem.q_len, problem.v_head_dim)
    if tuple(out.shape) != want:
        raise Wrong(f"the output has the shape {tuple(out.shape)}, not {want}")
    if out.dtype != getattr(torch, problem.dtype):
        raise Wrong(f"the output is {str(out.dtype)[6:]}, not {problem.dtype}")
    if out.device.type != problem.device.split(":")[0]:
        raise Wrong(f"the output is on {out.device}, not on {problem.device}")
    if problem.gradients and not out.requires_grad:
        raise Wrong("the output is detached: no gradient can reach q, k and v")
    if out.layout is not torch.strided:
        raise Wrong(f"the output has the layout {out.layout}, not a strided one")
    return out


def check_finite(what: str, tensor: Tensor) -> None:
    """No NaN and no infinity anywhere, not only in the rows that are judged."""
    finite = tensor.isfinite()
    if bool(finite.all()):
        return
    batch, head, row = (int(i) for i in (~finite).nonzero()[0, :3])
    value = float(tensor[batch, head, row][~finite[batch, head, row]][0])
    rows = int((~finite.all(-1)).sum())
    many = f"{rows} rows are" if rows > 1 else "one row is"
    raise Wrong(f"{many} not finite in {what}: {place(batch, head, row)} holds {value}")


def check_inputs_kept(call: Call, inputs: Inputs) -> None:
    """The inputs hold what was put into them."""
    for name, leaf, given in zip("qkv", call.leaves, inputs, strict=True):
        if not torch.equal(leaf.detach(), given):
            raise Wrong(f"it changed its input {name}")


def check_nothing_left(threads_before: int) -> None:
    """No thread that was not there before the call."""
    left = threading.active_count() - threads_before
    if left > 0:
        names = ", ".join(t.name for t in threading.enumerate()[-left:])
        raise Wrong(f"it left {left} thread{'s' * (left > 1)} running: {names}")
