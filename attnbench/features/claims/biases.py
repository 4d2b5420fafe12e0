"""The key bias of nn.MultiheadAttention: what it changes, what it costs, what is left without.

All parameters are drawn anew: a random number times uniform ones. To see whether a bias matters it
is drawn twice, the rest standing still, and the outputs are compared. What is mere rounding in
float32 is smaller by half a billion in float64. Then torch's layer is carried over to ours without
a key bias, and both get the same inputs and the same upstream gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attnbench.features.claims.claim import (
    AT_LEAST,
    AT_MOST,
    WITHIN,
    Cells,
    Claim,
    ClaimFigure,
    ClaimFindings,
    ClaimPoint,
    ClaimRequest,
    ClaimSource,
    ClaimTable,
    Needs,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

WIDTH, HEADS, BATCH, KEYS, QUERIES = 12, 4, 64, 100, 80
OTHER_WIDTHS = {"kdim": 17, "vdim": 19}
SCALES = (10.0, 0.1)
"""Of parameters: the source's, and one at which the softmax is far from saturated."""
DRAWS, CONVERSIONS = 21, 11
BIASES = ("query", "key", "value")
DTYPES = {"": "float32", " float64": "float64"}

NOTEBOOK = ClaimSource(
    "Overparametrisation of torch.nn.MultiheadAttention",
    "not named; of jmandreoli/PYTOOLS",
    "notebook, read as text; it leads to github.com/jmandreoli/PYTOOLS",
    "all cells, with outputs",
)
_ROUNDING = (
    "theirs is of one draw, whose scale is drawn too, so thirty times as much rounding is allowed"
)
_LAYER = "embed_dim 12, 4 heads, batch 64, 80 queries, 100 keys, parameters drawn at scale 10"


def _moves(name: str, says: str, published: float) -> ClaimPoint:
    return ClaimPoint(name, says, AT_LEAST, published, 0.99)


def _zero(name: str, says: str, tolerance: float) -> ClaimPoint:
    return ClaimPoint(name, says, WITHIN, 0.0, tolerance, ours=True)


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
    return ClaimPoint(name, says, AT_MOST, 0.01, unit="of the layer's time", ours=True, cell=cell)


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
            ClaimPoint("key", "with the key's bias only rounding moves", AT_MOST, 0.00092, 29.0),
            _zero("key float64", "in float64 that is nought", 1e-10),
            ClaimPoint(
                "rounding",
                "float32's change over float64's: rounding, and nothing else",
                AT_LEAST,
                1e6,
                ours=True,
            ),
            _moves("query kdim", "other widths: the output moves with the query's bias", 20.0),
            _moves("value kdim", "other widths: it moves with the value's bias", 6.3),
            _zero("key float64 kdim", "other widths, key's bias, float64: nought", 1e-10),
            _zero("key float64 calm", "parameters at scale 0.1, softmax unsaturated", 1e-12),
            _zero(
                "gradient float64 at 10", "the key bias's largest gradient over the others'", 1e-10
            ),
            _zero("gradient float64 at 0.1", "the same where the softmax is unsaturated", 1e-10),
        ),
        f"{__name__}:measure_biases",
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
        "attnbench.features.claims.timing:measure_saving",
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
            ClaimPoint("forward", "the output, float32", AT_MOST, 0.023, 29.0),
            _zero("forward float64", "the output, float64, relative", 1e-12),
            _zero("backward float64", "the worst parameter's gradient, float64, relative", 1e-9),
            ClaimPoint("forward kdim", "other widths: the output, float32", AT_MOST, 0.023, 29.0),
            _zero("forward float64 kdim", "other widths: the output, float64", 1e-12),
            _zero("backward float64 kdim", "other widths: the worst gradient, float64", 1e-9),
        ),
        f"{__name__}:measure_conversion",
    ),
]


def layer(
    seed: int, dtype: str, scale: float, widths: Mapping[str, int]
) -> tuple[nn.MultiheadAttention, list[Tensor], torch.Generator]:
    """torch's layer with drawn parameters, and inputs: queries, keys, values."""
    import torch

    kind: torch.dtype = getattr(torch, dtype)
    chance = torch.Generator().manual_seed(seed)
    module = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, dtype=kind, **widths)
    _randomise(list(module.parameters()), scale, chance)
    shapes = [(QUERIES, WIDTH), (KEYS, module.kdim), (KEYS, module.vdim)]
    inputs = [
        torch.rand(BATCH, *shape, generator=chance, dtype=torch.float64).to(kind)
        for shape in shapes
    ]
    return module, inputs, chance


def _randomise(parameters: Sequence[Tensor], scale: float, chance: torch.Generator) -> None:
    """Make each a random number times uniform ones."""
    import torch

    for x in parameters:
        drawn = torch.rand(x.shape, generator=chance, dtype=torch.float64)
        x.data.copy_(scale * torch.rand(1, generator=chance, dtype=torch.float64) * drawn)


def measure_biases(request: ClaimRequest) -> ClaimFindings:
    """By how much the output moves with each bias; of the keys' bias, its gradient too."""
    figures: dict[str, ClaimFigure] = {}
    rows: list[Cells] = []
    seeds = range(request.seed, request.seed + DRAWS)
    for word, dtype in DTYPES.items():
        moved = _by_bias([_moved(seed, dtype, SCALES[0], OTHER_WIDTHS) for seed in seeds])
        figures |= {f"{bias}{word} kdim": each for bias, each in moved.items()}
        for scale in SCALES:
            moved = _by_bias([_moved(seed, dtype, scale, {}) for seed in seeds])
            learnt = [_gradients(seed, dtype, scale) for seed in seeds]
            medians = [ClaimFigure.median(some).value for some in zip(*learnt, strict=True)]
            rows.append([f"{scale:g}", dtype, *(each.value for each in moved.values()), *medians])
            place = "" if scale == SCALES[0] else " calm"
            figures |= {f"{bias}{word}{place}": each for bias, each in moved.items()}
            figures[f"gradient{word} at {scale:g}"] = ClaimFigure.median(
                [key / max(query, value) for query, key, value, _ in learnt]
            )
    exact, rounded = figures["key float64"].value, figures["key"].value
    assert exact is not None and rounded is not None
    figures["rounding"] = ClaimFigure(rounded / max(exact, 1e-300))
    moves = [f"{bias}: output moves" for bias in BIASES]
    gradients = [f"{bias}: gradient" for bias in BIASES]
    columns = ["scale", "dtype", *moves, *gradients, "entropy"]
    note = (
        "entropy is that of the attention, averaged over heads, as a share of uniform weights': "
        "near 0 the softmax is saturated"
    )
    return ClaimFindings(figures, [note], [ClaimTable(f"medians of {DRAWS} draws", columns, rows)])


def _by_bias(moved: Sequence[Sequence[float]]) -> dict[str, ClaimFigure]:
    """By bias, the median of some draws."""
    return dict(zip(BIASES, map(ClaimFigure.median, zip(*moved, strict=True)), strict=True))


def _moved(seed: int, dtype: str, scale: float, widths: Mapping[str, int]) -> list[float]:
    """The largest change of the output as each bias in turn is drawn twice."""
    import torch

    module, inputs, chance = layer(seed, dtype, scale, widths)
    moved = []
    with torch.no_grad():
        for bias in module.in_proj_bias.data.chunk(3):
            _randomise([bias], scale, chance)
            before = module(*inputs)[0]
            _randomise([bias], scale, chance)
            moved.append(float((module(*inputs)[0] - before).abs().max()))
    return moved


def _gradients(seed: int, dtype: str, scale: float) -> list[float]:
    """The largest gradient in each bias, and the entropy of the attention."""
    import torch

    module, inputs, chance = layer(seed, dtype, scale, {})
    out, weights = module(*inputs)
    towards = torch.randn(out.shape, generator=chance, dtype=torch.float64).to(out.dtype)
    (out * towards).sum().backward()
    assert module.in_proj_bias.grad is not None
    largest = [float(g.abs().max()) for g in module.in_proj_bias.grad.chunk(3)]
    return [*largest, entropy(weights)]


def entropy(weights: Tensor) -> float:
    """The mean entropy of the rows, as a share of that of uniform weights."""
    import torch

    p = weights.detach().double()
    each = -torch.special.xlogy(p, p).sum(-1)
    return float(each.mean() / torch.log(torch.tensor(float(p.shape[-1]))))


def measure_conversion(request: ClaimRequest) -> ClaimFindings:
    """The output and the gradient of each parameter by its name, in both dtypes."""
    figures: dict[str, ClaimFigure] = {}
    tables = []
    for kind, widths in (("", {}), (" kdim", OTHER_WIDTHS)):
        rows: dict[str, Cells] = {}
        for word, dtype in DTYPES.items():
            seeds = range(request.seed, request.seed + CONVERSIONS)
            draws = [_differences(seed, dtype, widths) for seed in seeds]
            for name in draws[0]:
                absolute, relative = (
                    ClaimFigure.median(some)
                    for some in zip(*(draw[name] for draw in draws), strict=True)
                )
                rows.setdefault(name, [name]).extend([absolute.value, relative.value])
                if name == "forward":
                    figures["forward" + word + kind] = relative if word else absolute
            worst = [max(r for name, (_, r) in d.items() if name != "forward") for d in draws]
            figures["backward" + word + kind] = ClaimFigure.median(worst)
        columns = ["of"]
        for dtype in DTYPES.values():
            columns += [f"{dtype}: largest difference", "relative"]
        other = ", other widths of keys and values" if kind else ""
        title = f"without a key bias against torch{other}: medians of {CONVERSIONS} draws"
        tables.append(ClaimTable(title, columns, list(rows.values())))
    return ClaimFindings(figures, (), tables)


def _differences(
    seed: int, dtype: str, widths: Mapping[str, int]
) -> dict[str, tuple[float, float]]:
    """By name, the largest difference and the relative one: of the output, then of gradients."""
    import torch

    from impls.layers.attention import from_torch, torch_parameters

    theirs, inputs, chance = layer(seed, dtype, SCALES[0], widths)
    ours = from_torch(theirs, key_bias=False)
    out, of_torch = ours(*inputs), theirs(*inputs)[0]
    towards = torch.randn(out.shape, generator=chance, dtype=torch.float64).to(out.dtype)
    for each in (out, of_torch):
        (each * towards).sum().backward()
    found = {"forward": _apart(out, of_torch)}
    gradients = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    named = torch_parameters(ours, gradients)
    for name, parameter in ours.named_parameters():
        assert parameter.grad is not None
        found[name] = _apart(parameter.grad, named[name])
    return found


def _apart(a: Tensor, b: Tensor) -> tuple[float, float]:
    """The largest difference, and the norm of the difference over that of the second."""
    a, b = a.detach().double(), b.detach().double()
    norm = float(b.norm())
    return float((a - b).abs().max()), float((a - b).norm()) / (norm or 1.0)
