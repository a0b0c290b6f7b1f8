"""Numbers as people read them."""

import pytest

from everstep.tracking.number_text import rate_text, value_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123456, "0.01235"),
        (9999.4, "9999"),
        (12345.6, "12,346"),
        (-1.5e7, "-15,000,000"),
        (1e-5, "1e-05"),
        (1e20, "1e+20"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_a_value_has_four_digits_and_no_exponent_where_a_person_writes_none(value, text):
    assert value_text(value) == text


def test_rates_have_no_exponents():
    assert rate_text(1213.4, "steps/s") == "1,213 steps/s"
    assert rate_text(77_400, "samples/s") == "77.4k samples/s"
