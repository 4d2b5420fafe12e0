"""Attention that selects: moba, nsa and dsa against loops, and against what others published."""

import importlib
import importlib.util
import sys
import warnings
from importlib.metadata import PackageNotFoundError, distribution
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import attnbench
from attnbench.gate.inputs import make
from impls import operators
from impls.errors import CantBeDone
from impls.spec import Unsupported
from tests.impls.small import TABLE, both_forms, cost, differentiated, problem

CLOSE = {"rtol": 0, "atol": 1e-12}


def drawn(label, p, *, exact=False):
    """The inputs of a row; ``exact``: small whole numbers, of which many scores are equal."""
    row = TABLE.find(label)
    inputs = make(p, 3, operators.inputs(row.operator, p))
    if exact:
        return inputs.map(lambda x: (x * 1.5).round())
    if "iw" in inputs:  # negative ones would make the scores of many keys, zero, the largest
        inputs["iw"] = inputs["iw"].abs()
    return inputs


def softmax_of(q, k, v, keys, scale):
    """One row over some keys, in NumPy."""
    weights = k[keys] @ q * scale
    weights = np.exp(weights - weights.max())
    return weights @ v[keys] / weights.sum()


def first_of(scores, count):
    """The largest, the earlier of equal ones."""
    return sorted(sorted(scores), key=lambda u: -scores[u])[:count]


def keys_of(blocks, block, place):
    return [j for u in sorted(blocks) for j in range(u * block, (u + 1) * block) if j <= place]


def moba_loop(p, i, head, q, k, v, block, top):
    """A row of MoBA, from its paper."""
    own, c = i // block, head // p.group
    likes = {u: q[head] @ k[c][u * block : (u + 1) * block].mean(0) for u in range(own)}
    blocks = {own, *first_of(likes, top - 1)}
    return softmax_of(q[head], k[c], v[c], keys_of(blocks, block, i), p.scale)


def nsa_loop(p, i, head, q, k, v, block, top, window, *gates):
    """A row of NSA, from its paper, with means for its networks."""
    own, c, ended = i // block, head // p.group, (i + 1) // block
    means = [[x[u * block : (u + 1) * block].mean(0) for u in range(ended)] for x in (k[c], v[c])]
    importance, compressed = np.zeros(ended), np.zeros(v.shape[-1])
    for other in range(c * p.group, (c + 1) * p.group) if ended else ():
        scores = np.exp(np.stack(means[0]) @ q[other] * p.scale)
        importance += scores / scores.sum()
        if other == head:
            compressed = scores / scores.sum() @ np.stack(means[1])
    always = {0, own, max(own - 1, 0)}
    rest = {u: importance[u] for u in range(ended) if u not in always}
    blocks = always | {*first_of(rest, top - len(always))}
    selected = softmax_of(q[head], k[c], v[c], keys_of(blocks, block, i), p.scale)
    near = softmax_of(q[head], k[c], v[c], range(max(0, i + 1 - window), i + 1), p.scale)
    return sum(g[head] * x for g, x in zip(gates, (compressed, selected, near), strict=True))


def dsa_loop(p, i, head, q, k, v, iq, ik, iw, top):
    """A row of DeepSeek's sparse attention, from its paper."""
    scores = {j: iw @ np.maximum(iq @ ik[j], 0) for j in range(i + 1)}
    c = head // p.group
    return softmax_of(q[head], k[c], v[c], sorted(first_of(scores, top)), p.scale)


def looped(name, p, x):
    """The whole output, row by row."""
    x = {n: t.double().numpy() for n, t in x.items()}
    out = np.zeros((p.batch, p.heads, p.q_len, p.v_head_dim))
    for b, h, r in np.ndindex(out.shape[:3]):
        i, some = r + p.kv_len - p.q_len, (x["q"][b, :, r], x["k"][b], x["v"][b])
        if name == "moba":
            out[b, h, r] = moba_loop(p, i, h, *some, 8, 3)
        elif name == "nsa":
            gates = (x[g][b, :, r] for g in ("g_cmp", "g_slc", "g_swa"))
            out[b, h, r] = nsa_loop(p, i, h, *some, 8, 4, 5, *gates)
        else:
            out[b, h, r] = dsa_loop(p, i, h, *some, x["iq"][b, r], x["ik"][b], x["iw"][b, r], 6)
    return torch.from_numpy(out)


LABELS = {"moba": "moba?block=8&top=3", "nsa": "nsa?block=8&top=4&window=5", "dsa": "dsa?top=6"}


@pytest.mark.parametrize(
    ("changes", "exact"),
    [
        ({}, False),
        ({}, True),
        ({"q_len": 3, "phase": "decode"}, False),
        ({"q_len": 5, "kv_len": 5}, False),
        ({"head_dim": 4, "scale": 0.5, "kv_heads": 4}, True),
    ],
)
@pytest.mark.parametrize("name", LABELS)
def test_each_row_is_what_its_paper_says_and_of_equal_scores_the_earlier_counts(
    name, changes, exact
):
    p = problem("causal", 45, **changes)
    inputs = drawn(LABELS[name], p, exact=exact)
    by_place, by_name = inputs.arguments
    attend, define = both_forms(LABELS[name], p)
    want, rows = looped(name, p, inputs), torch.tensor([p.q_len - 1, 0, p.q_len // 2])
    torch.testing.assert_close(attend(*by_place, **by_name), want, **CLOSE)
    torch.testing.assert_close(define(*by_place, rows, **by_name), want[:, :, rows], **CLOSE)


@pytest.mark.parametrize("name", LABELS)
def test_blocks_and_tiles_change_nothing(name, monkeypatch):
    p = problem("causal", 45)
    by_place, by_name = drawn(LABELS[name], p).arguments
    attend, _ = both_forms(LABELS[name], p)
    whole = differentiated(lambda *qkv: attend(*qkv, **by_name), by_place)
    monkeypatch.setattr("impls.sparse.selected.SCORES", 500)
    monkeypatch.setattr("impls.sparse.selected.TILE", (1, 3))
    parts = differentiated(lambda *qkv: attend(*qkv, **by_name), by_place)
    for one, other in zip(parts, whole, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.parametrize(
    ("label", "reason"),
    [
        ("moba?block=0", "block=0 must be 1 or more"),
        ("moba?top=0", "top=0 must be 1 or more"),
        ("nsa?top=2", "top=2 must be 3 or more: what nsa always takes"),
        ("nsa?window=0", "window=0 must be 1 or more"),
        ("dsa?top=0", "top=0 must be 1 or more"),
    ],
)
def test_what_can_select_nothing_is_refused_in_a_sentence(label, reason):
    with pytest.raises(Unsupported, match=reason):
        both_forms(label, problem("causal", 45))


def test_costs_are_those_of_the_pairs_that_the_loops_visit():
    p = problem("causal", 45, dtype="float32")
    both, units = p.head_dim + p.v_head_dim, p.batch * p.heads
    places = range(45)
    blocks = sum(min(i // 8, 2) * 8 + i % 8 + 1 for i in places)
    scored = sum(i // 8 for i in places)
    assert cost(LABELS["moba"], p).flops == units * 2 * (both * blocks + p.head_dim * scored)
    ended, near = sum((i + 1) // 8 for i in places), sum(min(i + 1, 5) for i in places)
    four = sum(min(i // 8, 3) * 8 + i % 8 + 1 for i in places)
    assert cost(LABELS["nsa"], p).flops == units * 2 * both * (ended + four + near)
    taken, seen = sum(min(i + 1, 6) for i in places), sum(i + 1 for i in places)
    indexer = 2 * p.batch * seen * 2 * (p.head_dim + 1)
    assert cost(LABELS["dsa"], p).flops == units * 2 * both * taken + indexer
    train = cost(LABELS["dsa"], p.with_(phase="train")).flops
    assert train == 3 * units * 2 * both * taken + indexer
    exact = cost("matmul", p)
    assert cost("moba?block=8&top=6", p).flops - units * 2 * p.head_dim * scored == exact.flops
    step = p.with_(q_len=1, phase="decode")
    gates = 3 * units * p.item_bytes
    assert cost(LABELS["nsa"], step).bytes == cost("matmul", step).bytes + gates
    read = p.batch * (2 * (p.head_dim + 1) + 45 * p.head_dim) * p.item_bytes
    assert cost(LABELS["dsa"], step).bytes == cost("matmul", step).bytes + read


@pytest.mark.parametrize("label", ["moba?block=32", "nsa?block=32&top=4&window=64", "dsa?top=64"])
def test_products_are_those_of_the_cost_and_attention_s_grow_with_the_length_alone(label):
    done: dict[str, list[int]] = {}
    for length in (512, 1024):
        p = problem("causal", length, batch=1, heads=2, kv_heads=2, v_head_dim=16, dtype="float32")
        by_place, by_name = drawn(label, p).arguments
        attend, _ = both_forms(label, p)
        names = ("whole", *TABLE.find(label).parts)
        functions = (attend, *attend.parts(*by_place, **by_name))
        for name, function in zip(names, functions, strict=True):
            with FlopCounterMode(display=False) as counter:
                function(*by_place, **by_name)
            done.setdefault(name, []).append(counter.get_total_flops())
        # tiles are not all full, diagonal ones half masked, and nsa's weights computed twice
        assert cost(label, p).flops < done["whole"][-1] < 2 * cost(label, p).flops
    most = 2.4 if "nsa" in label else 2.2  # whose compressed pairs are quadratic, n^2 / block
    assert done["attention"][1] < most * done["attention"][0]
    assert done["selector"][1] > 2.5 * done["selector"][0]


# ---- against what others published ----


def by_others(published, theirs, name, p):
    """Output and gradients of q, k and v of a row and of a public form, in float32 near 1e-6."""
    label = LABELS[name]
    by_place, by_name = drawn(label, p).arguments
    attend, _ = both_forms(label, p)
    ours = differentiated(lambda *qkv: attend(*qkv, **by_name), by_place)
    others = differentiated(lambda *qkv: theirs(published, *qkv, **by_name), by_place)
    for one, other in zip(ours, others, strict=True):
        off = (one.double() - other.double()).norm() / other.double().norm()
        assert off < 1e-6, float(off)


def turned(x):
    """[b, h, n, d] and [b, n, h, d]."""
    return x.transpose(1, 2)


def fla_module(name):
    """fla's plain form, from its file: its package imports Triton."""
    try:
        file = distribution("fla-core").locate_file(f"fla/ops/{name}/naive.py")
    except PackageNotFoundError:
        pytest.skip("fla-core is not installed: pip install --no-deps fla-core==0.6.0")
    helpers = ("fla", "fla.ops", "fla.ops.utils", "fla.ops.utils.pooling")
    stand_ins = {module: ModuleType(module) for module in helpers}
    stand_ins["fla.ops.utils"].prepare_chunk_offsets = None  # of packed sequences alone
    stand_ins["fla.ops.utils.pooling"].mean_pooling = lambda x, block, _: torch.stack(
        [some.mean(1) for some in x.split(block, 1)], 1
    )
    spec = importlib.util.spec_from_file_location(f"fla_{name}_naive", file)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore"):
        for stand_in, content in stand_ins.items():
            patch.setitem(sys.modules, stand_in, content)
        spec.loader.exec_module(module)
    return module


def nsa_of_fla(fla, q, k, v, g_cmp, g_slc, g_swa):
    """Its window needs flash-attn, so the window's branch is ours by another row."""
    extent = {"heads": 16, "kv_heads": 1, "v_head_dim": 16, "dtype": "float32"}
    near = both_forms("window.blocked", problem("causal+window:4,0", 45, **extent))[0](q, k, v)
    out = fla.naive_nsa(
        *map(turned, (q, k, v, g_cmp, g_slc)), block_counts=4, block_size=8, window_size=0
    )
    return turned(out) + g_swa[..., None] * near


def moba_of_fla(fla, q, k, v):
    """Its attention over blocks that are picked; which ones, by means of whole blocks, is ours."""
    own = torch.arange(q.shape[2])[:, None] // 8
    means = torch.stack([block.mean(2) for block in k.split(8, 2)], 2)
    likes = q @ means.repeat_interleave(q.shape[1] // k.shape[1], 1).mT
    item = torch.arange(means.shape[2])
    likes = likes.masked_fill(item == own, torch.inf).masked_fill(item > own, -torch.inf)
    blocks = likes.topk(3, -1).indices
    blocks = torch.where(blocks > own, -1, blocks)  # of the first tokens there are fewer
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    return turned(fla.naive_nsa_selection(*map(turned, (q, k, v, blocks)), block_size=8))


def dsa_of_fla(fla, q, k, v, iq, ik, iw):
    return turned(fla.naive_dsa(*map(turned, (q, k, v)), iq, ik, iw, topk=6))


@pytest.mark.parametrize("name", ["nsa", "dsa", pytest.param("moba", marks=pytest.mark.slow)])
def test_it_agrees_with_fla_s_plain_form(name):
    p = problem("causal", 45, heads=16, kv_heads=1, v_head_dim=16, dtype="float32")
    forms = {"nsa": nsa_of_fla, "dsa": dsa_of_fla, "moba": moba_of_fla}
    by_others(fla_module("nsa" if name == "moba" else name), forms[name], name, p)


def dsa_of_attn_gym(modules, q, k, v, iq, ik, iw):
    """Its indexer, and its gathered attention, whose keys are its values, to no window."""
    indexer, gather = modules
    picks = indexer.launch(iq, ik, iw, 6, True, 1)
    sink = torch.full((q.shape[1],), -torch.inf)
    scale = q.shape[-1] ** -0.5
    out, _ = gather.gather_attn(
        q, torch.zeros_like(k), k, picks, sink, None, None, 0, False, scale=scale
    )
    return out + 0 * v


def test_an_indexer_may_have_other_heads_and_be_of_another_width():
    p = problem("causal", 45)
    q, k, v = drawn(LABELS["dsa"], p).qkv
    generator = torch.Generator().manual_seed(0)
    shapes = {"iq": (2, 45, 3, 5), "ik": (2, 45, 5), "iw": (2, 45, 3)}
    more = {n: torch.rand(s, generator=generator, dtype=q.dtype) for n, s in shapes.items()}
    out = attnbench.attention(LABELS["dsa"])(q, k, v, **more)
    want = looped("dsa", p, {"q": q, "k": k, "v": v, **more})
    torch.testing.assert_close(out, want, **CLOSE)
    with pytest.raises(CantBeDone, match="ik is"):
        attnbench.attention(LABELS["dsa"])(q, k, v, **more | {"ik": more["ik"][..., :4]})


def test_dsa_agrees_with_attn_gym_s_indexer_and_gathered_attention():
    kinds = ("indexer", "gather_attn")
    modules = [importlib.import_module(f"attn_gym.sparse.{x}.impl.reference") for x in kinds]
    p = problem("causal", 45, heads=16, kv_heads=16, v_head_dim=16, dtype="float32")
    q, k, _ = drawn(LABELS["dsa"], p).qkv
    more = drawn(LABELS["dsa"], p).arguments[1]
    attend, _ = both_forms(LABELS["dsa"], p)
    ours = differentiated(lambda q, kv: attend(q, kv, kv, **more), (q, k))
    theirs = differentiated(lambda q, kv: dsa_of_attn_gym(modules, q, kv, kv, **more), (q, k))
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).norm() < 1e-6 * other.norm()
