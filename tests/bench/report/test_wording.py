"""Values of files that anyone may have written."""

import math

import pytest

from marl_tools.bench.report.wording import is_number, pair


@pytest.mark.parametrize("value", [None, True, "1", [1], math.nan, math.inf, 10**400, -(10**400)])
def test_what_is_no_finite_number_is_none(value):
    assert not is_number(value)
    assert pair([0, value]) is None


@pytest.mark.parametrize("value", [0, -3, 2.5, 10**300])
def test_finite_numbers_are_numbers(value):
    assert is_number(value)
    assert pair([value, 1]) == (value, 1)
