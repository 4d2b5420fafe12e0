"""Does a program's code go on to read what a call returned? Its bytecode shows that."""

from __future__ import annotations

import dis
import sys
import types
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

HERE = str(Path(__file__).parent)
PASSED = HERE, str(Path(torch.__file__).parent)
MACHINERY = "/nn/modules/module.py", "/nn/modules/activation.py", "/functional.py", "/torch/_ops.py"


def second_unread(frame: types.FrameType | None) -> bool:
    """True where the code that called an attention function never reads the second of its results.

    It is read off the code that follows the call: ``[0]``, or two names of which the second is
    never used.
    """
    while frame is not None and (_in_torch(frame) or frame.f_code.co_filename.startswith(HERE)):
        frame = frame.f_back
    return frame is not None and _unread(frame.f_code, frame.f_lasti)


def may_use(x: Any) -> bool:
    """True where the code that is calling now has no name for it, or one that it reads later."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(PASSED):
        frame = frame.f_back
    if frame is None:
        return False
    names = [name for name, value in frame.f_locals.items() if value is x]
    return not names or any(_reads(frame.f_code, frame.f_lasti, name) for name in names)


@lru_cache(maxsize=256)
def _reads(code: types.CodeType, last: int, name: str) -> bool:
    after = (x for x in dis.get_instructions(code) if x.offset > last and name in _names(x))
    first = next(after, None)
    return first is not None and first.opname.startswith("LOAD")


def _in_torch(frame: types.FrameType) -> bool:
    """True for a frame of torch's own machinery, not of a layer that calls another."""
    name = frame.f_code.co_filename
    return name.endswith(MACHINERY)


@lru_cache(maxsize=256)
def _unread(code: types.CodeType, last: int) -> bool:
    whole = list(dis.get_instructions(code))
    after = [x for x in whole if x.offset > last and x.opname != "CACHE"][:4]
    if after and after[0].opname == "POP_TOP":
        return True
    if after and after[0].opname in ("LOAD_CONST", "LOAD_SMALL_INT") and after[0].argval == 0:
        return after[1].opname in ("BINARY_SUBSCR", "BINARY_OP")
    if not after or after[0].opname != "UNPACK_SEQUENCE" or after[0].argval < 2:
        return False
    stores = after[1:2] if isinstance(after[1].argval, tuple) else after[1:3]
    if any("LOAD" in x.opname or not x.opname.startswith("STORE_") for x in stores):
        return False  # kept in an attribute or an item
    second = [name for x in stores for name in _names(x)][1]
    if any(x.opname.startswith("LOAD") and second in _names(x) for x in whole):
        return False
    return "_FAST" in after[1].opname or second.startswith("_")


def _names(instruction: dis.Instruction) -> tuple[str, ...]:
    """The names that an instruction loads or stores, of which newer Pythons take two at once."""
    name = instruction.argval
    return name if isinstance(name, tuple) else (str(name),)
