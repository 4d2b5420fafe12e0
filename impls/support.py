"""What a row takes: whether a problem can be put to it, and the sentence that says why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from impls.loading import load_function
from impls.options import listed

if TYPE_CHECKING:
    from impls.problem import Problem
    from impls.spec import Variant

NO_GRADIENT = ("forward", "decode")
"""The phases of a variant that has no backward."""


def refusal(row: Variant, problem: Problem) -> str | None:
    """None where the row takes the problem, else a sentence that says why not."""
    device = problem.device.split(":")[0]
    if problem.level != row.level:
        return f"{row.label} works at level {row.level}, not {problem.level}"
    if row.ranks and row.world < 2:
        return f"{row.label} runs over several processes: ask for --world 2"
    if device not in row.devices:
        return f"{row.label} runs on {listed(row.devices)}, not on {device}"
    if problem.dtype not in row.on(device, "dtypes"):
        taken = listed(row.on(device, "dtypes"))
        return f"{row.label} takes {taken} on {device}, not {problem.dtype}"
    if problem.phase not in row.on(device, "phases"):
        return _no_such_phase(row, device, problem.phase)
    refused = [kind for kind in problem.mask.kinds if kind not in row.on(device, "masks")]
    if refused:
        taken = listed(row.on(device, "masks"))
        return f"{row.label} takes the masks {taken} on {device}, not {listed(refused)}"
    return _refused_shape(row, problem)


def _no_such_phase(row: Variant, device: str, phase: str) -> str:
    phases = row.on(device, "phases")
    why = "it has no backward" if set(phases) <= set(NO_GRADIENT) else "see its row"
    here = f" on {device}" * (len({row.on(each, "phases") for each in row.devices}) > 1)
    return f"{row.label} serves {listed(phases)}{here}, not {phase}: {why}"


def _refused_shape(row: Variant, problem: Problem) -> str | None:
    if problem.heads != problem.kv_heads and not row.gqa:
        return f"{row.label} has no grouped-query form: it needs as many kv_heads as heads"
    crosses = problem.phase == "decode" if row.cross == "decode" else row.cross
    if problem.q_len != problem.kv_len and not crosses:
        but = ", but in decode" * (row.cross == "decode")
        return f"{row.label} needs q_len equal to kv_len{but}"
    if problem.v_head_dim != problem.head_dim and not row.value_dim:
        return f"{row.label} needs v_head_dim equal to head_dim"
    if row.head_dims and not row.head_dims[0] <= problem.head_dim <= row.head_dims[1]:
        return f"{row.label} takes head_dim {row.head_dims[0]} to {row.head_dims[1]}"
    return _refused_split(row, problem) if row.ranks else None


def _refused_split(row: Variant, problem: Problem) -> str | None:
    """What whoever deals out the shares says of a problem that can't be split."""
    from impls.spec import Unsupported

    assert row.shares is not None
    try:
        load_function(row.shares)(problem, row.world)
    except Unsupported as why:
        return str(why)
    return None
