"""Decoding from caches in few bits: against numbers rounded by hand, and planted faults."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch

import attnbench
from attnbench.core.record import Record, Status
from attnbench.gate.gate import gate
from attnbench.gate.inputs import make
from attnbench.meter.memory import observe
from impls.codes import dequantise
from impls.dense import cache
from impls.operators import KV_DTYPES, KV_SCALES
from impls.problem import InvalidProblem
from impls.spec import Unsupported
from tests.impls.small import TABLE, both_forms, inputs, judged, problem, softmax, verdict
from tests.impls.test_codes import written_out

ROWS = ("cache.sdpa", "cache.online?k_block=16")
KINDS = list(itertools.product(KV_DTYPES, KV_SCALES))


def decoding(kv_dtype="int8", kv_scale="token", mask="causal", length=150, **changes):
    kind = {"kv_dtype": kv_dtype, "kv_scale": kv_scale, "phase": "decode"}
    return problem(mask, length, **{**kind, "q_len": 1, **changes})


@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype, kv_scale", KINDS)
@pytest.mark.parametrize("row", ROWS)
def test_a_row_attends_over_what_its_cache_holds(row, kv_dtype, kv_scale):
    """Both it and its definition, against every key and value rounded number by number."""
    p = decoding(kv_dtype, kv_scale, q_len=3, dtype="float32")
    q, *kv = inputs(p, seed=4)
    first = {"head": p.kv_len // 2, "block": p.kv_len - p.q_len}.get(kv_scale, p.kv_len)
    read = [torch.empty_like(x) for x in kv]
    for x, out in zip(kv, read, strict=True):
        for at in np.ndindex(x.shape[:2]):
            out[at] = torch.from_numpy(written_out(x[at].numpy(), kv_dtype, kv_scale, first))
    want = softmax(p, *(x.double() for x in (q, *read)))
    attend, define = both_forms(row, p)
    torch.testing.assert_close(attend(q, *kv).double(), want, rtol=1e-5, atol=1e-6)
    rows = torch.arange(3)
    torch.testing.assert_close(define(q.double(), *(x.double() for x in kv), rows), want)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    "changes",
    [
        *({"kv_dtype": a, "kv_scale": b, "dtype": "float32"} for a, b in KINDS),
        {"mask": "window:20,0", "q_len": 3},
        {"kv_scale": "block", "q_len": 70, "mask": "none", "dtype": "bfloat16"},
        {"kv_dtype": "int4", "q_len": 150},
    ],
    ids=str,
)
def test_the_gate_passes_a_row_and_says_how_far_it_is_from_softmax(row, changes):
    checked = verdict(row, decoding(**changes))
    assert checked.reason is None
    assert 1e-3 < checked.distance.relative < 0.3


def changed(x, codes=lambda y: y, scales=lambda y: y):
    return x._replace(codes_bcmw=codes(x.codes_bcmw), scales_bcs1=scales(x.scales_bcs1))


FAULTS: dict[str, tuple[str, Callable]] = {
    "the scale of the token beside": (
        "token", lambda x: changed(x, scales=lambda s: torch.cat([s[:, :, :1], s[:, :, :-1]], 2))
    ),
    "the scale of the head beside": ("head", lambda x: changed(x, scales=lambda s: s.roll(1, 1))),
    "the scale of the block beside": ("block", lambda x: changed(x, scales=lambda s: s.roll(1, 2))),
    "int4 with its halves in the other order": (
        "token", lambda x: changed(x, codes=lambda y: y >> 4 | y << 4)
    ),
    "a tail that is lost": ("block", lambda x: x._replace(tail_bctd=x.tail_bctd * 0)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_gate_refuses(fault):
    kv_scale, wrong = FAULTS[fault]
    p = decoding("int4", kv_scale, length=200, dtype="float32")
    attend, define = both_forms("cache.sdpa", p)
    right = attend.attend
    attend.attend = lambda tokens: lambda q, k, v: right(tokens)(q, wrong(k), wrong(v))
    reason = gate(judged(p).of("approximates softmax"), attend, define, 0).reason
    assert reason is not None and "error" in reason


@pytest.mark.parametrize("kv_dtype, kv_scale", KINDS)
def test_a_cache_that_is_kept_in_full_is_told_by_its_bytes(kv_dtype, kv_scale):
    """Right to the last bit, with the widened cache beside its codes."""
    p = decoding(kv_dtype, kv_scale, length=400, dtype="bfloat16")
    attend, define = both_forms("cache.sdpa", p)
    remember, step = attend.remember, attend.step

    def kept(k, v):
        memory = remember(k, v)
        return memory, [dequantise(x) for x in memory]

    attend.remember = kept
    attend.step = lambda q, k, v, memory: (
        (after := step(q, k, v, memory[0]))[0], (after[1], memory[1])
    )  # fmt: skip
    reason = gate(judged(p).of("approximates softmax"), attend, define, 0).reason
    assert reason is not None and "bytes" in reason


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kv_dtype": "int3"}, "kv_dtype is 'int3'; it must be one of int8, int4, fp8"),
        ({"kv_scale": "row"}, "kv_scale is 'row'; it must be one of token, head, block"),
        ({"kv_dtype": None, "kv_scale": "head"}, "set --kv-dtype too"),
        ({"phase": "forward"}, "use --phase decode"),
    ],
    ids=str,
)
def test_a_cache_that_can_not_be_is_refused(changes, words):
    with pytest.raises(InvalidProblem, match=words):
        problem(**{"phase": "decode", "q_len": 1, "kv_dtype": "int8", **changes})


def test_who_serves_a_cache_in_few_bits_and_who_does_not():
    p, plain = decoding(), problem(phase="decode", q_len=1)
    assert p == decoding(kv_scale=None) and str(p).endswith("decode kv-dtype int8")
    assert str(decoding(kv_scale="head")).endswith("decode kv-dtype int8 kv-scale head")
    serve = [row.name for row in TABLE.rows.values() if row.supports(p) is None]
    assert serve == ["cache.sdpa", "cache.online"]
    for name in serve:
        assert "--kv-dtype" in TABLE.rows[name].supports(plain)
    assert TABLE.rows["sdpa"].supports(p) == "sdpa takes no kv_dtype"
    for changes, words in (
        ({"kv_scale": "head", "mask": "window:9,0"}, "depends on tokens that window:9,0 hides"),
        ({"kv_scale": "block", "mask": "causal@upper-left"}, "depends on tokens"),
        ({"kv_scale": "head", "q_len": 40}, "a quarter of kv_len=150 or fewer, not 40"),
        ({"kv_dtype": None, "kv_scale": None}, "--kv-dtype"),
    ):
        with pytest.raises(Unsupported, match=words):
            cache.build_sdpa(decoding(**changes))


def test_a_call_in_python_names_the_cache():
    q, k, v = inputs(decoding(dtype="float32"), seed=3)
    attend, want = attnbench.attention("cache.sdpa"), softmax(decoding(), q, k, v)
    for kv_dtype, most in (("int8", 0.02), ("int4", 0.3)):
        off = (attend(q, k, v, mask="causal", kv_dtype=kv_dtype) - want).norm() / want.norm()
        assert most / 30 < off < most
    with pytest.raises(attnbench.NotServed, match="sdpa takes no kv_dtype"):
        attnbench.attention("sdpa")(q, k, v, kv_dtype="int8")


def test_the_meter_counts_the_bytes_that_are_kept():
    """By hand: 2 heads in a batch of 2, keys of 16 and values of 12, 150 tokens."""
    for row, changes, expected in (
        ("cache.sdpa", {}, 4 * 150 * (16 + 4 + 12 + 4)),
        ("cache.online", {"kv_dtype": "int4"}, 4 * 150 * (8 + 4 + 6 + 4)),
        ("sdpa", {"kv_dtype": None, "kv_scale": None}, 4 * 150 * (16 + 12) * 4),
    ):
        p = decoding(dtype="float32", **changes)
        memory = observe(p, both_forms(row, p)[0], make(p, 0), None, None).memory
        assert memory.cache_bytes == expected
        done = Record.of(TABLE.rows[row], p, Status.MEASURED, memory=memory)
        assert done.bytes_a_token == expected / (2 * 150)
