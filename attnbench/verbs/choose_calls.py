"""``attnbench choose --problems calls.json``: an answer a call site, and what the model gains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.verbs import say
from impls.asked import CantBeDone

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from attnbench.answer.choice.choice import Choice
    from attnbench.answer.model_gain import Gain
    from attnbench.models.calls import Calls
    from impls.problem import Problem


def answer_calls(given: argparse.Namespace, answer: Callable[[Problem], Choice]) -> int:
    """Of a captured program; ``answer`` gives that of one problem."""
    from attnbench.models.calls import Calls

    calls = Calls.read(Path(given.problems))
    for sentence in calls.unseen:
        say(f"note: {sentence}")
    problems = calls.problems()
    if not problems:
        raise CantBeDone(f"{given.problems} holds no call that can be put as a problem")
    choices = {problem: answer(problem) for problem in problems}
    gained = _gain(calls, choices)
    _show(choices, gained, as_json=given.json)
    return int(all(choice.winner is None for choice in choices.values()))


def _gain(calls: Calls, choices: dict[Problem, Choice]) -> Gain:
    from attnbench.answer.choice.for_calls import site_times
    from attnbench.answer.model_gain import gain

    of = "a step" if calls.step_share is not None else "the program's time"
    return gain([
        site_times(
            f"{s.site} · {s.problem}", s.share, s.via,
            choices.get(s.problem) if s.faithful else None, off=calls.off,
            inside_s=calls.a_call_s(s), why="" if s.faithful else s.note,
        )
        for s in calls.sites
    ], of)  # fmt: skip


def _show(choices: dict[Problem, Choice], gained: Gain, *, as_json: bool) -> None:
    from attnbench.answer.choice import paste

    if as_json:
        answers: list[dict[str, Any]] = [
            {**choice.to_dict(), **paste.pasted(choice)} for choice in choices.values()
        ]
        print(json.dumps({"answers": answers, "gain": gained.to_dict()}))
        return
    from attnbench.report import choice_calls_view

    choice_calls_view.show(choices, gained)
