"""Long work in portions, which processes that share a cache divide among them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

_RANDOM = random.SystemRandom()  # processes that begin together differ, whatever seed a program sets


def portions(number: int, size: int, progress: Callable[[int, int], None] | None = None) -> Iterator[slice]:
    """Yield slices of at most ``size`` that cover ``number`` items: the first of them first, the others in any order.

    The order is another in each process, so that several that do the same work meet little, and each finds in their
    cache what the others have made. What comes first, such as the longest texts, tells at once what does not fit.
    ``progress`` gets the items done and their number, first with 0, then when the next slice is asked for.
    """
    tell = progress or (lambda done, whole: None)
    tell(0, number)
    done = 0
    begins = [*range(size, number, size)]
    _RANDOM.shuffle(begins)
    for begin in (*range(min(number, 1)), *begins):
        part = slice(begin, min(begin + size, number))
        yield part
        done += part.stop - part.start
        tell(done, number)
