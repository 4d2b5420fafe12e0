"""The lines that a choice gives to paste do what they say: they are run, and held against eager."""

import pytest
import torch
import torch.nn.functional as F

from attnbench.answer.paste import in_transformers, lines, lines_for, words_of
from tests.answer.build import problem
from tests.impls.small import inputs, softmax


@pytest.mark.parametrize("variant", ["sdpa", "sdpa.math", "chunked?block=8"])
def test_what_is_pasted_computes_the_problem(variant):
    for more in ({}, {"kv_heads": 2}, {"phase": "decode"}, {"mask": "window:5,0"}, {"q_len": 7}):
        p = problem(24, **more)
        names = dict(zip("qkv", inputs(p), strict=True))
        want = softmax(p, *names.values(), torch.from_numpy(p.mask.visible(p.shape)))
        exec("\n".join(lines(variant, p)), names)
        assert torch.allclose(names["out"], want, atol=1e-5), more


def test_a_problem_is_said_whole():
    for p, words in (
        (problem(24), "24 --batch 1 --heads 4 --head-dim 64 --dtype float32 --mask causal --phase "
         "forward --device cpu"),
        (problem(24, phase="decode", heads=6, kv_heads=2, v_head_dim=32, inputs="peaky"),
         "24 --batch 1 --heads 6 --kv-heads 2 --head-dim 64 --v-head-dim 32 --dtype float32 --mask "
         "causal --phase decode --inputs peaky --device cpu"),
        (problem(24, q_len=7, batch=3), "7x24 --batch 3 --heads 4 --head-dim 64 --dtype float32 "
         "--mask causal --phase forward --device cpu"),
    ):  # fmt: skip
        assert " ".join(words_of(p)) == f"--seq {words}"


def test_torch_s_own_function_is_called_by_its_own_name_where_that_says_all():
    own = "out = F.scaled_dot_product_attention(q, k, v, is_causal=True)"
    assert lines("sdpa", problem(24))[-1] == own
    assert "attnbench" in lines("sdpa", problem(24, mask="window:5,0"))[0]
    assert "attnbench" in lines("sdpa", problem(24, q_len=7))[0]  # its causal is upper-left there
    assert F.scaled_dot_product_attention.__name__ in lines("sdpa.flash", problem(24))[-1]


@pytest.mark.parametrize("variant", ["sdpa.flash", "chunked?block=8"])
def test_a_model_of_transformers_takes_what_is_pasted(variant):
    small = pytest.importorskip("tests.models.transformers.small")
    model = small.made("llama")
    question = small.asked(model)
    expected = small.logits(model, question)
    exec("\n".join(in_transformers(variant)), {"model": model})
    assert variant.split("?")[0].replace("flash", "FLASH") in model.config._attn_implementation
    assert torch.allclose(small.logits(model, question), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("variant", "masks", "ends"),
    [
        ("sdpa", ("causal", "causal"), ["is_causal=True)"]),
        ("sdpa", ("window:64,0", "causal"), ["mask=mask)", '# mask: "window:64,0" or "causal"']),
        ("chunked", ("none", "causal"), ["mask=mask)", '# mask: "none" or "causal"']),
    ],
)
def test_a_line_for_several_problems_is_right_for_each(variant, masks, ends):
    problems = [problem(128, mask=mask) for mask in masks]
    found = lines_for(variant, problems)[-len(ends) :]
    assert all(map(str.endswith, found, ends))
