"""The process of one training: it is told its job, and tells its checkpoints and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnbench.core.process_child import Tell, asked


def main() -> None:
    """Train; the last line is how it ended."""
    if (given := asked()) is not None:
        job, tell = given
        tell(_trained(job, tell))


def _trained(sent: Mapping[str, Any], tell: Tell) -> dict[str, str]:
    """How it ended: a status and, unless it was trained, a sentence."""
    from attnbench.features.quality.recall import TrainingJob
    from attnbench.features.quality.recall_train import Training
    from attnbench.models.attention import NotServed

    job = TrainingJob.from_dict(sent)
    try:
        why = Training(job).run(tell)
    except NotServed as refused:
        return {"status": "unsupported", "reason": str(refused)}
    except Exception as error:
        said = " ".join(str(error).split())[:500]
        return {"status": "failed", "reason": f"{type(error).__name__}: {said}"}
    return {"status": "cut_short" if why else "trained", "reason": why}


if __name__ == "__main__":
    main()
