"""A stand-in for the worker of this machine, and ``attnbench choose`` as its users call it."""

import pytest

from tests.calling import asked


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
