"""The process that trains small models or holds a trained one, and answers in stages.

Each stage is a part of a row of evidence. Where an answer ends badly, its last stage has a
``status`` and a ``reason``. A process that a variant has changed gets no more questions.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from attnbench.core.device import device_for
from attnbench.core.process_child import Answers, serve
from attnbench.core.settings import Settings, apply
from attnbench.gate import watch
from impls.errors import CantBeDone
from impls.loading import load_function

first_state = cache(watch.process_state)
"""The state of this process at its first question, for what variants leave there adds up."""


def respond(question: dict[str, Any], answers: Answers) -> dict[str, Any]:
    """Send the stages; a refusal or an exception of the variant's is the last of them."""
    answer = load_function(question["answer"])
    apply(Settings(threads=int(os.environ["OMP_NUM_THREADS"])))
    state, before, broken = first_state(), watch.snapshot(), watch.sealed()
    try:
        for stage in answer(question):
            answers.stage(stage)
    except CantBeDone as why:
        answers.stage({"status": "refused", "reason": str(why)})
    except Exception as error:
        first_line = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
        answers.stage({"status": "failed", "reason": first_line})
    try:
        left = broken() or watch.left_changed(before) or watch.disturbed(state)
        return {"spoiled": bool(left) or not device_for(question["device"]).works()}
    except Exception:  # it left nothing to look with
        return {"spoiled": True}


if __name__ == "__main__":
    serve(respond)
