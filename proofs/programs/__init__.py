"""Programs with one thing each about their attention, and what is true of them.

The truth was established apart from attnbench: kernels by torch's profiler, reasons by changing one
thing and asking torch again, equal outputs by running both forms. ``#@a`` at a line's end marks the
call that a :func:`site` is about. Each program prints ``STEP seconds`` a loop and ``CHECK number`` of
its last output, so that it can be held against its mended form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

HEAD = """import time
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(0)
"""
ALL: dict[str, Program] = {}


@dataclass
class Program:
    """A program's text, its sites, and what its mended form replaces."""

    code: str
    sites: list[dict[str, Any]]
    mend: list[tuple[str, str]] = field(default_factory=list)
    note: str = ""

    def text(self, *, mended: bool = False) -> str:
        """The program as it is run."""
        code = self.code
        for old, new in self.mend if mended else ():
            assert old in code, old
            code = code.replace(old, new)
        return re.sub(r"[ ]*#@\w+", "", code)

    def lines(self) -> list[tuple[int, dict[str, Any]]]:
        """Each site with the number of its line."""
        marks = {m[1]: self.code[: m.start()].count("\n") + 1 for m in MARK.finditer(self.code)}
        return [(marks[site["mark"]], site) for site in self.sites]


MARK = re.compile(r"#@(\w+)")


def site(mark: str, kernel: str, given: str, holds: str, mend: Any = (), why: Any = (),
         **more: Any) -> dict[str, Any]:  # fmt: skip
    """What is true of a call: ``mend`` surely gains, ``maybe`` may."""
    return {"mark": mark, "kernel": kernel, "given": given, "holds": holds, "mend": set(mend),
            "maybe": set(more.pop("maybe", ())), "why": list(why), **more}  # fmt: skip


def P(name: str, code: str, sites: Any, mend: Any = None, note: str = "", head: str = HEAD) -> None:  # fmt: skip
    """One program; ``mend``: the texts to replace in its mended form."""
    assert name not in ALL, name
    ALL[name] = Program(head + "\n" + code.strip("\n") + "\n", sites, mend or [], note)


END = """print(f"CHECK {out.double().pow(2).mean().item():.10g}")
"""


def timed(steps: int, body: str, within: str = "torch.no_grad()") -> str:
    """The end of a program: its body in a loop, each step timed, and the last output's number."""
    inner = "".join(f"        {line}\n" for line in body.strip("\n").splitlines())
    return (
        f"""with {within}:
    for step in range({steps}):
        t0 = time.perf_counter()
{inner}        print(f"STEP {{time.perf_counter() - t0:.6f}}")
"""
        + END
    )
