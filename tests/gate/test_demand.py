"""Processor time by thread: whose is counted, and what of a thread that has ended."""

import threading

import pytest

from attnbench.gate import hygiene


@pytest.fixture
def threads(monkeypatch):
    """This thread and two others; each had so much, and waited for so much."""
    myself = threading.get_native_id()
    had = {myself: 100.0, -1: 2.0, -2: 3.0}
    waited = {myself: 10.0, -1: 0.5, -2: 0.25}
    monkeypatch.setattr(hygiene, "_threads", lambda: iter(had))
    monkeypatch.setattr(hygiene, "_had", had.__getitem__)
    monkeypatch.setattr(hygiene, "_waited", waited.__getitem__)


def test_what_others_had_is_without_the_thread_that_asks(threads):
    assert hygiene.spent_elsewhere() == 5.0


def test_what_is_demanded_is_what_all_had_and_waited_for(threads):
    assert hygiene.demanded() == 115.75


def test_a_thread_that_has_ended_had_nothing_and_waits_for_nothing():
    nobody = 2**22 + 1  # beyond the largest number that Linux gives
    assert (hygiene._had(nobody), hygiene._waited(nobody)) == (0.0, 0.0)


def test_a_thread_that_runs_is_among_those_counted_by_its_clock():
    number = threading.get_native_id()
    assert number in set(hygiene._threads())
    assert hygiene._had(number) > 0
