"""What a user gets wrong: one sentence with the cause and what to do, exit status 2, no worker
started, nothing left behind.

The cases are in ``tests/goldens/refused.txt``, a call and its sentence each; ``[...]`` stands for
what is another on another machine. A new one is a call with a line ``?`` below it, and
``GOLDENS=write python -m pytest tests/test_refused.py -n 0`` writes its sentence, to be reviewed.
"""

import os
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from attnbench.core.process import Worker
from attnbench.features.quality import pretrained
from attnbench.models.capture.calls import SeenCalls, Site
from impls.problem import Problem
from tests.calling import attnbench_

TABLE = Path(__file__).with_name("goldens") / "refused.txt"
LINES = TABLE.read_text().splitlines()
CASES = dict(zip(LINES[::2], LINES[1::2], strict=True))
NO_ROWS = {
    "raises": "raise ValueError('it is me')",
    "dies": "import os; os._exit(3)",
    "lacks": "x = 1",
    "garbled": "def (",
}
DEEP = "[" * 100_000 + "]" * 100_000


def shaped(kind, shape):
    """An .npy file whose header is made up."""
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x02\x00" + len(text).to_bytes(4, "little") + text + bytes(64)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with all that is named in a call."""
    folder = tmp_path_factory.mktemp("folder")
    for name, code in NO_ROWS.items():
        (folder / f"{name}.py").write_text(code)
    (folder / "EMPTY.npy").write_bytes(b"")
    (folder / "HUGE.npy").write_bytes(shaped("|b1", (16, 1 << 40)))
    (folder / "OBJECTS.npy").write_bytes(shaped("|O", (16, 16)))
    (folder / "PICKLE.npy").write_bytes(b"\x80\x04cos\nsystem\n")
    np.savez(folder / "ARRAYS.npz", q=np.ones(3), k=np.ones(3), v=np.ones(3))
    np.savez(folder / "OBJECTS.npz", q=np.array([{}] * 2, object))
    (folder / "DEEP.json").write_text(DEEP)
    os.mkfifo(folder / "FIFO.npz")
    for name, text in {"run": "{}", "deep": DEEP}.items():
        (folder / name).mkdir()
        (folder / name / "run.json").write_text(text)
    (folder / "odd" / "run.json").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "LATIN.txt").write_bytes("Thé".encode("latin-1"))
    for name, kind in {"untold": "LlamaForCausalLM", "encoder": "BertModel"}.items():
        (folder / name).mkdir()
        config = f'{{"model_type": "x", "architectures": ["{kind}"]}}'
        (folder / name / "config.json").write_text(config)
    (folder / "encoder" / "tokenizer.json").write_text("{}")
    problem = Problem(q_len=24, kv_len=24)
    for name, site in {
        "calls": Site(problem, "a.py:1", "sdpa", 1, 9.0),
        "none": Site(problem, "a.py:1", "flex", 1, 9.0, faithful=False, note="it is capped"),
        "gpu": Site(problem.with_(device="cuda"), "a.py:1", "sdpa", 1, 9.0),
    }.items():
        SeenCalls([site]).write(folder / f"{name}.json")
    return folder


@pytest.fixture
def folder(made, monkeypatch):
    """Where the verbs are called, and no weights of a model."""
    monkeypatch.chdir(made)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # Python's own folder beside a table
    monkeypatch.setattr(Worker, "ask", lambda *_: pytest.fail("a worker was asked"))
    monkeypatch.setattr(pretrained, "model_folder", lambda: None)  # it may not be installed
    monkeypatch.setattr(pretrained, "versions", lambda: {"transformers": "5"})
    return made


@pytest.mark.parametrize("call", CASES)
def test_what_can_not_be_done_is_a_sentence_and_leaves_nothing(folder, call):
    before = sorted(folder.rglob("*"))
    done = attnbench_(*shlex.split(call)[2:])
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Traceback" not in done.stderr and sorted(folder.rglob("*")) == before
    last = done.stderr.splitlines()[-1].replace(str(folder), "HERE")
    assert last.startswith("attnbench: ")
    wanted = "(.*)".join(map(re.escape, CASES[call].split("[...]")))
    if os.environ.get("GOLDENS") == "write" and not re.fullmatch(wanted, last[11:]):
        CASES[call] = last[11:]
        TABLE.write_text("".join(f"{call}\n{said}\n" for call, said in CASES.items()))
    assert re.fullmatch("(.*)".join(map(re.escape, CASES[call].split("[...]"))), last[11:]), last


def test_a_word_that_is_endless_or_strange_is_told(folder):
    for option, value in (
        ("--seq", "9" * 5_000),
        ("--mask", "document:" + ",".join(["1"] * 60_000)),
        ("--mask", "dense:a\nb.npy"),
        ("--mask", "\x1b[2J\u202e"),
    ):
        done = attnbench_("run", "einsum", option, value)
        assert done.returncode == 2 and done.stderr.startswith("attnbench: ")
        assert all(line.isprintable() for line in done.stderr.splitlines())
