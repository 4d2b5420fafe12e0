"""The process of one training: its job is the question, its checkpoints come before the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnbench.core.process_child import Answers, serve


def _trained(sent: Mapping[str, Any], answers: Answers) -> dict[str, Any]:
    """How it ended: a status and, unless it was trained, a sentence."""
    from attnbench.features.quality.recall import TrainingJob
    from attnbench.features.quality.recall_train import Training
    from attnbench.models.attention import NotServed

    job = TrainingJob.from_dict(sent)
    try:
        why = Training(job).run(answers.stage)
    except NotServed as refused:
        return {"status": "unsupported", "reason": str(refused)}
    except Exception as error:
        said = " ".join(str(error).split())[:500]
        return {"status": "failed", "reason": f"{type(error).__name__}: {said}"}
    return {"status": "cut_short" if why else "trained", "reason": why}


if __name__ == "__main__":
    serve(_trained, allow_nan=True)
