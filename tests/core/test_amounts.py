"""Sizes and times as people write them."""

import pytest

from attnbench.core.format import NotAnAmount, duration, parse_size


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("2GiB", 2 << 30),
        ("512MiB", 512 << 20),
        ("8GB", 8 * 10**9),
        ("1.5 KiB", 1536),
        ("7B", 7),
        (" 3kb ", 3000),
        ("0.5tib", 1 << 39),
        (".5KiB", 512),
    ],
)
def test_a_size_has_a_unit(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2",
        "GiB",
        "-1GiB",
        "0B",
        "0.1B",
        "2 G i B",
        "1e9B",
        "nanGiB",
        "2Gib/s",
        "9999999999TiB",
        "٣GiB",
    ],
)
def test_what_is_no_size_is_named(text):
    with pytest.raises(NotAnAmount, match="is not a size: give a number above 0 with its unit"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("200ms", 0.2),
        ("50us", 5e-5),
        ("1.5 min", 90.0),
        ("2S", 2.0),
        ("9m", 540.0),
        ("2h", 7200.0),
    ],
)
def test_a_time_has_a_unit(text, seconds):
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "0s", "-1s", "2d", "25h", "999999s", "1e3ms", "s"])
def test_what_is_no_time_is_named(text):
    with pytest.raises(NotAnAmount, match="is not a time: give a number above 0 with its unit"):
        duration(text)
