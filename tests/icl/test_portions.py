"""The order of long work, by which processes that share a cache divide it."""

import pytest

from ragsys_kernels.icl.storage.portions import portions


@pytest.mark.parametrize(("number", "size"), [(0, 4), (1, 4), (4, 4), (5, 4), (1000, 7)])
def test_portions_cover_all_the_first_of_them_first(number, size):
    items = [*range(number)]
    found = [items[part] for part in portions(number, size)]
    assert sorted(found) == [items[begin : begin + size] for begin in range(0, number, size)]
    assert found[:1] == sorted(found)[:1]


def test_each_process_has_an_order_of_its_own():
    assert [*portions(1000, 7)] != [*portions(1000, 7)]
