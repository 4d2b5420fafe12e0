"""What a layer hands to attention becomes cells; each says what the gate said of it."""

import numpy as np
import pytest
import torch

import impls
from attnbench.core.machine import this_machine
from attnbench.core.process import Worker
from attnbench.core.record import Distance, Error, Record, Status
from attnbench.core.settings import Settings
from attnbench.features.quality import real
from attnbench.features.quality.pretrained import built_in
from attnbench.features.quality.real_worker import TooShort, captured, whole
from impls.problem import Problem
from tests.models.quality.made_up import small_model

PROBLEM = Problem(batch=2, heads=2, kv_heads=2, q_len=8, kv_len=8, head_dim=8, v_head_dim=8)


def test_each_layer_is_noted_with_what_it_was_given():
    model, ids = small_model(layers=3), torch.tensor([[3, 1, 4, 1], [5, 9, 2, 6]])
    found = captured(model, ids)
    assert [q.shape for q, _, _ in found] == [(2, 2, 4, 8)] * 3
    attention, seen = model.encoder.layer[0].attention.self, model.embeddings(ids)
    for got, project in zip(
        found[0], (attention.query, attention.key, attention.value), strict=True
    ):
        want = project(seen).view(2, 4, 2, 8).transpose(1, 2)
        torch.testing.assert_close(got, want)


def test_texts_are_cut_to_one_length_and_too_few_long_ones_are_refused():
    ids = [[1, 2, 3], [4], [5, 6, 7, 8], [9, 10, 11]]
    assert whole(ids, 3, 2).tolist() == [[1, 2, 3], [5, 6, 7]]
    with pytest.raises(TooShort, match="the texts fill 1 rows of 4 tokens, and 2 are asked for"):
        whole(ids, 4, 2)


def test_long_texts_follow_one_another_until_a_row_is_full():
    long = [[n] * 150 for n in range(1, 5)]
    (row,) = whole([[9] * 20, *long], 400, 1).tolist()
    assert row == [1] * 150 + [2] * 150 + [3] * 100


@pytest.fixture
def sources(tmp_path, monkeypatch):
    def stages(apart, question, limit_s):
        files = []
        for number in range(2):
            file = tmp_path / f"layer-{number}.npz"
            x = np.random.default_rng(number).normal(size=(2, 2, 8, 8)).astype("float32")
            np.savez(file, q=x, k=x, v=x)
            files.append(str(file))
        yield {"captured": {"files": files, "heads": 2, "head_dim": 8}}

    monkeypatch.setattr(Worker, "messages", stages)
    return real.capture(built_in(), 8, 2, "float32", "cpu", tmp_path, Settings())


def test_made_up_inputs_of_the_same_shape_stand_before_the_layers(sources):
    assert [name for name, _ in sources] == ["normal", "peaky", "outliers", "layer 0", "layer 1"]
    assert {problem.with_(inputs="normal") for _, problem in sources} == {PROBLEM}


def test_all_that_is_not_exact_is_planned_and_what_takes_no_such_problem_says_so(sources):
    plan = real.planned(impls.table(), [], sources, this_machine())
    names = {cell.variant.name for cell in plan.cells}
    assert {"topk", "nystrom", "linear.elu", "mean_v"} <= names and "sdpa" not in names
    left = {cell.variant.name for cell in plan.cells if cell.left_out is not None}
    assert "retention" in left and "topk" not in left


def test_a_layer_of_the_table_is_refused_in_a_sentence(sources):
    plan = real.planned(impls.table(), ["mha"], sources, this_machine())
    assert "works at level layer, not core" in plan.cells[0].left_out.reason


def test_each_cell_is_a_row_with_the_gates_own_figures(sources):
    class Engine:
        def ask(self, question, limit_s):
            row = impls.table().find("topk")
            problem = Problem.from_dict(question["job"]["problem"])
            error = Error(relative=1e-7, max=1e-6, worst_row=1e-7, cosine=1.0)
            far = Distance(relative=0.25, max=1.0, worst_row=0.5, cosine=0.9, skill=0.75)
            record = Record.of(
                row, problem, Status.MEASURED, error={"forward": error}, distance=far, entropy=0.6
            )
            return {"record": record.to_dict()}

        def close(self):
            pass

    plan = real.planned(impls.table(), ["topk"], sources, this_machine())
    rows = list(real.judged(plan, sources, Engine(), 0))
    assert [row["source"] for row in rows] == [name for name, _ in sources]
    assert all((row["skill"], row["distance"], row["entropy"]) == (0.75, 0.25, 0.6) for row in rows)
    assert not any("npz" in str(row) for row in rows)


def test_a_model_that_can_not_be_read_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(Worker, "messages", lambda *_: iter([{"refused": "3 of 4 texts"}]))
    with pytest.raises(real.NotCaptured, match="could not be read: 3 of 4 texts"):
        real.capture(built_in(), 8, 2, "float32", "cpu", tmp_path, Settings())
