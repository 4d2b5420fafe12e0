"""Sizes and times as people write them."""

import pytest

from attnbench.core import format as written
from attnbench.core.format import NotAnAmount, flop_rate, parse_duration, parse_size, plain


def test_sizes_and_times_have_a_unit():
    for text, nbytes in (
        ("2GiB", 2 << 30), ("8GB", 8 * 10**9), ("1.5 KiB", 1536), ("7B", 7), (" 3kb ", 3000),
        (".5tib", 1 << 39),
    ):  # fmt: skip
        assert parse_size(text) == nbytes
    times = {"1s": 1.0, "200ms": 0.2, "50us": 5e-5, "1.5 min": 90, "2h": 7200}
    assert {text: parse_duration(text) for text in times} == pytest.approx(times)


def test_what_is_none_is_named():
    for text in (
        "", "2", "GiB", "s", "-1GiB", "-1s", "0B", "0s", "0.1B", "2 G i B", "1e9B", "1e3ms",
        "nanGiB", "2Gib/s", "9999999999TiB", "25h", "2d", "\u0663GiB",
    ):  # fmt: skip
        for read, what in ((parse_size, "size"), (parse_duration, "time")):
            said = f"is not a {what}: give a number above 0 with its"
            with pytest.raises(NotAnAmount, match=said):
                read(text)


def test_a_kernel_is_called_what_its_function_is_or_what_it_does_to_each_number():
    at, bf16 = "at::native::", "c10::BFloat16"
    for name, said in (
        ("aten::_softmax", "_softmax"),
        ("nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNN",) * 2,
        ("void pytorch_flash::flash_fwd_kernel<Traits<128, 64> >(Params)", "flash_fwd_kernel"),
        (f"void (anonymous namespace)::softmax_warp_forward<{bf16}>(int)", "softmax_warp_forward"),
        (
            f"void {at}vectorized_elementwise_kernel<8, {at}AUnaryFunctor<{bf16}, {at}binary_"
            "internal::MulFunctor<float> > >(int)",
            "mul, elementwise",
        ),
        (f"void {at}elementwise_kernel<4, {at}CUDAFunctor_add<{bf16}> >(int)", "add, elementwise"),
        (
            f"void {at}elementwise_kernel<4, {at}direct_copy_kernel_cuda(X&)::lambda>(int)",
            "direct_copy, elementwise",
        ),
    ):
        assert plain(name) == said


def test_amounts_are_written_with_three_digits_and_rates_in_teraflops_from_one_on():
    assert [flop_rate(x) for x in (7.8e14, 1e12, 9.99e11, 1e9)] == [
        "780 TFLOP/s", "1 TFLOP/s", "999 GFLOP/s", "1 GFLOP/s",
    ]  # fmt: skip
    assert [written.three(x) for x in (-1.314, -1234.5, -2e-5)] == ["-1.31", "-1,230", "-2e-5"]
    assert [written.duration(x) for x in (1.5e-8, 0.00099999, 0.5234, 119, 150, 1234.5, 9000)] == [
        "0.015 µs", "1 ms", "523 ms", "119 s", "2.5 min", "21 min", "2.5 h",
    ]  # fmt: skip
    assert [written.roughly(x) for x in (0, 0.2, 4.09, 100.4, 119.6, 200, 5390, 9000)] == [
        "1 s", "1 s", "4 s", "100 s", "2 min", "3 min", "1.5 h", "2.5 h",
    ]  # fmt: skip
    assert [written.size(x) for x in (0, 1010, 1023.9, 1536, 1 << 40)] == [
        "0 B", "1,010 B", "1 KiB", "1.5 KiB", "1 TiB",
    ]  # fmt: skip
    assert [written.joules(x) for x in (2e-6, 0.0012, 5.0, 1500.0)] == [
        "2 µJ", "1.2 mJ", "5 J", "1.5 kJ",
    ]  # fmt: skip
    assert [written.for_sheet(x) for x in (-1, "-1", "=1+1", "+x")] == [-1, "-1", "'=1+1", "'+x"]
