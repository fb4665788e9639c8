"""Long work in portions, which processes that share a cache divide among them."""

from __future__ import annotations

import random
from collections.abc import Iterator

_RANDOM = random.SystemRandom()  # processes that begin together differ, whatever seed a program sets


def portions(number: int, size: int) -> Iterator[slice]:
    """Yield slices of at most ``size`` that cover ``number`` items: the first of them first, the others in any order.

    The order is another in each process, so that several that do the same work meet little, and each finds in their
    cache what the others have made. What comes first, such as the longest texts, tells at once what does not fit.
    """
    begins = [*range(size, number, size)]
    _RANDOM.shuffle(begins)
    for begin in (*range(min(number, 1)), *begins):
        yield slice(begin, min(begin + size, number))
