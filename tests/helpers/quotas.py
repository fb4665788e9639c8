"""What minima and caps of groups let a query pick, by trying all sets of picks that may follow."""

from itertools import combinations

import numpy as np


def lacking(minima, groups, picked):
    """Return by how many picks all groups together are below their minima."""
    have = [groups[i] for i in picked]
    return sum(max(0, least - have.count(group)) for group, least in minima.items())


def allowed(opened, picked, left, groups, minima):
    """Return the open items that belong to a set of at most ``left`` of them after which groups lack least."""
    found, least = set(), None
    for size in range(min(left, len(opened)) + 1):
        for some in combinations(opened, size):
            lacks = lacking(minima, groups, [*picked, *some])
            if least is None or lacks < least:
                found, least = set(), lacks
            if lacks == least:
                found.update(some)
    return found


def mmr(vectors, relevance, weight, k, groups, minima, caps, initial=(), costs=None, budget=np.inf, ceiling=np.inf):
    """Return the picks of one query, and what groups lack after them; ``minima`` and ``caps`` are mappings."""
    similarity = vectors @ vectors.T
    picked, made, spent = list(initial), [], 0.0
    for step in range(k):
        opened = [
            i
            for i in range(len(groups))
            if i not in picked
            and [groups[j] for j in picked].count(groups[i]) < caps.get(groups[i], np.inf)
            and (costs is None or spent + costs[i] <= budget)
            and all(similarity[i, j] <= ceiling for j in picked)
        ]
        may = allowed(opened, picked, k - step, groups, minima)
        if not may:
            break
        nearest = {i: similarity[i, picked].max() if picked else 0 for i in may}
        value = {i: weight * relevance[i] - (1 - weight) * nearest[i] if picked else relevance[i] for i in may}
        best = min(may, key=lambda i: (-value[i], i))
        spent += 0 if costs is None else costs[best]
        picked.append(best)
        made.append(best)
    have = [groups[i] for i in picked]
    return made, {g: least - have.count(g) for g, least in minima.items() if least > have.count(g)}
