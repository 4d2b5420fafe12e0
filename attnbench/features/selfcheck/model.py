"""``check --model FOLDER``: the implementations that a model of transformers can be loaded with,
layer by layer against float64.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import impls
from attnbench.answer.paste import spelled
from attnbench.command.progress import Progress
from attnbench.command.terminal import say
from attnbench.core.format import counted, roughly
from attnbench.core.machine import Machine, pace, why_not
from attnbench.core.process import Worker, WorkerLost
from attnbench.models import model_config, wrong_level
from attnbench.sweep.plan import LONG, here
from impls.errors import CantBeDone
from impls.spec import DTYPES, Variant, listed

if TYPE_CHECKING:
    import argparse

FLEX = "flex_attention"
OWN = ("eager", "sdpa", FLEX)
"""transformers' own implementations."""
FLASH = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
"""Those of a package, which is looked for."""
PACKED = "packed"
MASKED = ("padded left", "padded right")
WORKER_MODULE = "attnbench.features.selfcheck.model_worker"
OFFLINE = {"HF_HUB_OFFLINE": "1"}
TOKENS, LEAST_TOKENS = 24, 4
"""Of the longer documents."""
LOAD_S, EACH_S = 12.0, 0.6
"""About, to start and load, and of an implementation."""
LOAD_LIMIT_S, LIMIT_S = 1800.0, 600.0
COMPILES = "c++"
"""What rows require that compile for as long as all else takes."""
Row = dict[str, Any]


@dataclass
class ModelCheck:
    """What was loaded, and a result for each implementation and batch."""

    facts: Mapping[str, Any]
    results: list[Row] = field(default_factory=list)
    stopped: bool = False
    """Whether it was stopped before its end."""

    @property
    def implementations(self) -> list[str]:
        """In the order in which they were checked."""
        return list(dict.fromkeys(row["implementation"] for row in self.results))

    def to_dict(self) -> Row:
        """As JSON has it."""
        return {"model": self.facts, "results": self.results, "stopped": self.stopped}

    def row(self, implementation: str, batch: str) -> Row:
        """The result of one on a batch."""
        return next(
            row
            for row in self.results
            if (row["implementation"], row["batch"]) == (implementation, batch)
        )

    def having(self, status: str, batch: str) -> list[str]:
        """The implementations that ended so on a batch."""
        some = [row for row in self.results if row["batch"] == batch]
        return [row["implementation"] for row in some if row["status"] == status]


def check_folder(folder: Path) -> None:
    """Raise CantBeDone for what is no model of transformers, or where that is not installed."""
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise CantBeDone(f"{package} is not installed: pip install 'attnbench[transformers]'")
    model_config(folder, "give one that save_pretrained wrote")


def chosen_rows(arguments: argparse.Namespace, machine: Machine) -> list[Variant]:
    """The variants named, or all that compute softmax here and don't compile first."""
    table = impls.table(arguments.table)
    rows = [table.find(name) for name in arguments.variants]
    for row in rows:
        if (wrong := wrong_level(row)) is not None:
            raise CantBeDone(wrong)
        if not row.exact:
            raise CantBeDone(
                f"{row.label} computes {row.computes}, so it can't agree with the model's own; "
                "'attnbench quality lm' shows what it costs a model"
            )
    return rows or [
        row
        for row in table.rows.values()
        if row.exact and wrong_level(row) is None and why_not(row, machine) is None
        if COMPILES not in row.requires
    ]


def questions(arguments: argparse.Namespace, machine: Machine) -> list[Row]:
    """The question about the model itself, then one for each implementation; raises CantBeDone."""
    check_folder(Path(arguments.model))
    dtypes, lengths = arguments.dtype or ("float32",), arguments.seq or (str(TOKENS),)
    device = arguments.device or "cpu"
    here(device, machine)  # raises for what can't be
    for name, values in (("dtype", dtypes), ("seq", lengths)):
        if len(values) > 1:
            raise CantBeDone(f"--{name} {','.join(values)}: one value goes with --model")
    dtype = LONG.get(dtypes[0], dtypes[0])
    if dtype not in DTYPES:
        raise CantBeDone(f"--dtype {dtype}: with --model it is one of {listed(DTYPES)}")
    if not lengths[0].isdigit() or int(lengths[0]) < LEAST_TOKENS:
        raise CantBeDone(f"--seq {lengths[0]}: with --model it is {LEAST_TOKENS} tokens or more")
    about: Row = {
        "folder": str(Path(arguments.model).resolve()),
        "dtype": dtype,
        "device": device,
        "tokens": int(lengths[0]),
        "seed": arguments.seed or 0,
        "tables": [str(Path(table).resolve()) for table in arguments.table],
    }
    names = [*OWN, *(name for name, package in FLASH.items() if importlib.util.find_spec(package))]
    some = [about | {"implementation": name} for name in names]
    for row in chosen_rows(arguments, machine):
        some.append(about | {"implementation": spelled(row.label), "variant": row.label})
    return [about, *some]


def check_model(some: Sequence[Row], worker: Worker, progress: Progress) -> ModelCheck:
    """Ask the process, until Ctrl-C; raises CantBeDone for a model that can't be checked."""
    about, *others = some
    progress.expect([LOAD_S * pace(), *[EACH_S * pace()] * len(others)])
    count = counted(len(others), "implementation")
    say(f"{count}; about {roughly(pace() * (LOAD_S + EACH_S * len(others)))}")
    progress.step("the model, and each layer in float64")
    try:
        (first,) = worker.messages(about, LOAD_LIMIT_S)
    except WorkerLost as lost:
        raise CantBeDone(f"--model {about['folder']} could not be loaded: {lost}") from None
    if "refused" in first:
        raise CantBeDone(first["refused"])
    check = ModelCheck(first["facts"])
    for question in others:
        progress.step(question["implementation"])
        try:
            check.results += list(_results(question, worker, check.facts["batches"]))
        except KeyboardInterrupt:
            check.stopped = True
            break
    return check


def _results(question: Row, worker: Worker, batches: Sequence[str]) -> Iterator[Row]:
    """Those of one implementation; where it has none for a batch, the reason."""
    left, reason = list(batches), ""
    try:
        for stage in worker.messages(question, LIMIT_S):
            reason = stage.get("refused", "")
            if "result" in stage:
                left.remove(stage["result"]["batch"])
                yield stage["result"]
    except WorkerLost as lost:
        reason = str(lost)
    for batch in left:
        about = {"implementation": question["implementation"], "batch": batch}
        yield about | {"status": "refused", "reason": reason}
