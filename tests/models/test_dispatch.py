"""``attnbench.dispatch``: who gets which call, what comes of it, and what is refused or left."""

import copy
import inspect
import json
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

import attnbench
import impls
from attnbench.answer.dispatch_entry import Entry, Range
from attnbench.answer.dispatch_table import DispatchTable, InvalidTable
from attnbench.machine import this_machine, why_not
from attnbench.models.dispatch import KEPT, DispatchRefused, DispatchWarning
from impls.asked import CantBeDone
from impls.loading import load_file

SPY = """
from impls.spec import Unsupported, Variant

BUILT, CALLED = [], []

def build(problem):
    import torch
    from impls.heads import to_query_heads

    BUILT.append(problem)
    causal = torch.ones(problem.q_len, problem.kv_len, dtype=torch.bool).tril(
        0 if problem.mask.upper_left else problem.kv_len - problem.q_len)

    def attend(q, k, v):
        if q.isnan().any():
            raise Unsupported("spy has no kernel for what is not finite")
        CALLED.append(problem)
        k, v = to_query_heads(k, problem), to_query_heads(v, problem)
        scores = q @ k.mT * problem.scale
        if not problem.mask.plain:
            scores = scores.masked_fill(~causal, float("-inf"))
        return scores.softmax(-1) @ v

    return attend

ROWS = [Variant(name="spy", title="tells who called", family="mine", build=":build",
                computes="softmax", masks=("none", "causal"))]
"""


READ = {}


@pytest.fixture(autouse=True)
def read_once(monkeypatch):
    """Rows of a file are read by another process: here once for all tests."""
    real = impls.table

    def table(files=()):
        key = tuple(map(str, files))
        if key not in READ:
            READ[key] = real(files)
        return READ[key]

    monkeypatch.setattr(impls, "table", table)


@pytest.fixture(scope="module")
def spy(tmp_path_factory):
    file = tmp_path_factory.mktemp("rows") / "spy.py"
    file.write_text(SPY)
    return file


@pytest.fixture
def called(spy):
    """The problems that the spy was called with, since the test began."""
    module = load_file(spy)
    module.BUILT.clear()
    module.CALLED.clear()
    return module.CALLED


def made(**more):
    return {"device": "cpu", "torch": torch.__version__, "machine": this_machine().name,
            "threads": 1, "attnbench": attnbench.__version__, "protocol": 2, "run": "r",
            **more}  # fmt: skip


def entry(variant="spy", **more):
    ranges = more.pop("ranges", (Range(1, 64, more.pop("queries", "same"), variant),))
    return Entry(**{"phase": "forward", "mask": "none", "dtype": "float32", "heads": 4,
                    "kv_heads": 4, "head_dim": 8, "v_head_dim": 8, "batch": (1, 4),
                    "ranges": ranges, **more})  # fmt: skip


def table(*entries, **more):
    return DispatchTable(made(**more), entries=entries or (entry(),))


def qkv(q_len=16, kv_len=None, *, batch=2, heads=4, kv_heads=None, width=8, value=None, seed=0,
        dtype=torch.float32, grad=False):  # fmt: skip
    make, kv = torch.Generator().manual_seed(seed), kv_heads or heads
    sizes = (heads, q_len, width), (kv, kv_len or q_len, width), (kv, kv_len or q_len,
                                                                 value or width)  # fmt: skip
    return [torch.randn(batch, *s, generator=make, dtype=dtype).requires_grad_(grad) for s in sizes]


def by_hand(q, k, v, *, causal=False):
    """Softmax attention in float64, written out; causal is torch's, from the upper left corner."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("bhnd,bhmd->bhnm", q, k) / q.shape[-1] ** 0.5
    if causal:
        rows, keys = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
        scores = scores.masked_fill(keys > rows, float("-inf"))
    return torch.einsum("bhnm,bhme->bhne", scores.softmax(-1), v)


def silently(function, *given, **more):
    """What a call gives that says nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", DispatchWarning)
        return function(*given, **more)


EXACT = [
    row for row in impls.table().rows.values()
    if row.level == "core" and row.exact and not row.ranks and not row.untried
    and why_not(row, this_machine()) is None and not row.name.startswith("window.")
]  # fmt: skip


# ---- what comes of a call --------------------------------------------------------------------


@pytest.mark.parametrize("row", [
    pytest.param(row, id=row.label, marks=[pytest.mark.slow] * ("c++" in row.requires))
    for row in EXACT
])  # fmt: skip
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's compiler hides it
def test_every_exact_variant_gives_what_torch_gives_and_its_gradients(row, mask):
    kv_heads = 2 if row.gqa else 4
    served = 0
    for phase in ("forward", "train"):
        if phase not in row.on("cpu", "phases") or mask not in row.on("cpu", "masks"):
            continue
        served += 1
        one = entry(row.label, phase=phase, mask=mask, kv_heads=kv_heads, head_dim=16,
                    v_head_dim=16)  # fmt: skip
        attend = attnbench.dispatch(table(one))
        # as models have them: heads and tokens change places in memory
        q, k, v = (x.detach().transpose(1, 2).contiguous().transpose(1, 2)
                   .requires_grad_(phase == "train")
                   for x in qkv(32, kv_heads=kv_heads, width=16))  # fmt: skip
        out = silently(attend, q, k, v, is_causal=mask == "causal", enable_gqa=True)
        assert attend.said == {}
        wanted = by_hand(q, k, v, causal=mask == "causal")
        torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)
        theirs = F.scaled_dot_product_attention(q, k, v, is_causal=mask == "causal",
                                                enable_gqa=True)  # fmt: skip
        torch.testing.assert_close(out, theirs, rtol=1e-4, atol=1e-5)
        if phase == "train":
            weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
            mine = torch.autograd.grad((out * weight).sum(), (q, k, v))
            right = torch.autograd.grad((wanted * weight.double()).sum(), (q, k, v))
            for a, b in zip(mine, right, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
    assert served


def test_lengths_decide_who_gets_a_call(spy, called):
    ranges = (Range(8, 16, "same", "spy"), Range(17, 32, "same", "matmul"))
    attend = attnbench.dispatch(table(entry(ranges=ranges)), tables=[spy])
    for length, mine in ((8, True), (16, True), (17, False), (32, False)):
        called.clear()
        q, k, v = qkv(length)
        torch.testing.assert_close(silently(attend, q, k, v).double(), by_hand(q, k, v),
                                   rtol=1e-4, atol=1e-5)  # fmt: skip
        assert [p.kv_len for p in called] == [length] * mine


@pytest.mark.parametrize(("grad", "mode", "phase"), [
    (True, torch.enable_grad, "train"), (False, torch.enable_grad, "forward"),
    (True, torch.no_grad, "forward"), (True, torch.inference_mode, "forward"),
])  # fmt: skip
def test_training_is_where_a_gradient_will_be_asked_for(spy, called, grad, mode, phase):
    attend = attnbench.dispatch(table(entry(), entry(phase="train")), tables=[spy])
    with mode():
        silently(attend, *qkv(grad=grad))
    assert [p.phase for p in called] == [phase]


@pytest.mark.parametrize("which", range(3))
def test_one_input_that_wants_a_gradient_is_enough(spy, called, which):
    attend = attnbench.dispatch(table(entry(), entry(phase="train")), tables=[spy])
    given = qkv()
    given[which].requires_grad_()
    silently(attend, *given).sum().backward()
    assert [p.phase for p in called] == ["train"]


def test_what_was_built_without_gradients_serves_a_training_step_later():
    attend = attnbench.dispatch(table(entry("chunked"), entry("chunked", phase="train")))
    with torch.inference_mode():
        silently(attend, *qkv())
    q, k, v = qkv(grad=True)
    silently(attend, q, k, v).sum().backward()
    assert q.grad is not None


@pytest.mark.parametrize("mask", ["causal", "none"])
def test_one_query_on_many_keys_is_decoding_however_it_was_measured(spy, called, mask):
    one = entry(phase="decode", mask=mask, queries=1)
    attend = attnbench.dispatch(table(one), tables=[spy])
    q, k, v = qkv(1, 24)
    torch.testing.assert_close(silently(attend, q, k, v).double(), by_hand(q, k, v),
                               rtol=1e-5, atol=1e-6)  # fmt: skip
    assert [p.phase for p in called] == ["decode"]


def test_is_causal_over_unequal_lengths_is_from_the_upper_left_as_in_torch(spy, called):
    q, k, v = qkv(8, 24)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    lower = attnbench.dispatch(table(entry(mask="causal", queries=8)), tables=[spy])
    with pytest.warns(DispatchWarning, match="mask causal@upper-left is not in the table"):
        torch.testing.assert_close(lower(q, k, v, is_causal=True), theirs)
    assert not called
    upper = attnbench.dispatch(table(entry(mask="causal@upper-left", queries=8)), tables=[spy])
    torch.testing.assert_close(silently(upper, q, k, v, is_causal=True), theirs)
    assert len(called) == 1


def test_either_spelling_of_causal_serves_as_many_queries_as_keys(spy, called):
    for mask in ("causal", "causal@upper-left"):
        attend = attnbench.dispatch(table(entry(mask=mask)), tables=[spy])
        q, k, v = qkv()
        torch.testing.assert_close(silently(attend, q, k, v, is_causal=True).double(),
                                   by_hand(q, k, v, causal=True), rtol=1e-5, atol=1e-6)  # fmt: skip
    assert len(called) == 2


@pytest.mark.parametrize("scale", [None, 8**-0.5, 1 / 8**0.5, 0.35355339])
def test_the_usual_scale_may_be_said_in_any_way(spy, called, scale):
    attend = attnbench.dispatch(table(), tables=[spy])
    silently(attend, *qkv(), scale=scale)
    assert len(called) == 1


# ---- what the table does not speak of ------------------------------------------------------------

SEEN = torch.ones(16, 16, dtype=torch.bool).tril()
LEFT = [
    ("attn_mask", qkv(), {"attn_mask": SEEN}, "mask that is given as a tensor"),
    ("scale", qkv(), {"scale": 0.5}, "scale=0.5 was not measured"),
    ("phase", qkv(grad=True), {}, "phase train is not in the table, which has forward"),
    ("mask", qkv(), {"is_causal": True}, "mask causal is not in the table, which has none"),
    ("dtype", qkv(dtype=torch.float64), {}, "dtype float64 is not in the table"),
    ("heads", qkv(heads=8), {}, "heads 8 is not in the table, which has 4"),
    ("kv_heads", qkv(kv_heads=2), {"enable_gqa": True}, "kv_heads 2 is not in the table"),
    ("head_dim", qkv(width=16), {}, "head_dim 16 is not in the table"),
    ("v_head_dim", qkv(value=16), {}, "v_head_dim 16 is not in the table"),
    ("longer", qkv(65), {}, "65 queries on 65 keys, batch 2, are outside .* 1 to 64 keys"),
    ("larger batch", qkv(batch=5), {}, "batch 5, are outside .*batch 1 to 4"),
    ("crossing", qkv(8, 16), {}, "8 queries on 16 keys, batch 2, are outside"),
    ("three dimensions", [x[0] for x in qkv()], {}, "tensors of 3 dimensions were not measured"),
    ("five dimensions", [x[None] for x in qkv()], {}, "tensors of 5 dimensions"),
    ("no kernel", [qkv()[0] * float("nan"), *qkv()[1:]], {}, "no kernel for what is not finite"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "more", "said"), [each[1:] for each in LEFT],
                         ids=[each[0] for each in LEFT])  # fmt: skip
def test_what_was_not_measured_goes_to_torch_and_is_said_once(spy, called, given, more, said):
    attend = attnbench.dispatch(table(), tables=[spy])
    with pytest.warns(DispatchWarning, match=said) as heard:
        out = attend(*given, **more)
    torch.testing.assert_close(out, F.scaled_dot_product_attention(*given, **more),
                               equal_nan=True)  # fmt: skip
    silently(attend, *given, **more)
    assert not called
    assert len(attend.said) == len(heard) == 1
    assert heard[0].filename == __file__


def test_dropout_is_dropped_by_torch():
    attend, (q, k, v) = attnbench.dispatch(table(entry("matmul"))), qkv()
    with pytest.warns(DispatchWarning, match=r"dropout \(dropout_p=0.5\)"):
        torch.manual_seed(3)
        mine = attend(q, k, v, None, 0.5)
    torch.manual_seed(3)
    torch.testing.assert_close(mine, F.scaled_dot_product_attention(q, k, v, dropout_p=0.5))


def test_autocast_is_torchs(spy, called):
    attend, (q, k, v) = attnbench.dispatch(table(), tables=[spy]), qkv()
    with torch.autocast("cpu"), pytest.warns(DispatchWarning, match="autocast"):
        assert attend(q, k, v).dtype == torch.bfloat16
    assert silently(attend, q, k, v).dtype == torch.float32
    assert len(called) == 1


def test_grouped_heads_without_the_word_are_refused_by_torch_itself(spy):
    attend = attnbench.dispatch(table(entry(kv_heads=2)), tables=[spy])
    with (
        pytest.warns(DispatchWarning, match="without enable_gqa"),
        pytest.raises(RuntimeError, match="size of tensor"),
    ):
        attend(*qkv(kv_heads=2))


@pytest.mark.parametrize("shapes", ["batch", "widths", "lengths", "nothing"])
def test_shapes_that_fit_nothing_are_refused_by_torch_itself(spy, called, shapes):
    q, k, v = qkv()
    q, k, v = {"batch": (q[:1], k, v), "widths": (q[..., :4], k, v), "lengths": (q, k[:, :, :5], v),
               "nothing": (q[:, :, :0], k, v)}[shapes]  # fmt: skip
    attend = attnbench.dispatch(table(), tables=[spy])
    with pytest.warns(DispatchWarning):
        try:
            wanted = F.scaled_dot_product_attention(q, k, v)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                attend(q, k, v)
        else:
            torch.testing.assert_close(attend(q, k, v), wanted)
    assert not called


def test_tensors_of_another_class_and_nested_ones_are_torchs(spy, called):
    class Marked(torch.Tensor):
        pass

    attend = attnbench.dispatch(table(), tables=[spy])
    q, k, v = (x.as_subclass(Marked) for x in qkv())
    with pytest.warns(DispatchWarning, match="of a class of their own"):
        assert type(attend(q, k, v)) is Marked
    nested = [torch.nested.nested_tensor([x[0], x[1]]) for x in qkv()]
    with pytest.warns(DispatchWarning, match="nested tensors"):
        attend(*nested)
    assert not called


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"torch": "1.0"}, r"made for torch 1\.0, and here it is"),
        ({"machine": "elsewhere"}, "made for machine elsewhere, and here it is"),
        ({"device": "tpu"}, "made for tpu, and this machine has"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_a_table_of_another_place_is_refused(spy, other, said):
    with pytest.raises(DispatchRefused, match=said) as refused:
        attnbench.dispatch(table(**other), tables=[spy])
    assert isinstance(refused.value, CantBeDone)


def test_tensors_on_another_device_are_refused_at_every_call(spy):
    attend = attnbench.dispatch(table(), tables=[spy])
    for _ in range(2):
        with pytest.raises(DispatchRefused, match="on meta, and the table was made for cpu"):
            attend(*(x.to("meta") for x in qkv()))


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (entry("sdpa.efficient"), "names what can't run here: sdpa.efficient runs on cuda"),
        (entry("inplace", phase="train"), "entry 1 .* it has no backward"),
        (entry("numpy", dtype="bfloat16"), "entry 1 .* numpy takes float32, float64"),
        (entry(mask="window:3,0", variant="matmul"), "no entry would ever be used: .* window:3,0"),
        (entry(mask="causal", queries=8, variant="matmul",
               ranges=(Range(9, 64, 8, "matmul"),)), "no entry would ever be used"),
    ],
    ids=["elsewhere", "no backward", "dtype", "mask", "corner"],
)  # fmt: skip
def test_what_could_not_be_served_or_never_be_asked_is_refused_at_once(one, said):
    with pytest.raises(DispatchRefused, match=said):
        attnbench.dispatch(table(one))


def test_what_is_not_exact_or_not_known_is_refused_at_once():
    with pytest.raises(InvalidTable, match=r"linear\.elu is not exactly softmax"):
        attnbench.dispatch(table(entry("linear.elu")))
    with pytest.raises(InvalidTable, match=r"no variant 'spy'.*tables=\[FILE\]"):
        attnbench.dispatch(table())


def test_a_file_is_read_and_a_bad_one_named(tmp_path, spy, called):
    table().write(tmp_path / "table.json")
    silently(attnbench.dispatch(tmp_path / "table.json", tables=[spy]), *qkv())
    silently(attnbench.dispatch(str(tmp_path / "table.json"), tables=[spy]), *qkv())
    assert len(called) == 2
    values = json.loads((tmp_path / "table.json").read_text())
    (tmp_path / "table.json").write_text(json.dumps({**values, "dispatch_table": 99}))
    with pytest.raises(InvalidTable, match=r"table\.json can't be used: it has form 99"):
        attnbench.dispatch(tmp_path / "table.json")


@pytest.mark.parametrize(("other", "said"), [
    ({"threads": 3}, "made with 3 threads, and torch has 1 here"),
    ({"attnbench": "0.0.1"}, "made by attnbench 0.0.1"),
])  # fmt: skip
def test_other_circumstances_are_said_once_and_the_table_is_used(spy, called, other, said):
    with pytest.warns(DispatchWarning, match=said) as heard:
        attend = attnbench.dispatch(table(**other), tables=[spy])
    assert len(heard) == 1
    silently(attend, *qkv())
    assert len(called) == 1


# ---- in a program --------------------------------------------------------------------------------


def test_it_is_called_as_torchs_own_function_is():
    attend = attnbench.dispatch(table(entry("matmul")))
    assert [(p.name, p.default) for p in inspect.signature(attend).parameters.values()] == [
        ("query", inspect.Parameter.empty), ("key", inspect.Parameter.empty),
        ("value", inspect.Parameter.empty), ("attn_mask", None), ("dropout_p", 0.0),
        ("is_causal", False), ("scale", None), ("enable_gqa", False),
    ]  # fmt: skip


def test_in_the_place_of_torchs_own_function_it_does_not_call_itself(monkeypatch):
    attend = attnbench.dispatch(table(entry("sdpa"), entry("sdpa", phase="train")))
    q, k, v = qkv(grad=True)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    out = silently(F.scaled_dot_product_attention, q, k, v)
    torch.testing.assert_close(out.double(), by_hand(q, k, v), rtol=1e-5, atol=1e-6)
    with pytest.warns(DispatchWarning):
        F.scaled_dot_product_attention(q, k, v, scale=0.5)
    layer = torch.nn.TransformerEncoderLayer(32, 4, batch_first=True, dropout=0.0)
    assert layer(torch.randn(2, 16, 32)).isfinite().all()
    assert "heads" not in attend.said


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_under_torch_compile_the_measured_variant_runs_and_is_right(spy, called):
    torch.compiler.reset()
    attend = attnbench.dispatch(table(entry(), entry(phase="train")), tables=[spy])

    def step(q, k, v):
        return attend(q * 2, k, v).sin()

    compiled = torch.compile(step, backend="eager")
    for grad in (False, True):
        q, k, v = qkv(grad=grad)
        wanted = by_hand(q * 2, k, v).sin()
        out = compiled(q, k, v)
        torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-6)
        if grad:
            mine, right = (torch.autograd.grad(x.sum(), (q, k, v)) for x in (out, wanted))
            for a, b in zip(mine, right, strict=True):
                torch.testing.assert_close(a, b.float(), rtol=1e-4, atol=1e-5)
    assert {p.phase for p in called} == {"forward", "train"}
    alone = torch.compile(attend, backend="eager")
    q, k, v = qkv()
    torch.testing.assert_close(alone(q, k, v).double(), by_hand(q, k, v), rtol=1e-5, atol=1e-6)


def test_a_model_that_holds_one_can_be_copied_and_sent(spy, called):
    attend = attnbench.dispatch(table(), tables=[spy])
    for other in (copy.deepcopy(attend), pickle.loads(pickle.dumps(attend))):
        silently(other, *qkv())
        assert repr(other) == repr(attend)
    assert len(called) == 2


def test_threads_get_what_they_ask_for_and_a_cause_is_said_once(spy, called):
    attend = attnbench.dispatch(table(), tables=[spy])
    together = threading.Barrier(8)

    def work(seed):
        together.wait()
        for length in (8, 16, 32):
            q, k, v = qkv(length, seed=seed)
            torch.testing.assert_close(attend(q, k, v).double(), by_hand(q, k, v), rtol=1e-4,
                                       atol=1e-5)  # fmt: skip
            attend(q, k, v, scale=1.0)

    with warnings.catch_warnings(record=True) as heard, ThreadPoolExecutor(8) as pool:
        warnings.simplefilter("always")
        list(pool.map(work, range(8)))
    assert len(called) == 8 * 3
    assert len([w for w in heard if w.category is DispatchWarning]) == 1


def test_a_variant_is_built_once_for_calls_that_are_alike_and_few_are_kept(spy, called):
    built = load_file(spy).BUILT
    many = entry(ranges=(Range(1, 9999, 1, "spy"),), phase="decode")
    attend = attnbench.dispatch(table(entry(), many), tables=[spy])
    for seed in range(3):
        silently(attend, *qkv(seed=seed))
    assert len(built) == 1
    for keys in range(2, KEPT + 50):
        silently(attend, *qkv(1, keys, batch=1))
    assert attend._way.cache_info().currsize == KEPT
    assert len(built) == KEPT + 49
