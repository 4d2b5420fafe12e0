"""A model's layers: who may answer for a kind, and what all layers take together."""

import pytest

import impls
from attnbench.answer.choose import Wants, choose
from attnbench.answer.layers import LayerChoice, together
from tests.answer.build import EXACT, problem, seen

TABLE = impls.table()
P = problem(1024)
OWN = "its own operator"


def answered(kind, layers, times, operator="softmax", p=P):
    computes = "softmax" if operator == "softmax" else OWN
    records = [seen(name, p, s, computes=computes, error=None) for name, s in times.items()]
    return LayerChoice(kind, layers, choose(records, p, Wants(operator=operator), TABLE))


def test_only_rows_of_the_operator_asked_for_are_chosen():
    records = [seen(n, P, s, computes=OWN, error=1.4) for n, s in (("kda", 1e-3), ("gla", 1e-3))]
    records += [seen("sdpa", P, 1e-4), seen("gated_delta", P, 5e-3, computes=OWN, error=1.4)]
    choice = choose(records, P, Wants(operator="gated_delta"), TABLE)
    assert [c.variant for c in choice.ranking.all] == ["gated_delta"]
    assert choice.sentence().startswith(f"{P} (gated_delta): use gated_delta, 5.00 ms")
    assert choice.ranking.winner.error == EXACT.relative  # to its own definition
    records.append(seen("fla.gated_delta", P, 2e-3, computes=OWN, error=1.4))
    gpu = P.with_(device="cuda", dtype="bfloat16")
    cuda = [r.with_(problem=gpu) for r in records]
    both = choose(cuda, gpu, Wants(operator="gated_delta"), TABLE)
    assert [c.variant for c in both.ranking.all] == ["fla.gated_delta", "gated_delta"]
    absent = choose(cuda[:-1], gpu, Wants(operator="gated_delta"), TABLE)
    assert [e.variant for e in absent.excluded if e.why == "not in the run"] == [
        "triton.gated_delta",
        "fla.gated_delta",
    ]
    assert choose(records, P, Wants(), TABLE).ranking.winner.variant == "sdpa"


def test_all_layers_take_each_kinds_time_as_often_as_the_model_has_it():
    times = {"sliding": {"sdpa": 3e-3, "chunked": 1e-3}, "full": {"sdpa": 2e-3, "chunked": 4e-3}}
    choices = [answered("sliding", 21, times["sliding"]), answered("full", 7, times["full"])]
    (total,) = together(choices)
    assert (total.layers, total.softmax) == (28, 28)
    assert total.best.value == pytest.approx(21 * 1e-3 + 7 * 2e-3)
    assert total.best.low < total.best.value < total.best.high
    alone = {name: t.value for name, t in total.alone.items()}
    assert alone == pytest.approx({"chunked": 21e-3 + 28e-3, "sdpa": 63e-3 + 14e-3})
    assert total.sentence() == (
        "forward, 1,024 tokens: all 28 layers take 35.0 ms [34.6, 35.4]; with sdpa in all of them "
        "77.0 ms [76.2, 77.8], 2.20× [2.16, 2.24] of that"
    )
