"""Self-attention of word vectors without projections: by the formula, and by torch's layer.

    weights = softmax(x x^T d^-1/2)      out = weights x

With a file of GloVe's vectors the printed figures are held against our own. Without one they are
held against each other: the word's own vector, its row of weights and the cosines are enough to
compute all scores of the first sentence, so its whole table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from attnbench.features.claims.claim import (
    ClaimFigure,
    ClaimFindings,
    ClaimRequest,
    ClaimTable,
    Map,
)
from attnbench.features.claims.rows import words_printed
from attnbench.features.show import maps as words
from impls import table
from impls.asked import CantBeDone
from impls.loading import load_function
from impls.problem import Problem

SENTENCES = {"odyssey": words_printed.ODYSSEY, "amazon": words_printed.AMAZON}
Array = np.ndarray[Any, Any]


def plain(x: Array) -> tuple[Array, Array]:
    """The output and the weights, in float64."""
    scores = x @ x.T / np.sqrt(x.shape[-1])
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return weights @ x, weights


def cosines(x: Array) -> Array:
    """Of all with each other."""
    units = x / np.linalg.norm(x, axis=-1, keepdims=True)
    found: Array = units @ units.T
    return found


def by_torch(x: Array, dtype: torch.dtype, *, identity: bool = True) -> tuple[Array, Array]:
    """nn.MultiheadAttention with one head; its projections the identity, or as it begins."""
    width = x.shape[-1]
    module = nn.MultiheadAttention(width, 1, bias=False, batch_first=True, dtype=dtype)
    if identity:
        with torch.no_grad():
            module.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
            module.out_proj.weight.copy_(torch.eye(width))
    given = torch.from_numpy(np.asarray(x)).to(dtype)[None]
    with torch.no_grad():
        out, weights = module(given, given, given)
    return out[0].double().numpy(), weights[0].double().numpy()


def measure_small(asked: ClaimRequest) -> ClaimFindings:
    """Three words of four numbers: the formula, and the row ``matmul`` of the table."""
    x = np.array(words_printed.SMALL_INPUT)
    out, weights = plain(x)
    n, width = x.shape
    problem = Problem(heads=1, kv_heads=1, q_len=n, kv_len=n, head_dim=width, v_head_dim=width)
    row = table().find("matmul")
    given = torch.tensor(words_printed.SMALL_INPUT)[None, None]
    of_row = load_function(row.build)(problem, **row.chosen)(given, given, given)[0, 0].numpy()
    figures = {
        "weights": _off(weights, words_printed.SMALL_WEIGHTS),
        "output": _off(out, words_printed.SMALL_OUTPUT),
        "row": _off(of_row, words_printed.SMALL_OUTPUT),
    }
    return ClaimFindings(figures, (), [_table("weights", ["1", "2", "3"], weights)])


def measure_identity(asked: ClaimRequest) -> ClaimFindings:
    """torch's layer with identity projections against the formula; and as it begins."""
    torch.manual_seed(asked.seed)
    small = np.array(words_printed.SMALL_INPUT)
    out, weights = by_torch(small, torch.float32)
    figures = {
        "weights": _off(weights, words_printed.SMALL_WEIGHTS),
        "output": _off(out, words_printed.SMALL_OUTPUT),
    }
    maps, tables, apart = [], [], {torch.float32: 0.0, torch.float64: 0.0}
    begun = np.inf
    for name, sentence in SENTENCES.items():
        tokens = words.tokens_of(sentence)
        x = np.array(words.vectors_of(tokens, asked.embeddings))
        wanted, by_formula = plain(x)
        for dtype in apart:
            given = by_torch(x, dtype)
            worst = max(_apart(given[0], wanted), _apart(given[1], by_formula))
            apart[dtype] = max(apart[dtype], worst)
        begun = min(begun, _apart(by_torch(x, torch.float64, identity=False)[1], by_formula))
        maps.append(Map(name, _whose(asked), tokens, _rounded(by_formula)))
        tables.append(_table(f"{sentence} ({_whose(asked)})", tokens, by_formula))
    figures |= {
        "float32": ClaimFigure(apart[torch.float32]),
        "float64": ClaimFigure(apart[torch.float64]),
        "begun": ClaimFigure(float(begun)),
    }
    return ClaimFindings(figures, (), tables, maps)


def measure_tables(asked: ClaimRequest) -> ClaimFindings:
    """The printed figures against each other: no vectors are needed but the one that is printed."""
    ship = np.array(words_printed.SHIP_VECTOR)
    figures = {}
    for name, sentence in SENTENCES.items():
        weights = np.array(words_printed.SHIP_WEIGHTS[sentence])
        along = float(weights @ _products(sentence))
        figures[f"output {name}"] = ClaimFigure(
            _relative(along, float(ship @ words_printed.BY_ATTENTION[sentence]))
        )
    products, row = _products(words_printed.ODYSSEY), np.array(words_printed.SHIP_COSINES)
    figures["by cosines"] = ClaimFigure(
        _relative(float(row @ products), float(ship @ words_printed.BY_COSINES))
    )
    norms = products / (row * np.linalg.norm(ship))
    place, between = words_printed.SHIP[words_printed.ODYSSEY], np.array(words_printed.COSINES)
    between[place] = between[:, place] = row
    scores = between * np.outer(norms, norms) / np.sqrt(len(ship))
    made = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    figures["table"] = _off(made, words_printed.WEIGHTS[words_printed.ODYSSEY])
    tokens = words.tokens_of(words_printed.ODYSSEY)
    lengths = ClaimTable("lengths of the vectors, computed", tokens, [[round(x, 2) for x in norms]])
    return ClaimFindings(figures, (), [lengths, _table("the table, computed", tokens, made)])


def measure_glove(asked: ClaimRequest) -> ClaimFindings:
    """Everything that is printed of the two sentences, from the vectors themselves."""
    figures: dict[str, ClaimFigure] = {}
    tables = []
    for name, sentence in SENTENCES.items():
        tokens = words.tokens_of(sentence)
        x = np.array(words.vectors_of(tokens, asked.embeddings))
        if x.shape[-1] != len(words_printed.SHIP_VECTOR):
            raise CantBeDone(
                f"the printed figures are of {len(words_printed.SHIP_VECTOR)} numbers a word, and "
                f"{asked.embeddings} has {x.shape[-1]}: give glove.6B.50d.txt"
            )
        out, weights = plain(x)
        place = words_printed.SHIP[sentence]
        figures[f"table {name}"] = _off(weights, words_printed.WEIGHTS[sentence])
        figures[f"weights {name}"] = _off(weights[place], words_printed.SHIP_WEIGHTS[sentence])
        figures[f"output {name}"] = _off(out[place], words_printed.BY_ATTENTION[sentence])
        tables.append(_table(sentence, tokens, weights))
        if sentence == words_printed.ODYSSEY:
            between = cosines(x)
            figures["vector"] = _off(x[place], words_printed.SHIP_VECTOR)
            figures["cosines"] = _off(between, words_printed.COSINES)
            figures["by cosines"] = _off((between @ x)[place], words_printed.BY_COSINES)
    return ClaimFindings(figures, (), tables)


def _products(sentence: str) -> Array:
    """Of the word's vector with each word's, from its row of weights: by its logarithms."""
    ship, weights = (
        np.array(words_printed.SHIP_VECTOR),
        np.array(words_printed.SHIP_WEIGHTS[sentence]),
    )
    own = weights[words_printed.SHIP[sentence]]
    found: Array = ship @ ship - np.sqrt(len(ship)) * np.log(own / weights)
    return found


def _off(ours: Array, theirs: Sequence[Any]) -> ClaimFigure:
    """The largest difference."""
    return ClaimFigure(float(np.abs(ours - np.array(theirs)).max()))


def _apart(a: Array, b: Array) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def _relative(a: float, b: float) -> float:
    return abs(a - b) / abs(b)


def _whose(asked: ClaimRequest) -> str:
    return "hashed vectors" if asked.embeddings is None else "vectors of the file given"


def _rounded(weights: Array) -> list[list[float]]:
    return [[round(float(w), 4) for w in row] for row in weights]


def _table(title: str, tokens: Sequence[str], weights: Array) -> ClaimTable:
    rows: list[list[str | float | None]] = [
        [word, *(round(float(w), 2) for w in row)]
        for word, row in zip(tokens, weights, strict=True)
    ]
    return ClaimTable(title, ["", *tokens], rows)
