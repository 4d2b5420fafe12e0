"""Who is chosen among records with known times, what is left out and why, and when nothing is."""

from pathlib import Path

import pytest

import impls
from attnbench.answer import predict
from attnbench.answer.choose import Wants, Why, choose
from impls.loading import load_file

made = load_file(Path(__file__).with_name("seen.py"))
problem, seen, ended = made.problem, made.seen, made.ended
TABLE = impls.table()
LENGTHS = (128, 256, 512, 1024, 2048)


def chosen(records, asked=None, ceilings=None, **wants):
    return choose(records, asked or problem(), Wants(**wants), TABLE, ceilings=ceilings or {})


def lines(**seconds):
    """Records of variants at five lengths, by functions of the problem."""
    names = {name.replace("_", "."): time for name, time in seconds.items()}
    return [
        seen(name, problem(n), time(problem(n))) for n in LENGTHS for name, time in names.items()
    ]


def out(choice, name):
    (found,) = [e for e in choice.excluded if e.variant == name]
    return found


def test_on_a_measured_problem_it_is_the_fastest_with_its_own_interval():
    found = chosen([seen("matmul", problem(), 2.0), seen("sdpa", problem(), 1.0)])
    assert (found.winner.variant, found.winner.measured) == ("sdpa", True)
    assert (found.next.variant, found.equal) == ("matmul", ())
    assert found.lead.factor == pytest.approx(2.0)
    assert found.lead.low == pytest.approx(2 * 0.99 / 1.01)
    assert "use sdpa" in found.sentence() and "2.00×" in found.sentence()


def test_within_the_margin_they_cant_be_told_apart():
    records = [
        seen("matmul", problem(), 1.03),
        seen("sdpa", problem(), 1.0),
        seen("einsum", problem(), 1.5),
    ]
    found = chosen(records)
    assert [c.variant for c in found.equal] == ["matmul"]
    assert found.next.variant == "einsum"
    assert "matmul can't be told from it" in found.sentence()


def test_among_ties_torchs_own_is_chosen_and_then_what_needs_least_memory():
    records = [
        seen("chunked", problem(), 1.0, peak=8),
        seen("sdpa", problem(), 1.014, peak=9),
        seen("matmul", problem(), 1.01, peak=7),
        seen("einsum", problem(), 1.5),
    ]
    found = chosen(records)
    assert (found.winner.variant, found.next.variant) == ("sdpa", "einsum")
    assert [c.variant for c in found.equal] == ["chunked", "matmul"]
    assert found.lead.factor == pytest.approx(1.5 / 1.014)
    assert [c.variant for c in found.ranked] == ["sdpa", "chunked", "matmul", "einsum"]
    assert chosen([r for r in records if r.variant != "sdpa"]).winner.variant == "matmul"


def test_one_query_is_told_by_what_was_measured_without_a_mask_too():
    def decoding(mask, length):
        return problem(length, mask=mask).with_(phase="decode", q_len=1)

    records = [
        seen(name, decoding("none", n), time * n)
        for n in LENGTHS
        for name, time in (("sdpa", 1e-6), ("matmul", 2e-6))
    ]
    found = chosen(records, decoding("causal", 700))
    assert (found.winner.variant, found.winner.measured) == ("sdpa", False)
    upper = decoding("causal@upper-left", 700)  # it sees the first key alone
    assert predict.kinds(upper) == ("causal",) and chosen(records, upper).winner is None
    many = problem(700, mask="causal").with_(phase="decode", q_len=2)
    assert chosen(records, many).winner is None


def test_what_refused_another_mask_is_not_told_of_this_one():
    asked = problem(512, phase="decode")
    records = [
        seen("sdpa", asked, 1.0),
        ended("matmul", problem(512, mask="none", phase="decode"), "failed"),
    ]
    found = chosen(records, asked)
    assert out(found, "matmul").why is Why.ABSENT


def test_twins_that_came_out_apart_widen_the_margin():
    kernel = ["aten::_scaled_dot_product_flash_attention_for_cpu"]
    records = [
        seen("sdpa", problem(), 1.0, kernels=kernel, peak=5),
        seen("sdpa.flash", problem(), 1.3, kernels=kernel, peak=5),
        seen("matmul", problem(), 1.2),
    ]
    found = chosen(records)
    assert found.margin == pytest.approx(0.3)
    assert {c.variant for c in found.equal} == {"sdpa.flash", "matmul"}


def test_between_measured_lengths_it_is_predicted_with_an_interval():
    found = chosen(lines(sdpa=made.dense, matmul=lambda p: 2 * made.dense(p)), problem(700))
    assert (found.winner.variant, found.winner.measured) == ("sdpa", False)
    assert found.winner.median_s == pytest.approx(made.dense(problem(700)), rel=0.05)
    assert found.lead.low < 2 < found.lead.high
    assert "predicted" in found.sentence()


def test_a_winner_that_changes_with_the_length_changes_between():
    records = lines(sdpa=made.dense, matmul=lambda p: made.linear(p, once=5e-3))
    names = [chosen(records, problem(n)).winner.variant for n in (300, 1800)]
    assert names == ["sdpa", "matmul"]


def test_beyond_what_was_measured_nothing_is_said_and_it_says_what_was():
    found = chosen(lines(sdpa=made.dense), problem(1024, heads=64))
    assert found.winner is None
    assert "outside what was measured (heads 64, and 4 was measured)" in found.sentence()
    assert found.relax == ""


def test_of_another_kind_of_mask_nothing_is_said():
    found = chosen(lines(sdpa=made.dense), problem(1024, mask="window:64,0"))
    assert found.why_not.startswith("nothing of this phase, dtype, kind of mask")
    assert found.relax == ""


def test_the_limit_of_memory_leaves_out_and_names_what_would_do():
    records = [
        seen("sdpa", problem(), 1.0, peak=100 << 20),
        seen("matmul", problem(), 2.0, peak=50 << 20),
    ]
    assert chosen(records, max_memory=60 << 20).winner.variant == "matmul"
    none = chosen(records, max_memory=10 << 20)
    assert none.why_not == "nobody keeps the limit of memory"
    assert none.relax == "--max-memory 51MiB would let matmul in"
    assert out(none, "sdpa").said == "it needs 100 MiB"


def test_two_limits_that_are_both_broken_are_both_named():
    found = chosen([seen("sdpa", problem(), 1.0, peak=100)], max_memory=50, max_error=1e-9)
    assert found.relax == "--max-memory 102B and --max-error 2.0e-07 would let sdpa in"


def expecting(record, formula):
    return record.with_(memory=record.memory.with_(expected_bytes=formula))


def test_memory_that_was_not_measured_there_is_the_rows_formula_where_that_held():
    exact = [
        seen("matmul", problem(n), made.dense(problem(n)), peak=peak_of(problem(n)))
        for n in LENGTHS
    ]
    exact = [expecting(each, each.memory.peak_bytes) for each in exact]
    found = chosen(exact, problem(1500))
    assert found.winner.memory_bytes == peak_of(problem(1500))
    # a formula that did not hold
    exact = [expecting(each, each.memory.peak_bytes // 2) for each in exact]
    other = chosen(exact, problem(1500)).winner.memory_bytes
    assert other == pytest.approx(peak_of(problem(1500)), rel=0.1)
    assert other != peak_of(problem(1500))


def peak_of(p):
    from impls.loading import load_function

    return load_function(TABLE.find("matmul").cost)(p).peak_bytes


def test_another_operator_is_let_in_only_when_it_is_allowed():
    other = seen("linear.elu", problem(), 0.1, computes="its own operator", error=0.6)
    records = [seen("sdpa", problem(), 1.0), other]
    assert chosen(records).winner.variant == "sdpa"
    assert out(chosen(records), "linear.elu").why is Why.COMPUTES
    allowed = chosen(records, allowed=("other",))
    assert (allowed.winner.variant, allowed.winner.error) == ("linear.elu", 0.6)
    assert chosen(records, allowed=("other",), max_error=0.5).winner.variant == "sdpa"


def test_who_came_to_grief_on_any_problem_like_it_is_not_chosen():
    for status in ("wrong", "implausible", "failed", "crashed"):
        records = [
            seen("sdpa", problem(), 1.0),
            seen("matmul", problem(), 0.1),
            ended("matmul", problem(512), status),
        ]
        found = chosen(records)
        assert found.winner.variant == "sdpa"
        assert out(found, "matmul").said == f"{status} on {problem(512)}: the reason"


def test_who_ran_out_of_memory_on_a_smaller_problem_is_not_tried_on_this():
    records = lines(sdpa=made.dense, matmul=lambda p: made.dense(p) / 2)
    records = [r for r in records if not (r.variant == "matmul" and r.problem.kv_len == 2048)]
    records.append(ended("matmul", problem(2048), "out_of_memory"))
    assert chosen(records, problem(2500)).winner.variant == "sdpa"
    assert chosen(records, problem(700)).winner.variant == "matmul"


def test_what_the_row_does_not_take_is_said_in_its_own_words():
    asked = problem(phase="train")
    found = chosen([seen("sdpa", asked, 1.0), ended("inplace", asked, "unsupported")], asked)
    assert "no backward" in out(found, "inplace").said


def test_the_last_record_of_a_cell_counts():
    records = [
        seen("sdpa", problem(), 5.0),
        seen("matmul", problem(), 2.0),
        seen("sdpa", problem(), 1.0),
    ]
    assert chosen(records).winner.variant == "sdpa"


def test_where_somebody_unknown_would_be_faster_nothing_is_said():
    chance = [1.0, 9.0, 1.0, 9.0, 1.0]
    noisy = [
        seen("matmul", problem(n), made.dense(problem(n)) * x / 20)
        for n, x in zip(LENGTHS, chance, strict=True)
    ]
    found = chosen([*lines(sdpa=made.dense), *noisy], problem(700))
    assert found.winner is None
    assert found.why_not.startswith("matmul may be faster than sdpa, and its time there is known")


def test_who_was_not_measured_at_all_is_named_as_one_who_might_be_faster():
    found = chosen([seen("sdpa", problem(), 1.0)])
    assert out(found, "matmul").why is Why.ABSENT
    assert "matmul" in [e.variant for e in found.unknown]
    assert "the only one that is known" in found.sentence()


def test_a_flag_of_the_winner_s_time_is_said():
    record = seen("sdpa", problem(), 1.0)
    record.time.flags.append("drifted: the canary before it was +9% off")
    assert "(in doubt: drifted)" in chosen([record]).sentence()


def test_memory_with_a_flag_keeps_no_limit():
    record = seen("sdpa", problem(), 1.0, peak=10)
    record.memory.flags.append("it holds 99 bytes from call to call")
    found = chosen([record], max_memory=50)
    assert found.winner is None
    assert out(found, "sdpa").said == "how much memory it needs there is not known"


def test_records_of_another_kind_of_machine_are_no_part_of_it():
    here = [seen("sdpa", problem(n), made.dense(problem(n))).with_(node="a") for n in LENGTHS]
    there = seen("matmul", problem(), 1e-9).with_(node="b")
    assert chosen([*here, there]).winner.variant == "sdpa"


def test_a_time_that_is_no_number_above_nought_is_none():
    records = [seen("sdpa", problem(), 1.0), seen("matmul", problem(), 0.0)]
    assert chosen(records).winner.variant == "sdpa"


def test_once_and_after_how_many_calls_that_has_paid():
    records = [
        seen("sdpa", problem(), 1.0).with_(setup_s=10.0),
        seen("matmul", problem(), 1.5).with_(setup_s=1.0),
    ]
    assert chosen(records).pays_after == 18


def test_a_choice_is_plain_values():
    import json

    sent = json.loads(json.dumps(chosen(lines(sdpa=made.dense), problem(700)).to_dict()))
    assert sent["winner"]["variant"] == "sdpa" and sent["lead"] is None
