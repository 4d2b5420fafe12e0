"""What holds for every variant that sums over keys before it meets the queries: chunks, steps,
stretches, memory and cost.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import impls.linear.common as common
from tests.impls.small import cost, differentiated, inputs, kept_bytes, made, problem

NAMES = ["linear.identity", "linear.elu", "cosformer", "linear.taylor", "hedgehog", "cosine"]


@pytest.mark.parametrize("lengths", [(2049, 2049), (2500, 3100), (2600, 2100)])
@pytest.mark.parametrize("name", [*NAMES, "gla?chunk=50"])
def test_long_sequences_are_done_a_stretch_at_a_time_where_nothing_is_kept(name, lengths):
    if name.startswith("gla") and lengths[0] != lengths[1]:
        return
    assert min(lengths) > common.STRETCH
    given = problem("causal", batch=1, q_len=lengths[0], kv_len=lengths[1], head_dim=8)
    attend, _ = made(name, given)
    q, k, v = inputs(given)
    with torch.no_grad():
        cut = attend(q, k, v).clone()
    whole = attend(*(x.clone().requires_grad_() for x in (q, k, v)))
    torch.testing.assert_close(cut, whole.detach(), rtol=1e-9, atol=1e-11)
    with torch.no_grad():  # and no bit of a later stretch comes into an earlier one
        k[:, :, 2048], v[:, :, 2048] = -7.0, 100.0
        first = 2048 - (lengths[1] - lengths[0])
        again = attend(q, k, v)
    assert torch.equal(cut[:, :, :first], again[:, :, :first])
    assert not torch.equal(cut[:, :, first:], again[:, :, first:])


@pytest.mark.parametrize("name", NAMES)
def test_products_in_bfloat16_as_on_a_gpu_pass_the_gate(verdict, monkeypatch, name):
    monkeypatch.setattr(common, "work_dtype", lambda problem: torch.bfloat16)
    given = problem("causal", 150, dtype="bfloat16", phase="train", inputs="outliers")
    given = given.with_(head_dim=32, v_head_dim=32)
    assert verdict(f"{name}?chunk=32", given).reason is None


class Largest(TorchDispatchMode):
    """The most bytes in one tensor that was made."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            if isinstance(x, torch.Tensor) and x._base is None:
                self.most = max(self.most, x.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("name", NAMES)
def test_memory_grows_with_the_length_forward_and_backward(name, mask):
    held = []
    for length in (1024, 4096):
        given = problem(mask, length, dtype="float32", batch=1, phase="train")
        attend, _ = made(name, given)
        with Largest() as largest:
            kept = kept_bytes(attend, inputs(given))
            differentiated(attend, inputs(given))
        held.append((largest.most, kept))
    (most, kept), (more, kept_more) = held
    assert more <= 4.01 * most and kept_more <= 4.1 * kept


@pytest.mark.parametrize("name", [*NAMES, "hedgehog?init=random"])
def test_the_cost_is_what_is_counted(name):
    given = problem("none", 2048, dtype="float32", head_dim=32, v_head_dim=32)
    with FlopCounterMode(display=False) as counter:
        made(name, given)[0](*inputs(given))
    said = cost(name, given).flops
    assert said <= counter.get_total_flops() <= 1.05 * said
