"""The claim that padding is scored 0, by a planted backend that does so and one that does not."""

import pytest

from attnbench.features.claims import padding
from attnbench.features.claims.claim import ClaimOutcome, ClaimRequest, ClaimVerdict, find
from attnbench.gate.plant_code import build_padding
from impls.dense.matmul import build as honest
from impls.masks import Mask
from impls.problem import Problem


@pytest.mark.parametrize("faulty", [True, False])
def test_the_claim_holds_of_a_backend_that_scores_its_padding_0_and_of_no_other(
    monkeypatch, faulty
):
    def sdpa(backend, form, length):
        sizes = {"heads": 1, "kv_heads": 1, "q_len": length, "kv_len": length}
        planted = faulty and (backend.name, form) == ("CUDNN_ATTENTION", padding.MASKED)
        return (build_padding if planted else honest)(Problem(**sizes, mask=Mask()))

    for name, value in {"sdpa": sdpa, "DEVICE": "cpu", "DTYPE": "float32"}.items():
        monkeypatch.setattr(padding, name, value)
    (claim,) = find(["cudnn-padding"])
    outcome = ClaimOutcome.of(claim, padding.measure_padding(ClaimRequest()))
    wanted = ClaimVerdict.REPRODUCED if faulty else ClaimVerdict.NOT_REPRODUCED
    assert outcome.verdict is wanted, outcome.reason
    assert faulty or "does not hold (4 of 9 points): dq cudnn a mask 64" in outcome.reason


def test_torchs_own_form_of_each_call_is_causal(monkeypatch):
    """By the math backend, on a CPU: what is asked of cuDNN is asked as it should be."""
    monkeypatch.setattr(padding, "DEVICE", "cpu")
    monkeypatch.setattr(padding, "DTYPE", "float32")
    for form in (padding.MASKED, padding.CAUSAL):
        attend = padding.sdpa(padding.SDPBackend.MATH, form, 64)
        assert set(padding.not_finite(attend, 64, 0).values()) == {0.0}
