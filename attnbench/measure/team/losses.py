"""How a team comes to nothing, and which of its ranks is to blame."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from attnbench import exits
from attnbench.record import Status
from attnbench.truth.findings import Wrong
from impls.spec import Unavailable, Unsupported

EXCHANGE = re.compile(r"impls/parallel/ranks\.py|torch/distributed/")
"""Where a rank stands that waits for others, by the files of its frames."""


class RankLost(Exception):
    """A rank died, hung or raised: the message is a sentence that names it."""

    def __init__(self, reason: str, status: Status, detail: str = "", remedy: str = "") -> None:
        super().__init__(reason)
        self.fields: dict[str, Any] = {
            "status": status, "reason": reason, "detail": detail, "remedy": remedy,
        }  # fmt: skip
        """Of the record that ends so."""


def died(rank: int, status: int, doing: str, words: str) -> RankLost:
    """A process that is gone, by its exit status."""
    return RankLost(f"rank {rank} {exits.ended(status)} in its {doing}", Status.CRASHED, words)


def ended(doing: str) -> RankLost:
    """A team that somebody has ended before."""
    return RankLost(f"its ranks had ended before its {doing}", Status.CRASHED)


def silent(words: Mapping[int, str], doing: str, limit_s: float) -> RankLost:
    """Ranks that have not answered, by what they said of where they are."""
    waiting = [rank for rank, said in words.items() if EXCHANGE.search(said)]
    stuck = [rank for rank in words if rank not in waiting]
    after = f"after {limit_s:.0f} s"
    if stuck:
        reason = f"{_listed(stuck)} still at {_own(stuck)} {doing} {after}"
        reason += f", and {_listed(waiting)} waiting" if waiting else ""
    elif len(waiting) > 1:
        reason = f"{_listed(waiting)} waiting for each other in their {doing} {after}"
    else:
        reason = f"{_listed(waiting)} still waiting for others in its {doing} {after}"
    detail = "\n".join(f"rank {rank}:\n{said}" for rank, said in words.items())
    return RankLost(reason, Status.TIMED_OUT, detail)


def blamed(troubles: Mapping[int, Mapping[str, Any]]) -> Exception:
    """Of ranks that could not answer, the one that the others did not wait for in vain."""
    rank = min(troubles, key=lambda each: (troubles[each].get("exchanging", False), each))
    said = troubles[rank]
    if "wrong" in said:
        return Wrong(f"rank {rank}: {said['wrong']}")
    if "unsupported" in said:
        return Unsupported(said["unsupported"])
    if "unavailable" in said:
        return Unavailable(*said["unavailable"])
    fields = dict(said["failed"])
    own = fields["reason"].removeprefix("it ")
    named = f"rank {rank} {own}" if own != fields["reason"] else f"rank {rank}: {own}"
    status = Status(fields["status"])
    return RankLost(named, status, fields.get("detail", ""), fields.get("remedy", ""))


def _listed(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} was"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} were"


def _own(ranks: Sequence[int]) -> str:
    return "its" if len(ranks) == 1 else "their"
