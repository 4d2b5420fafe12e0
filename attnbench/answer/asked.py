"""A problem in the words of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def words_of(p: Mapping[str, Any]) -> list[str]:
    """A problem as the command line says it, whole, so that no preset may change it."""
    ordinary = 1 if p["phase"] == "decode" else p["kv_len"]
    seq = f"{p['kv_len']}" if p["q_len"] == ordinary else f"{p['q_len']}x{p['kv_len']}"
    words = ["--seq", seq]
    for name in ("batch", "heads", "kv_heads", "head_dim", "v_head_dim"):
        alike = {"kv_heads": "heads", "v_head_dim": "head_dim"}.get(name)
        if alike is None or p[name] != p[alike]:
            words += [f"--{name.replace('_', '-')}", p[name]]
    for name in ("dtype", "mask", "phase"):
        words += [f"--{name}", p[name]]
    words += ["--inputs", p["inputs"]] * (p["inputs"] != "normal") + ["--device", p["device"]]
    return [str(word) for word in words]
