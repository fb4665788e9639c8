"""The most probable tokens of each row against a sort of the whole row in float64."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scoring_oracle import arrays, assert_close, log_sum, scaled
from scoring_problems import DTYPES, INF, NAN, hard_rows, linear, logits

import ragsys_kernels as rk

SEEDS = st.integers(0, 2**32 - 1)


def best(z, k):
    """ids and log p (R, k) by their definition: a stable sort of each row of z (R, V)."""
    ids, logps = np.full((len(z), k), -1), np.full((len(z), k), -INF)
    for r, row in enumerate(z):
        top, log = log_sum(row)
        if not np.isfinite(top):
            logps[r] = NAN
            continue
        order = np.argsort(-row, kind="stable")[:k]
        order = order[row[order] > -INF]
        ids[r, : len(order)], logps[r, : len(order)] = order, (row[order] - top) - log
    return ids, logps


def check(found, z, k, floor=2e-6):
    found, (ids, logps) = arrays(found), best(z, k)
    assert found.ids.dtype == np.int64
    assert found.log_probs.dtype == np.float32
    np.testing.assert_array_equal(found.ids, ids)
    assert_close(found.log_probs, logps, floor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("T", "V", "k"), [(3, 1, 1), (5, 17, 4), (9, 700, 20), (2, 9001, 33)])
def test_logits(scorer, T, V, k, dtype):
    """Of 16 bits many are equal."""
    x, z = logits(T, V, dtype)
    check(rk.top_logprobs(x, k=k, backend=scorer), z, k)


def test_hard_rows(scorer):
    rows = [row for row, _ in hard_rows(300).values()]
    x = np.stack(rows)
    found = arrays(rk.top_logprobs(x, k=7, backend=scorer))
    check(found, x.astype(np.float64), 7)
    assert len(set(np.isnan(found.log_probs).any(1))) == 2


@pytest.mark.parametrize("k", [1, 5, 60, 1000])
def test_values_that_come_late_few_or_again(compiled_scorer, k):
    """Longer rows than a block of any instruction set, in the orders that a heap and its first bound depend on."""
    V = 20_000
    rng = np.random.default_rng(k)
    x = rng.standard_normal((8, V)).astype(np.float32)
    x[0].sort()
    x[1] = x[0, ::-1]
    x[2, : V // 2] = -INF
    x[2, [3, 40, 2000]] = 5, 7, 6  # of a block with few values, then come many
    x[3] = np.round(x[3])
    x[4] = 0.25
    x[5] = np.where(rng.random(V) < 0.999, -INF, x[5])
    x[6, 1:] = -3e38
    x[7, ::2] = -INF
    check(rk.top_logprobs(x, k=k, backend=compiled_scorer), x.astype(np.float64), k)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float32")])
def test_hidden_states(scorer, dtypes, bias):
    arguments, z, floor = linear(20, 700, 40, *dtypes, bias=bias)
    gaps = np.diff(np.sort(z)[:, -10:])
    sure = (gaps > 2 * floor).all(1)  # others may come in either order
    assert sure.sum() > 10
    found = arrays(rk.top_logprobs(**arguments, k=9, backend=scorer))
    check(type(found)(found.ids[sure], found.log_probs[sure]), z[sure], 9, floor)


@pytest.mark.parametrize("form", ["logits", "hidden"])
def test_ids_have_the_log_probability_of_a_target(scorer, form):
    """Bit for bit: what is kept is what is summed. NumPy's products have other shapes for targets."""
    arguments = {"logits": logits(9, 2000)[0]} if form == "logits" else linear(9, 2000, 33)[0]
    options = {"temperature": 0.7, "softcap": 20.0, "logit_scale": 1.3, "backend": scorer}
    found = arrays(rk.top_logprobs(**arguments, k=12, **options))
    targets = {"targets": found.ids.ravel(), "rows": np.repeat(np.arange(9), 12)}
    logp = np.asarray(rk.answer_logprobs(**arguments, **targets, **options).logp).reshape(9, 12)
    if form == "logits" or scorer not in ("numpy", "triton", "triton-device"):
        np.testing.assert_array_equal(found.log_probs, logp)
    assert_close(found.log_probs, logp)
    assert (np.diff(found.log_probs) <= 0).all()


def test_options(scorer):
    x, z = logits(6, 900)
    options = {"softcap": 5.0, "logit_scale": 1.5}
    allowed = np.array([0, 3, 299, 300, 301, 700, 850])
    rows, temperature = np.array([4, 1, 1, 5]), np.array([0.5, 1.0, 2.0, 3.0])
    found = rk.top_logprobs(x, k=9, **options, rows=rows, temperature=temperature, backend=scorer)
    want = [scaled(z[r], 1.5, 5.0, t) for r, t in zip(rows, temperature, strict=True)]
    logps = best(np.stack(want), 9)[1]  # near ties of the capped may be equal in float32
    assert_close(arrays(found).log_probs, logps, 4e-6)
    masked = np.full_like(z, -INF)
    masked[:, allowed] = z[:, allowed]
    masked[:, 800:] = -INF
    found = rk.top_logprobs(x, k=9, allowed=allowed[:-1], vocab_size=800, backend=scorer)
    check(found, masked, 9)  # more than are allowed
    check(
        rk.top_logprobs(x, k=3, allowed=allowed, backend=scorer),
        np.where(np.isin(np.arange(900), allowed), z, -INF),
        3,
    )


def test_more_than_there_are_and_nothing_at_all(scorer):
    x, z = logits(3, 5)
    check(rk.top_logprobs(x, k=40, backend=scorer), z, 40)
    none = arrays(rk.top_logprobs(np.zeros((0, 9), np.float32), k=4, backend=scorer))
    assert none.ids.shape == none.log_probs.shape == (0, 4)
    assert rk.top_logprobs(x, k=4, rows=np.zeros(0, int), backend=scorer).ids.shape == (0, 4)
    part = rk.logprob_partials(x, first_column=90, vocab_size=90, k=4, backend=scorer)
    assert np.asarray(part.top_ids).tolist() == [[-1] * 4] * 3


@pytest.mark.parametrize("form", ["logits", "few rows", "hidden"])
def test_bits_are_those_of_any_number_of_threads(compiled_scorer, form):
    if form == "hidden":
        arguments = linear(600, 1000, 33)[0]  # more than a batch
    else:
        x = np.array(logits(2 if form == "few rows" else 40, 120_000 if form == "few rows" else 9001)[0])
        arguments = {"logits": np.round(x)}  # with equal ones in every share
    one, *others = (
        rk.top_logprobs(**arguments, k=30, num_threads=threads, backend=compiled_scorer) for threads in (1, 2, 3, 7)
    )
    for other in others:
        np.testing.assert_array_equal(other.ids, one.ids)
        np.testing.assert_array_equal(other.log_probs, one.log_probs)


@pytest.mark.parametrize("form", ["logits", "hidden"])
def test_shards_of_the_vocabulary(scorer, form):
    arguments, V = ({"logits": logits(6, 900)[0]}, 900) if form == "logits" else (linear(6, 900, 33)[0], 900)
    options = {"rows": np.array([5, 0, 0, 3]), "temperature": np.array([1.0, 0.5, 1.0, 2.0]), "backend": scorer}
    whole = arrays(rk.top_logprobs(**arguments, k=20, **options))
    parts = []
    for begin, end in itertools.pairwise([0, 3, 403, 900, 910]):
        cut = {"logits": np.asarray(arguments["logits"])[:, begin:end]} if form == "logits" else dict(arguments)
        if form == "hidden":
            cut["weight"] = arguments["weight"][min(begin, 800) : end]
            begin = min(begin, 800)
        elif begin == V:
            cut = {"logits": np.full((6, 10), 99, np.float32)}  # padding beyond the vocabulary
        if form == "logits" or end <= V:
            parts.append(rk.logprob_partials(**cut, first_column=begin, vocab_size=V, k=20, **options))
    for order in (parts, parts[::-1]):
        found = arrays(rk.top_logprobs(partials=rk.merge_partials(order), k=20))
        if form == "logits" or scorer != "numpy":
            np.testing.assert_array_equal(found.ids, whole.ids)
        assert_close(found.log_probs, whole.log_probs, 1e-5)
    first = parts[0]._replace(top=parts[0].top[:, :2], top_ids=parts[0].top_ids[:, :2])
    assert rk.merge_partials([first, *parts[1:]]).top.shape == (4, 2)  # what it leaves out may be the third
    fewer = arrays(rk.top_logprobs(partials=rk.merge_partials(parts), k=3))
    np.testing.assert_array_equal(fewer.ids, found.ids[:, :3] if scorer != "numpy" else fewer.ids)


def test_partials_have_targets_and_the_best_together(scorer):
    x, z = logits(4, 50)
    part = rk.logprob_partials(x, targets=[3, 4, -100, 49], vocab_size=50, k=6, backend=scorer)
    found = arrays(rk.top_logprobs(partials=part, k=6))
    ids, logps = best(z[[0, 1, 3]], 6)
    live = [0, 1, 3] if len(found.ids) == 4 else slice(None)  # on a device a slot stays that nothing reads
    np.testing.assert_array_equal(found.ids[live], ids)
    assert_close(found.log_probs[live], logps)


@given(
    seed=SEEDS, T=st.integers(1, 5), V=st.integers(1, 400), k=st.integers(1, 50), spread=st.sampled_from([0, 1, 30]),
    masked=st.sampled_from([0, 0.1, 0.9]), data=st.data(),
)  # fmt: skip
@pytest.mark.sampled(3)
def test_any_rows_cut_anywhere(scorer, seed, T, V, k, spread, masked, data):
    """Logits in eighths, of which many are equal, whole and as shards in any order."""
    rng = np.random.default_rng(seed)
    x = (np.round(rng.standard_normal((T, V)) * spread) / 8).astype(np.float32)
    x[rng.random((T, V)) < masked] = -INF
    check(rk.top_logprobs(x, k=k, backend=scorer), x.astype(np.float64), k)
    cuts = sorted(data.draw(st.sets(st.integers(1, V - 1), max_size=4))) if V > 1 else []
    parts = [
        rk.logprob_partials(x[:, a:b], first_column=a, vocab_size=V, k=k, backend=scorer)
        for a, b in itertools.pairwise([0, *cuts, V])
    ]
    parts = data.draw(st.permutations(parts))
    check(rk.top_logprobs(partials=rk.merge_partials(parts), k=k), x.astype(np.float64), k)


def test_no_array_of_rows_by_columns_is_made():
    """NumPy's own memory is traced, with the results; the extension's lists are of k items a row and thread."""
    T, V, D = 64, 50_000, 16
    arguments = linear(T, V, D)[0]
    rk.top_logprobs(**arguments, k=20)
    tracemalloc.start()
    rk.top_logprobs(**arguments, k=20, backend="auto")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < T * V


def test_what_partials_must_have():
    x, _ = logits(4, 9)
    part, ids = rk.logprob_partials(x, vocab_size=9, k=3), "partials must have top_ids of shape (4, 3), got"
    for arguments, message in (
        ({"k": 4, "partials": part}, "k must be at most that of partials, 3, got 4"),
        (
            {"k": 3, "partials": rk.logprob_partials(x, targets=np.arange(4), vocab_size=9)},
            "partials must have top, which logprob_partials gives with k, got None",
        ),
        ({"k": 3, "partials": part, "logits": x}, "partials must be given instead of logits, got both"),
        ({"k": 3, "partials": part, "rows": [0]}, "partials must be given instead of rows, got both"),
        ({"k": 3, "partials": part, "temperature": 0.5}, "partials must be given instead of temperature, got both"),
        ({"k": 3, "partials": part, "vocab_size": 9}, "partials must be given instead of vocab_size, got both"),
        ({"k": 3, "partials": part._replace(top_ids=part.top_ids[:2])}, f"{ids} (2, 3)"),
        ({"k": 3, "partials": part._replace(top_ids=None)}, f"{ids} None"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as caught:
            rk.top_logprobs(**arguments)
        assert str(caught.value) == f"top_logprobs: {message}"
    with pytest.raises(TypeError, match="top_logprobs: partials must be Partials, got tuple"):
        rk.top_logprobs(k=3, partials=tuple(part))
    with pytest.raises(ValueError, match="merge_partials: parts must be of the same targets, whose top has shape"):
        rk.merge_partials([part, part._replace(top=part.top[:3])])
