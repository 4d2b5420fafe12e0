"""A team that the tests of a module share, and rows whose code stands in the test."""

import itertools
import json
from pathlib import Path

import jsonschema
import pytest

import attnbench
from attnbench.core.record import Record
from attnbench.meter import ranks
from attnbench.meter.cell import Bench
from attnbench.meter.timed import Job
from impls.masks import Mask
from impls.problem import Problem
from impls.spec import Variant

SCHEMA = json.loads((Path(attnbench.__file__).parent / "record.schema.json").read_text())
HONEST = "def build(problem, ranks):\n    return right(problem, ranks, 512)\n"


class Planted:
    """Makes rows of two ranks whose code is the given text, and measures them."""

    def __init__(self, folder):
        self.folder, self.bench, self._number = folder, Bench(), itertools.count()

    def row(self, code=HONEST, **more):
        file = self.folder / f"planted{next(self._number)}.py"
        top = "import os, time, torch\nfrom impls.parallel.ring import build as right\n"
        file.write_text(top + code)
        return Variant(
            name="planted",
            title="",
            family="parallel",
            computes="softmax",
            cross=False,
            build=f"{file}:build",
            ranks=True,
            shares="impls.parallel.shares:ring",
            masks=("none", "causal"),
            options={"world": 1},
            **more,
        ).with_options({"world": "2"})

    @staticmethod
    def problem(**changes):
        ordinary = {
            "heads": 2,
            "kv_heads": 2,
            "q_len": 32,
            "kv_len": 32,
            "head_dim": 8,
            "v_head_dim": 8,
            "mask": Mask.parse("causal"),
        }
        return Problem(**{**ordinary, **changes})

    def measure(self, row, problem=None, **job):
        """The record, checked against the published schema and through its own line."""
        job = {"budget_s": 0.05, **job}
        record = self.bench.measure(Job(row, problem or self.problem(), **job))
        values = json.loads(record.line())
        jsonschema.validate(values, SCHEMA)
        assert Record.from_dict(values).line() == record.line()
        return record

    def run(self, code, problem=None, **job):
        return self.measure(self.row(code), problem, **job)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Whatever ranks its rows have started are gone afterwards."""
    yield Planted(tmp_path_factory.mktemp("planted"))
    pids = [pid for each in ranks._teams.values() for pid in each.processes]
    ranks.end_teams()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
