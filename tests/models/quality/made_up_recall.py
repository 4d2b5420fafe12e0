"""Rows of evidence as trainings would have given them, made up."""

from attnbench.features.quality.recall import Setting

SETTING = Setting(seq=40, pairs=(4, 8), width=16, steps=100)


def look(step, accuracy, seconds=1.0, in_time=False, step_s=0.01):
    return {
        "step": step,
        "seconds": seconds,
        "wall_s": seconds,
        "loss": 0.5,
        "step_s": step_s,
        "in_time": in_time,
        "accuracy": {str(pairs): share for pairs, share in accuracy.items()},
    }


def row(variant="sdpa", seed=0, steps=None, time=None, step_s=0.01, state=640, **more):
    """``steps`` and ``time``: accuracies by pairs when each budget was over."""
    curve = [look(50, dict.fromkeys(SETTING.pairs, 0.1), 0.5, step_s=step_s)]
    if time is not None:
        curve.append(look(80, time, 0.9, in_time=True, step_s=step_s))
    if steps is not None:
        curve.append(look(100, steps, 1.0, step_s=step_s))
    return {
        "variant": variant,
        "computes": "softmax",
        "family": "dense",
        "setting": SETTING.to_dict(),
        "seed": seed,
        "seconds": 0.9,
        "status": "trained",
        "reason": "",
        "remedy": "",
        "parameters": 1000,
        "state_numbers": state,
        "curve": curve,
        **more,
    }


def rows(variant, *accuracies, **more):
    """A training a seed, as good after its steps as in its time."""
    return [
        row(variant, seed, {4: each[0], 8: each[1]}, {4: each[0], 8: each[1]}, **more)
        for seed, each in enumerate(accuracies)
    ]


def refused(variant, reason, remedy=""):
    return {
        **row(variant, None),
        "status": "unavailable",
        "reason": reason,
        "remedy": remedy,
        "curve": [],
        "state_numbers": None,
    }
