"""triton.decode, interpreted on the CPU, against float64 and the ruler's gate."""

import pytest

from tests.impls.in_triton import checks, interpreted

interpreted.start()
CELLS = [
    *(({"mask": m}, {}) for m in ("none", "causal", "causal+window:300,0", "causal@upper-left")),
    *(({"mask": m, "q_len": 3}, {}) for m in ("causal", "window:90,0", "causal@upper-left")),
    *(({}, {"splits": splits}) for splits in (1, 2, 3, 64)),
    *(
        ({"heads": heads, "kv_heads": kv_heads, "batch": 2}, {})
        for heads, kv_heads in ((4, 2), (4, 4), (40, 2))
    ),
    *(({"dtype": dtype}, {}) for dtype in ("bfloat16", "float16")),
    *(({"head_dim": width}, {}) for width in (1, 24, 80, 128, 256)),
    *(({"kv_len": length}, {}) for length in (1, 2, 63, 64, 65)),
    ({"heads": 8, "kv_heads": 1, "q_len": 11}, {}),  # more rows than a block holds
    ({"q_len": 5, "kv_len": 3}, {}),  # some see nothing
]


def problem(mask="causal", **changes):
    given = {"phase": "decode", "q_len": 1, "kv_len": 301, "head_dim": 64, **changes}
    return checks.problem(mask, **given)


@pytest.mark.parametrize(("changes", "options"), CELLS, ids=str)
def test_it_is_softmax_attention(changes, options):
    p = problem(**changes)
    checks.check(p, checks.build("triton.decode", p, **options))


def test_the_gate_lets_it_pass():
    p = problem(kv_len=130)
    assert checks.failing("triton.decode", p, checks.build("triton.decode", p)) is None
