"""Contexts that are read together, so that what they share is read once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from ..tokenization import TokenPair, common

Tokens = tuple[int, ...]
Item = TypeVar("Item")

LEAST = 16  # tokens in common, fewer are not worth a pass of their own
# Texts in one pass are no longer than this factor of the shortest and so many tokens.
_PADDING_FACTOR, _PADDING_TOKENS = 1.25, 8


class Group(NamedTuple):
    """One context with its distinct answers; places[a] are the positions of answer a among the pairs."""

    context: Tokens
    answers: list[Tokens]
    places: list[list[int]]


class Cluster(NamedTuple):
    """Groups whose contexts begin alike; alone in it, a group has all of its context as the beginning."""

    beginning: Tokens
    groups: list[Group]


def grouped(pairs: Sequence[TokenPair]) -> list[Group]:
    """Put equal contexts together, and equal answers to one context; empty answers need no run."""
    contexts: dict[Tokens, dict[Tokens, list[int]]] = {}
    for i, (context, answer) in enumerate(pairs):
        if answer:
            contexts.setdefault(context, {}).setdefault(answer, []).append(i)
    return [Group(context, list(answers), list(answers.values())) for context, answers in contexts.items()]


def clustered(groups: Iterable[Group]) -> list[Cluster]:
    """Put contexts together whose beginnings are long enough to be read once for all.

    A cluster of m contexts with h tokens in common saves (m - 1) h. Sorted contexts with the number of tokens that
    neighbours share are a tree of intervals, the longer beginnings inside; each interval is either one cluster or what
    is best inside it, whichever saves more.
    """
    order = sorted(groups, key=lambda group: group.context)
    shared = [common(a.context, b.context) for a, b in pairwise(order)]
    clusters, end = [], 0
    for first, last, length in _intervals(shared):
        clusters += [Cluster(group.context, [group]) for group in order[end:first]]
        clusters.append(Cluster(order[first].context[:length], order[first : last + 1]))
        end = last + 1
    return clusters + [Cluster(group.context, [group]) for group in order[end:]]


def _intervals(shared: list[int]) -> list[tuple[int, int, int]]:
    """Yield (first, last, tokens in common) of the contexts to put together, `shared` being those of neighbours."""
    open_: list[tuple[int, int, int, list[tuple[int, int, int]]]] = []  # tokens, first, saved inside, how
    for i, tokens in enumerate([*shared, -1]):
        first, saved, chosen = i, 0, list[tuple[int, int, int]]()
        while open_ and open_[-1][0] >= tokens:
            here, first, inside, parts = open_.pop()
            saved, chosen = saved + inside, parts + chosen
            if here > tokens and here >= LEAST and (i - first) * here >= saved:
                saved, chosen = (i - first) * here, [(first, i, here)]
        open_.append((tokens, first, saved, chosen))
    return open_[-1][3]


def batches(
    items: Iterable[Item],
    length: Callable[[Item], int],
    most_tokens: int,
    most_rows: int | None = None,
    *,
    padded: bool = True,
) -> Iterator[list[Item]]:
    """Yield items of like length, longest first, with so many tokens at most, padding included, or one item.

    Without padding the items of a batch are of one length.
    """
    batch: list[Item] = []
    for item in sorted(items, key=length, reverse=True):
        longest = length(batch[0]) if batch else 0
        full = (len(batch) + 1) * longest > most_tokens or len(batch) == most_rows
        most = _PADDING_FACTOR * length(item) + _PADDING_TOKENS if padded else length(item)
        if batch and (full or longest > most):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch
