"""Shared by the recurrences with a decay: chunks of tokens, the scan over them, their memory.

Every one keeps a state S [d, e] for each key/value head, changes it at every token and reads it by
o = s q S, s the problem's scale. Its gates are inputs, by name, or made of the keys. A fast form
handles a chunk of tokens at a time, all chunks at once, and only the states at the chunks'
beginnings come one after another.

Legend: b batch, c key/value heads, g query heads to each of them, h = c g query heads, n queries,
m keys, d head_dim, e v_head_dim; t chunks of l tokens, r = g l rows of queries in a chunk.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from impls.heads import wide
from impls.problem import Problem
from impls.spec import Unsupported, at_least

LONGEST = 16
"""Tokens of a chunk at most, for each channel, where a state is corrected: a chunk sums corrections
that a state would have taken back by now, so its rounding grows with its tokens."""
MANY = 64
"""Chunks from which a CUDA device scans in two steps: a launch takes longer than its work."""


Gates = Callable[[Tensor], tuple[Tensor, ...]]
"""The gates that keys make, in the order of the operator's inputs: [b, c, m, …] each."""


def gates_from(gates: str, own: Gates, word: str = "key") -> Gates | None:
    """The row's own gates where its option ``gates`` names them, None where they are inputs."""
    if gates not in (word, "input"):
        raise Unsupported(f"gates={gates} is not {word} or input")
    return own if gates == word else None


class Recurrent:
    """An attend that runs over chunks, or from a memory of the tokens before: its state.

    A variant gives ``from_state`` (every token after a state) and ``token`` (one more).
    """

    names: tuple[str, ...] = ()
    """The gates by name."""

    def __init__(
        self, problem: Problem, chunk: int, gates: Gates | None, most: int | None = None
    ) -> None:
        """``gates``: makes them of the keys; None where they are inputs."""
        _check(problem, chunk)
        self.problem, self._gates_of_keys = problem, gates
        self.wide = wide(problem)
        self.length = min(chunk, problem.kv_len, most or chunk)
        self.asked = chunk

    def whole(self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, *gates: Tensor) -> Tensor:
        """The output of every token."""
        return self.from_state(q_bhnd, k_bcmd, v_bcme, None, *gates)[0]

    def from_state(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, first_bcde: Tensor | None,
        *gates: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The output of every token and the state after them, float32 at the least, from one
        before them.
        """
        raise NotImplementedError

    def start(self, v_bcme: Tensor, first_bcde: Tensor | None) -> Tensor:
        """The state before the first token."""
        if first_bcde is not None:
            return first_bcde.to(self.wide)
        p = self.problem
        return v_bcme.new_zeros(p.batch, p.kv_heads, p.head_dim, p.v_head_dim, dtype=self.wide)

    def token(self, k_bcd: Tensor, v_bce: Tensor, state_bcde: Tensor, *gates: Tensor) -> Tensor:
        """The state after one more token."""
        raise NotImplementedError

    def gates(self, k_bcmd: Tensor, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """The gates, in float32 at the least."""
        if self._gates_of_keys is not None:
            return self._gates_of_keys(k_bcmd.to(self.wide))
        return tuple(inputs[name].to(self.wide) for name in self.names)

    def remember(self, k_bcmd: Tensor, v_bcme: Tensor, **gates: Tensor) -> Tensor:
        """The state after these tokens: what keys would read on the way is dropped."""
        if not k_bcmd.shape[2]:
            return self.start(v_bcme, None)
        as_queries, parts = (
            k_bcmd.repeat_interleave(self.problem.group, 1),
            self.gates(k_bcmd, gates),
        )
        return self.from_state(as_queries, k_bcmd, v_bcme, None, *parts)[1]

    def query(self, q_bcgd: Tensor) -> Tensor:
        """The queries that read the state; a variant may change them."""
        return q_bcgd

    def step(
        self, q_bhnd: Tensor, k_bcnd: Tensor, v_bcne: Tensor, memory: Tensor, **gates: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The output of the new tokens, and the state after them."""
        p, outs = self.problem, []
        parts = (q_bhnd, k_bcnd, v_bcne, *self.gates(k_bcnd, gates))
        tokens = zip(*(x.to(self.wide).unbind(2) for x in parts), strict=True)
        for q_bhd, k_bcd, v_bce, *of_token in tokens:
            memory = self.token(k_bcd, v_bce, memory, *of_token)
            q_bcgd = self.query(q_bhd.unflatten(1, (p.kv_heads, p.group)))
            outs.append((q_bcgd @ memory).flatten(1, 2))
        return (torch.stack(outs, 2) * p.scale).to(q_bhnd.dtype), memory

    def __call__(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, state: Tensor | None = None,
        return_state: bool = False, **gates: Tensor,
    ) -> Any:  # fmt: skip
        """Every token, with the state after them if asked; in phase decode the last ones, from the
        state of those before.
        """
        if self.problem.phase != "decode":
            parts = self.gates(k_bcmd, gates)
            if state is None and not return_state:
                return self.whole(q_bhnd, k_bcmd, v_bcme, *parts)
            out, after = self.from_state(q_bhnd, k_bcmd, v_bcme, state, *parts)
            return (out, after) if return_state else out
        past = self.problem.kv_len - self.problem.q_len
        before = {name: x[:, :, :past] for name, x in gates.items()}
        memory = self.remember(k_bcmd[:, :, :past], v_bcme[:, :, :past], **before)
        new = {name: x[:, :, past:] for name, x in gates.items()}
        return self.step(q_bhnd, k_bcmd[:, :, past:], v_bcme[:, :, past:], memory, **new)[0]

    def note(self) -> str:
        """The note on how it runs."""
        if self.problem.phase == "decode":
            return "one token after another, from a state"
        why = ""
        if self.asked > self.length:
            why = "all there are" if self.length == self.problem.kv_len else "the most it takes"
            why = f": {why}, below chunk={self.asked}"
        return f"chunks of {self.length} tokens{why}"

    # ---- chunks --------------------------------------------------------------------------------

    def keys(self, x_bcm: Tensor) -> Tensor:
        """Tokens in chunks, [b, c, m, …] to [b, c, t, l, …]; after the last one come zeros."""
        missing = -x_bcm.shape[2] % self.length
        if missing:
            x_bcm = F.pad(x_bcm, (0, 0) * (x_bcm.dim() - 3) + (0, missing))
        return x_bcm.unflatten(2, (-1, self.length))

    def queries(self, q_bhnd: Tensor) -> Tensor:
        """Queries in chunks, those of one key/value head end to end: [b, c, t, r, d]."""
        q_bhtld = self.keys(q_bhnd.to(self.wide))
        if self.problem.group == 1:
            return q_bhtld
        return q_bhtld.unflatten(1, (self.problem.kv_heads, -1)).transpose(2, 3).flatten(3, 4)

    def back(self, out_bctre: Tensor) -> Tensor:
        """By query heads, [b, h, n, e], in the problem's dtype."""
        g, dtype = self.problem.group, getattr(torch, self.problem.dtype)
        if g > 1:
            out_bctre = out_bctre.unflatten(3, (g, -1)).transpose(2, 3).flatten(1, 2)
        return out_bctre.flatten(2, 3)[:, :, : self.problem.q_len].to(dtype)


def _check(problem: Problem, chunk: int) -> None:
    at_least("chunk", chunk, 1)
    if problem.q_len == problem.kv_len:
        return
    shape = f"q_len={problem.q_len} and kv_len={problem.kv_len}"
    if problem.phase != "decode":
        raise Unsupported(f"a recurrence has one query to each token, not {shape}; decode may")
    if problem.q_len > problem.kv_len:
        raise Unsupported(f"decode needs q_len of at most kv_len, not {shape}")
    if problem.mask.upper_left:
        raise Unsupported("the new tokens come last: causal@upper-left is not what is computed")


# ---- the scan over chunks ----------------------------------------------------------------------


def states_before(added_bctde: Tensor, decay_bctdx: Tensor) -> Tensor:
    """The state at each chunk's beginning: S_0 = 0, S_(t+1) = decay_t S_t + added_t.

    ``decay`` broadcasts to ``added`` in its last two axes.
    """
    return _Scan.apply(added_bctde, decay_bctdx)  # type: ignore[no-untyped-call]


def scanned(
    added_bctde: Tensor, decay_bctdx: Tensor, first_bcde: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """The state at each chunk's beginning, None where that is zero for all, and after the last."""
    if first_bcde is not None:
        first = first_bcde.to(added_bctde.dtype)[:, :, None]
        added_bctde = torch.cat((first, added_bctde), 2)
        decay_bctdx = torch.cat((torch.zeros_like(decay_bctdx[:, :, :1]), decay_bctdx), 2)
    if added_bctde.shape[2] == 1:
        return None, added_bctde[:, :, 0]
    states = states_before(added_bctde, decay_bctdx)
    last = added_bctde[:, :, -1] + decay_bctdx[:, :, -1] * states[:, :, -1]
    return states if first_bcde is None else states[:, :, 1:], last


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, added_bctde: Tensor, decay_bctdx: Tensor) -> Tensor:
        states = _scan(added_bctde, decay_bctdx)
        ctx.save_for_backward(states, decay_bctdx)
        return states

    @staticmethod
    def backward(ctx: Any, grad_bctde: Tensor) -> tuple[Tensor | None, Tensor | None]:
        states, decay = ctx.saved_tensors
        d_added = _scan(grad_bctde, decay, backward=True)
        d_decay = None
        if ctx.needs_input_grad[1]:
            d_decay = (d_added * states).sum_to_size(decay.shape)
        return d_added, d_decay


def _scan(added: Tensor, decay: Tensor, *, backward: bool = False) -> Tensor:
    """Each state before what its own chunk adds; from the last chunk to the first if backward."""
    if added.is_cuda and added.shape[2] >= MANY:
        if backward:
            return _two_steps(added.flip(2), decay.flip(2)).flip(2)
        return _two_steps(added, decay)
    states = torch.empty(added.shape, dtype=added.dtype, device=added.device)
    order = range(added.shape[2])[:: -1 if backward else 1]
    states[:, :, order[0]] = 0.0
    a, w, s = added.unbind(2), decay.unbind(2), states.unbind(2)
    for here, after in itertools.pairwise(order):
        torch.addcmul(a[here], w[here], s[here], out=s[after])
    return states


def _two_steps(added: Tensor, decay: Tensor) -> Tensor:
    """The same in about 2 √t launches: within runs of chunks, all runs at once, then over them."""
    count = added.shape[2]
    run = math.isqrt(count - 1) + 1
    missing = -count % run
    added = F.pad(added, (0, 0, 0, 0, 0, missing)).unflatten(2, (-1, run))
    decay = F.pad(decay, (0, 0, 0, 0, 0, missing)).unflatten(2, (-1, run))
    inner, through = torch.empty_like(added), torch.empty_like(decay)
    inner[:, :, :, 0], through[:, :, :, 0] = 0.0, 1.0
    for i in range(1, run):
        w = decay[:, :, :, i - 1]
        torch.addcmul(added[:, :, :, i - 1], w, inner[:, :, :, i - 1], out=inner[:, :, :, i])
        torch.mul(w, through[:, :, :, i - 1], out=through[:, :, :, i])
    last = added[:, :, :, -1] + decay[:, :, :, -1] * inner[:, :, :, -1]
    start = torch.zeros_like(last)
    for i in range(1, start.shape[2]):
        whole = decay[:, :, i - 1, -1] * through[:, :, i - 1, -1]
        start[:, :, i] = last[:, :, i - 1] + whole * start[:, :, i - 1]
    inner.addcmul_(through, start[:, :, :, None])
    return inner.flatten(2, 3)[:, :, :count]


# ---- a number a token --------------------------------------------------------------------------


class Faded(Recurrent):
    """A state that fades by one number a token and key/value head: S = exp(g) S + k v^T.

    Within a chunk o = s (q k^T ⊙ D) v, D_ij = exp(sum of g over j < u <= i): each sum is taken on
    its own, so that none is a difference of long ones; all are <= 0, so no exponential overflows.
    """

    names: tuple[str, ...] = ("g",)

    def __init__(self, problem: Problem, chunk: int, gates: Gates | None) -> None:
        super().__init__(problem, chunk, gates)
        ones = torch.ones(self.length, self.length, device=problem.device, dtype=torch.bool)
        self.above_ll, self.upto_ll = ones.triu(1), ones.triu()

    def from_state(
        self, q_bhnd: Tensor, k_bcmd: Tensor, v_bcme: Tensor, first_bcde: Tensor | None,
        *gates: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Within the chunks, and from the states at their beginnings."""
        q_bctrd, log_bctl = self.queries(q_bhnd), self.keys(gates[0])
        k_bctld, v_bctle = (self.keys(x.to(self.wide)) for x in (k_bcmd, v_bcme))
        inside_bctll = self._inside(log_bctl)
        scores_bctrl = (q_bctrd * self.problem.scale) @ k_bctld.mT
        scores = scores_bctrl.unflatten(3, (-1, self.length)) * inside_bctll[:, :, :, None]
        out_bctre = scores.flatten(3, 4) @ v_bctle
        begun_bctl = log_bctl.cumsum(-1).exp()
        added_bctde = (k_bctld * inside_bctll[..., -1, :, None]).mT @ v_bctle
        states, last = scanned(added_bctde, begun_bctl[..., -1:, None], first_bcde)
        if states is not None:
            begun_bctrx = (begun_bctl * self.problem.scale).repeat(1, 1, 1, self.problem.group)
            out_bctre = out_bctre + (q_bctrd * begun_bctrx[..., None]) @ states
        return self.back(out_bctre)[:, :, : q_bhnd.shape[2]], last

    def _inside(self, log_bctl: Tensor) -> Tensor:
        """exp of the sum over j < u <= i for each pair of a chunk, 0 above the diagonal."""
        each = log_bctl[..., None].masked_fill(self.upto_ll, 0.0)  # [u, j], none of u <= j
        return each.cumsum(-2).masked_fill(self.above_ll, -torch.inf).exp()

    def token(self, k_bcd: Tensor, v_bce: Tensor, state_bcde: Tensor, *gates: Tensor) -> Tensor:
        """S = exp(g) S + k v^T."""
        added = k_bcd[..., None] * v_bce[..., None, :]
        return gates[0].exp()[..., None, None] * state_bcde + added
