"""All records as one Parquet file, for whoever reads tables with something other than pandas."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.store.disk import StoreError, write_whole
from attnbench.store.frames import load

if TYPE_CHECKING:
    import pandas as pd


def export(paths: Iterable[str | Path], file: str | Path) -> int:
    """Write the runs' records as one flat table, a row each; how many there are.

    Samples and other lists stay lists. A column whose values are of several types, as an option's
    may be in several variants, becomes text.
    """
    arrow, parquet = _arrow()
    frame, file = load(paths), Path(file)
    if frame.empty:
        raise StoreError(f"there is no record under {', '.join(map(str, paths))} to export")
    table = arrow.table({name: _column(arrow, frame[name]) for name in frame.columns})
    packed = arrow.BufferOutputStream()
    parquet.write_table(table, packed, compression="zstd")
    try:
        write_whole(file, packed.getvalue().to_pybytes())
    except OSError as error:
        why = error.strerror or str(error)
        raise StoreError(
            f"can't write {file}: {why}; give a file in a folder that is there"
        ) from None
    return len(frame)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise StoreError(
            "Parquet needs pyarrow, which is not installed: pip install 'attnbench[parquet]'"
        ) from None
    return pyarrow, pyarrow.parquet


def _column(arrow: Any, values: pd.Series) -> Any:
    """A column as Arrow has it; what fits no one type, as text."""
    try:
        return arrow.array(values, from_pandas=True)
    except (arrow.ArrowInvalid, arrow.ArrowTypeError):
        return arrow.array([_text(x) for x in values], arrow.string())


def _text(value: Any) -> str | None:
    if value is None or value != value:
        return None
    return value if isinstance(value, str) else json.dumps(value)
