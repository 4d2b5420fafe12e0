"""A light look: figures where what was computed is right, a sentence where it isn't."""

import numpy as np
import pytest

from attnbench.core.device import Device
from attnbench.core.record import Status
from attnbench.core.wire import Job, plain
from attnbench.meter import probe as probing
from attnbench.meter.probe import Fresh, attention_map, few_samples, probe
from impls import table
from impls.masks import Mask

DEFINED = """
from impls.linear.elu import build as fast, definition as defined

def build(problem):
    return {attend}

def definition(problem):
    return defined(problem, chunk=64)
"""


def look(cells, code, problem=None, max_time_s=30.0, expected=None, **more):
    row = cells.variant(code, **more)
    return probe(Job(row, problem or cells.problem(q_len=200, kv_len=200)), max_time_s, expected)


LONGER = """
def build(problem):
    inner, kept = right(problem), []
    def attend(q, k, v):
        out = inner(q, k, v)
        {deed}
        return out
    return attend
"""


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("out = out.clone(); out[:, :, 127] = 0", "error of forward"),
        ("out = out.clone(); out[0, 1, 3, 0] = float('nan')", "not finite in the output"),
        ("torch.set_num_threads(2)", "left changed"),
        ("kept.append(out); out = kept[0].clone()", "error of forward"),  # of the first values
        ("out = (q @ k.mT * problem.scale).softmax(-1) @ v", "error of forward"),  # no mask
        ("out = out * (1 - torch.autograd._profiler_enabled())", "error of forward"),
        ("q = q.detach(); out = inner(q, k, v)", "dq"),
    ],
)
def test_what_goes_wrong_has_a_sentence_and_no_figures(cells, deed, said):
    phase = "train" if said == "dq" else "forward"
    problem = cells.problem(q_len=200, kv_len=200, mask=Mask.parse("causal"), phase=phase)
    found = look(cells, LONGER.format(deed=deed), problem)
    assert found.status is Status.WRONG
    assert said in found.reason
    assert found.time_s is None and found.peak_bytes is None and not found.samples_s


def test_another_operator_is_held_against_its_own_definition(cells):
    given = {"computes": "its own operator", "definition": True}
    right = look(cells, DEFINED.format(attend="fast(problem, chunk=64)"), **given)
    assert (right.status, right.rows) == (Status.MEASURED, probing.ROWS)
    assert right.time_s == np.median(right.samples_s) > 0 and right.peak_bytes > 0
    code = DEFINED.format(attend="lambda q, k, v: fast(problem, chunk=64)(q * 1.01, k, v)")
    assert look(cells, code, **given).status is Status.WRONG


def test_a_call_over_the_time_is_not_observed_but_is_judged(cells):
    slow = LONGER.format(deed="import time; time.sleep(0.02)")
    found = look(cells, slow, max_time_s=0.005)
    assert found.status is Status.MEASURED and found.time_s > 0.02
    assert found.peak_bytes is None and found.rows == probing.ROWS
    both = LONGER.format(deed="import time; time.sleep(0.02); out = out * 2")
    assert look(cells, both, max_time_s=0.005).status is Status.WRONG


def test_as_many_calls_as_it_takes_to_tell(cells, scripted):
    fresh = Fresh(cells.problem(), lambda q, k, v: q * 1, probing.make(cells.problem(), 0))
    for readings in ([2.0, 2.0], [0.5, 0.5], [0.95, 1.05, 0.9], [0.5, 2.0, 0.6], [0.01] * 5):
        assert few_samples(scripted(readings + [9.0] * 5, 0.0), fresh, 1.0) == readings


def test_what_does_not_fit_what_is_free_is_refused_and_not_run(cells, monkeypatch):
    monkeypatch.setattr(Device, "free_bytes", lambda self: 10**9)
    code = "def build(problem):\n    raise AssertionError('it was built')"
    found = look(cells, code, expected=2 * 10**9)  # bytes, which are 1.9 GiB
    assert found.status is Status.OUT_OF_MEMORY
    assert found.reason.startswith("predicted, not run: it needs 1.86 GiB")
    assert look(cells, code, expected=10**6).status is Status.FAILED
    alone = probing.room(cells.problem(q_len=200, kv_len=200), exact=True)
    monkeypatch.setattr(Device, "free_bytes", lambda self: 2 * alone)
    own = {"computes": "its own operator", "definition": True}
    assert look(cells, code, **own).reason.startswith("predicted, not run: checking it needs")


@pytest.mark.parametrize(
    ("deed", "gone", "swaps", "spoiled"),
    [
        ("pass", False, [], False),
        ("out = out * 2", False, [], True),
        ("pass", True, [], True),
        ("pass", False, ["aten::_flash_attention_forward"], True),
    ],
)
def test_a_worker_is_not_used_again_after_what_may_have_spoiled_it(
    cells, monkeypatch, deed, gone, swaps, spoiled
):
    monkeypatch.setattr(Device, "works", lambda self, gone=gone: not gone)
    job = Job(cells.variant(LONGER.format(deed=deed), swaps=swaps), cells.problem())
    answer = probing.answer({"probe": plain(job), "max_time_s": 1.0, "expected": None})
    assert answer["spoiled"] is spoiled
    assert answer["probe"]["status"] == ("wrong" if "2" in deed else "measured")


def test_the_map_is_the_softmax_of_the_scaled_products(cells):
    for name, words, width, mask in (("einsum", 5, 8, "none"), ("sdpa.flash", 11, 4, "causal")):
        x = np.random.default_rng(0).standard_normal((words, width))
        sizes = {"q_len": words, "kv_len": words, "head_dim": width, "v_head_dim": width}
        problem = cells.problem(heads=1, kv_heads=1, mask=Mask.parse(mask), **sizes)
        scores = x @ x.T / np.sqrt(width)
        if mask == "causal":
            scores[np.triu_indices(words, 1)] = -np.inf
        want = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        got = np.array(attention_map(table().find(name), problem, x.tolist()))
        np.testing.assert_allclose(got, want, atol=1e-6)
