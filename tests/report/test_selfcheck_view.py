"""The self-check as a table: a line a deed, and the sum at the end."""

from attnbench.features.selfcheck import view
from attnbench.features.selfcheck.selfcheck import PlantOutcome, SelfCheck


def outcome(deed="it sleeps", caught=True, **more):
    given = {"kind": "time", "status": "implausible", "said": "it was seen", **more}
    return PlantOutcome(deed, caught=caught, **given)


def result(*outcomes):
    return SelfCheck(list(outcomes), "box", {"torch": "2"}, 0, 1.0)


def test_what_was_caught_and_what_escaped_are_told_apart(shown):
    some = outcome(), outcome("it lies", caught=False, wanted="wrong"), outcome("x", caught=None)
    lines = shown(view.table, result(*some)).splitlines()
    caught, escaped, absent = (next(x for x in lines if x.startswith(f"  {o.deed} ")) for o in some)
    assert caught.split()[-4:] == ["yes", "it", "was", "seen"]
    assert "ESCAPED" in escaped and "(it should be wrong)" in escaped
    assert "not planted" in absent
    assert lines[-1] == result(*some).line


def test_long_reasons_wrap_in_a_pipe(in_a_pipe, reason):
    deed = "it keeps what it computed and hands it out again where nobody looks"
    text = in_a_pipe(view.table, result(outcome(deed, said=reason)))
    assert reason.split("] ")[0] in text
    for n in range(60):
        assert f"{n}]" in text
