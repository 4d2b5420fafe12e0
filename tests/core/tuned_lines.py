"""Lines of tuned options made by hand, in this processor's file."""

import msgspec

from attnbench.core.machine import this_machine
from attnbench.core.tuned import TunedLine, file_of, versions_of


def line(problem, variant="chunked", **options):
    """A line that sets some options of a variant on a problem."""
    names = ("dtype", "head_dim", "v_head_dim", "phase", "q_len", "kv_len")
    return TunedLine(
        tuned=1, variant=variant, options=options, mask=str(problem.mask), ratio=0.8, low=0.7,
        high=0.9, pairs=40, problem=str(problem), versions=versions_of(this_machine()), threads=1,
        made="", **{name: getattr(problem, name) for name in names},
    )  # fmt: skip


def keep(*lines):
    """Put them, or bytes as they are, into the file in place of what was there; its path."""
    path = file_of("cpu", this_machine())
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = (each if isinstance(each, bytes) else msgspec.json.encode(each) for each in lines)
    path.write_bytes(b"\n".join(texts))
    return path
