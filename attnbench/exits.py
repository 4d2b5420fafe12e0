"""How a process ended, in words."""

from __future__ import annotations

import signal

NAMES = {number.value: number.name for number in signal.Signals}


def ended(status: int) -> str:
    """Of an exit status as Python gives it: below zero is a signal, and some have no name."""
    if status >= 0:
        return f"ended with status {status}"
    return f"died of {NAMES.get(-status, f'signal {-status}')}"
