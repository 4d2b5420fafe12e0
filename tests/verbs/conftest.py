"""Stand-ins for the processes that verbs ask, and ``attnbench choose`` as its users call it."""

import pytest

from attnbench.core import process
from attnbench.features.claims.claim import ClaimFigure, ClaimFindings, ClaimOutcome
from attnbench.features.quality import pretrained, recall
from tests.calling import asked
from tests.models.quality.made_up import QUALITY, look, original, step


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
        if question["do"] == "capture":
            yield {"captured": {"heads": 2, "head_dim": 8, "files": []}}
        elif question["do"] == "original":
            facts = {n: original()[n] for n in ("tokens", "plain")}
            yield {"original": {**facts, "similarities": [0.5] * len(question["pairs"])}}
            yield {"floor": step(0.9)}
        else:
            answer = answers.get(question["variant"], [{"quality": QUALITY}, {"step": step(1.0)}])
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
        row = recall.training_row(job.variant, job.setting, job.seed, job.seconds)
        right = dict.fromkeys(job.setting.pairs, share)
        checkpoint = look(job.setting.steps, right, 2.0, in_time=bool(job.seconds))
        return {**row, "status": "trained", "curve": [checkpoint]}

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
