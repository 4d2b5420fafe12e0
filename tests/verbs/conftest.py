"""Stand-ins for the processes that verbs ask, and ``attnbench choose`` as its users call it."""

import math
from dataclasses import asdict

import pytest

from attnbench.core import process
from attnbench.core.record import Probed, Record, Status
from attnbench.core.wire import convert, plain
from attnbench.features.claims import trial
from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimOutcome
from attnbench.features.quality import caches, lm, pretrained, recall
from attnbench.features.quality.task import variant_row
from impls.problem import Problem
from impls.spec import Variant
from tests.calling import asked
from tests.models.quality.made_up import QUALITY, look, original, passage, step
from tests.report.page import runs
from tests.times import pairs_answer

OKAY = (Status.MEASURED, "")


def answered(question, ends=OKAY):
    """The answer of a worker that measures: 20 µs and 1 KB a token, the second a fifth faster."""
    if "compare" in question:
        return pairs_answer([math.log(1.2)] * 40, a_s=1.2e-3)
    if "probe" not in question and "job" not in question:
        return {"canary": 1e-3, "ceilings": {}, "noise": []}
    job = question.get("job") or question["probe"]
    variant, problem = convert(job["variant"], Variant), convert(job["problem"], Problem)
    if "job" in question:
        return {"record": plain(Record.of(variant, problem, *ends, seed=0))}
    tokens = problem.kv_len * problem.batch
    times = {"time_s": 20e-6 * tokens, "samples_s": [20e-6 * tokens] * 3}
    found = Probed(status=Status.MEASURED, **times, rows=16, peak_bytes=1000 * tokens)
    return {"probe": plain(found)}


class Worker:
    """Answers by a function; keeps what it was asked, and with which settings it was begun."""

    def __init__(self):
        self.asked, self.settings, self.answer = [], [], None

    def __call__(self, settings, **more):
        self.settings.append((settings, more))
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def close(self):
        pass

    def ask(self, question, limit_s):
        self.asked.append(question)
        return self.answer(question)


@pytest.fixture
def worker(monkeypatch):
    made = Worker()
    for where in ("sweep.engine", "sweep.places", "features.profile.verb"):
        monkeypatch.setattr(f"attnbench.{where}.LocalEngine", made)
    return made


@pytest.fixture
def chooses():
    """Calls the verb; returns its status, data and prose."""

    def call(*words):
        status, out, err = asked("choose", *words)
        return status, out if "--json" in words else " ".join(out.split()), err

    return call


@pytest.fixture
def model(monkeypatch):
    """In place of the processes that have the model: by variant, the stages of their answers."""
    answers = {}

    def messages(worker, question, limit_s):
        if question["answer"].endswith(":capture"):
            yield {"heads": 2, "head_dim": 8, "files": []}
        elif question["answer"] == f"{lm.WORKER_MODULE}:original":
            yield from ({"passages": passage(n)} for n in range(question["passages"]))
        elif question["answer"] == f"{lm.WORKER_MODULE}:variant":
            answer = answers.get(question["variant"])
            some = [passage(n, kl=0.1) for n in range(question["passages"])]
            for each in some:
                each["hybrids"] = {str(ratio): {**each, "kl": 0.05} for ratio in question["hybrid"]}
            stages = [{"status": "measured", "reason": "", "passages": each} for each in some]
            yield from stages if answer is None else answer() if callable(answer) else answer
        elif question["answer"].startswith(caches.WORKER_MODULE):
            some = [passage(n, kl=0.1, bytes=100.0) for n in range(question["passages"])]
            stages = [{"status": "measured", "reason": "", "passages": each} for each in some]
            if question["answer"].endswith(":original"):
                stages = [{"passages": each} for each in some]
            answer = answers.get(question.get("variant"))
            yield from stages if answer is None else answer() if callable(answer) else answer
        elif question["answer"].endswith(":original"):
            yield {"original": {n: original()[n] for n in ("tokens", "plain")}}
            yield {"floor": step(0.9)}
        else:
            answer = answers.get(question["variant"], [QUALITY, {"step": step(1.0)}])
            yield from answer() if callable(answer) else answer

    monkeypatch.setattr(process.Worker, "messages", messages)
    monkeypatch.setattr(pretrained, "model_folder", lambda: None)
    monkeypatch.setattr(pretrained, "versions", lambda: {"transformers": "5"})
    return answers


@pytest.fixture
def trained(monkeypatch):
    """In place of the processes: trainings with accuracies by variant."""
    shares = {"sdpa": 1.0}

    def run(job):
        share = shares.get((job.variant.label, job.seed), shares.get(job.variant.label, 0.5))
        if isinstance(share, BaseException):
            raise share
        about = {"setting": asdict(job.setting), "seed": job.seed, "state_numbers": None}
        right = dict.fromkeys(job.setting.pairs, share)
        checkpoint = look(job.setting.steps, right, 2.0, in_time=bool(job.seconds))
        return {**variant_row(job.variant, "trained"), **about, "curve": [checkpoint]}

    monkeypatch.setattr(recall, "run_training", run)
    return shares


@pytest.fixture
def published(monkeypatch):
    """Every point of every claim gets what was published, or what this holds by its name."""
    changed = {}

    def outcome(claim, request):
        if isinstance(changed.get(claim.name), BaseException):
            raise changed[claim.name]
        figures = {p.name: ClaimFigure(changed.get(p.name, p.published)) for p in claim.points}
        return ClaimOutcome.of(claim, ClaimFindings(figures), 0.5)

    monkeypatch.setattr("attnbench.features.claims.trial.outcome", outcome)
    return changed


STEP_S = 11.0
"""That each made-up measurement takes by a stand-in clock."""


@pytest.fixture
def made_up(monkeypatch, worker, model, trained, published, tmp_path):
    """Stand-ins for every process that a verb would ask; each answer takes :data:`STEP_S`."""
    now = [0.0]

    def stepping(answer):
        def steps(*given):
            now[0] += STEP_S
            return answer(*given)

        return steps

    for where in ("command.progress", "sweep.sweep"):
        monkeypatch.setattr(f"attnbench.{where}.monotonic", lambda: now[0])
    for place, name in ((process.Worker, "messages"), (recall, "run_training"), (trial, "outcome")):
        monkeypatch.setattr(place, name, stepping(getattr(place, name)))
    model["sdpa"] = model["topk"] = [{"status": "refused", "reason": "not in this model"}]
    worker.answer = stepping(answered)
    monkeypatch.setattr("attnbench.features.quality.real.LocalEngine", worker)
    folder = tmp_path / "results" / "box" / "one"
    runs.written(folder, [runs.timed("sdpa", 1e-3), runs.timed("matmul", 3e-3)])
    monkeypatch.chdir(tmp_path)
