"""The process that has the model: the original and its truth, or one variant, stage by stage.

{"do": "original", …}  -> {"original": …}, {"floor": …} a length
{"do": "variant", …}   -> {"quality": …}, {"step": …} a length, {"layers": …}, {"distilled": …}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import impls
from attnbench.models.built import NotServed
from attnbench.models.quality import answering
from attnbench.models.quality.pretrained import measured, truth, weights
from attnbench.models.quality.pretrained.distilled import distil
from attnbench.models.quality.pretrained.embedded import own_words
from attnbench.models.quality.pretrained.layers import one_by_one
from attnbench.models.quality.pretrained.replaced import (
    ORIGINAL,
    Replaced,
    register_nothing,
)
from attnbench.models.quality.pretrained.stepped import in_pairs
from attnbench.models.transformers.registering import register_row
from attnbench.parts import Error
from impls.spec import Variant

Stages = Iterator[dict[str, Any]]


def answer(asked: Mapping[str, Any]) -> Stages:
    """Whatever was asked."""
    return {"original": _original, "variant": _variant}[asked["do"]](asked)


def _original(asked: Mapping[str, Any]) -> Stages:
    folder, dtype, device = Path(asked["folder"]), asked["dtype"], asked["device"]
    found = truth.make(asked["texts"], dtype, device, folder)
    ids, want = truth.read(folder)
    found["similarities"] = measured.similarities(want, asked["pairs"])
    yield {"original": found}
    replaced = Replaced(weights.load(dtype, device, ORIGINAL))
    nothing = register_nothing()
    for length in asked["seq"]:
        yield {"floor": in_pairs(replaced, ORIGINAL, nothing, ids, length, asked["margin"],
                                 asked["pairs_s"])}  # fmt: skip


def _variant(asked: Mapping[str, Any]) -> Stages:
    dtype, device = asked["dtype"], asked["device"]
    row = impls.table(asked["tables"]).find(asked["variant"])
    name = register_row(row)
    ids, want = truth.read(Path(asked["folder"]))
    replaced = Replaced(weights.load(dtype, device, ORIGINAL))
    replaced.use(name)
    found = measured.of_texts(replaced, row, ids, dtype)
    plain = Error.from_dict(asked["plain"])
    said = measured.quality(found, row, want, plain, asked["pairs"], dtype)
    yield {"quality": said}
    if said["wrong"]:
        return  # what is wrong has no time
    for length in asked["seq"]:
        try:
            yield {"step": in_pairs(replaced, ORIGINAL, name, ids, length, asked["margin"],
                                    asked["pairs_s"])}  # fmt: skip
        except NotServed as why:
            yield {"step": {"seq": length, "why": own_words(why)}}
    if asked["layers"] and not row.exact:
        some = asked["layer_texts"]
        yield {"layers": one_by_one(replaced, name, row, [ids[n] for n in some], want[some], dtype)}
    if asked["distil"] and not row.exact:
        yield {"distilled": _distilled(asked, replaced, name, row, ids, want)}


def _distilled(asked: Mapping[str, Any], replaced: Replaced, name: str, row: Variant,
               ids: list[list[int]], want: Any) -> dict[str, Any]:  # fmt: skip
    """Before and after, on texts that were not learnt from; or why it can't be trained."""
    learn, judged = asked["learn"], asked["judged"]
    some, wanted = [ids[n] for n in judged], want[judged]
    replaced.use(name)
    before = measured.cosines(measured.of_texts(replaced, row, some, asked["dtype"]), wanted)
    teacher = weights.load(asked["dtype"], asked["device"], ORIGINAL)
    try:
        losses = distil(replaced, teacher, [ids[n] for n in learn], asked["distil"],
                        asked["train"], asked["seed"])  # fmt: skip
    except NotServed as why:
        return {"why": own_words(why)}
    after = measured.cosines(measured.of_texts(replaced, row, some, asked["dtype"]), wanted)
    return {"before": before, "after": after, "losses": losses, "texts": judged}


if __name__ == "__main__":
    answering.main(answer)
