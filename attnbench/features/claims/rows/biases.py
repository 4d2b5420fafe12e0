"""The key bias of nn.MultiheadAttention: what it changes, what it costs, what is left without."""

from __future__ import annotations

from attnbench.features.claims.claim import Claim, ClaimPoint, ClaimRule, ClaimSource, Needs

NOTEBOOK = ClaimSource(
    "Overparametrisation of torch.nn.MultiheadAttention",
    "not named; of jmandreoli/PYTOOLS",
    "notebook, read as text; it leads to github.com/jmandreoli/PYTOOLS",
    "all cells, with outputs",
)
_CODE = "attnbench.features.claims.measured"
_ROUNDING = (
    "theirs is of one draw, whose scale is drawn too, so thirty times as much rounding is allowed"
)
_LAYER = "embed_dim 12, 4 heads, batch 64, 80 queries, 100 keys, parameters drawn at scale 10"


def _moves(name: str, says: str, published: float) -> ClaimPoint:
    return ClaimPoint(name, says, ClaimRule.AT_LEAST, published, 0.99)


def _stays(name: str, says: str) -> ClaimPoint:
    return ClaimPoint(name, says, ClaimRule.AT_MOST, 0.00092, 29.0)


def _nought(name: str, says: str, tolerance: float) -> ClaimPoint:
    return ClaimPoint(name, says, ClaimRule.WITHIN, 0.0, tolerance, ours=True)


def _cost(
    name: str, says: str, phase: str, tokens: int, keys: int, batch: int, heads: int, head_dim: int
) -> ClaimPoint:
    problem = {
        "batch": batch,
        "heads": heads,
        "kv_heads": heads,
        "q_len": tokens,
        "kv_len": keys,
        "head_dim": head_dim,
        "v_head_dim": head_dim,
        "phase": phase,
        "level": "layer",
        "mask": "none",
    }
    cell = {"judged": "mha?key_bias=false", "against": "mha", "problem": problem}
    return ClaimPoint(
        name, says, ClaimRule.AT_MOST, 0.01, 0.0, "of the layer's time", ours=True, cell=cell
    )


ROWS = [
    Claim(
        "key-bias",
        "Changing the key bias does not change the result of nn.MultiheadAttention, for softmax is "
        "invariant to an added constant; changing the other two does. Its gradient is null.",
        NOTEBOOK,
        f"{_LAYER}, and with kdim 17 and vdim 19. Each bias is drawn twice, the rest standing "
        "still: the largest change of the output, median of 21 draws. What must move moves by a "
        f"hundredth of what theirs did at the least; {_ROUNDING}. In float64 rounding is smaller "
        "by half a billion: ours are the limits there.",
        (
            _moves("query", "the output moves with the query's bias", 20.0),
            _moves("value", "the output moves with the value's bias", 6.3),
            _stays("key", "with the key's bias only rounding moves"),
            _nought("key float64", "in float64 that is nought", 1e-10),
            ClaimPoint(
                "rounding",
                "float32's change over float64's: rounding, and nothing else",
                ClaimRule.AT_LEAST,
                1e6,
                ours=True,
            ),
            _moves("query kdim", "other widths: the output moves with the query's bias", 20.0),
            _moves("value kdim", "other widths: it moves with the value's bias", 6.3),
            _nought("key float64 kdim", "other widths, key's bias, float64: nought", 1e-10),
            _nought("key float64 calm", "parameters at scale 0.1, softmax unsaturated", 1e-12),
            _nought(
                "gradient float64 at 10", "the key bias's largest gradient over the others'", 1e-10
            ),
            _nought("gradient float64 at 0.1", "the same where the softmax is unsaturated", 1e-10),
        ),
        f"{_CODE}.key_bias:measure",
    ),
    Claim(
        "key-bias-cost",
        "Some time is spent at each iteration on the key bias, forward on a parameter that changes "
        "nothing and backward on null gradients: probably negligible.",
        NOTEBOOK,
        "The source gives no figure: negligible is a hundredth of the layer's time or less, and "
        "that threshold is ours. mha against mha?key_bias=false in pairs: the notebook's layer "
        "(heads of 3, 80 queries, 100 keys, batch 64) and one of 8 heads of 64 on 128 tokens; the "
        "share of time that leaving the bias out saves, with its 99 % interval. Without it, zeros "
        "stand in the projection's bias.",
        (
            _cost("small forward", "the notebook's layer, forward", "forward", 80, 100, 64, 4, 3),
            _cost(
                "small train",
                "the notebook's layer, forward and backward",
                "train",
                80,
                100,
                64,
                4,
                3,
            ),
            _cost("512 wide forward", "128 tokens of 512, forward", "forward", 128, 128, 1, 8, 64),
            _cost("512 wide train", "128 tokens of 512, both", "train", 128, 128, 1, 8, 64),
        ),
        f"{_CODE}.pairs:measure_saving",
        Needs(variants=("mha",)),
        minutes=1.2,
        timed=True,
    ),
    Claim(
        "no-key-bias",
        "Multi-head attention without a key bias, converted from torch's, is equivalent to it "
        "forward and backward, up to numerical instability.",
        NOTEBOOK,
        f"{_LAYER}, and with other widths of keys and values; impls.layers.attention.from_torch "
        "without the key bias against nn.MultiheadAttention, median of 11 draws. The largest "
        f"difference of the output; {_ROUNDING}. Gradients depend on the upstream gradient, which "
        "the text does not show, so theirs are held by float64 alone: the worst parameter, "
        "relative to its own norm; the limits are ours.",
        (
            ClaimPoint("forward", "the output, float32", ClaimRule.AT_MOST, 0.023, 29.0),
            _nought("forward float64", "the output, float64, relative", 1e-12),
            _nought("backward float64", "the worst parameter's gradient, float64, relative", 1e-9),
            ClaimPoint(
                "forward kdim", "other widths: the output, float32", ClaimRule.AT_MOST, 0.023, 29.0
            ),
            _nought("forward float64 kdim", "other widths: the output, float64", 1e-12),
            _nought("backward float64 kdim", "other widths: the worst gradient, float64", 1e-9),
        ),
        f"{_CODE}.converted:measure",
    ),
]
