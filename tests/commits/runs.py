"""Runs of a small repository's commits, made by hand, for asv's results."""

import math
import shutil
from dataclasses import replace
from itertools import product

from attnbench.core.checkout import Repository
from attnbench.core.record import Energy, Error, Memory, Record, Status, Time
from attnbench.features.commits.export import export
from attnbench.sweep.plan import problems
from attnbench.sweep.presets import PRESETS
from impls.errors import CantBeDone
from tests import machines
from tests.core.records import refused
from tests.report.page.runs import written
from tests.repositories import git
from tests.times import around, figures

TORCH, CUDA_TORCH = {"torch": "2.13.0+cpu"}, {"torch": "2.13.0+cu130", "triton": "3.9.0"}
BOX = replace(machines.BOX, versions=TORCH).to_dict()
GPU_BOX = replace(machines.WITH_GPU, name="nvidia-h200", versions=CUDA_TORCH).to_dict()


def commit(root, text):
    """A commit, a day after the one before it."""
    made = int(git(root, "rev-list", "--all", "--count"))
    (root / "file.txt").write_text(text)
    git(root, "add", "file.txt")
    moment = f"2026-01-{made + 1:02}T12:00:00+00:00"
    git(root, "commit", "--quiet", "-m", text, GIT_AUTHOR_DATE=moment, GIT_COMMITTER_DATE=moment)
    return git(root, "rev-parse", "HEAD")


def repository(root):
    """Two commits: where they are, and their hashes."""
    root.mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    return root, commit(root, "first"), commit(root, "second")


def problem(seq=128, phase="forward", device="cpu", **more):
    """As the suite has it on such a device."""
    preset = PRESETS["history" if device == "cpu" else "history-cuda"]
    found = next(problems(preset.with_(seq=(str(seq),), phase=(phase,), device=device)))
    return found.with_(**more).to_dict()


def measured(variant="sdpa", median=0.001, *, energy=None, node="", **asked):
    return Record(
        status=Status.MEASURED,
        variant=variant,
        problem=problem(**asked),
        node=node,
        time=Time(clock="host", stop="budget", **figures(around(median, 0.005))),
        memory=Memory(peak_bytes=1 << 20, saved_bytes=None, expected_bytes=None, method="m"),
        error={"forward": Error(relative=1.23456e-7, max=0.0, worst_row=0.0, cosine=1.0)},
        energy=energy and Energy(joules=energy),
    )


def ended(status, variant="sdpa", **asked):
    return Record(status=status, reason="so it was", variant=variant, problem=problem(**asked))


def run(folder, sha, records, *, machine=BOX, **more):
    """A run folder, as a sweep leaves it."""
    said = {"machine": dict(machine), "settings": {"threads": BOX["cores"] - 1}, "energy": False}
    said |= {"code": {"commit": sha, "dirty": False}, "started": "2026-11-22T10:00:00+00:00"}
    return written(folder, records, **{**said, **more})


def changed(record, **problem):
    """The record of another problem, by its JSON values."""
    return record.with_(problem={**record.problem.to_dict(), **problem})


def cells(path, name="attention.time"):
    """Of a file of asv's: what each cell's result and samples are, by asv's own reading."""
    from asv.results import Results

    found = Results.load(str(path))
    if name not in found.get_all_result_keys():
        return {}
    params = found.get_result_params(name)
    values = found.get_result_value(name, params), found.get_result_samples(name, params)
    return dict(zip(product(*params), zip(*values, strict=True), strict=True))


def skipped(value):
    return isinstance(value, float) and math.isnan(value)


class CloneOf(Repository):
    """A repository that is taken for a clone of attnbench."""

    own = False


class Place:
    """A repository of two commits, and where its runs and their results are."""

    def __init__(self, folder, made):
        self.runs, self.results = folder / "runs", folder / "asv"
        root, self.first, self.second = made
        self.root = shutil.copytree(root, folder / "repo")

    def run(self, name, *records, sha=None, **more):
        return run(self.runs / name, sha or self.second, records, **more)

    def export(self, *paths, **more):
        repository = CloneOf(self.root)
        return export(paths, self.results, repository, **more)

    def refused(self, *paths, holding=()):
        refused(lambda: self.export(*paths), *holding, kind=CantBeDone)
