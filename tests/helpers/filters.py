"""Filters of every form: what may be picked, as `allowed` and `exclude` take it."""

import numpy as np


def lists(masks, rng):
    """Rows (Q, M) in any order, padded with -1, one of them twice where there is any."""
    rows = [rng.permutation(np.flatnonzero(mask)) for mask in masks]
    width = max(len(each) for each in rows) + 1
    padded = np.full((len(rows), width), -1)
    for to, each in zip(padded, rows, strict=True):
        to[: len(each)] = each
        to[len(each)] = each[0] if len(each) else -1
    return padded


def forms(num_queries, num_rows, share, seed=0):
    """The arguments of each form by name, with what they allow, as masks (Q, N)."""
    rng = np.random.default_rng(seed)
    one, each = rng.random(num_rows) < share, rng.random((num_queries, num_rows)) < share
    all_one = np.tile(one, (num_queries, 1))
    return {
        "mask": ({"allowed": one}, all_one),
        "masks": ({"allowed": each}, each),
        "rows": ({"allowed": lists([one], rng)[0]}, all_one),
        "lists": ({"allowed": lists(each, rng).astype(np.int32)}, each),
        "excluded_mask": ({"exclude": ~one}, all_one),
        "excluded_masks": ({"exclude": ~each}, each),
        "excluded_rows": ({"exclude": lists([~one], rng)[0]}, all_one),
        "excluded_lists": ({"exclude": lists(~each, rng)}, each),
        "mask_and_lists": ({"allowed": one, "exclude": lists(~each, rng)}, all_one & each),
        "lists_and_mask": ({"allowed": lists(each, rng), "exclude": ~one}, all_one & each),
        "lists_and_lists": ({"allowed": lists(each, rng), "exclude": lists(each[::-1], rng)}, each & ~each[::-1]),
        "nothing": ({"allowed": np.zeros((num_queries, 0), int)}, np.zeros_like(each)),
        "no_exclusion": ({"exclude": []}, np.ones_like(each)),
    }


FORMS = tuple(forms(1, 2, 0.5))
