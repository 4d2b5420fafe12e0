"""Sizes and times as people write them, and numbers and names as they read them."""

import math

import pytest

from attnbench.core import format as written
from attnbench.core.format import NotAnAmount, parse_duration, parse_size, plain

AT, BF16 = "at::native::", "c10::BFloat16"


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (parse_size, "2GiB", 2 << 30), (parse_size, "8GB", 8 * 10**9),
        (parse_size, "1.5 KiB", 1536), (parse_size, "7B", 7), (parse_size, " 3kb ", 3000),
        (parse_size, ".5tib", 1 << 39), (parse_duration, "1s", 1.0),
        (parse_duration, "200ms", 0.2), (parse_duration, "50us", 5e-5),
        (parse_duration, "1.5 min", 90), (parse_duration, "2h", 7200),
    ],
)  # fmt: skip
def test_sizes_and_times_have_a_unit(read, text, value):
    assert read(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "", "2", "GiB", "s", "-1GiB", "-1s", "0B", "0s", "0.1B", "2 G i B", "1e9B", "1e3ms",
        "nanGiB", "2Gib/s", "9999999999TiB", "25h", "2d", "\u0663GiB",
    ],
)  # fmt: skip
def test_what_is_none_is_named(text):
    for read, what in ((parse_size, "size"), (parse_duration, "time")):
        with pytest.raises(NotAnAmount, match=f"is not a {what}: give a number above 0 with its"):
            read(text)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("aten::_softmax", "_softmax"),
        ("nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNN",) * 2,
        ("void pytorch_flash::flash_fwd_kernel<Traits<128, 64> >(Params)", "flash_fwd_kernel"),
        (f"void (anonymous namespace)::softmax_warp_forward<{BF16}>(int)", "softmax_warp_forward"),
        (
            f"void {AT}vectorized_elementwise_kernel<8, {AT}AUnaryFunctor<{BF16}, {AT}binary_"
            "internal::MulFunctor<float> > >(int)",
            "mul, elementwise",
        ),
        (f"void {AT}elementwise_kernel<4, {AT}CUDAFunctor_add<{BF16}> >(int)", "add, elementwise"),
        (
            f"void {AT}elementwise_kernel<4, {AT}direct_copy_kernel_cuda(X&)::lambda>(int)",
            "direct_copy, elementwise",
        ),
    ],
    ids=range(7),
)
def test_a_kernel_is_called_what_its_function_is_or_what_it_does_to_each_number(name, said):
    assert plain(name) == said


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("flop_rate", {7.8e14: "780 TFLOP/s", 9.99e11: "999 GFLOP/s", 1e9: "1 GFLOP/s"}),
        ("three", {-1.314: "-1.31", -1234.5: "-1,230", -2e-5: "-2e-5", 1e-6: "1e-6"}),
        ("duration", {0.523: "523 ms", 0.9999: "1 s", 3.99e-5: "39.9 µs", 12345: "3.4 h"}),
        ("duration", {1.5e-8: "0.015 µs", 0.00099999: "1 ms", 119: "119 s", 1234.5: "21 min"}),
        ("roughly", {0: "1 s", 4.09: "4 s", 119.6: "2 min", 5390: "1.5 h"}),
        ("size", {0: "0 B", 1010: "1,010 B", 1023.9: "1 KiB", 1536: "1.5 KiB", 1 << 40: "1 TiB"}),
        ("size", {3350: "3.27 KiB", 3 << 30: "3 GiB"}),
        ("joules", {2e-6: "2 µJ", 0.0012: "1.2 mJ", 1500.0: "1.5 kJ"}),
        ("tokens", {4096: "4k", 512: "512", 1500: "1,500"}),
        ("figures", {0.000386: "0.000386", 3.0649: "3.06", 45.35: "45.4", 999.6: "1,000"}),
        ("figures", {1240.4: "1,240", 1e-9: "1.0e-09", 0: "0", math.inf: "–", None: "–"}),
        ("ratio", {1.3: "1.30×", 12.345: "12.3×", 0.0304: "0.0304×", None: "–"}),
        ("percent", {0.35: "35\u00a0%", 1.041: "104\u00a0%", 0.0726: "7.3\u00a0%", None: "–"}),
        ("percent", {0: "0\u00a0%", -0.4: "-40\u00a0%", 3.1e-3: "0.31\u00a0%"}),
        ("for_sheet", {-1: -1, "-1": "-1", "=1+1": "'=1+1", "+x": "'+x"}),
        ("positive", dict.fromkeys([None, 0, -1.0, math.nan, math.inf, "1", True]) | {2: 2.0}),
    ],
)
def test_amounts_are_written_with_three_digits_and_a_unit(form, said):
    assert {value: getattr(written, form)(value) for value in said} == said
