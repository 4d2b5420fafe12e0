"""Records as a table, by the fast parser where it is installed, and by Python's own where not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.collector import collector_off
from attnbench.store.reading import find_runs, machine_of, read_records, warn

if TYPE_CHECKING:
    import pandas as pd

ROWS = "rows"


def load(paths: Iterable[str | Path] = ("results",)) -> pd.DataFrame:
    """Records as a DataFrame, a row each: ``time.median_s``, ``problem.q_len`` …, ``machine``.

    Its ``attrs`` say how many rows each run has, in the order of the runs.
    """
    runs = list(find_runs(Path(p) for p in paths))
    if find_spec("msgspec") is None:
        return _plainly(runs)
    return _quickly(runs)


def _quickly(runs: Sequence[Path]) -> pd.DataFrame:
    import pandas as pd

    from attnbench.store import halves

    with collector_off():
        found = halves.read(runs)
        frame = pd.DataFrame(dict(found.columns.whole()), copy=False)
    frame.attrs[ROWS] = found.rows
    warn(found.amiss)
    return frame


def _plainly(runs: Iterable[Path]) -> pd.DataFrame:
    """The same through the records themselves: a bare checkout may have nothing else."""
    import pandas as pd

    rows = [
        [{**record.to_dict(), "machine": machine_of(path)} for record in read_records(path)]
        for path in runs
    ]
    frame = pd.json_normalize([row for some in rows for row in some])
    frame.attrs[ROWS] = list(map(len, rows))
    return frame
