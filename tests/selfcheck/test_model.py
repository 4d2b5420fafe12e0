"""``check --model``: small models of many kinds, and faults in one layer of them."""

import itertools
import json
import re

import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama import modeling_llama

from attnbench.command.progress import Progress
from attnbench.core.process import WorkerLost
from attnbench.features.selfcheck.model import ModelCheck, check_model
from attnbench.features.selfcheck.model_worker import CheckedModel
from attnbench.features.selfcheck.view import model_rows, model_sentences, show_model
from tests.calling import ROOT, asked, well
from tests.models.transformers.small import CLASSES, small_config

QUIET = pytest.mark.filterwarnings("ignore")
FAULTY = 5
TRAINED = ROOT / "attnbench/features/quality/small_lm"


@pytest.fixture
def folder(tmp_path):
    """Writes a model's configuration, and gives the folder."""

    def write(model_type, **fields):
        config = small_config(model_type)
        for name, value in fields.items():
            setattr(config, name, value)
        config.architectures = [CLASSES[model_type][0]]
        config.save_pretrained(tmp_path)
        return tmp_path

    return write


def checked(folder, *names, seed=0):
    model = CheckedModel(str(folder), "float32", "cpu", 24, seed)
    results = itertools.chain.from_iterable(model.results(name) for name in names)
    return ModelCheck(model.facts(), list(results))


def statuses(check, implementation):
    return {batch: check.row(implementation, batch)["status"] for batch in check.facts["batches"]}


BATCHES = {
    "t5": 3,  # an encoder, a decoder, and what is learned is added to the scores
    "gemma2": 4,  # a soft cap, and windows
    "llama": 4,
    "mistral": 4,  # windows
    "qwen3_next": 4,  # one layer in two is linear
    "deepseek_v3": 4,  # values narrower than keys
    "gpt2": 4,
    "llama4_text": 4,  # chunks
    "bert": 3,
    "albert": 3,  # one layer, called twice
}
"""How many of the batches each kind of model takes."""
QUICK = ("t5", "gemma2")


@QUIET
@pytest.mark.parametrize(
    "model_type",
    [*QUICK, *(pytest.param(m, marks=pytest.mark.slow) for m in BATCHES if m not in QUICK)],
)
def test_all_implementations_agree(folder, model_type):
    check = checked(folder(model_type), "eager", "sdpa", "flex_attention", "attnbench:chunked")
    assert len(check.facts["batches"]) == BATCHES[model_type]
    ends = {row["status"] for row in check.results}
    assert "differs" not in ends
    assert set(statuses(check, "eager").values()) == {"agrees"}
    assert set(statuses(check, "attnbench:chunked").values()) == {"agrees"}
    assert all(row["no_gradients"] == "" for row in check.results if row["status"] == "agrees"
               and row["implementation"] != "flex_attention")  # fmt: skip


def visible(query, key, mask):
    """Which keys each row sees by the arguments of transformers' SDPA."""
    n, m = query.shape[2], key.shape[2]
    if mask is None:
        return torch.ones(n, m).bool().tril().expand(query.shape[0], 1, n, m)
    return mask.expand(query.shape[0], 1, n, m)


def later_key(seen):
    return seen | torch.eye(seen.shape[-1]).roll(1, 1).bool().triu()


def not_its_own(seen):
    changed = seen & ~torch.eye(seen.shape[-1]).bool()
    changed[:, :, 0, 0] = True
    return changed


def everything_before(seen):
    return torch.ones_like(seen).tril()


def in_place_of_sdpa(monkeypatch, change):
    """SDPA whose mask is changed in one layer."""

    def attend(module, query, key, value, mask, **more):
        if module.layer_idx == FAULTY:
            mask = change(visible(query, key, mask))
        return sdpa_attention_forward(module, query, key, value, mask, **more)

    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", attend)


@QUIET
@pytest.mark.parametrize(
    ("change", "batches", "reason"),
    [
        (everything_before, 2, "sequence 1, row 9 sees key 0, which is padding (15 of 39 rows"),
        pytest.param(
            later_key,
            4,
            "sequence 0, row 0 sees key 1, which comes after it (46 of 48 rows",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            not_its_own,
            4,
            "sequence 0, row 1 fails to see key 1, its own (46 of 48 rows",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_fault_in_one_layer_of_twelve_is_named_with_its_reason(
    monkeypatch, folder, change, batches, reason
):
    in_place_of_sdpa(monkeypatch, change)
    check = checked(folder("llama", num_hidden_layers=12), "eager", "sdpa", "attnbench:einsum")
    wrong = [row for row in check.results if row["status"] == "differs"]
    assert {row["implementation"] for row in wrong} == {"sdpa"} and len(wrong) == batches
    assert all([each["layer"] for each in row["layers"]] == [FAULTY] for row in wrong)
    sentences = list(model_sentences(check))
    assert reason in sentences[0] and "model.layers.5.self_attn" in sentences[0]
    assert "layer 5 of 12 differs" in sentences[0]
    assert all(s.endswith("Right: eager, attnbench:einsum.") for s in sentences)
    if change is everything_before:
        assert "row 15 sees key 0 of the other document (24 of 39 rows" in sentences[1]


@QUIET
def test_where_eager_is_wrong_it_is_not_the_truth(monkeypatch, capsys, folder):
    own = modeling_llama.eager_attention_forward

    def eager(module, query, key, value, mask, **more):
        if module.layer_idx == FAULTY:
            more["scaling"] *= 1.01
        return own(module, query, key, value, mask, **more)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", eager)
    check = checked(folder("llama", num_hidden_layers=12), "eager", "sdpa", "flex_attention")
    assert set(statuses(check, "eager").values()) == {"differs"}
    assert set(statuses(check, "sdpa").values()) == {"agrees"}
    sentence = next(model_sentences(check))
    assert sentence.startswith("eager, plain: layer 5 of 12 differs")
    assert "each row sees the keys that it should" in sentence
    assert sentence.endswith("Right: sdpa, flex_attention.")
    show_model(check)
    text = capsys.readouterr().out
    assert re.search(r"\neager +layer 5 +layer 5 +layer 5 +layer 5 ", text)
    assert re.search(r"\nsdpa +agrees +agrees +agrees +agrees ", text)
    rows = {(row["implementation"], row["batch"]): row for row in model_rows(check)}
    assert rows["eager", "packed"]["layers"] == "5" and rows["eager", "packed"]["gradients"]
    assert rows["flex_attention", "plain"]["error_over_allowed"] < 1


@QUIET
def test_a_gradient_alone_may_be_wrong(monkeypatch, folder):
    def attend(module, query, key, value, mask, **more):
        if module.layer_idx == FAULTY:
            value = 0.5 * value + 0.5 * value.detach()
        return sdpa_attention_forward(module, query, key, value, mask, **more)

    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", attend)
    check = checked(folder("llama", num_hidden_layers=12), "sdpa")
    rows = [row["layers"] for row in check.results]
    assert all([each["layer"] for each in layers] == [FAULTY] for layers in rows)
    assert {layers[0]["what"] for layers in rows} == {"gradient of hidden_states"}


@QUIET
def test_a_window_that_is_one_too_wide(monkeypatch, folder):
    def attend(module, query, key, value, mask, **more):
        if module.layer_idx == 1:
            mask = mask | mask.roll(-1, -1) & torch.ones_like(mask).tril()
        return sdpa_attention_forward(module, query, key, value, mask, **more)

    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", attend)
    check = checked(folder("mistral", sliding_window=5), "sdpa")
    (layer,) = check.row("sdpa", "plain")["layers"]
    assert layer["layer"] == 1
    assert "row 5 sees key 0 (38 of 48 rows" in layer["reason"]


@QUIET
def test_a_model_that_parts_no_packed_documents_says_so_of_all(folder):
    """transformers' OPT makes its mask without the positions."""
    check = checked(folder("opt"), "eager", "sdpa")
    (sentence,) = model_sentences(check)
    assert sentence.startswith("eager, sdpa, packed: all 2 layers differ")
    assert "row 15 sees key 0 of the other document" in sentence
    assert sentence.endswith("Right: none.")


@QUIET
@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("bloom", "an attention of its own"),
        ("mamba", "no layer that calls an attention"),
        ("vit", "takes no token ids"),
    ],
)
def test_a_model_that_has_nothing_to_compare_is_refused(folder, model_type, words):
    with pytest.raises(Exception, match=words):
        checked(folder(model_type))


@pytest.mark.slow
def test_the_verb_checks_a_trained_model_in_a_process_of_its_own():
    done = json.loads(well("check", "chunked", "--model", TRAINED, "--json").stdout)
    assert [row["status"] for row in done["results"]] == ["agrees"] * 16
    assert done["model"]["weights"] == "of the folder"
    names = list(dict.fromkeys(row["implementation"] for row in done["results"]))
    assert names == ["eager", "sdpa", "flex_attention", "attnbench:chunked"]


class Ending:
    """A worker that ends with an error after a batch of one implementation."""

    def __init__(self, name, error):
        self.name, self.error = name, error

    def messages(self, question, limit_s):
        name = question.get("implementation")
        if name is None:
            yield {"facts": {"batches": ["plain", "packed"]}}
            return
        yield {"result": {"implementation": name, "batch": "plain", "status": "agrees"}}
        if name == self.name:
            raise self.error
        yield {"result": {"implementation": name, "batch": "packed", "status": "agrees"}}


def checked_by(worker):
    """The check of two implementations, and how each ended."""
    questions = [{}, {"implementation": "first"}, {"implementation": "second"}]
    with Progress() as progress:
        check = check_model(questions, worker, progress)
    return check, [(row["implementation"], row["batch"], row["status"]) for row in check.results]


def test_an_implementation_that_ends_the_process_costs_its_own_results_alone():
    check, ends = checked_by(Ending("first", WorkerLost("the worker died of SIGSEGV", "")))
    assert ends == [
        ("first", "plain", "agrees"),
        ("first", "packed", "refused"),
        ("second", "plain", "agrees"),
        ("second", "packed", "agrees"),
    ]
    assert check.row("first", "packed")["reason"] == "the worker died of SIGSEGV"
    assert not check.stopped


def test_what_was_checked_before_ctrl_c_is_kept():
    check, ends = checked_by(Ending("second", KeyboardInterrupt()))
    assert check.stopped and ends == [("first", b, "agrees") for b in ("plain", "packed")]


@pytest.mark.slow
def test_bad_input_is_a_sentence(tmp_path):
    def refused(*words):
        status, _, prose = asked("check", "--model", *words)
        assert status == 2
        return prose

    assert "no such folder" in refused(tmp_path / "none")
    assert "has no config.json" in refused(tmp_path)
    config = tmp_path / "config.json"
    config.write_text("{")
    assert "can't be read" in refused(tmp_path)
    config.write_text("{}")
    assert "names no model_type" in refused(tmp_path)
    config.write_text('{"model_type": "llama"}')
    assert "--mask goes with a grid" in refused(tmp_path, "--mask", "causal")
    assert "one value" in refused(tmp_path, "--seq", "8,16")
    assert "4 tokens or more" in refused(tmp_path, "--seq", "2")
    assert "--dtype float7: with --model it is one of" in refused(tmp_path, "--dtype", "float7")
    assert (
        "linear.elu computes its own operator"
        in asked("check", "linear.elu", "--model", tmp_path)[2]
    )
    config.write_text('{"model_type": "nothing_like_it"}')
    assert "can't be loaded" in refused(tmp_path)
