"""Advice that is put in place while a program runs: the same outputs, by calls that are mended."""

import pytest
import torch

from attnbench.answer.mends import mends
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


def run(program, advice=None):
    """What the program gives, and the one site that was seen."""
    session = Session(Recorder())
    session.recorder.advice = advice
    session.begin(running=True)
    try:
        out = program()
    finally:
        session.end()
    return out, only(merged([session.recorder.calls(complete=True)]))


def advice_for(site, keys, **more):
    entry = {"keys": keys, "mask": str(site.problem.mask), "repeated": site.call.repeated}
    return Advice({site.site: [{**entry, "variant": "", "tables": [], "named": "", **more}]})


@pytest.mark.parametrize(("name", "key"), OUTSIDE, ids=map("-".join, OUTSIDE))
def test_a_mended_call_is_made_in_its_place_and_gives_the_same(name, key):
    program = PROGRAMS[name][0]
    plain, site = run(program)
    changed, mended = run(program, advice_for(site, [key]))
    assert mended.call.kind != site.call.kind
    assert key not in [mend.key for mend in mends(mended.call, mended.problem)]
    if plain is not None:
        torch.testing.assert_close(plain, changed.reshape(plain.shape), atol=1e-5, rtol=1e-5)


def test_a_variant_takes_the_call():
    program = PROGRAMS["window"][0]
    plain, site = run(program)
    advice = advice_for(site, ["variant"], variant="window.blocked", named="window:5,0")
    changed, _ = run(program, advice)
    torch.testing.assert_close(plain, changed, atol=1e-5, rtol=1e-5)


def test_another_mask_at_the_same_place_is_left_alone():
    program = PROGRAMS["window"][0]
    plain, site = run(program)
    changed, after = run(program, advice_for(site, ["drop_mask"], mask="none"))
    assert torch.equal(plain, changed) and after.call == site.call
