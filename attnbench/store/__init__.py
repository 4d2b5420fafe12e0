"""``results/`` on disk, and as a DataFrame.

A run is a folder ``results/<machine>/<run>/`` of two files: ``run.json``, the header, and
``records.jsonl``, one record a line, flushed and synced as each cell ends. What a death cut off is
set aside in ``torn.txt`` when the run goes on, and its cell is measured again; what was measured
while the machine drifted is kept in ``spoiled.jsonl``. ``load`` makes a table of many runs.
"""

from attnbench.record import DamagedRun
from attnbench.store.beside import (
    check_writable,
    save_beside,
    save_machine,
    selfcheck_said,
    stored_floors,
    stored_margin,
    stored_selfcheck,
)
from attnbench.store.disk import (
    HEADER,
    MACHINE,
    RECORDS,
    SELFCHECK,
    SPOILED,
    TORN,
    StoreError,
)  # fmt: skip
from attnbench.store.frames import load
from attnbench.store.parquet import export
from attnbench.store.reading import (
    each_run,
    find_runs,
    read_header,
    read_records,
)
from attnbench.store.run_folder import RunFolder

__all__ = [
    "HEADER", "MACHINE", "RECORDS", "SELFCHECK", "SPOILED", "TORN", "DamagedRun", "RunFolder",
    "StoreError", "check_writable", "each_run", "export", "find_runs", "load", "read_header",
    "read_records", "save_beside", "save_machine", "selfcheck_said", "stored_floors",
    "stored_margin", "stored_selfcheck",
]  # fmt: skip
