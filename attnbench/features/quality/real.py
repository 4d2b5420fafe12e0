"""``quality real``: skill of what isn't exact, on what a trained model's layers hand to attention.

Beside the layers stand made-up inputs. The gate judges each cell, untimed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import impls
from attnbench.command.progress import Progress
from attnbench.core.evidence import Evidence
from attnbench.core.format import roughly
from attnbench.core.record import NOT_TRIED, Status
from attnbench.core.wire import plain
from attnbench.features.quality.pretrained import WORKER_MODULE, ModelSession, open_session
from attnbench.features.quality.task import (
    QualityFigure,
    Result,
    ResultGroup,
    Row,
    TaskRun,
    TaskWorker,
    status_words,
)
from attnbench.models import wrong_level
from attnbench.sweep.compare import starting_s
from attnbench.sweep.engine import Engine, LocalEngine, measure
from attnbench.sweep.plan import Plan, make_plan
from attnbench.sweep.presets import Preset
from impls.problem import Problem

CAPTURE_S, CAPTURE_LIMIT_S, CELL_LIMIT_S = 8.0, 300.0, 120.0
MADE_UP = ("normal", "peaky", "outliers")
LEVEL = 0.5
"""The share of what softmax does beyond averaging the values, that a variant should keep."""


def capture_inputs(session: ModelSession, seq: int, batch: int, folder: Path) -> dict[Problem, str]:
    """Problems with the name of their source, the layers last; raises CantBeDone."""
    question = {"texts": list(session.texts), "seq": seq, "batch": batch, "folder": str(folder)}
    question |= {"dtype": session.dtype, "device": session.device}
    with TaskWorker(session.settings.threads) as worker:
        (captured,) = worker.original(f"{WORKER_MODULE}:capture", question, CAPTURE_LIMIT_S)
    heads, width = captured["heads"], captured["head_dim"]
    problem = Problem(
        batch, heads, heads, seq, seq, width, width, session.dtype, device=session.device
    )
    layers = {f"captured:{file}": f"layer {n}" for n, file in enumerate(captured["files"])}
    inputs = {kind: kind for kind in MADE_UP} | layers
    return {problem.with_(inputs=kind): source for kind, source in inputs.items()}


def plan_sources(
    arguments: argparse.Namespace, sources: Mapping[Problem, str], session: ModelSession
) -> Plan:
    """The cells of every variant named, or of all that are not exact."""
    table = impls.table(arguments.table)
    names = arguments.variants or [
        row.name for row in table.rows.values() if wrong_level(row) is None and not row.exact
    ]
    grid = Preset("real inputs", device=session.device, level=("core",), budget=0.0)
    return make_plan(table, names, grid, session.machine, list(sources))


def judge_sources(
    plan: Plan, sources: Mapping[Problem, str], engine: Engine, seed: int
) -> Iterator[Row]:
    """A row of evidence for each cell, as it ends: what the gate says of it, untimed."""
    header = {"seed": seed, "budget_s": 0.0}
    for cell in plan.cells:
        record = cell.left_out or measure(cell, header, engine, timed=False, limit_s=CELL_LIMIT_S)
        error = (record.error or {}).get("forward")
        refused = record.status is Status.UNSUPPORTED
        names = ("variant", "family", "computes", "reason", "remedy", "entropy")
        yield {
            **{name: getattr(record, name) for name in names},
            "source": sources[cell.problem],
            "status": "refused" if refused else str(record.status),
            "error": plain(error) if error else None,
            "skill": record.distance.skill if record.distance else None,
            "problem": str(cell.problem.with_(inputs="normal")),
        }


def start(arguments: argparse.Namespace) -> TaskRun:
    """``attnbench quality real [VARIANT …]``"""
    for name in arguments.variants:
        impls.table(arguments.table).find(name)
    session = open_session(arguments, [arguments.seq])
    options = {"seq": arguments.seq, "batch": arguments.batch, "seed": arguments.seed}
    options |= {"dtype": session.dtype, "device": session.device}

    def steps(progress: Progress) -> Generator[Row | None]:
        progress.tell(f"first the model's layers are read; about {roughly(CAPTURE_S)}")
        progress.at(0, 0, CAPTURE_S, "the model's layers are read")
        with tempfile.TemporaryDirectory() as folder:
            sources = capture_inputs(session, arguments.seq, arguments.batch, Path(folder))
            plan = plan_sources(arguments, sources, session)
            guesses = [cell.guess_s for cell in plan.cells]
            progress.tell(plan.sentence(starting_s() + sum(guesses)))
            yield None
            guesses[0] += starting_s()
            progress.expect(guesses)
            with LocalEngine(session.settings, limited=session.device == "cpu") as engine:
                for row in judge_sources(plan, sources, engine, arguments.seed):
                    name = f"{row['variant']} on {row['source']}"
                    if row["status"] not in ("measured", "refused", *NOT_TRIED):
                        progress.tell(f"{name}: {status_words(row)}", "yellow")
                    progress.step(name)
                    yield row

    return TaskRun(session.device, session.header(arguments, options), steps)


def results(evidence: Evidence) -> list[ResultGroup]:
    """The skill of each variant on all layers, then on each source."""
    by_variant: dict[str, list[Mapping[str, Any]]] = {}
    for row in evidence.rows:
        if row["skill"] is not None:
            by_variant.setdefault(row["variant"], []).append(row)
    some = [
        Result(name, rows[0]["computes"], rows[0]["family"], _scores(rows))
        for name, rows in by_variant.items()
    ]
    return [ResultGroup("on what the layers pass on", "all layers", LEVEL, "softmax", some)]


def _scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, QualityFigure]:
    """The mean over layers, from the worst to the best, then each source."""
    some = [row["skill"] for row in rows if row["source"] not in MADE_UP] or [rows[0]["skill"]]
    whole = QualityFigure(statistics.fmean(some), min(some), max(some))
    sources = {row["source"]: QualityFigure(*[row["skill"]] * 3) for row in rows}
    return {"all layers": whole} | sources


def notes(evidence: Evidence) -> Iterator[str]:
    """The inputs, and the meaning of words."""
    header, options = evidence.made, evidence.made["wanted"]
    problem = next((row["problem"] for row in evidence.rows), "")
    entropies = {r["source"]: f"{r['entropy']:.3f}" for r in evidence.rows if r["entropy"]}
    yield (
        f"{header['model']['name']}: q, k and v of each layer on {options['batch']} rows of "
        f"{options['seq']} tokens, passages one after the other ({header['texts']['digest']}); all "
        f"sources are {problem}"
    )
    yield (
        "skill: one minus the distance from softmax over that of mean_v, which gives every query "
        "the mean of the values: 1 is exact, 0 knows nothing of the scores, below it is worse; low "
        "in an operator of its own it is information, not a fault"
    )
    yield (
        "entropy of softmax's weights in float64; 1 is uniform, 0 picks one key: "
        f"{', '.join(f'{source} {entropy}' for source, entropy in entropies.items())}"
    )
    yield "peaky: logits in the hundreds; outliers: a few channels of keys and values are loud"
