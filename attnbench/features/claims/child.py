"""The process that measures one claim: it is told which, and answers with what it found."""

from __future__ import annotations

from typing import Any

from attnbench.core.process_child import asked
from attnbench.features.claims.claim import ClaimRequest
from impls.asked import CantBeDone
from impls.loading import load_function


def main() -> None:
    """One question, one answer."""
    if (given := asked()) is None:
        return
    question, tell = given
    try:
        found = _found(question)
    except CantBeDone as error:
        tell({"cant": str(error)})
    else:
        tell({"found": found})


def _found(question: dict[str, Any]) -> dict[str, Any]:
    told = ClaimRequest(**question["asked"])
    if question["torch"]:
        from attnbench.core.settings import Settings, apply

        apply(Settings(threads=told.threads))
    found: dict[str, Any] = load_function(question["how"])(told).to_dict()
    return found


if __name__ == "__main__":
    main()
