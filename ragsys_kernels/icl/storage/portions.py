"""Long work in portions, which processes that share a cache divide among them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

_RANDOM = random.SystemRandom()  # processes that start together differ, even with the same seed


def portions(number: int, size: int, progress: Callable[[int, int], None] | None = None) -> Iterator[slice]:
    """Yield slices of at most ``size`` that cover ``number`` items: the first slice first, the others in random order.

    The order differs between processes, so that processes with the same work rarely compute the same slice at the same
    time, and each finds results of the others in their cache. The first slice, such as the longest texts, shows at once
    whether everything fits. ``progress`` gets the items done and their number, first with 0, then at each next slice.
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
