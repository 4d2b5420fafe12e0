"""What the next cell would suffer from: each by itself, just within its bound and just beyond."""

import os
import resource

import pytest

from attnbench.gate import process_state

AT = {
    "folder": "/a", "signals": [1], "limits": [(1, 2)], "streams": [(1, None)],
    "variables": {("A", "1")}, "import path": {"/a"}, "threads": {"one"}, "children": {7},
    "recursion": 1000, "warnings": 2, "files": 100, "memory": 0.5,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "before", "suffers"),
    [
        ("folder", "/b", True), ("folder", "/a", False),
        ("signals", [2], True), ("limits", [(2, 2)], True), ("streams", [(2, None)], True),
        ("variables", {("A", "1"), ("B", "2")}, True), ("variables", set(), False),
        ("import path", {"/a", "/b"}, True), ("import path", set(), False),
        ("threads", set(), True), ("threads", {"one", "two"}, False),
        ("children", {8}, True), ("children", {7, 8}, False),
        ("recursion", 1001, True), ("recursion", 999, False),
        ("warnings", 1, True), ("warnings", 3, False),
        ("files", 35, True), ("files", 36, False),
        ("memory", 0.3749, True), ("memory", 0.375, False),
    ],
)  # fmt: skip
def test_the_next_cell_suffers_beyond_the_bound_of_each(monkeypatch, name, before, suffers):
    assert set(process_state.now()) == set(AT)
    monkeypatch.setattr(process_state, "now", lambda: AT)
    assert process_state.disturbed(AT | {name: before}) == [name] * suffers


def test_a_stream_that_lies_elsewhere_is_noticed(tmp_path):
    kept, before = os.dup(0), process_state.now()
    try:
        with (tmp_path / "other").open("w") as other:
            os.dup2(other.fileno(), 0)
            assert "streams" in process_state.disturbed(before)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert "streams" not in process_state.disturbed(before)


def test_memory_is_what_is_in_use_as_a_share_of_the_limit(monkeypatch):
    limit = [1 << 30]
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit[0], limit[0]))
    before = process_state._memory()
    held = bytearray(64 << 20)
    assert process_state._memory() - before == pytest.approx(1 / 16, abs=0.01)
    del held
    assert process_state._memory() == pytest.approx(before, abs=0.01)
    limit[0] = resource.RLIM_INFINITY
    assert process_state._memory() == 0.0
