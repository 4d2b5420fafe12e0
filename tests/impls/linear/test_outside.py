"""The recurrent operators in float32 against other projects' forms of them: outputs, states and
gradients, those of gates and of the state before the first token too.
"""

import importlib
import importlib.util
from importlib.metadata import PackageNotFoundError, distribution

import numpy as np
import pytest
import torch

from attnbench.gate.inputs import make
from impls.operators import inputs as inputs_of
from tests.impls.onnx_reference import computed
from tests.impls.small import both_forms, problem


def small(length=67, **changes):
    """Keys shared by two heads each: of queries, or of values where each of these has a state."""
    return problem("causal", length, **{"dtype": "float32", "phase": "train", **changes})


# ---- others' forms: tokens before heads, a state of [keys, values] a head ----------------------


def by_head(p, x):
    """A head repeated for those that share it: [b, n, h, …]."""
    return x.transpose(1, 2).repeat_interleave(p.heads // x.shape[1], 2)


def repeated(p, state):
    return None if state is None else state.repeat_interleave(p.heads // state.shape[1], 1)


def one_of(p, after, states):
    """The state of one of the heads that share it."""
    return after[:, :: p.heads // states]


def by_fla(path, function, **fixed):
    """A naive form of fla-core, loaded by its file: the package's own import wants Triton."""

    def form(p, q, k, v, state=None, dt=None, **gates):
        try:
            file = distribution("fla-core").locate_file(f"fla/ops/{path}/naive.py")
        except PackageNotFoundError:
            pytest.skip("fla-core is not installed: the extra 'test' has it")
        spec = importlib.util.spec_from_file_location(f"fla_naive_{path}", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        states = v.shape[1]
        v = v if dt is None else v * dt[..., None]
        parts = {"q": q, "k": k, "v": v, **gates}
        parts = {n: by_head(p, x) for n, x in parts.items()}
        if "gk" in fixed.get("names", ()):
            parts["gk"] = parts.pop("g")
        if fixed.get("heads_first"):
            parts = {n: x.transpose(1, 2) for n, x in parts.items()}
        out, after = getattr(module, function)(
            **parts, initial_state=repeated(p, state), output_final_state=True
        )
        out = out if fixed.get("heads_first") else out.transpose(1, 2)
        return out, one_of(p, after, states)

    return form


def by_qwen(p, q, k, v, beta, g=None, state=None):
    """transformers' gated delta rule; without a decay it is the delta rule."""
    module = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    g = torch.zeros_like(beta) if g is None else g
    parts, states = [by_head(p, x) for x in (q, k, v, g, beta)], v.shape[1]
    out, after = module.torch_chunk_gated_delta_rule(
        *parts, initial_state=repeated(p, state), output_final_state=True
    )
    return out.transpose(1, 2), one_of(p, after, states)


def by_kimi(p, q, k, v, g, beta, state=None):
    """transformers' KDA, by chunks."""
    module = importlib.import_module("transformers.models.kimi_linear.modeling_kimi_linear")
    parts = [by_head(p, x) for x in (q, k, v, g, beta)]
    out, after = module.chunk_kimi_delta_attention(
        *parts, initial_state=state, output_final_state=True
    )
    return out.transpose(1, 2), after


def scan(q, k, v, a, dt, state):
    """transformers' Mamba-2 scan, whose decays are exp(a dt) and whose values dt multiplies."""
    module = importlib.import_module("transformers.models.mamba2.modeling_mamba2")
    out, after = module.mamba2_chunk_scan(
        v, dt, a, k, q, 32, return_final_states=True,
        initial_states=None if state is None else state.mT,
    )  # fmt: skip
    return out, after.mT


def by_mamba(p, q, k, v, g, dt, state=None):
    """Mamba-2 as it is: g is to be -dt."""
    *parts, dt = (by_head(p, x) for x in (q * p.scale, k, v, dt))
    out, after = scan(*parts, -torch.ones(p.heads), dt, repeated(p, state))
    return out.transpose(1, 2), one_of(p, after, v.shape[1])


def by_mamba_decays(p, q, k, v, g, state=None):
    """The same by any decays, one a token, and a dt of one."""
    *parts, g = (by_head(p, x) for x in (q * p.scale, k, v, g))
    out, after = scan(*parts, g, torch.ones_like(g), repeated(p, state))
    return out.transpose(1, 2), one_of(p, after, v.shape[1])


def by_mamba_channels(p, q, k, v, g, state=None):
    """The same by a decay a channel: each channel of a head's keys is a head, of one channel."""
    states = v.shape[1]
    q, k, v, g = (by_head(p, x) for x in (q * p.scale, k, v, g))
    heads, (q, k) = q.shape[2:], (x.flatten(2)[..., None] for x in (q, k))
    v, g = v.repeat_interleave(p.head_dim, 2), g.flatten(2)
    state = None if state is None else repeated(p, state).flatten(1, 2)[:, :, None]
    out, after = scan(q, k, v, g, torch.ones_like(g), state)
    out, after = out.unflatten(2, heads).sum(3).transpose(1, 2), after[:, :, 0].unflatten(1, heads)
    return out, one_of(p, after, states)


def by_attn_gym(p, q, k, v, beta, g=None, state=None):
    """attn-gym's gated delta rule, whose state is [values, keys]."""
    gdn = importlib.import_module("attn_gym.linear.gdn").recurrent_gdn
    g = torch.zeros_like(beta) if g is None else g
    parts, states = [by_head(p, x) for x in (q, k, v, g, beta)], v.shape[1]
    state = None if state is None else repeated(p, state).mT
    out, after = gdn(*parts, state, impl="reference", scale=p.scale, output_final_state=True)
    return out.transpose(1, 2), one_of(p, after, states).mT


def by_onnx(rule):
    """ONNX's reference of LinearAttention, in NumPy; it has no gradient."""

    def form(p, q, k, v, state=None, g=None, beta=None, dt=None):
        v = v if dt is None else v * dt[..., None]
        if v.shape[1] != k.shape[1]:
            q, k = (x.repeat_interleave(p.group, 1) for x in (q, k))
        query, key, value, decay, beta = (
            None if x is None else x.transpose(1, 2).flatten(2) for x in (q, k, v, g, beta)
        )
        out, after = computed(
            "LinearAttention",
            {"query": query, "key": key, "value": value, "past_state": state, "decay": decay,
             "beta": beta},
            ["out", "after"], update_rule=rule, q_num_heads=q.shape[1], kv_num_heads=k.shape[1],
            scale=p.scale,
        )  # fmt: skip
        return out.unflatten(2, (p.heads, -1)).transpose(1, 2), after

    return form


FORMS = {
    "gla": {
        "onnx": by_onnx("gated"), "transformers": by_mamba_channels,
        "fla": by_fla("gla", "naive_recurrent_gla", names=("gk",)),
    },
    "retention": {
        "onnx": by_onnx("gated"), "transformers": by_mamba_decays,
        "fla": by_fla("simple_gla", "naive_recurrent_simple_gla"),
    },
    "ssd": {
        "onnx": by_onnx("gated"), "transformers": by_mamba,
        "fla": by_fla("simple_gla", "naive_chunk_simple_gla"),
    },
    "delta": {
        "onnx": by_onnx("delta"), "transformers": by_qwen, "attn-gym": by_attn_gym,
        "fla": by_fla("delta_rule", "delta_rule_recurrence", heads_first=True),
    },
    "gated_delta": {
        "onnx": by_onnx("gated_delta"), "transformers": by_qwen,
        "fla": by_fla("gated_delta_rule", "naive_recurrent_gated_delta_rule"),
    },
    "kda": {
        "onnx": by_onnx("gated_delta"), "transformers": by_kimi,
        "fla": by_fla("kda", "naive_recurrent_kda"),
    },
}  # fmt: skip
QUICK = [("delta", "transformers"), *((name, "onnx") for name in FORMS)]
PAIRS = [
    pytest.param(name, by, marks=[] if (name, by) in QUICK else [pytest.mark.slow])
    for name, forms in FORMS.items() for by in forms
]  # fmt: skip


def near(got, want):
    """Equal by the norm."""
    got, want = got.detach().double(), want.detach().double()
    assert (got - want).norm() <= 1e-6 * want.norm()


@pytest.mark.parametrize("state", [None, True])
@pytest.mark.parametrize(("name", "by"), PAIRS)
def test_an_operator_is_what_others_take_it_for(name, by, state):
    p = small(state=state)
    inputs = make(p, 5, inputs_of(name, p))
    if by == "transformers" and name == "ssd":
        inputs["g"].copy_(-inputs["dt"])
    leaves = inputs.map(lambda x: x.requires_grad_())
    by_place, by_name = leaves.arguments
    attend, define = both_forms(name, p)
    twins = leaves.map(lambda x: x.detach().requires_grad_())
    want, last = FORMS[name][by](p, **twins)
    out, after = attend(*by_place, **by_name, return_state=True)
    plain = define(*by_place, torch.arange(p.q_len), **by_name)
    for got, other in ((out, want), (plain, want), (after, last)):
        near(got, other)
    if by == "onnx":
        return
    generator = torch.Generator().manual_seed(1)
    upstream = [torch.randn(x.shape, generator=generator) for x in (out, after)]
    joined = by == "transformers" and name == "ssd"
    asked = [n for n in leaves if not (joined and n == "g")]
    mine = torch.autograd.grad((out, after), list(leaves.values()), upstream)
    mine = dict(zip(leaves, mine, strict=True))
    if joined:
        mine["dt"] = mine["dt"] - mine["g"]
    theirs = torch.autograd.grad((want, last), [twins[n] for n in asked], upstream)
    for n, right in zip(asked, theirs, strict=True):
        near(mine[n], right)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of its cases of other operators
def test_the_cases_that_onnx_publishes_hold():
    cases = pytest.importorskip("onnx.backend.test.case.node").collect_testcases("LinearAttention")
    done = set()
    for case in cases:
        node = case.model.graph.node[0]
        if node.op_type != "LinearAttention" or "fp16" in case.name:
            continue
        options = {a.name: a for a in node.attribute}
        rule = options["update_rule"].s.decode() if "update_rule" in options else "gated_delta"
        (feeds, (want, last)), *_ = case.data_sets
        given = dict(zip([n for n in node.input if n], feeds, strict=True))
        heads, keys = (options[n].i for n in ("q_num_heads", "kv_num_heads"))
        check_case(case.name, rule, given, want, last, heads, keys,
                   options["scale"].f if "scale" in options else None)  # fmt: skip
        done.add(rule)
    assert done == {"linear", "gated", "delta", "gated_delta"}


def check_case(title, rule, given, want, last, heads, keys, scale):
    """A case of ONNX's by our row of the same operator; every head has a state of its own."""

    def split(x, count):
        return torch.tensor(x).unflatten(2, (count, -1)).transpose(1, 2)

    q = split(given["query"], heads)
    k, v = (split(given[n], keys).repeat_interleave(heads // keys, 1) for n in ("key", "value"))
    by_name = {}
    if "decay" in given:
        by_name["g"] = split(given["decay"], keys).repeat_interleave(heads // keys, 1)
    elif rule == "linear":
        by_name["g"] = torch.zeros(*k.shape[:3], 1)
    if "beta" in given:
        rate = split(given["beta"], given["beta"].shape[2])[..., 0]
        by_name["beta"] = rate.repeat_interleave(heads // rate.shape[1], 1)
    by_channel = "g" in by_name and by_name["g"].shape[-1] > 1
    name = {
        ("linear", False): "retention", ("gated", True): "gla", ("gated", False): "retention",
        ("delta", False): "delta", ("gated_delta", True): "kda",
        ("gated_delta", False): "gated_delta",
    }[rule, by_channel]  # fmt: skip
    if "g" in by_name and not by_channel:
        by_name["g"] = by_name["g"][..., 0]
    p = small(q.shape[2], batch=len(q), heads=heads, kv_heads=heads, head_dim=q.shape[3],
              v_head_dim=v.shape[3], scale=scale, state="past_state" in given or None)  # fmt: skip
    if "past_state" in given:
        by_name["state"] = torch.tensor(given["past_state"]).repeat_interleave(heads // keys, 1)
    out, after = both_forms(name, p)[0](q, k, v, **by_name, return_state=True)
    near(out, split(want, heads))
    near(after[:, :: heads // keys], torch.tensor(np.asarray(last)))
