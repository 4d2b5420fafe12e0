"""The process that measures one claim."""

from __future__ import annotations

from typing import Any

from attnbench.core.process_child import Answers, serve
from attnbench.features.claims.claim import ClaimRequest
from impls.asked import CantBeDone
from impls.loading import load_function


def _answer(question: dict[str, Any], _: Answers) -> dict[str, Any]:
    """What was found, or why it can't be measured."""
    request = ClaimRequest(**question["request"])
    if question["torch"]:
        from attnbench.core.settings import Settings, apply

        apply(Settings(threads=request.threads))
    try:
        return {"found": load_function(question["how"])(request).to_dict()}
    except CantBeDone as error:
        return {"cant": str(error)}


if __name__ == "__main__":
    serve(_answer, allow_nan=True)
