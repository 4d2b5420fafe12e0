"""Which of torch's operators a call reaches: what ran, attested."""

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(func.overloadpacket.__name__))
        return func(*args, **(kwargs or {}))


def operators(call: Callable[[], object]) -> set[str]:
    """The names of torch's operators that a call reaches."""
    with _Recorder() as recorder:
        call()
    return recorder.names
