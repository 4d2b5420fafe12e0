"""``attnbench.dispatch`` in the place of torch's own function, compiled, copied, in threads."""

import copy
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

import attnbench
from attnbench.answer.dispatch_table import Range
from attnbench.models.dispatch import KEPT, DispatchWarning
from impls.loading import load_file
from tests.models.build import qkv
from tests.models.dispatch.made import by_hand, entry, silently, table


def test_in_the_place_of_torchs_own_function_it_does_not_call_itself(monkeypatch):
    attend = attnbench.dispatch(table(entry("sdpa"), entry("sdpa", phase="train")))
    q, k, v = qkv(grad=True)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    out = silently(F.scaled_dot_product_attention, q, k, v)
    torch.testing.assert_close(out.double(), by_hand(q, k, v), rtol=1e-5, atol=1e-6)
    with pytest.warns(DispatchWarning):
        F.scaled_dot_product_attention(q, k, v, scale=0.5)
    layer = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True, dropout=0.0)
    assert layer(torch.randn(2, 16, 32)).isfinite().all()
    assert "heads" not in attend.said


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_under_torch_compile_the_measured_variant_runs_and_is_right(spy, called):
    torch.compiler.reset()
    attend = attnbench.dispatch(table(entry(), entry(phase="train")), tables=[spy])

    def step(q, k, v):
        return attend(q * 2, k, v).sin()

    compiled = torch.compile(step, backend="eager")
    for grad in (False, True):
        q, k, v = qkv(grad=grad)
        wanted = by_hand(q * 2, k, v).sin()
        out = compiled(q, k, v)
        torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-6)
        if grad:
            mine, right = (torch.autograd.grad(x.sum(), (q, k, v)) for x in (out, wanted))
            for a, b in zip(mine, right, strict=True):
                torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=1e-5)
    assert {p.phase for p in called} == {"forward", "train"}
    alone = torch.compile(attend, backend="eager")
    q, k, v = qkv()
    torch.testing.assert_close(alone(q, k, v).double(), by_hand(q, k, v), rtol=1e-5, atol=1e-6)


def test_a_model_that_holds_one_can_be_copied_and_sent(spy, called):
    attend = attnbench.dispatch(table(), tables=[spy])
    for other in (copy.deepcopy(attend), pickle.loads(pickle.dumps(attend))):
        silently(other, *qkv())
        assert repr(other) == repr(attend)
    assert len(called) == 2


def test_threads_get_what_they_ask_for_and_a_cause_is_said_once(spy, called):
    attend = attnbench.dispatch(table(), tables=[spy])
    together = threading.Barrier(8)

    def work(seed):
        together.wait()
        for length in (8, 16, 32):
            q, k, v = qkv(length, seed=seed)
            torch.testing.assert_close(
                attend(q, k, v).double(), by_hand(q, k, v), rtol=1e-4, atol=1e-5
            )
            attend(q, k, v, scale=1.0)

    with warnings.catch_warnings(record=True) as heard, ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("always")
        list(pool.map(work, range(8)))
    assert len(called) == 8 * 3
    assert len([w for w in heard if w.category is DispatchWarning]) == 1


def test_a_variant_is_built_once_for_calls_that_are_alike_and_few_are_kept(spy, called):
    built = load_file(spy).BUILT
    many = entry(ranges=(Range(1, 9999, 1, "spy"),), phase="decode")
    attend = attnbench.dispatch(table(entry(), many), tables=[spy])
    for seed in range(3):
        silently(attend, *qkv(seed=seed))
    assert len(built) == 1
    for keys in range(2, KEPT + 50):
        silently(attend, *qkv(1, keys, batch=1))
    assert attend._way.cache_info().currsize == KEPT
    assert len(built) == KEPT + 49
