"""Self-attention of word vectors without projections: by the formula, and by torch's layer.

    weights = softmax(x x^T d^-1/2)      out = weights x

A notebook prints vectors, cosines and attention tables of two sentences, with the 50 numbers a word
of glove.6B.50d. With a file of GloVe's vectors they are held against our own figures. Without one
they are held against each other: the word's own vector, its row of weights and the cosines are
enough to compute all scores of the first sentence, so its whole table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from attnbench.answer.maps import tokens_of, vectors_of
from attnbench.features.claims.claim import (
    DATA,
    ClaimFigure,
    ClaimFindings,
    ClaimRequest,
    ClaimTable,
)
from impls import table
from impls.errors import CantBeDone
from impls.loading import load_function
from impls.problem import Problem

Array = np.ndarray[Any, Any]
PRINTED: dict[str, Any] = tomllib.loads(DATA.read_text())["words"]
SENTENCES = ("odyssey", "amazon")
SMALL = PRINTED["small"]


def plain(x: Array) -> tuple[Array, Array]:
    """The output and the weights, in float64."""
    scores = x @ x.T / np.sqrt(x.shape[-1])
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return weights @ x, weights


def by_torch(x: Array, dtype: str, *, identity: bool = True) -> tuple[Array, Array]:
    """nn.MultiheadAttention with one head; its projections the identity, or as it begins."""
    kind, width = getattr(torch, dtype), x.shape[-1]
    module = nn.MultiheadAttention(width, 1, bias=False, batch_first=True, dtype=kind)
    tensor = torch.from_numpy(x).to(kind)[None]
    with torch.no_grad():
        if identity:
            module.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
            module.out_proj.weight.copy_(torch.eye(width))
        out, weights = module(tensor, tensor, tensor)
    return out[0].double().numpy(), weights[0].double().numpy()


def _vectors(name: str, request: ClaimRequest) -> tuple[list[str], Array]:
    tokens = tokens_of(PRINTED[name]["sentence"])
    return tokens, np.array(vectors_of(tokens, request.embeddings))


def _largest(ours: Array, theirs: Sequence[Any]) -> ClaimFigure:
    return ClaimFigure(float(np.abs(ours - np.array(theirs)).max()))


def _apart(a: Any, b: Any) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def _table(title: str, tokens: Sequence[str], weights: Array) -> ClaimTable:
    rows = zip(tokens, np.round(weights, 2).tolist(), strict=True)
    return ClaimTable(title, ["", *tokens], [[word, *row] for word, row in rows])


def measure_small(request: ClaimRequest) -> ClaimFindings:
    """Three words of four numbers: the formula, and the row ``matmul`` of the table."""
    x = np.array(SMALL["input"])
    out, weights = plain(x)
    n, width = x.shape
    problem = Problem(heads=1, kv_heads=1, q_len=n, kv_len=n, head_dim=width, v_head_dim=width)
    row = table().find("matmul")
    tensor = torch.tensor(SMALL["input"])[None, None]
    of_row = load_function(row.build)(problem, **row.chosen)(tensor, tensor, tensor)[0, 0]
    figures = {
        "weights": _largest(weights, SMALL["weights"]),
        "output": _largest(out, SMALL["output"]),
        "row": _largest(of_row.numpy(), SMALL["output"]),
    }
    return ClaimFindings(figures, (), [_table("weights", ["1", "2", "3"], weights)])


def measure_identity(request: ClaimRequest) -> ClaimFindings:
    """torch's layer with identity projections against the formula; and with its first weights."""
    torch.manual_seed(request.seed)
    out, weights = by_torch(np.array(SMALL["input"]), "float32")
    figures = {
        "weights": _largest(weights, SMALL["weights"]),
        "output": _largest(out, SMALL["output"]),
    }
    tables, first_weights = [], []
    distances: dict[str, list[float]] = {"float32": [], "float64": []}
    whose = "hashed vectors" if request.embeddings is None else "vectors of the file given"
    for name in SENTENCES:
        tokens, x = _vectors(name, request)
        truth = plain(x)
        for dtype, some in distances.items():
            some += [_apart(a, b) for a, b in zip(by_torch(x, dtype), truth, strict=True)]
        first_weights.append(_apart(by_torch(x, "float64", identity=False)[1], truth[1]))
        tables.append(_table(f"{PRINTED[name]['sentence']} ({whose})", tokens, truth[1]))
    figures |= {dtype: ClaimFigure(max(some)) for dtype, some in distances.items()}
    return ClaimFindings({**figures, "begun": ClaimFigure(min(first_weights))}, (), tables)


def measure_tables(request: ClaimRequest) -> ClaimFindings:
    """The printed figures against each other: no vectors are needed but the one that is printed."""
    ship, figures = np.array(PRINTED["vector"]), {}
    for name in SENTENCES:
        printed = PRINTED[name]
        along = np.array(printed["ship_weights"]) @ _products(printed)
        figures[f"output {name}"] = ClaimFigure(_apart(along, ship @ printed["output"]))
    first = PRINTED["odyssey"]
    products, row = _products(first), np.array(PRINTED["ship_cosines"])
    figures["by cosines"] = ClaimFigure(_apart(row @ products, ship @ PRINTED["by_cosines"]))
    norms = products / (row * np.linalg.norm(ship))
    place, between = first["place"], np.array(PRINTED["cosines"])
    between[place] = between[:, place] = row
    scores = between * np.outer(norms, norms) / np.sqrt(len(ship))
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    figures["table"] = _largest(weights, first["weights"])
    tokens = tokens_of(first["sentence"])
    lengths = ClaimTable("lengths of the vectors, computed", tokens, [np.round(norms, 2).tolist()])
    return ClaimFindings(figures, (), [lengths, _table("the table, computed", tokens, weights)])


def _products(printed: Mapping[str, Any]) -> Array:
    """The products of the word's vector with each word's, by the logarithms of its weights."""
    ship, weights = np.array(PRINTED["vector"]), np.array(printed["ship_weights"])
    logarithms: Array = np.log(weights[printed["place"]] / weights)
    return np.asarray(ship @ ship - np.sqrt(len(ship)) * logarithms)


def measure_glove(request: ClaimRequest) -> ClaimFindings:
    """All that is printed, from the vectors themselves; raises CantBeDone for another width."""
    figures: dict[str, ClaimFigure] = {}
    tables, wide = [], len(PRINTED["vector"])
    for name in SENTENCES:
        printed, (tokens, x) = PRINTED[name], _vectors(name, request)
        place = printed["place"]
        if x.shape[-1] != wide:
            raise CantBeDone(
                f"the printed vectors hold {wide}, this has {x.shape[-1]}: give glove.6B.50d.txt"
            )
        out, weights = plain(x)
        figures[f"table {name}"] = _largest(weights, printed["weights"])
        figures[f"weights {name}"] = _largest(weights[place], printed["ship_weights"])
        figures[f"output {name}"] = _largest(out[place], printed["output"])
        tables.append(_table(printed["sentence"], tokens, weights))
        if name == "odyssey":
            units = x / np.linalg.norm(x, axis=-1, keepdims=True)
            cosines = units @ units.T
            figures["vector"] = _largest(x[place], PRINTED["vector"])
            figures["cosines"] = _largest(cosines, PRINTED["cosines"])
            figures["by cosines"] = _largest((cosines @ x)[place], PRINTED["by_cosines"])
    return ClaimFindings(figures, (), tables)
