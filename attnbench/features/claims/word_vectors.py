"""Self-attention of word vectors without projections: by the formula, and by torch's layer.

    weights = softmax(x x^T d^-1/2)      out = weights x

A notebook prints vectors, cosines and attention tables of ``I must go back to my ship and to my
crew`` and ``We process and ship your order``, with the 50 numbers a word of glove.6B.50d: two
digits where it prints tables, four where it prints tensors. With a file of GloVe's vectors these
figures are held against our own. Without one they are held against each other: the word's own
vector, its row of weights and the cosines are enough to compute all scores of the first sentence,
so its whole table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attnbench.features.claims.claim import (
    ClaimFigure,
    ClaimFindings,
    ClaimMap,
    ClaimRequest,
    ClaimTable,
)
from attnbench.features.show.maps import tokens_of, vectors_of
from impls import table
from impls.asked import CantBeDone
from impls.loading import load_function
from impls.problem import Problem

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]

ODYSSEY = "I must go back to my ship and to my crew"
AMAZON = "We process and ship your order"
SHIP = {ODYSSEY: 6, AMAZON: 3}
"""The place of the word that is looked at."""


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split())


def _rows(text: str) -> tuple[tuple[float, ...], ...]:
    return tuple(_numbers(line) for line in text.strip().splitlines())


SHIP_VECTOR = _numbers("""
    1.5213 0.1052 0.3816 -0.5080 0.0324 -0.1348 -1.2474 0.7981 0.8469 -1.1010
    0.8874 1.3749 0.4293 0.6572 -0.2636 -0.4176 -0.4885 0.9106 -1.7158 -0.4380
    0.7839 0.1964 -0.4066 -0.5397 0.8244 -1.7434 0.1428 0.2804 1.1688 0.1690
    2.2271 -0.5827 -0.4572 0.6281 0.5444 0.2846 0.4448 -0.5534 -0.3649 -0.0164
    0.4088 -0.8715 1.5513 -0.8070 -0.1004 -0.2846 -0.3322 -0.5061 0.4827 -0.6620
""")
SHIP_COSINES = _numbers("""
    0.3466 0.4178 0.4068 0.4853 0.5401 0.3791 1.0000 0.4586 0.5401 0.3791 0.7848
""")
COSINES = _rows("""
    1.00 0.75 0.86 0.76 0.73 0.90 0.35 0.65 0.73 0.90 0.42
    0.75 1.00 0.85 0.68 0.87 0.69 0.42 0.69 0.87 0.69 0.45
    0.86 0.85 1.00 0.84 0.84 0.81 0.41 0.68 0.84 0.81 0.49
    0.76 0.68 0.84 1.00 0.83 0.76 0.49 0.77 0.83 0.76 0.51
    0.73 0.87 0.84 0.83 1.00 0.68 0.54 0.86 1.00 0.68 0.51
    0.90 0.69 0.81 0.76 0.68 1.00 0.38 0.63 0.68 1.00 0.44
    0.35 0.42 0.41 0.49 0.54 0.38 1.00 0.46 0.54 0.38 0.78
    0.65 0.69 0.68 0.77 0.86 0.63 0.46 1.00 0.86 0.63 0.49
    0.73 0.87 0.84 0.83 1.00 0.68 0.54 0.86 1.00 0.68 0.51
    0.90 0.69 0.81 0.76 0.68 1.00 0.38 0.63 0.68 1.00 0.44
    0.42 0.45 0.49 0.51 0.51 0.44 0.78 0.49 0.51 0.44 1.00
""")
"""Of the words of the first sentence with each other."""
BY_COSINES = _numbers("""
    3.2319e+00 6.4082e-01 1.4718e+00 -2.3434e+00 2.2358e+00 -4.1877e-01 -4.1002e+00 2.6211e+00
    1.8010e-01 -2.4360e+00 1.3923e+00 3.7188e+00 -1.9603e+00 1.1980e+00 2.2394e+00 9.3763e-01
    -7.7049e-01 1.0349e+00 -3.0615e+00 -3.6259e+00 8.3401e-01 2.9281e+00 1.3165e+00 -7.1303e-01
    2.9667e+00 -1.0567e+01 -1.3099e+00 2.0283e-01 3.5362e+00 -2.7571e+00 1.8220e+01 2.4698e+00
    -3.5804e+00 3.2604e-01 1.2760e+00 6.5701e-01 1.5889e+00 1.1571e-02 7.6620e-01 -1.4560e+00
    -2.0362e-01 -1.2484e+00 2.1550e+00 -1.8767e-01 -5.0253e-01 -2.9128e-01 -5.1006e-01 -1.9596e+00
    -5.8853e-02 -6.7380e-01
""")
"""The word's new vector in the first sentence: all of them, weighted by cosines."""
WEIGHTS = {
    ODYSSEY: _rows("""
    0.36 0.05 0.07 0.05 0.04 0.19 0.01 0.02 0.04 0.19 0.01
    0.14 0.20 0.10 0.06 0.11 0.10 0.03 0.05 0.11 0.10 0.02
    0.18 0.09 0.14 0.09 0.08 0.13 0.02 0.04 0.08 0.13 0.02
    0.14 0.05 0.09 0.19 0.08 0.12 0.03 0.06 0.08 0.12 0.03
    0.11 0.11 0.09 0.09 0.15 0.08 0.04 0.07 0.15 0.08 0.03
    0.19 0.03 0.05 0.04 0.03 0.29 0.01 0.02 0.03 0.29 0.01
    0.03 0.03 0.03 0.04 0.05 0.03 0.55 0.03 0.05 0.03 0.13
    0.10 0.08 0.07 0.10 0.12 0.09 0.04 0.15 0.12 0.09 0.04
    0.11 0.11 0.09 0.09 0.15 0.08 0.04 0.07 0.15 0.08 0.03
    0.19 0.03 0.05 0.04 0.03 0.29 0.01 0.02 0.03 0.29 0.01
    0.06 0.05 0.05 0.06 0.05 0.06 0.21 0.04 0.05 0.06 0.31
    """),
    AMAZON: _rows("""
    0.61 0.06 0.06 0.02 0.20 0.05
    0.17 0.50 0.08 0.03 0.11 0.11
    0.22 0.12 0.30 0.08 0.15 0.13
    0.04 0.03 0.04 0.78 0.05 0.06
    0.14 0.03 0.03 0.02 0.74 0.04
    0.16 0.13 0.10 0.09 0.18 0.34
    """),
}
"""Attention tables: each row is a word that looks at the others."""
SHIP_WEIGHTS = {
    ODYSSEY: _numbers("""
    0.0303 0.0302 0.0276 0.0407 0.0459 0.0343 0.5530 0.0297 0.0459 0.0343 0.1281
    """),
    AMAZON: _numbers("0.0431 0.0258 0.0419 0.7811 0.0490 0.0590"),
}
BY_ATTENTION = {
    ODYSSEY: _numbers("""
    1.0387 0.1033 0.3426 -0.4320 0.2237 -0.0958 -0.9926 0.6662 0.4424 -0.7942
    0.5638 0.9921 0.0205 0.5082 0.0743 -0.1773 -0.3408 0.5675 -1.1545 -0.5718
    0.4288 0.4191 -0.0658 -0.3339 0.6682 -1.7473 -0.0485 0.1531 0.8642 -0.1447
    2.6571 -0.0545 -0.5343 0.3160 0.4041 0.2277 0.3958 -0.2916 -0.1126 -0.1385
    0.1744 -0.5375 0.9499 -0.4145 -0.1039 -0.1755 -0.2213 -0.3995 0.2119 -0.3610
    """),
    AMAZON: _numbers("""
    1.2758 0.1034 0.2720 -0.4776 0.1746 -0.1060 -0.9901 0.6328 0.6967 -0.8847
    0.7106 1.2264 0.2491 0.5023 -0.1277 -0.2361 -0.3709 0.6545 -1.2587 -0.5332
    0.6681 0.1687 -0.2567 -0.4218 0.6960 -1.7077 -0.0052 0.1572 1.0763 0.0410
    2.5467 -0.3418 -0.5414 0.4175 0.4147 0.2666 0.3770 -0.4228 -0.2462 -0.0377
    0.3202 -0.7298 1.2020 -0.5636 -0.0899 -0.1845 -0.2390 -0.4307 0.3828 -0.4905
    """),
}
"""The word's new vector in either sentence, by attention."""
SMALL_INPUT = ((1.0, 0.0, 0.0, 1.0), (0.0, 1.5, 1.0, 1.0), (0.0, 1.0, 1.0, 1.0))
SMALL_OUTPUT = (
    (0.4519, 0.6852, 0.5481, 1.0000),
    (0.1045, 1.1609, 0.8955, 1.0000),
    (0.1387, 1.1034, 0.8613, 1.0000),
)
SMALL_WEIGHTS = ((0.4519, 0.2741, 0.2741), (0.1045, 0.5307, 0.3648), (0.1387, 0.4842, 0.3771))
"""Three words of four numbers."""

SENTENCES = {"odyssey": ODYSSEY, "amazon": AMAZON}


def plain(x: Array) -> tuple[Array, Array]:
    """The output and the weights, in float64."""
    scores = x @ x.T / np.sqrt(x.shape[-1])
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return weights @ x, weights


def by_torch(x: Array, dtype: str, *, identity: bool = True) -> tuple[Array, Array]:
    """nn.MultiheadAttention with one head; its projections the identity, or as it begins."""
    import torch

    kind: torch.dtype = getattr(torch, dtype)
    width = x.shape[-1]
    module = torch.nn.MultiheadAttention(width, 1, bias=False, batch_first=True, dtype=kind)
    if identity:
        with torch.no_grad():
            module.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
            module.out_proj.weight.copy_(torch.eye(width))
    tensor = torch.from_numpy(np.asarray(x)).to(kind)[None]
    with torch.no_grad():
        out, weights = module(tensor, tensor, tensor)
    return out[0].double().numpy(), weights[0].double().numpy()


def measure_small(request: ClaimRequest) -> ClaimFindings:
    """Three words of four numbers: the formula, and the row ``matmul`` of the table."""
    import torch

    x = np.array(SMALL_INPUT)
    out, weights = plain(x)
    n, width = x.shape
    problem = Problem(heads=1, kv_heads=1, q_len=n, kv_len=n, head_dim=width, v_head_dim=width)
    row = table().find("matmul")
    tensor = torch.tensor(SMALL_INPUT)[None, None]
    of_row = load_function(row.build)(problem, **row.chosen)(tensor, tensor, tensor)[0, 0]
    figures = {
        "weights": _largest(weights, SMALL_WEIGHTS),
        "output": _largest(out, SMALL_OUTPUT),
        "row": _largest(of_row.numpy(), SMALL_OUTPUT),
    }
    return ClaimFindings(figures, (), [_table("weights", ["1", "2", "3"], weights)])


def measure_identity(request: ClaimRequest) -> ClaimFindings:
    """torch's layer with identity projections against the formula; and as it begins."""
    import torch

    torch.manual_seed(request.seed)
    out, weights = by_torch(np.array(SMALL_INPUT), "float32")
    apart: dict[str, list[float]] = {"float32": [], "float64": [], "begun": []}
    maps, tables = [], []
    whose = "hashed vectors" if request.embeddings is None else "vectors of the file given"
    for name, sentence in SENTENCES.items():
        tokens, x = _vectors(sentence, request)
        wanted = plain(x)
        for dtype in ("float32", "float64"):
            both = zip(by_torch(x, dtype), wanted, strict=True)
            apart[dtype] += [_apart(found, each) for found, each in both]
        apart["begun"].append(_apart(by_torch(x, "float64", identity=False)[1], wanted[1]))
        maps.append(ClaimMap(name, whose, tokens, np.round(wanted[1], 4).tolist()))
        tables.append(_table(f"{sentence} ({whose})", tokens, wanted[1]))
    figures = {
        "weights": _largest(weights, SMALL_WEIGHTS),
        "output": _largest(out, SMALL_OUTPUT),
        "float32": ClaimFigure(max(apart["float32"])),
        "float64": ClaimFigure(max(apart["float64"])),
        "begun": ClaimFigure(min(apart["begun"])),
    }
    return ClaimFindings(figures, (), tables, maps)


def measure_tables(request: ClaimRequest) -> ClaimFindings:
    """The printed figures against each other: no vectors are needed but the one that is printed."""
    ship, figures = np.array(SHIP_VECTOR), {}
    for name, sentence in SENTENCES.items():
        along = np.array(SHIP_WEIGHTS[sentence]) @ _products(sentence)
        figures[f"output {name}"] = _relative(along, ship @ BY_ATTENTION[sentence])
    products, row = _products(ODYSSEY), np.array(SHIP_COSINES)
    figures["by cosines"] = _relative(row @ products, ship @ BY_COSINES)
    norms = products / (row * np.linalg.norm(ship))
    place, between = SHIP[ODYSSEY], np.array(COSINES)
    between[place] = between[:, place] = row
    scores = between * np.outer(norms, norms) / np.sqrt(len(ship))
    made = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    figures["table"] = _largest(made, WEIGHTS[ODYSSEY])
    tokens = tokens_of(ODYSSEY)
    lengths = ClaimTable("lengths of the vectors, computed", tokens, [np.round(norms, 2).tolist()])
    return ClaimFindings(figures, (), [lengths, _table("the table, computed", tokens, made)])


def measure_glove(request: ClaimRequest) -> ClaimFindings:
    """Everything that is printed of the two sentences, from the vectors themselves."""
    figures: dict[str, ClaimFigure] = {}
    tables = []
    for name, sentence in SENTENCES.items():
        tokens, x = _vectors(sentence, request)
        if x.shape[-1] != len(SHIP_VECTOR):
            raise CantBeDone(
                f"the printed figures are of {len(SHIP_VECTOR)} numbers a word, and "
                f"{request.embeddings} has {x.shape[-1]}: give glove.6B.50d.txt"
            )
        out, weights = plain(x)
        place = SHIP[sentence]
        figures[f"table {name}"] = _largest(weights, WEIGHTS[sentence])
        figures[f"weights {name}"] = _largest(weights[place], SHIP_WEIGHTS[sentence])
        figures[f"output {name}"] = _largest(out[place], BY_ATTENTION[sentence])
        tables.append(_table(sentence, tokens, weights))
        if sentence == ODYSSEY:
            units = x / np.linalg.norm(x, axis=-1, keepdims=True)
            cosines = units @ units.T
            figures["vector"] = _largest(x[place], SHIP_VECTOR)
            figures["cosines"] = _largest(cosines, COSINES)
            figures["by cosines"] = _largest((cosines @ x)[place], BY_COSINES)
    return ClaimFindings(figures, (), tables)


def _vectors(sentence: str, request: ClaimRequest) -> tuple[list[str], Array]:
    tokens = tokens_of(sentence)
    return tokens, np.array(vectors_of(tokens, request.embeddings))


def _products(sentence: str) -> Array:
    """Of the word's vector with each word's, from its row of weights: by its logarithms."""
    ship, weights = np.array(SHIP_VECTOR), np.array(SHIP_WEIGHTS[sentence])
    own = weights[SHIP[sentence]]
    found: Array = ship @ ship - np.sqrt(len(ship)) * np.log(own / weights)
    return found


def _largest(ours: Array, theirs: Sequence[Any]) -> ClaimFigure:
    """The largest difference."""
    return ClaimFigure(float(np.abs(ours - np.array(theirs)).max()))


def _apart(a: Array, b: Array) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def _relative(a: Any, b: Any) -> ClaimFigure:
    return ClaimFigure(float(abs(a - b) / abs(b)))


def _table(title: str, tokens: Sequence[str], weights: Array) -> ClaimTable:
    rows = zip(tokens, np.round(weights, 2).tolist(), strict=True)
    return ClaimTable(title, ["", *tokens], [[word, *row] for word, row in rows])
