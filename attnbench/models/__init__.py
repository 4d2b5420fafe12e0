"""A user's own model: attention in it, calls dispatched by a table, calls captured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.core.disk import from_json
from impls.errors import CantBeDone
from impls.operators import further

if TYPE_CHECKING:
    from impls.spec import Variant


def wrong_level(row: Variant) -> str | None:
    """None for a core in one process, which takes q, k and v alone, else a sentence."""
    if names := further(row.operator):
        return f"{row.label} takes {', '.join(names)} besides q, k and v, which the call has not"
    return no_core(row)


def no_core(row: Variant) -> str | None:
    """None for a core in one process, else a sentence."""
    if row.level == "core" and not row.ranks:
        return None
    what = "runs over several processes" if row.ranks else f"is a {row.level}"
    return (
        f"{row.label} {what}, and what is called with q, k and v is a core; 'attnbench list' "
        "shows which are"
    )


def model_config(folder: Path, choices: str) -> dict[str, Any]:
    """The configuration of a folder as transformers saves one; raises CantBeDone for what is none,
    with the choices where there is no folder.
    """
    if not folder.is_dir():
        raise CantBeDone(f"--model {folder}: no such folder; {choices}")
    try:
        config = from_json((folder / "config.json").read_text("utf-8"))
    except FileNotFoundError:
        raise CantBeDone(f"--model {folder} is no model: it has no config.json") from None
    except (OSError, ValueError) as error:
        raise CantBeDone(f"--model {folder}: its config.json can't be read: {error}") from None
    if not isinstance(config, dict) or not config.get("model_type"):
        raise CantBeDone(f"--model {folder} is no model: its config.json names no model_type")
    return config


def frames_out(between: tuple[str, ...]) -> int:
    """For a warning: how many frames up the code stands that called these modules."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(between):
        level, frame = level + 1, frame.f_back
    return level


def wants_weights(layer: Any, argument: bool | None) -> bool:
    """True if a model of transformers is to hand out its attention weights: by an argument that
    reaches the layer, by one that is kept until the layers are done, or by the configuration.
    """
    if argument is not None:
        return bool(argument)
    keeper = sys.modules.get("transformers.utils.output_capturing")
    if keeper is not None and (collected := keeper._active_collector.get()) is not None:
        return any("attentions" in name for name in collected)
    return bool(getattr(getattr(layer, "config", None), "output_attentions", False))
