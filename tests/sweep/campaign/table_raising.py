"""Faults that end in an exception, or in something that is no result. The worker lives."""

import os
import time

from campaign_rows import Kinds, at_first_call, beside, honest

kind = Kinds(quick=True)
GIGABYTE = 1 << 30
OWN = {"computes": "its own operator"}


@kind("failed", "Silent")
def message_that_can_not_be_made(problem):
    class Silent(Exception):
        def __str__(self):
            raise RuntimeError("no message")

        __repr__ = __str__

    raise Silent


@kind("failed out_of_memory", "it raised RuntimeError")
def message_of_a_gigabyte(problem):
    raise RuntimeError("x" * GIGABYTE)


@kind("failed", "it raised NNN", quick=False)
def name_of_a_gigabyte(problem):
    raise type("N" * GIGABYTE, (Exception,), {})("its name is long")


@kind("failed", "KeyError")
def message_with_surrogates_and_nulls(problem):
    raise KeyError("\ud800\x00 \x1b[2J\x9b31m\u202e\udfff\nsecond line")


@kind("failed", "RuntimeError")
def exception_that_comes_from_itself(problem):
    error = RuntimeError("round and round")
    error.__cause__ = error
    raise error


@kind("failed", "ExceptionGroup")
def a_thousand_exceptions_at_once(problem):
    error = ExceptionGroup("many", [ValueError("x" * 1000)] * 1000)
    for _ in range(50):
        error = ExceptionGroup("deeper", [error])
    raise error


@kind("failed", "RecursionError")
def recursion_without_end(problem):
    return recursion_without_end(problem)


@kind("failed", "StopIteration")
def stops_iteration(problem):
    return at_first_call(problem, lambda: next(iter(())))


@kind("failed", "it must return attend")
def build_that_returns_nothing(problem):
    return None


@kind("wrong failed")
def returns_a_generator(problem):
    inner = honest(problem)

    def attend(q, k, v):
        yield inner(q, k, v)

    return attend


def _no(self, *_):
    raise RuntimeError("not even this")


@kind("wrong failed")
def returns_what_raises_at_every_touch(problem):
    names = ("getattribute", "repr", "str", "eq", "bool", "len", "iter", "float", "array", "hash")
    monster = type("Monster", (), {f"__{name}__": _no for name in names})
    return lambda q, k, v: monster()


@kind("failed", "not even this")
def build_that_returns_what_raises_at_every_touch(problem):
    names = ("repr", "str", "eq", "bool", "len", "iter", "float", "hash")
    return type("Monster", (), {f"__{name}__": _no for name in names})()


@kind("wrong", "finite")
def gives_nan(problem):
    return lambda q, k, v: v * float("nan")


@kind("wrong", "carries more than its values")
def output_with_something_of_a_hundred_megabytes(problem):
    inner = honest(problem)

    def attend(q, k, v):
        out = inner(q, k, v)
        setattr(out, "a" * (100 << 20), 1)
        return out

    return attend


@kind("wrong")
def gives_a_view_of_nothing(problem):
    return lambda q, k, v: v.new_empty(0).expand(0)


@kind("failed")
def shapes_that_do_not_fit(problem):
    return lambda q, k, v: q @ k  # shapes that do not fit: torch's own message


def _raise(problem):
    raise ZeroDivisionError("in its cost")


@kind("failed", "ZeroDivisionError", row={"cost": ":_raise"})
def cost_that_raises(problem):
    return honest(problem)


@kind("out_of_memory", "predicted", row={"cost": ":_vast"})
def cost_beyond_all_memory(problem):
    return honest(problem)


def _vast(problem):
    from impls.cost import Cost

    return Cost(flops=1, bytes=1, peak_bytes=1 << 60)


@kind("failed", "no number", row={"cost": ":_wordy"})
def cost_that_is_words(problem):
    return honest(problem)


def _wordy(problem):
    raise TypeError("no number")


def _undefined(problem):
    return lambda q, k, v, rows: "not a tensor"


@kind("failed wrong", row=OWN | {"definition": ":_undefined"})
def definition_that_gives_words(problem):
    return honest(problem)


def _with_note(problem, note):
    inner = honest(problem)

    def attend(q, k, v):
        return inner(q, k, v)

    attend.note = note
    return attend


@kind("measured")
def note_that_is_an_object(problem):
    return _with_note(problem, object)


@kind("measured")
def note_of_bytes_and_surrogates(problem):
    return _with_note(problem, lambda: "\ud800\x00\x1b[2J")


@kind("measured out_of_memory")
def note_of_a_gigabyte(problem):
    return _with_note(problem, lambda: "n" * GIGABYTE)


@kind("failed", "its note")
def note_that_raises(problem):
    def note():
        raise ValueError("its note")

    return _with_note(problem, note)


@kind("unsupported")
def refuses_in_a_gigabyte(problem):
    from impls.spec import Unsupported

    raise Unsupported("u" * GIGABYTE)


@kind("unsupported", "it doesn't say why")
def refuses_without_a_word(problem):
    from impls.spec import Unsupported

    raise Unsupported("")


@kind("unavailable")
def unavailable_for_100_megabytes_of_reasons(problem):
    from impls.spec import Unavailable

    raise Unavailable("a" * (100 << 20), "r" * (100 << 20))


@kind("unavailable")
def unavailable_for_an_object(problem):
    from impls.spec import Unavailable

    raise Unavailable(object(), {1: object()})


@kind("out_of_memory")
def asks_for_a_terabyte(problem):
    return lambda q, k, v: q.new_zeros(1 << 40)


@kind("out_of_memory")
def asks_for_a_terabyte_of_bytes(problem):
    return at_first_call(problem, lambda: bytearray(1 << 40))


@kind("failed", "SyntaxError", row={"build": beside("broken_syntax")})
def module_that_is_no_python(problem):
    """Its code is elsewhere."""


@kind("failed", "fails_at_import", row={"build": beside("fails_at_import")})
def module_that_fails_at_import(problem):
    """Its code is elsewhere."""


@kind("failed")
def module_that_is_not_there(problem):
    __import__("no_such_module_anywhere")


@kind("measured")
def prints_a_gigabyte_of_lines_a_little_at_a_time(problem):
    return at_first_call(problem, lambda: [os.write(1, b"line\n" * 10_000) for _ in range(200)])


@kind("measured")
def sleeps_a_moment(problem):
    return at_first_call(problem, lambda: time.sleep(0.1))


ROWS = kind.rows
