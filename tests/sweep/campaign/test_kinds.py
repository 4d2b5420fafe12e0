"""A campaign of faults: whatever a variant does, nothing is lost, nothing comes twice, all is said.

After each hostile variant stands an honest one, which needs what any kernel may need. Those that
are quick share a few workers, in a sweep of their own.
"""

from collections import Counter
from pathlib import Path

import pytest

from attnbench.core.record import Status
from impls.loading import load_file

pytestmark = pytest.mark.slow
sweeping = load_file(Path(__file__).with_name("sweeping.py"))
GROWN = 48 << 20
"""By so much the process that sweeps may grow, whatever it is told."""
QUICK = [kind for kind in sweeping.KINDS if kind.quick]
SLOW = [kind for kind in sweeping.KINDS if not kind.quick]
GROUPS = {"quick": QUICK, "slow": SLOW}
EACH = [pytest.param(g, kind, id=kind.name) for g, kinds in GROUPS.items() for kind in kinds]
DONE = {}


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """What the sweep over a group left; each is swept once."""

    def of(group):
        if group not in DONE:
            DONE[group] = sweeping.swept(GROUPS[group], tmp_path_factory.mktemp(group))
        return DONE[group]

    yield of
    DONE.clear()


def test_there_are_at_least_thirty_kinds_and_each_may_end_in_ways_that_a_record_knows():
    assert len({kind.name for kind in sweeping.KINDS}) == len(sweeping.KINDS) >= 30
    for kind in sweeping.KINDS:
        assert {Status(status) for status in kind.statuses}, kind


@pytest.mark.parametrize("group", GROUPS)
def test_every_cell_has_one_record_in_the_order_of_the_plan(campaign, group):
    swept = campaign(group)
    assert Counter(r.variant for r in swept.records) == Counter(swept.order)
    assert [r.variant for r in swept.records] == swept.order


@pytest.mark.parametrize(("group", "kind"), EACH)
def test_a_fault_ends_as_it_should_and_says_why(campaign, group, kind):
    record = campaign(group).of(kind.label)
    assert record.status in kind.statuses, record.reason
    assert kind.word in f"{record.reason} {record.note}"
    assert bool(record.reason) == (record.status is not Status.MEASURED)
    assert (record.reason + record.remedy + record.note).isprintable()
    assert len(record.line()) < 100_000


@pytest.mark.parametrize("group", GROUPS)
def test_whoever_is_honest_is_measured_whatever_came_before(campaign, group):
    swept = campaign(group)
    before = dict(zip(swept.order[1:], swept.order, strict=False))
    suffered = {
        before.get(r.variant): (r.status, r.reason, r.detail[-300:])
        for r in swept.records
        if r.variant.startswith("c.honest") and r.status is not Status.MEASURED
    }
    assert suffered == {}


@pytest.mark.parametrize("group", GROUPS)
def test_no_process_is_left_behind(campaign, group):
    assert campaign(group).left == []


@pytest.mark.parametrize("group", GROUPS)
def test_the_process_that_sweeps_does_not_grow_by_what_it_is_told(campaign, group):
    assert campaign(group).grown < GROWN


def test_workers_are_replaced_only_where_they_must_be(campaign):
    swept = campaign("quick")
    living = [kind for kind in swept.kinds if swept.of(kind.label).status in ("failed", "wrong")]
    assert len(living) > 20
    assert swept.workers <= 10
