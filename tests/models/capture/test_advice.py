"""Advice that is put in place while a program runs: the same outputs, by calls that are mended."""

import pytest
import torch
from msgspec.structs import replace
from torch.profiler import ProfilerActivity, profile

from attnbench.answer.mends import backend_order, mends
from attnbench.models.capture.advice import CHANGES, Advice
from attnbench.models.capture.calls import merged
from attnbench.models.capture.capture import Session
from attnbench.models.capture.recorder import Recorder
from tests.models.build import only
from tests.models.capture.test_forms import PROGRAMS

OUTSIDE = [
    (name, key)
    for name, (*_, keys) in PROGRAMS.items()
    for key in keys
    if key in CHANGES and PROGRAMS[name][1] != "written out"
]


def run(program, advice=None, *, several=False):
    """What the program gives, and the one site that was seen, if it is one."""
    session = Session(Recorder())
    session.recorder.advice = advice
    session.begin(running=True)
    try:
        out = program()
    finally:
        session.end()
    calls = merged([session.recorder.calls(complete=True)])
    return out, None if several else only(calls)


def advice_for(site, keys, **more):
    entry = {
        "keys": keys,
        "mask": str(site.problem.mask),
        "repeated": site.call.repeated,
        "variant": "",
        "backends": backend_order(replace(site.call, disabled=())),
        "tables": [],
        "named": "",
    }
    return Advice({site.site: [{**entry, **more}]})


@pytest.mark.parametrize(
    ("name", "key"),
    [
        pytest.param(*each, marks=[pytest.mark.slow] if n % 3 else [], id="-".join(each))
        for n, each in enumerate(OUTSIDE)
    ],
)
def test_a_mended_call_is_made_in_its_place_and_gives_the_same(name, key):
    program = PROGRAMS[name][0]
    plain, site = run(program)
    with profile(activities=[ProfilerActivity.CPU]) as ran:
        changed, mended = run(program, advice_for(site, [key]))
    if key == "backend":
        assert any("flash_attention_for_cpu" in event.name for event in ran.events())
    elif key == "no_grad":
        assert plain.requires_grad and not changed.requires_grad
    else:
        assert key not in [mend.key for mend in mends(mended.call, mended.problem)]
    if plain is not None:
        torch.testing.assert_close(plain, changed.reshape(plain.shape), atol=1e-5, rtol=1e-5)


def test_a_variant_takes_the_call():
    program = PROGRAMS["window"][0]
    plain, site = run(program)
    advice = advice_for(site, ["variant"], variant="window.blocked", named="window:5,0")
    with profile(activities=[ProfilerActivity.CPU]) as ran:
        changed, _ = run(program, advice, several=True)
    assert not any("flash_attention_for_cpu" in event.name for event in ran.events())
    torch.testing.assert_close(plain, changed, atol=1e-5, rtol=1e-5)


def test_another_mask_at_the_same_place_is_left_alone():
    program = PROGRAMS["window"][0]
    plain, site = run(program)
    changed, after = run(program, advice_for(site, ["drop_mask"], mask="none"))
    assert torch.equal(plain, changed) and after.call.mask == site.call.mask
