"""Memories that forget: the papers' rules in plain loops, full attention where there is room."""

import math

import pytest
import torch

from impls import eviction
from impls.eviction import POLICIES, Memory, draws
from impls.spec import Unsupported
from tests.impls.small import inputs, problem, softmax

OPTIONS = {"sinks": {"sinks": 2}, "snapkv": {"window": 4}, "quest": {"page": 4}}
PROMPT, LENGTH, BUDGET = 17, 45, 13


def new_tokens(n=1):
    """A problem that decodes so many tokens at once, and all tokens' queries, keys and values."""
    p = problem("causal", LENGTH)
    return p.with_(phase="decode", q_len=n), inputs(p, 1.5)


def decoded(policy, n=1, budget=BUDGET, prompt=PROMPT, maker=Memory):
    """The outputs of all tokens after the prompt, and the memory at the end."""
    p, qkv = new_tokens(n)
    memory = maker(policy, p, budget, **OPTIONS.get(policy, {}))
    memory.prefill(*(x[:, :, :prompt] for x in qkv))
    outs = [
        memory.step(*(x[:, :, at : at + n] for x in qkv)) for at in range(prompt, LENGTH - n + 1, n)
    ]
    return torch.cat(outs, 2), memory


def full(tokens, prompt=PROMPT):
    p, qkv = new_tokens()
    p = p.with_(phase="forward", q_len=LENGTH)
    return softmax(p, *qkv)[:, :, prompt : prompt + tokens]


def weights_of(q, k, keys):
    """The weights of a query on some keys, one number at a time."""
    scores = [float(q @ k[j]) * len(q) ** -0.5 for j in keys]
    most = max(scores)
    each = [math.exp(s - most) for s in scores]
    return [x / sum(each) for x in each]


class Loops:
    """One key/value head of one batch element, token by token, with its held tokens in a list."""

    def __init__(self, policy, queries, k, v, draw):
        self.policy, self.queries, self.k, self.v, self.draw = policy, queries, k, v, draw
        self.mass = [0.0] * len(k)
        rows = range(PROMPT - 4, PROMPT) if policy == "snapkv" else range(PROMPT)
        for q in queries:
            for i in rows:
                self.weigh(q[i], range(i + 1))
        if policy == "snapkv":
            seen = self.mass[: PROMPT - 4]
            for j in range(len(seen)):
                self.mass[j] = sum(seen[max(j - 2, 0) : j + 3]) / 5
        self.held = [*range(PROMPT)]
        self.trim(PROMPT)

    def weigh(self, q, keys):
        weights = weights_of(q, self.k, keys)
        for j, w in zip(keys, weights, strict=True):
            self.mass[j] += w
        return sum(w * self.v[j] for w, j in zip(weights, keys, strict=True))

    def worth(self, j, tokens):
        match self.policy:
            case "sinks":
                return math.inf if j < 2 else j
            case "h2o" | "random":
                late = j >= tokens - BUDGET // 2
                return math.inf if late else (self.mass if self.policy == "h2o" else self.draw)[j]
            case "snapkv":
                return math.inf if j >= PROMPT - 4 else self.mass[j]
        return math.inf

    def trim(self, tokens):
        if self.policy == "quest" or (self.policy == "snapkv" and tokens > PROMPT):
            return
        while len(self.held) > BUDGET:
            self.held.remove(min(self.held, key=lambda j: self.worth(j, tokens)))

    def read(self, qs, at):
        """What queries at a place read of the tokens before their step."""
        if self.policy != "quest":
            return self.held
        start = at - at % 4
        bounds = {}
        for u in range(0, start, 4):
            page = self.k[u : u + 4]
            low, high = page.min(0).values, page.max(0).values
            bounds[u] = max(float(torch.maximum(q * low, q * high).sum()) for q in qs)
        best = sorted(bounds, key=bounds.get)[-((BUDGET - at % 4) // 4) :]
        return [j for u in best for j in range(u, u + 4)] + [*range(start, at)]

    def step(self, at, n):
        outs = []
        for i in range(at, at + n):
            qs = [q[i] for q in self.queries]
            keys = [*self.read(qs, at), *range(at, i + 1)]
            outs.append(torch.stack([self.weigh(q, keys) for q in qs]))
        self.seen = {*keys}
        self.held += range(at, at + n)
        self.trim(at + n)
        return torch.stack(outs, 1)


def looped(policy, n):
    """The outputs by plain loops, and what each head holds, or has read, at the end."""
    p, (q, k, v) = new_tokens(n)
    every = torch.arange(LENGTH).expand(p.batch, p.kv_heads, -1)
    outs, held = torch.zeros(p.batch, p.heads, LENGTH // n * n, p.v_head_dim, dtype=q.dtype), []
    steps = range(PROMPT, LENGTH - n + 1, n)
    for b in range(p.batch):
        for c in range(p.kv_heads):
            heads = slice(c * p.group, (c + 1) * p.group)
            loops = Loops(policy, q[b, heads], k[b, c], v[b, c], draws(every)[b, c].tolist())
            for at in steps:
                outs[b, heads, at : at + n] = loops.step(at, n)
            held.append(loops.seen if policy == "quest" else set(loops.held))
    return outs[:, :, PROMPT : steps[-1] + n], held


def held_by(memory):
    """What each head holds, or has read, at the end; a step makes its room when it comes."""
    state, policy = memory.state, memory.policy
    if not isinstance(state, eviction.State) or policy.grows:
        return [set(x.tolist()) for x in memory.positions.flatten(0, 1)]
    worth = policy.worth(memory.positions, state.score_bcs[..., : state.filled], state.tokens)
    best = worth.topk(BUDGET).indices
    return [set(x.tolist()) for x in memory.positions.gather(2, best).flatten(0, 1)]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_is_its_papers_rule_in_plain_loops(policy, n):
    out, memory = decoded(policy, n)
    want, held = looped(policy, n)
    torch.testing.assert_close(out, want)
    assert held_by(memory) == held
    assert not torch.allclose(out, full(out.shape[2]), atol=1e-3)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prompt", [7, PROMPT])
def test_with_room_for_all_every_policy_is_full_attention(policy, prompt):
    out, memory = decoded(policy, budget=LENGTH, prompt=prompt)
    torch.testing.assert_close(out, full(out.shape[2], prompt), rtol=0, atol=1e-12)
    assert (memory.positions.sort(-1).values == torch.arange(LENGTH)).all()


FAULTS = {
    "another head's weight": ("h2o", "prompt_score", lambda found, *_: found.roll(1, 1)),
    "a step's weight lost": ("h2o", "after", lambda found, self, score, _: score),
    "a window off by one": ("snapkv", "prompt_score", lambda found, *_: found.roll(1, 2)),
    "a sink that goes": ("sinks", "worth", lambda found, self, at, *_: at * 1),
    "the latest that go": ("random", "worth", lambda found, self, at, score, _: score),
    "another head's pages": ("quest", "picks", lambda found, *_: found.roll(1, 1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_differs_from_the_rule(fault, monkeypatch):
    policy, name, change = FAULTS[fault]
    kind = POLICIES[policy]
    inner = getattr(kind, name)
    monkeypatch.setattr(kind, name, lambda *given: change(inner(*given), *given))
    assert not torch.allclose(decoded(policy)[0], looped(policy, 1)[0], atol=1e-3)


@pytest.mark.parametrize("policy", ["sinks", "h2o", "random"])
def test_a_state_can_take_another_step_and_its_bytes_stay(policy):
    p, qkv = new_tokens()
    memory = Memory(policy, p, BUDGET, **OPTIONS.get(policy, {}))
    memory.prefill(*(x[:, :, :PROMPT] for x in qkv))
    sizes = set()
    for at in range(PROMPT, LENGTH):
        new, sizes = [x[:, :, at : at + 1] for x in qkv], sizes | {memory.bytes}
        state = memory.state
        memory.policy.step(*(x * 2 for x in new), state)
        first, _ = memory.policy.step(*new, state)
        assert torch.equal(memory.step(*new), first)
    assert len(sizes) == 1


def test_draws_are_uniform_and_differ_by_head():
    x = draws(torch.arange(20_000).expand(1, 2, -1))[0]
    assert torch.corrcoef(torch.stack([x[0], x[1], x[0].roll(1)])).triu(1).abs().max() < 0.03
    counts = torch.histc(x, 20, 0, 1)
    assert float(((counts - 2000) ** 2 / 2000).sum()) < 43.8  # chi-square, 19 degrees, 99.9 %


@pytest.mark.parametrize(("policy", "budget"), [("sinks", 2), ("h2o", 1), ("snapkv", 4),
                                                ("quest", 7), ("random", 1)])  # fmt: skip
def test_a_budget_without_room_is_refused(policy, budget):
    p, _ = new_tokens()
    with pytest.raises(Unsupported, match=f"budget={budget} must be"):
        Memory(policy, p, budget, **OPTIONS.get(policy, {}))
