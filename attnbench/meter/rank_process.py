"""The process of a rank, which loads torch once it is asked: all of a team start at once."""

from __future__ import annotations

from typing import Any

from attnbench.core.process_child import Answers, serve


def main() -> None:
    """Answer until the worker closes the pipe."""
    member: Any = None

    def respond(question: dict[str, Any], _: Answers) -> dict[str, Any]:
        nonlocal member
        from attnbench.meter import rank

        member = member or rank.Member()
        return rank.answer(member, question)

    serve(respond)


if __name__ == "__main__":
    main()
