"""A language model that decodes with caches: what is measured, and what is not what it says."""

import math
import random
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from attnbench.core.evidence import Evidence
from attnbench.features.quality import cache_worker, caches, causal, lm, lm_worker, view
from attnbench.features.quality.memories import CodedMemory
from attnbench.features.quality.passages import CONTINUATION
from attnbench.features.quality.task import ResultGroup
from tests.models.quality.made_up import passage

SEQ, PASSAGES = 240, 3
SMALL = causal.find_model(causal.SMALL)
ROWS = """
from impls.spec import Variant
HERE = "tests.models.quality.test_caches"
MORE = {"title": "t", "family": "mine", "phases": ("decode",)}
NEAR = {"operator": "approximates softmax"}
ROWS = [
    Variant(name="plain", build=HERE + ":Plain", operator="softmax", **MORE),
    Variant(name="again", build=HERE + ":Plain", operator="softmax", **MORE),
    Variant(name="prompt", build=HERE + ":Prompt", operator="softmax", **MORE),
    Variant(name="leaves", build=HERE + ":Leaves", definition=HERE + ":halves", **NEAR, **MORE),
    Variant(name="beside", build=HERE + ":Beside", operator="softmax", **MORE),
    Variant(name="neighbour", build=HERE + ":Neighbour", options={"scale": "token"},
            definition="attnbench.features.quality.memories:plain_int8", **NEAR, **MORE),
    Variant(name="drifts", build=HERE + ":Drifts", operator="softmax", **MORE),
]
"""


class Plain:
    """All keys and values."""

    positions = None

    def __init__(self, problem):
        pass

    def prefill(self, q, k, v):
        self.k, self.v = k.clone(), v.clone()

    @property
    def bytes(self):
        return self.k.nbytes + self.v.nbytes

    def add(self, k, v):
        self.k, self.v = torch.cat([self.k, k], 2), torch.cat([self.v, v], 2)

    def step(self, q, k, v):
        self.add(k, v)
        return F.scaled_dot_product_attention(q, self.k, self.v, enable_gqa=True)


class Prompt(Plain):
    """Sees no token but those of the prompt."""

    def add(self, k, v):
        pass


class Beside(Plain):
    """Keeps the prompt once more, and says nothing of that."""

    def prefill(self, q, k, v):
        super().prefill(q, k, v)
        kept = k.clone()
        self.look = lambda: kept


class Leaves(Plain):
    """Leaves the full cache in place, where it should keep halves."""


def halves(problem):
    return lambda x: x.bfloat16()


class Neighbour(CodedMemory):
    """Takes the scale of the token beside it, for the values."""

    def __init__(self, problem, scale):
        super().__init__("int8", problem, scale)

    def prefill(self, q, k, v):
        super().prefill(q, k, v)
        self.v = self.v._replace(scales_bcs1=self.v.scales_bcs1.roll(1, 2))


class Drifts(Plain):
    """Is right at the first token and at the last, and not between."""

    steps = 0

    def step(self, q, k, v):
        out, self.steps = super().step(q, k, v), self.steps + 1
        return 1.1 * out if 1 < self.steps < 60 else out


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A cache's row, or the original's facts, as the process makes them."""
    folder = tmp_path_factory.mktemp("caches")
    table = folder / "rows.py"
    table.write_text(ROWS)
    options = lm.LmOptions("float32", "cpu", (SEQ,), PASSAGES, 0)
    plan = caches.cache_plan(options.plan(SMALL, causal.built_in_book(), [str(table)]), 1)
    question = {**plan.question, "folder": str(folder)}
    stages = [*cache_worker.original({**question, **plan.original_only})]
    originals = [stage["passages"] for stage in stages if "passages" in stage]
    question["original"] = {"passages": originals}

    def run(name):
        row = caches.cache_table([str(table)]).find(name)
        about = {"variant": name, "computes": row.computes, "family": row.family}
        some = {**about, "passages": [], "amiss": [], "reason": "", "remedy": ""}
        for stage in cache_worker.variant({**question, "variant": name}):
            some["passages"] += [stage.pop("passages")] if "passages" in stage else []
            some |= stage
        return some

    run.originals, run.question = originals, question
    return run


def results_of(measured, *rows):
    wanted = {"seq": [SEQ], "passages": PASSAGES, "seed": 0}
    made = {"original": {"passages": measured.originals}, "wanted": wanted}
    (group,) = caches.results(Evidence("caches", made, rows))
    return {result.variant: result for result in group.results}


@pytest.mark.slow
def test_the_full_cache_by_other_code_predicts_the_same_and_holds_the_same(measured):
    row = measured("plain")
    assert row["status"] == "measured"
    for own, base in zip(row["passages"], measured.originals, strict=True):
        assert abs(own["loss"] - base["loss"]) < 1e-4 and own["kl"] < 1e-6
        assert own["same"] == CONTINUATION and own["found"] == base["found"]
        assert own["bytes"] == pytest.approx(base["bytes"], rel=1e-3)
        assert len(own["token_s"]) >= cache_worker.PAIRED - 1


def test_what_is_decoded_is_what_one_pass_over_the_passage_shows(measured):
    """The loss of all text after the prompt, by torch's own function on the model's logits."""
    swappable, tokenize = lm_worker.load(SMALL, "float32", "cpu")
    swappable.use("eager")
    passages = lm_worker.all_passages(measured.question, tokenize, tokenize(causal.built_in_book()))
    for own, (_, number, some) in zip(measured.originals, passages, strict=True):
        name = f"{measured.question['folder']}/{number}"
        record = torch.load(f"{name}.pt", weights_only=False)
        whole = some.whole(record["tokens"][slice(*record["passage"].continuation)])
        before = record["before"]
        assert whole[before:] == record["tokens"]
        assert before == torch.load(f"{name}-layers.pt")[0][1].shape[2] < len(some.prompt)
        with torch.no_grad():
            logits = swappable.model(input_ids=torch.tensor([whole])).logits[0]
        places = [n for first, past in some.text for n in range(first, past) if n > before]
        loss = F.cross_entropy(logits[[n - 1 for n in places]], torch.tensor(whole)[places])
        assert own["loss"] == pytest.approx(float(loss), abs=1e-4)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("prompt", "layer 0's output is off by"),
        ("leaves", "layer 0's output is off by"),
        ("neighbour", "layer 0's output is off by"),
        ("beside", "and it says that it holds"),
        pytest.param("drifts", "its perplexity after 240 tokens is off", marks=pytest.mark.slow),
    ],
)
def test_a_cache_that_is_not_what_it_says_is_found(measured, name, words):
    row = measured(name)
    assert row["status"] == "wrong" and words in row["reason"]


@pytest.mark.slow
def test_every_cache_here_is_what_it_says_in_the_model(measured):
    rows = [measured(name) for name in caches.DEFAULT]
    assert {row["variant"]: row["reason"] for row in rows if row["status"] != "measured"} == {}
    by_name = results_of(measured, *rows)
    sizes = {name: by_name[name].memory for name in caches.DEFAULT}
    assert 0.124 < sizes["int4?scale=head"] < sizes["int8?scale=head"] < sizes["int8"] < 0.5
    assert sizes["quest"] > 1 > sizes["snapkv"] > sizes["h2o"] == sizes["sinks"]
    by_loss = {row["variant"]: sum(each["loss"] for each in row["passages"]) for row in rows}
    base = sum(each["loss"] for each in measured.originals)
    assert abs(by_loss["int8"] - base) < abs(by_loss["int4"] - base) < abs(by_loss["h2o"] - base)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "h2o"])
def test_a_cache_here_is_what_it_says_in_the_model(measured, name):
    row = measured(name)
    assert row["status"] == "measured" and len(row["passages"]) == PASSAGES, row["reason"]


@pytest.mark.slow
def test_a_cache_and_itself_under_another_name_are_not_told_apart(measured):
    by_name = results_of(measured, measured("plain"), measured("again"))
    plain, again = by_name["plain"], by_name["again"]
    assert "again" not in plain.beaten_by and "plain" not in again.beaten_by


def made_up_cache(name, lost=0.0, ratio=1.0, size=100.0, seed=0, **more):
    """A row whose passages have these figures, the loss and the time with some noise."""
    chance = random.Random(seed)
    passages = []
    for n in range(6):
        noise = [chance.gauss(0.0, 1.0) for _ in range(2)]
        loss, time = 3.0 + lost * (1 + 0.1 * noise[0]), ratio * math.exp(0.002 * noise[1])
        passages.append(passage(n, loss, SEQ, time, kl=0.1, bytes=size, **more))
    about = {"variant": name, "computes": "approximates softmax", "family": "mine"}
    return {**about, "status": "measured", "reason": "", "remedy": "", "passages": passages}


def test_a_cache_is_beaten_by_what_is_worse_in_nothing_and_better_in_one_figure():
    own = [passage(n, 3.0, SEQ, bytes=100.0) for n in range(6)]
    measured = SimpleNamespace(originals=own)
    rows = [
        made_up_cache("good", 0.0, 0.5, 50.0, 1),
        made_up_cache("lossy", 0.1, 0.5, 50.0, 2),
        made_up_cache("fast", 0.1, 0.3, 50.0, 2),
        made_up_cache("small", 0.1, 0.5, 20.0, 2),
        made_up_cache("blind", 0.0, 0.5, 50.0, 1, found=[False] * 4),
        made_up_cache("short", 0.0, 0.5, 50.0, 1, same=10),
        made_up_cache("slow", 0.0, 1.2, 100.0, 7),
    ]
    by_name = results_of(measured, *rows)
    beaten = {name: {*result.beaten_by} for name, result in by_name.items()}
    assert beaten["good"] == beaten["fast"] == beaten["small"] == set()
    assert beaten["lossy"] == {"good", "fast", "small"}
    assert beaten["blind"] == beaten["short"] == beaten[caches.BASELINE] == {"good"}
    assert beaten["slow"] == {"good", caches.BASELINE}
    group = ResultGroup("after", "likelihood", 0.99, caches.BASELINE, [*by_name.values()])
    made = {"machine": {"name": "a-machine"}}
    drawn = view.draw(Evidence("caches", made, rows), [group])
    assert "bytes of the cache over the full" in drawn.svg and "step time over" in drawn.svg
    said = " ".join(view.conclusions([group]))
    assert "quality, time and memory: beaten by none: good, fast, small." in said
    (table,) = view.tables([group])
    names = [column.heading for column in table.columns]
    cells = {line[0]: dict(zip(names, line, strict=True)) for line in table.rows}
    assert cells["lossy"]["beaten by"] == "good, fast and 1 more"
    assert cells["small"]["of the bytes"] == "0.2" and cells["good"]["beaten by"] == "none"
