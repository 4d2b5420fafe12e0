"""A definition's loop: its gradient by hand against the one that autograd finds."""

import pytest
import torch

from impls.linear import unrolled
from tests.impls import small


def problem(**changes):
    return small.problem("causal", 11, phase="train", **{"head_dim": 3, "v_head_dim": 2, **changes})


def given(asked, *, kept=0, read=False):
    """Queries, what writes, what is written, what is kept (so wide), and what is read back."""
    torch.manual_seed(5)
    heads, tokens, wide = (asked.batch, asked.kv_heads), asked.kv_len, asked.head_dim
    q = torch.randn(asked.batch, asked.heads, asked.q_len, wide, dtype=torch.float64)
    parts = {"write": torch.randn(*heads, tokens, wide, dtype=torch.float64)}
    parts["v"] = torch.randn(*heads, tokens, asked.v_head_dim, dtype=torch.float64)
    if kept:
        parts["kept_bcmy"] = torch.rand(*heads, tokens, kept, dtype=torch.float64)
    if read:
        parts["read_bcmd"] = torch.randn(*heads, tokens, wide, dtype=torch.float64) / wide
    return {name: x.requires_grad_() for name, x in {"q": q, **parts}.items()}


def run(asked, rows, parts):
    more = {name: x for name, x in parts.items() if name not in ("q", "write", "v")}
    return unrolled.unrolled(asked, parts["q"], rows, parts["write"], parts["v"], **more)


def plainly(asked, rows, parts):
    """Token by token as the formula stands, left to autograd."""
    by_head = {n: x.repeat_interleave(asked.group, 1) for n, x in parts.items() if n != "q"}
    state, outs = torch.zeros(asked.batch, asked.heads, asked.head_dim, asked.v_head_dim), {}
    state = state.double()
    for t in range(asked.kv_len):
        token = {name: x[:, :, t] for name, x in by_head.items()}
        kept = token["kept_bcmy"][..., None] if "kept_bcmy" in token else 1.0
        new = token["v"]
        if "read_bcmd" in token:
            new = new - torch.einsum("bhd,bhde->bhe", token["read_bcmd"], state)
        state = kept * state + torch.einsum("bhd,bhe->bhde", token["write"], new)
        outs[t] = state
    first = asked.kv_len - asked.q_len
    reads = [torch.einsum("bhd,bhde->bhe", parts["q"][:, :, r], outs[int(r) + first]) for r in rows]
    return torch.stack(reads, 2) * asked.scale


@pytest.mark.parametrize("fits", [1 << 20, 300], ids=["all", "three"])
@pytest.mark.parametrize(
    "form",
    [{}, {"kept": 1}, {"read": True}, {"kept": 3, "read": True}],
)
@pytest.mark.parametrize(
    ("rows", "queries"), [(range(11), 11), ([9, 2, 2, 5], 11), (range(3), 3)], ids=str
)
def test_output_and_gradients_are_those_of_the_formula(monkeypatch, rows, queries, form, fits):
    monkeypatch.setattr(unrolled, "CACHE_BYTES", fits)
    asked, rows = problem(q_len=queries), torch.tensor(list(rows))
    parts = given(asked, **form)
    got, want = run(asked, rows, parts), plainly(asked, rows, parts)
    dout = torch.randn_like(want)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-13)
    made = (torch.autograd.grad(out, list(parts.values()), dout) for out in (got, want))
    for name, a, b in zip(parts, *made, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
