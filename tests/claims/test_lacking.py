"""What a claim needs and is not here, from machines made up."""

from dataclasses import replace

import pytest

import impls
from attnbench.features.claims import claim as claims
from attnbench.features.claims.claim import ClaimVerdict, Needs, lacking
from tests.claims.made import BOX, GPU, WITH_GPU, claim

TABLE = impls.table()
TORCH = {"torch": "2.13.0", "numpy": "2.4"}


def of(needs, machine, embeddings=None):
    return lacking(claim(needs=needs), machine, TABLE, embeddings)


def test_another_gpu_is_other_hardware():
    one = of(Needs(gpu="H100"), WITH_GPU)
    assert one.verdict is ClaimVerdict.NEEDS_OTHER_HARDWARE
    assert "H100" in one.reason
    assert "NVIDIA H200" in one.reason
    assert one.remedy == "run it on one"


def test_none_is_other_hardware_too():
    one = of(Needs(gpu="H200"), BOX)
    assert one.verdict is ClaimVerdict.NEEDS_OTHER_HARDWARE
    assert "no NVIDIA GPU" in one.reason


def test_a_name_is_matched_as_a_word():
    near = replace(WITH_GPU, gpus=(replace(GPU, name="NVIDIA GH200 480GB"),))
    assert of(Needs(gpu="H200"), near).verdict is ClaimVerdict.NEEDS_OTHER_HARDWARE
    assert of(Needs(gpu="H200"), WITH_GPU) is None


def test_a_torch_without_cuda_is_not_other_hardware():
    one = of(Needs(gpu="H200"), replace(WITH_GPU, torch_cuda=None))
    assert one.verdict is ClaimVerdict.NOT_RUN
    assert "CUDA" in one.remedy


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        (Needs(variants=("flash_attn4",)), "flash-attn-4"),
        (Needs(requires=("torch>=99",), variants=("matmul",)), "torch>=99"),
        (Needs(embeddings=True), "--embeddings glove.6B.50d.txt"),
    ],
)
def test_what_can_be_installed_or_given_is_named_with_the_remedy(needs, said):
    one = of(needs, WITH_GPU)
    assert one.verdict is ClaimVerdict.NOT_RUN
    assert said in f"{one.reason} {one.remedy}"


def test_who_has_all_is_tried():
    assert of(Needs(embeddings=True, variants=("matmul",)), BOX, "glove.txt") is None


@pytest.mark.parametrize("name", ["h200-sdpa-flash", "h200-sdpa-cudnn", "h200-llama-cudnn"])
def test_an_h200_with_torch_can_try_what_torch_alone_can(name):
    (one,) = claims.find([name])
    assert lacking(one, WITH_GPU, TABLE, None) is None


def test_on_a_cpu_every_claim_about_a_gpu_needs_other_hardware_and_no_other_claim_does():
    for one in claims.claims():
        missing = lacking(one, BOX, TABLE, "glove.txt")
        if one.needs.gpu:
            assert missing.verdict is ClaimVerdict.NEEDS_OTHER_HARDWARE
        else:
            assert missing is None
