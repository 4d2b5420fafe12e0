"""A run as a dispatch table: who takes which lengths, and where that changes."""

import pytest

import impls
from attnbench.answer.choose import Wants
from attnbench.answer.dispatch_table import DispatchTable
from attnbench.core.disk import StoreError
from attnbench.core.record import Determinism
from attnbench.features.choose.export import table_of
from tests.verbs import chosen_runs as made

TABLE = impls.table()


def exported(tmp_path, records, **wants):
    return table_of(made.written(tmp_path / "run", records), Wants(**wants), TABLE)


def ranges(table):
    return [[(r.first, r.last, r.variant) for r in e.ranges] for e in table.entries]


def test_where_another_takes_over_is_found_between_the_lengths(tmp_path):
    each_s = made.quadratic(made.problem(700)) / 700  # a token's, slower below that
    problems = map(made.problem, made.LENGTHS)
    other = [made.record("matmul", p, each_s * p.kv_len) for p in problems]
    (found,) = ranges(exported(tmp_path, [*made.lines(sdpa=1.0), *other]))
    (first, end, one), (start, last, two) = found
    assert (first, last, one, two) == (128, 2048, "sdpa", "matmul")
    assert start == end + 1
    assert start == pytest.approx(700, rel=0.03)


def test_a_table_for_the_same_bits_has_one_variant_for_every_batch(tmp_path):
    same, apart = (Determinism(repeats=True, batch=x, place=True) for x in (True, False))
    records = [r.with_(determinism=same) for r in made.lines(sdpa=2.0)]
    records += [r.with_(determinism=apart) for r in made.lines(matmul=1.0)]
    assert ranges(exported(tmp_path / "any", records)) == [[(128, 2048, "matmul")]]
    table = exported(tmp_path, records, same_bits=True)
    assert ranges(table) == [[(128, 2048, "sdpa")]] and table.made.same_bits
    table.write(tmp_path / "table.json")
    (entry,) = DispatchTable.read(tmp_path / "table.json").entries
    assert {entry.takes(batch, 512, 512) for batch in (1, 3, 4096)} == {"sdpa"}
    more = [r.with_(problem=r.problem.with_(batch=4)) for r in records]
    with pytest.raises(StoreError, match="rests on one batch, and the run measured 1, 4"):
        exported(tmp_path / "two", [*records, *more], same_bits=True)


def test_a_run_of_several_legs_makes_no_table(tmp_path):
    run = made.written(tmp_path / "run", made.lines(sdpa=1.0), legs=[{"changes": ["torch 2.1"]}])
    with pytest.raises(StoreError, match="measured in several legs"):
        table_of(run, Wants(), TABLE)


def test_what_a_call_can_t_say_is_left_out(tmp_path):
    windowed = made.lines(mask="window:64,0", sdpa=1.0)
    (entry,) = exported(tmp_path / "one", [*made.lines(("decode",), sdpa=1.0), *windowed]).entries
    assert (entry.phase, entry.ranges[0].queries) == ("decode", 1)
    with pytest.raises(StoreError, match="holds nothing for a dispatch table"):
        exported(tmp_path / "other", windowed)


@pytest.mark.parametrize(
    ("sdpa", "matmul", "expected"),
    [
        # peaks at 256 and 512 tokens, of which 50 are allowed; sdpa takes half of the time
        ((100, 100), (10, 10), [(256, 512, "matmul")]),
        ((10, 900), (10, 10), [(256, 256, "sdpa"), (257, 512, "matmul")]),
        ((900, 10), (10, 10), [(256, 511, "matmul"), (512, 512, "sdpa")]),
    ],
)
def test_the_limits_hold_in_the_table_too(tmp_path, sdpa, matmul, expected):
    records = [
        made.record(name, made.problem(n), seconds, peak=peak)
        for name, seconds, peaks in (("sdpa", 1.0, sdpa), ("matmul", 2.0, matmul))
        for n, peak in zip((256, 512), peaks, strict=True)
    ]
    assert ranges(exported(tmp_path, records, max_memory=50)) == [expected]
