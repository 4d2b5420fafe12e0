"""The second clock: what it says of calls whose times are given, and of variants that misbehave."""

import itertools
import re
from types import SimpleNamespace

import pytest

from attnbench.core.record import Status
from attnbench.gate.findings import Wrong
from attnbench.meter import audit
from attnbench.meter.audit import DeviceCall, HostCall, judge_device, judge_host


def host(wall=0.010, spent=0.010, wanted=0.010, late=0.0, waited=0.005, times=2):
    return [HostCall(wall, spent, wanted, late, waited)] * times


def test_a_call_that_does_its_own_work_is_believed():
    audit = judge_host(host(), threads=1)
    assert (audit.implausible, audit.flags) == (None, [])
    assert audit.seconds == pytest.approx(0.010)
    assert audit.clock == "process"


def test_work_after_the_return_is_named_and_counted():
    audit = judge_host(host(wall=0.001, spent=0.001, late=0.004), threads=1)
    assert "it went on working after it had returned: 4 ms of processor time" in audit.implausible
    assert audit.seconds == pytest.approx(0.005)


def test_work_after_one_return_among_several_is_somebody_elses():
    assert judge_host([*host(late=0.004), *host()], threads=1).implausible is None


@pytest.mark.parametrize(("late", "waited"), [(0.0004, 0.0005), (0.001, 0.005)])
def test_a_little_work_after_the_return_is_the_waits_own(late, waited):
    assert judge_host(host(late=late, waited=waited), threads=1).implausible is None


@pytest.mark.parametrize(
    ("threads", "wanted", "refused"),
    [
        (1, 0.012, False),
        (1, 0.014, True),
        (2, 0.020, False),
        (2, 0.027, True),
        (2, 0.025, False),
    ],
)
def test_more_processors_than_were_given_are_named(threads, wanted, refused):
    said = judge_host(host(wanted=wanted), threads).implausible
    assert (said is not None) == refused
    if refused:
        given = "1 thread" if threads == 1 else "2 threads"
        assert said == f"it kept {wanted / 0.010:.2g} processors busy and was given {given}"


def test_a_few_microseconds_say_nothing_of_processors():
    assert judge_host(host(wall=1e-5, wanted=3e-5), threads=1).implausible is None


@pytest.mark.parametrize("honest", [1, 2, 5, None])
def test_what_looks_false_is_looked_at_five_times(monkeypatch, honest):
    looks = itertools.count(1)
    made = lambda _: host(late=0.0 if next(looks) == honest else 0.004)  # noqa: E731
    monkeypatch.setattr(audit, "_host_calls", made)
    assert (audit.audit_host(None, 1).implausible is None) == (honest is not None)
    assert next(looks) == (honest or 5) + 1


@pytest.mark.parametrize(
    ("busy", "looks", "refused"),
    [
        ([1.05], 1, False),
        ([1.2, 0.9], 2, False),
        ([1.15, 1.2, 1.25, 1.2, 1.2], 5, False),
        ([1.2, 1.2, 1.5, 1.5, 1.5], 5, True),
        ([2.0, 1.9, 1.0, 1.2, 1.2], 5, True),
    ],
)
def test_all_looks_together_say_how_many_processors_were_busy(monkeypatch, busy, looks, refused):
    given = iter(busy)
    made = lambda _: host(wall=0.010, wanted=0.010 * next(given), times=1)  # noqa: E731
    monkeypatch.setattr(audit, "_host_calls", made)
    assert (audit.audit_host(None, 1).implausible is not None) is refused
    assert len(busy) - len(list(given)) == looks


def test_the_least_that_a_call_took_is_with_what_it_did_after_its_return():
    calls = [*host(spent=0.010, late=0.004), *host(spent=0.012, late=0.001)]
    assert judge_host(calls, threads=1).least == pytest.approx(0.013)


@pytest.mark.parametrize(("wall", "waited"), [(0.003, 0.002), (0.03, 0.01), (3.0, 0.05)])
def test_after_a_call_others_are_watched_for_a_third_of_it_within_limits(monkeypatch, wall, waited):
    now, slept, elsewhere = iter([0.0, 1.0, 1.0 + wall, 2 + 2 * wall]), [], iter([5.0, 5.25])
    monkeypatch.setattr(audit, "perf_counter", lambda: next(now))
    monkeypatch.setattr(audit, "process_time", iter([2.0, 2.5]).__next__)
    monkeypatch.setattr(audit, "demanded", iter([1.0, 2.0]).__next__)
    monkeypatch.setattr(audit, "spent_elsewhere", lambda: next(elsewhere))
    monkeypatch.setattr(audit, "sleep", slept.append)
    seen = audit._host_call(SimpleNamespace(run=lambda: None))
    assert slept == [pytest.approx(waited)]
    share = wall / (2 + 2 * wall)  # asking took the rest
    assert tuple(seen) == pytest.approx((wall, 0.5, share, 0.25, waited))


def timed(**parts):
    """In place of what is timed; what is not given runs no code of Python's."""
    phase, steps = SimpleNamespace(phase="forward"), SimpleNamespace(steps=False)
    return SimpleNamespace(
        **{"problem": phase, "call": steps, "before": int, "run": int, "settle": int, **parts}
    )


@pytest.mark.parametrize(("wall", "calls"), [(1e-5, 8), (1e-3, 2), (1.0, 1)])
def test_as_many_calls_are_looked_at_as_fill_two_milliseconds(monkeypatch, wall, calls):
    monkeypatch.setattr(audit, "_host_call", lambda _: HostCall(wall, wall, wall, 0.0, 0.0))
    assert len(audit._host_calls(timed())) == calls


@pytest.mark.parametrize("part", ["before", "settle"])
def test_whose_code_runs_before_a_call_or_after_it_is_found(monkeypatch, part):
    def prepare():
        """What a variant would do there."""

    with pytest.raises(Wrong, match=r"where no clock looks: test_audit\.py:prepare$"):
        audit._host_calls(timed(**{part: prepare}))
    assert audit._host_calls(timed(run=prepare))


def device(launched=0.001, total=0.010, times=8):
    return [DeviceCall(launched, total)] * times


def test_clocks_that_agree_set_no_flag():
    audit = judge_device(device(total=0.0102), 0.010)
    assert (audit.implausible, audit.flags, audit.clock) == (None, [], "e2e")
    assert audit.seconds == pytest.approx(0.0102)


def test_an_end_to_end_time_below_the_events_is_a_lie_of_one_of_them():
    audit = judge_device(device(total=0.008), 0.010)
    assert audit.implausible == "the clocks disagree: 10 ms by events, 8 ms from end to end"


def test_work_on_another_stream_shows_after_the_call_has_returned():
    audit = judge_device(device(launched=0.0001, total=0.010), 0.001)
    assert "the device worked on where the events do not look" in audit.implausible
    assert "busy for 9.9 ms" in audit.implausible


def test_a_few_microseconds_after_the_return_are_the_hosts_own():
    assert judge_device(device(launched=1e-5, total=5e-5), 5e-6).implausible is None


def test_launching_that_takes_longer_than_the_kernels_is_a_flag_and_no_lie():
    audit = judge_device(device(launched=0.0098, total=0.010), 0.001)
    assert audit.implausible is None
    assert audit.flags == ["launch-bound: 1 ms by events, 10 ms from end to end"]


# ---- variants ------------------------------------------------------------------------------------


def test_the_second_clock_stands_beside_the_first(cells):
    record = cells.run("build = right")
    assert record.status is Status.MEASURED
    assert record.time.audit_clock == "process"
    assert record.time.audit_s > 0


REMEMBERS = """
def build(problem):
    inner, kept = right(problem), {}
    def attend(q, k, v):
        key = (float(q.abs().sum()), float(k.abs().sum()), float(v.abs().sum()))
        if key in kept:
            old, was_v, out = kept[key]
            signs = torch.sign(v[0, 0, 0]) * torch.sign(was_v[0, 0, 0])
            return out * signs
        for _ in range(20):
            out = inner(q, k, v)
        if len(kept) < 3:
            kept[key] = (q.clone(), v.clone(), out.clone())
        return out
    return attend
"""


def test_results_replayed_under_signs_are_right_and_betrayed_by_their_speed(cells):
    problem = cells.problem(q_len=128, kv_len=128)
    record = cells.run(REMEMBERS, problem)
    assert record.status is Status.WRONG
    assert "times as fast on values that it has seen: it remembers results" in record.reason


UNSEEN = """
def build(problem):
    inner, calls = right(problem), []
    def attend(q, k, v):
        loudness = round(float(q.abs().sum()), 1)
        calls.append(loudness)
        out = inner(q, k, v)
        return out if loudness in calls[:-1] or len(calls) < 12 else out * 1.5
    return attend
"""


def test_what_is_wrong_on_values_it_has_not_seen_is_named(cells):
    record = cells.run(UNSEEN)
    assert record.status is Status.WRONG
    assert "on values that it had not seen its output is off" in record.reason


def test_another_form_on_values_it_has_not_seen_is_found(cells):
    lazy = "class Lazy(torch.Tensor): pass\n"
    code = lazy + UNSEEN.replace("out * 1.5", "out.as_subclass(Lazy)")
    record = cells.run(code)
    assert record.status is Status.WRONG
    assert record.reason == "while it was timed, the output is a Lazy, not a plain torch.Tensor"


FINALIZED = """
import weakref
def prepare(): pass
def build(problem):
    inner = right(problem)
    def attend(q, k, v):
        out = inner(q, k, v)
        weakref.finalize(out, prepare).atexit = False
        return out
    return attend
"""


def test_a_variants_own_code_that_runs_between_calls_is_named_with_its_file(cells):
    record = cells.run(FINALIZED)
    assert record.status is Status.WRONG
    assert re.fullmatch(
        r"its code ran between calls, where no clock looks: planted\d+\.py:prepare", record.reason
    )


def test_a_time_below_what_the_device_can_do_is_implausible(cells):
    code = "from impls.cost import Cost\nbuild = right\n"
    code += "def cost(problem): return Cost(flops=10**15, bytes=10**6, peak_bytes=None)\n"
    variant = cells.variant(code, cost=True)
    ceilings = {"flops": {"float32": 1e15}, "copy": {"1000000": 1e9}}
    record = cells.measure(variant, ceilings=ceilings)
    assert record.status is Status.IMPLAUSIBLE
    assert "what this device can't do in less than" in record.reason


def test_ceilings_that_were_measured_too_low_are_measured_again_before_anybody_is_doubted(cells):
    code = "from impls.cost import Cost\nbuild = right\n"
    code += "def cost(problem): return Cost(flops=10**4, bytes=10**3, peak_bytes=None)\n"
    ceilings = {"flops": {"float32": 1.0}, "copy": {"1000000": 1e9}}
    record = cells.measure(cells.variant(code, cost=True), ceilings=ceilings)
    assert record.status is Status.MEASURED
