"""What a user gets wrong: one sentence with what to do, exit status 2, and nothing left behind."""

import re

import numpy as np
import pytest

from tests.calling import ROOT, attnbench_

NO_ROWS = {
    "raises": ("raise ValueError('it is me')", "ValueError: it is me"),
    "dies": ("import os; os._exit(3)", "status 3"),
    "lacks": ("x = 1", "defines no ROWS"),
    "garbled": ("def (", "SyntaxError"),
}


def sentence(done, *words):
    """The one line of an error: cause, and what to do, with these words; status 2."""
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("attnbench: ")
    for word in words:
        assert word in last
    return last


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "chunked?block=x"], ["block='x'"]),
        (["run", "--head-dim", "0"], ["head_dim is 0", "1 or more"]),
        (["run", "--seq", "²"], ["--seq"]),
        (["check", "--phase", ","], ["phase"]),
        (["run", "--mask", "document:100,20", "--seq", "128"], ["add up to 120", "128"]),
        (["run", "--mask", "dense:EMPTY.npy"], ["EMPTY.npy"]),
        (["run", "--mask", "dense:ARRAYS.npz"], ["ARRAYS.npz"]),
        (["run", "--inputs", "captured:ARRAYS.npz"], ["ARRAYS.npz", "needs (1, 4, 128, 64)"]),
        (["run", "einsum", "--threads", "0"], ["threads", "0"]),
        (["run", "ring", "--world", "999"], ["needs a core for each of its 999 processes"]),
        (["show"], ["NAME"]),
        (["show", "einsum", "--text", " "], ["there is no word in"]),
        (["show", "einsum", "--text", "a b", "--mask", "rainbow"], ["'rainbow' is no mask"]),
        (["show", "einsum", "--text", "a b", "--embeddings", "/no/such.txt"], ["/no/such.txt"]),
        (["show", "sdpa.cudnn", "--text", "a b"], ["no map can be drawn"]),
        (["show", "einsum", "--out", "map.png"], ["--text"]),
        (["env", "--dtype", "int3"], ["int3", "float32"]),
        (["env", "--device", "tpu"], ["tpu", "cpu"]),
    ],
    ids=lambda x: " ".join(x),
)
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(tmp_path, words, said):
    (tmp_path / "EMPTY.npy").write_bytes(b"")
    np.savez(tmp_path / "ARRAYS.npz", q=np.ones(3), k=np.ones(3), v=np.ones(3))
    out = tmp_path / "out"
    words = [re.sub("(EMPTY|ARRAYS)", rf"{tmp_path}/\1", w) for w in words]
    if words[0] == "run":
        words += ["--out", str(out)]
    sentence(attnbench_(*words), *said)
    assert not out.exists()
    assert not (ROOT / "map.png").exists()


@pytest.mark.parametrize("kind", NO_ROWS)
def test_a_table_file_that_gives_no_rows_is_one_sentence(tmp_path, kind):
    code, said = NO_ROWS[kind]
    file = tmp_path / "mine.py"
    file.write_text(code)
    done = attnbench_("run", "--out", tmp_path / "out", "--table", file)
    sentence(done, str(file), said, "a list of impls.spec.Variant")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["map.jpg", "no/map.png"])
def test_a_picture_that_can_not_be_written_is_one_sentence(tmp_path, name):
    sentence(attnbench_("show", "einsum", "--text", "a b", "--out", tmp_path / name), name)
    assert list(tmp_path.iterdir()) == []
