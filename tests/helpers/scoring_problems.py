"""Logits, hidden states and output matrices to score, and the same in float64."""

import functools
import importlib.util
import itertools

import numpy as np
import pytest

import ragsys_kernels as rk

DTYPES = ("float32", "float16", "bfloat16")
INF, NAN = np.inf, np.nan


def stored(values, dtype):
    """float32 values as an array of the element type, and what they then are in float64."""
    values = np.ascontiguousarray(values, np.float32)
    if dtype != "bfloat16":
        array = values.astype(dtype)
        array.flags.writeable = False  # nothing may modify its input
        return array, array.astype(np.float64)
    if importlib.util.find_spec("torch") is None:
        array = values.astype(pytest.importorskip("ml_dtypes").bfloat16)
        return array, array.astype(np.float64)
    import torch

    tensor = torch.from_numpy(values).bfloat16()
    return tensor, tensor.double().numpy()


@functools.lru_cache(maxsize=8)
def logits(T, V, dtype="float32", scale=4.0, shift=0.0, seed=0):
    rng = np.random.default_rng([seed, T, V])
    values = rng.standard_normal((T, V)) * scale + shift
    return stored(values, dtype)


def hard_rows(V):
    """Name: (row, target)."""
    rng = np.random.default_rng(V)
    usual = (rng.standard_normal(V) * 4).astype(np.float32)
    rows = {"usual": (usual, V // 2)}
    for first in {1, V // 2, V * 4 // 5, V - 1} - {0, V}:
        row = usual.copy()
        row[:first] = -INF
        rows[f"first_{first}_masked"] = row, V - 1
        row = usual.copy()
        row[V - first :] = -INF
        rows[f"last_{first}_masked"] = row, 0
    one = np.full(V, -INF, np.float32)
    one[V // 3] = -7.5
    rows["one_live"] = one, V // 3
    rows["one_live_and_a_masked_target"] = one, V - 1
    rows["all_low"] = usual - 150, V - 1  # a pad of zeros would be the whole sum
    rows["all_very_low"] = usual - np.float32(1e4), V - 1
    rows["extremes"] = np.where(np.arange(V) % 2, 1e4, -1e4).astype(np.float32), V - 1
    rows["extremes_and_a_low_target"] = np.where(np.arange(V) % 2, 1e4, -1e4).astype(np.float32), 0
    rows["largest_floats"] = np.where(np.arange(V) % 3, 3e38, -3e38).astype(np.float32), V - 1
    rows["rising"] = np.linspace(-300, 300, V, dtype=np.float32), V - 1
    rows["rising_steeply"] = np.linspace(-3e4, 3e4, V, dtype=np.float32), V - 1
    rows["falling"] = np.linspace(300, -300, V, dtype=np.float32), 0
    peak = usual.copy()
    peak[V - 1] = 80
    rows["peak_in_the_last_column"] = peak, V - 1
    rows["equal"] = np.full(V, 3.25, np.float32), V - 1
    rows["zeros_of_both_signs"] = np.where(np.arange(V) % 2, 0.0, -0.0).astype(np.float32), 0
    rows["all_masked"] = np.full(V, -INF, np.float32), 0
    for name, value in (("nan", NAN), ("inf", INF)):
        for at in {0, V // 2, V - 1}:
            row = usual.copy()
            row[at] = value
            rows[f"{name}_at_{at}"] = row, V // 3
            row = np.full(V, -INF, np.float32)
            row[at] = value
            rows[f"{name}_at_{at}_else_masked"] = row, V // 3
    return rows


def linear(T, V, D, hidden_dtype="float32", weight_dtype="float32", bias=False, seed=0):
    """Arguments, and the logits in float64; about as wide as those of a language model."""
    rng = np.random.default_rng([seed, T, V, D])
    hidden, h = stored(rng.standard_normal((T, D)) * 2, hidden_dtype)
    weight, w = stored(rng.standard_normal((V, D)) * 2 / np.sqrt(D), weight_dtype)
    z = h @ w.T
    arguments = {"hidden": hidden, "weight": weight}
    if bias:
        arguments["bias"] = rng.standard_normal(V).astype(np.float32)
        z = z + arguments["bias"].astype(np.float64)
    # A float32 sum of D products is off by about sqrt(D) roundings of the partial sums, which are at most this large.
    floor = 2e-6 + 2.0**-24 * np.sqrt(D) * (np.abs(h) @ np.abs(w).T).max() / np.sqrt(D) * 4
    return arguments, z, floor


def _cut(form, bounds):
    """(first column, arguments) of each shard."""
    for begin, end in itertools.pairwise(bounds):
        if "logits" in form:
            yield begin, {"logits": form["logits"][:, begin:end]}
        else:
            bias = {"bias": form["bias"][begin:end]} if "bias" in form else {}
            yield begin, {"hidden": form["hidden"], "weight": form["weight"][begin:end], **bias}


def sharded(form, bounds, scorer, **options):
    """Ranks need the targets of all shards first."""
    shards = list(_cut(form, bounds))
    options = {"vocab_size": bounds[-1], **options, "backend": scorer}
    first = rk.merge_partials([rk.logprob_partials(**part, first_column=c, **options) for c, part in shards])
    return rk.merge_partials(
        [
            rk.logprob_partials(**part, first_column=c, entropy=True, rank=True, target_logits=first.target, **options)
            for c, part in shards
        ]
    )


def blas_keeps_bits(V, D):
    """Whether NumPy gives equal rows and equal columns equal bits wherever they are in the fallback's products."""
    rng = np.random.default_rng(0)
    hidden, weight = rng.standard_normal((64, D), np.float32), rng.standard_normal((V, D), np.float32)
    width = min(V, max(1024, 2**20 // D))
    for n in {width, V % width or width}:
        x = np.repeat(hidden[:1], 64, 0) @ weight[:n].T
        y = hidden @ np.repeat(weight[:1], n, 0).T
        if (x != x[:1]).any() or (y != y[:, :1]).any():
            return False
    return True
