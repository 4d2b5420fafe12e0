"""Torch's own attention functions, and products and a softmax by hand: what of them is recorded."""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import einsum, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention as by_another_name

import attnbench
from impls.errors import CantBeDone
from tests.models.build import only, qkv, said


def test_what_a_call_asks_is_in_its_problem():
    q, k, v = qkv(heads=4, kv_heads=2, n=2, m=16, dtype=torch.bfloat16)
    far = torch.ones(2, 16, dtype=torch.bool).tril(14)
    grown = [x.requires_grad_() for x in qkv(n=5, m=5)]
    with attnbench.capture() as calls:
        F.scaled_dot_product_attention(q, k, v, far, enable_gqa=True)
        F.scaled_dot_product_attention(*grown, scale=0.5, dropout_p=0.1)
        F.scaled_dot_product_attention(*(x[0] for x in qkv()))
        with torch.autocast("cpu", torch.bfloat16):
            F.scaled_dot_product_attention(*qkv(n=7, m=7))
    assert said(calls) == [
        ("b2 h4/2 n2x16 d8 bf16 causal decode", "sdpa", 1),
        ("b2 h4/4 n5 d8 f32 none forward scale 0.5", "sdpa", 1),  # nobody asked for the gradient
        ("b2 h4/4 n7 d8 bf16 none forward", "sdpa", 1),
        ("b4 h1/1 n16 d8 f32 none forward", "sdpa", 1),
    ]
    (scaled,) = (s for s in calls.sites if s.problem.q_len == 5)
    assert scaled.problem.scale == 0.5 and "drops 0.1" in scaled.note and scaled.faithful
    assert "test_torch_calls.py:" in scaled.site and scaled.site.endswith("_is_in_its_problem")
    assert calls.attention_s == pytest.approx(sum(s.seconds for s in calls.sites))
    assert scaled.share == pytest.approx(scaled.seconds / calls.wall_s)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_a_call_that_is_no_problem_is_counted_with_a_reason():
    nested = torch.nested.nested_tensor([torch.randn(4, 3, 8), torch.randn(4, 5, 8)])
    with attnbench.capture() as calls:
        torch.vmap(F.scaled_dot_product_attention)(*(torch.stack([x] * 5) for x in qkv()))
        F.scaled_dot_product_attention(*qkv(), attn_mask=torch.full((16, 16), torch.nan))
        F.scaled_dot_product_attention(nested, nested, nested)
    assert calls.problems() == [] and only(calls).calls == 1 and "NaN" in only(calls).note
    assert any("torch.func transformed it" in line for line in calls.unseen)
    assert any("as a problem: 1: its tensors are nested" in line for line in calls.unseen)


def trained():
    """The losses and all gradients of a little training, to the bit."""
    torch.manual_seed(0)
    inner = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    outer, x = nn.MultiheadAttention(16, 2, batch_first=True), torch.randn(2, 12, 16)
    y = inner(x, is_causal=True, src_mask=nn.Transformer.generate_square_subsequent_mask(12))
    y, weights = outer(y, y, y)
    z = by_another_name(y[:, None], y[:, None], y[:, None], dropout_p=0.2)
    loss = z.square().sum() + weights.sum()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in [*inner.parameters(), *outer.parameters()])]


def patched():
    return F.scaled_dot_product_attention, F.multi_head_attention_forward, torch.compile


def test_results_and_gradients_stay_as_they_are_to_the_bit_and_everything_is_put_back():
    before, plain = patched(), trained()
    with attnbench.capture() as calls:
        watched = trained()
        refs = [weakref.ref(x) for x in watched]
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert {via for _, via, _ in said(calls)} == {"mha", "sdpa"}
    del watched
    gc.collect()
    assert not any(ref() is not None for ref in refs)
    assert patched() == before and by_another_name is before[0]


def test_a_call_too_large_to_run_is_captured_from_fake_tensors():
    with FakeTensorMode() as mode, attnbench.capture() as calls:
        q = torch.empty(1, 32, 131072, 128, dtype=torch.bfloat16, requires_grad=True)
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        hidden = torch.ones(16, 16, dtype=torch.bool)
        F.scaled_dot_product_attention(*(mode.from_tensor(x) for x in qkv()), hidden)
    assert said(calls)[0] == ("b1 h32/32 n131072 d128 bf16 causal train", "sdpa", 1)
    assert [s.share for s in calls.sites] == [None, None] and calls.share is None
    assert [p.q_len for p in calls.problems()] == [131072]  # of the other no mask is known


ENDS = torch.arange(10)[None] >= torch.tensor([[10], [7]])


def test_multi_head_attention_is_seen_without_its_projections():
    mha = nn.MultiheadAttention(32, 4, batch_first=True)
    x = torch.randn(2, 10, 32)
    with attnbench.capture() as calls:
        mha(x, x, x)[0].sum().backward()  # products and a softmax
        mha(x, x, x, need_weights=False)  # the fused function
        mha(x, x, x, key_padding_mask=ENDS)
        mha(x, x[:, :6], x[:, :6], attn_mask=torch.ones(10, 6, dtype=torch.bool).triu(1))
    assert [slug for slug, _, _ in said(calls)] == [
        "b2 h4/4 n10 d8 f32 none forward",  # of these nobody asked for the gradient
        "b2 h4/4 n10 d8 f32 none train",
        "b2 h4/4 n10 d8 f32 padding:10,7 forward",
        "b2 h4/4 n10x6 d8 f32 causal@upper-left forward",
    ]
    assert {s.via for s in calls.sites} == {"mha"} and all(s.seconds > 0 for s in calls.sites)
    assert sum(s.backward_s > 0 for s in calls.sites) == 1


def test_the_fast_path_is_seen_and_its_seconds_are_not_taken_for_attention():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 10, 32)
    mha = nn.MultiheadAttention(32, 4, batch_first=True).eval()
    with torch.no_grad():
        plain = encoder(x), encoder(x, src_key_padding_mask=ENDS), mha(x, x, x)[0]
        with attnbench.capture() as calls:
            watched = encoder(x), encoder(x, src_key_padding_mask=ENDS), mha(x, x, x)[0]
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert said(calls) == [
        ("b2 h4/4 n10 d8 f32 none forward", "encoder layer fast path", 2),
        ("b2 h4/4 n10 d8 f32 none forward", "mha fast path", 1),
        ("b2 h4/4 n10 d8 f32 padding:10,7 forward", "encoder layer fast path", 2),
    ]
    assert all(s.faithful and s.call.kernel == "math" for s in calls.sites)
    assert calls.attention_s == 0 and calls.share is None
    (line,) = calls.unseen
    assert "TransformerEncoder: 5;" in line and "not in the share" in line


def test_what_is_compiled_stays_one_graph_and_what_was_met_is_said():
    torch._dynamo.reset()
    mha = nn.MultiheadAttention(8, 2, batch_first=True)

    def model(x):
        y = mha(x[0], x[0], x[0])[0]
        return by_another_name(x, x, x, is_causal=True) + F.softmax(torch.bmm(y, y.mT), -1) @ y

    q, _, _ = qkv()
    with attnbench.capture() as calls:
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(q), model(q))
    (met,) = (s for s in calls.sites if s.via == "sdpa, compiled")
    assert str(met.problem) == "b2 h4/4 n16 d8 f32 causal forward" and met.calls == 1
    assert any("nn.MultiheadAttention" in line for line in calls.unseen)


def test_other_names_are_seen_and_put_back_and_what_the_program_puts_there_stays(monkeypatch):
    original, held = F.scaled_dot_product_attention, {"a": by_another_name}
    with attnbench.capture() as calls:
        by_another_name(*qkv())
        kept = F.scaled_dot_product_attention
    assert only(calls).calls == 1 and by_another_name is original
    with attnbench.capture() as calls:
        held["a"](*qkv())
    assert calls.sites == [] and calls.share is None
    assert "in an object, a closure or a list" in calls.unseen[0]
    assert torch.equal(kept(*qkv()), original(*qkv()))
    monkeypatch.setattr(F, "scaled_dot_product_attention", original)
    mine = lambda *args, **more: by_another_name(*args, **more) * 0  # noqa: E731
    with attnbench.capture() as calls:
        F.scaled_dot_product_attention = mine
        F.scaled_dot_product_attention(*qkv())
    assert F.scaled_dot_product_attention is mine and only(calls).calls == 1


def test_errors_are_the_programs_own_and_what_can_not_begin_leaves_all_as_it_was(monkeypatch):
    (q, k, v), before = qkv(), patched()
    with pytest.raises(ZeroDivisionError), attnbench.capture() as calls:
        with pytest.raises(RuntimeError):
            F.scaled_dot_product_attention(q, k[..., :4], v)
        F.scaled_dot_product_attention(q, k, v)
        with pytest.raises(CantBeDone, match="being captured already"):
            attnbench.capture().__enter__()
        raise ZeroDivisionError
    assert only(calls).calls == 1 and before == patched()
    monkeypatch.setattr("attnbench.models.capture.products.note_product", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), attnbench.capture():
        pass
    assert before == patched()


def by_operator(x, layer):
    scores = (x @ x.transpose(-2, -1)) * 0.25
    scores = scores.masked_fill(torch.ones(9, 9).tril() == 0, float("-inf"))
    return F.dropout(F.softmax(scores, dim=-1), 0.1) @ x


def heads_in_the_middle(x, layer):
    weights = torch.softmax(torch.einsum("bnhd,bmhd->bnmh", x, x), 2)
    return einsum("bnmh,bmhd->bnhd", weights, x)


def classifier(x, layer):
    return F.cross_entropy(layer(x).softmax(-1).flatten(0, -2), torch.zeros(72).long())


def experts(x, layer):
    gates = (x @ torch.ones(16, 3)).softmax(-1)
    return einsum("bhne,ebhnd->bhnd", gates, torch.stack([x] * 3))


WRITTEN = {by_operator: ("causal", 0.25, 0.1), heads_in_the_middle: ("none", 0.25, 0.0)}


@pytest.mark.parametrize("program", [*WRITTEN, classifier, experts], ids=lambda f: f.__name__)
def test_attention_that_is_written_out_is_read_off_its_scores_and_nothing_else_is(program):
    x = torch.randn(2, 4, 9, 16)
    layer = nn.Linear(16, 5)
    torch.manual_seed(1)
    plain = program(x, layer)
    before = torch.matmul, einsum, dict(vars(torch.Tensor))
    with attnbench.capture() as calls:
        torch.manual_seed(1)
        watched, _ = (program(x, layer) for _ in range(2))
    assert torch.equal(plain, watched)
    assert before == (torch.matmul, einsum, dict(vars(torch.Tensor)))
    if program in WRITTEN:
        mask, scale, dropout = WRITTEN[program]
        site = only(calls)
        assert site.calls == 2 and site.call and site.call.kernel == "written out"
        assert str(site.problem.mask) == mask and site.problem.scale == pytest.approx(scale)
        assert site.call.dropout == pytest.approx(dropout, abs=0.08) and 0 < site.share <= 1
        assert "test_torch_calls.py:" in site.site and program.__name__ in site.site
    else:
        assert not calls.sites
