"""A row's bits depend on nothing but the row: not on its neighbours, its place, the threads or the run."""

import numpy as np
import pytest
from scoring_oracle import EVERYTHING
from scoring_problems import DTYPES, blas_keeps_bits, linear, logits, stored

import ragsys_kernels as rk

pytestmark = pytest.mark.sampled(5)

SHAPES = [(50, 33), (23, 4099), (9, 32769), (5, 151936)]
LINEAR = [(70, 1500, 40), (33, 4100, 300), (70, 700, 1100), (9, 50257, 24)]


def row_of(x, rows):
    return x[rows] if isinstance(x, np.ndarray) else x[rows.tolist()]


def run(form, rows, targets, scorer, **options):
    arguments = {name: row_of(x, rows) if name in ("logits", "hidden") else x for name, x in form.items()}
    found = rk.answer_logprobs(**arguments, targets=targets[rows], want=EVERYTHING, backend=scorer, **options)
    return {name: np.asarray(getattr(found, name)) for name in EVERYTHING}


def same(got, want, rows):
    for name in EVERYTHING:
        np.testing.assert_array_equal(got[name].view(np.uint8), want[name][rows].view(np.uint8), err_msg=name)


def close(floor):
    """What is left of `same` where the bits are a BLAS's: results within twice the error of one, ranks but for ties."""

    def compare(got, want, rows):
        for name in ("logp", "lse", "max", "entropy"):
            atol = 10 * floor if name == "entropy" else 2 * floor
            np.testing.assert_allclose(got[name], want[name][rows], rtol=0, atol=atol, err_msg=name)
        assert (np.abs(got["rank"] - want["rank"][rows]) <= 2).all()

    return compare


def check(form, T, V, scorer, same=same):
    rng = np.random.default_rng(0)
    targets = rng.integers(0, V, T)
    everything = np.arange(T)
    want = run(form, everything, targets, scorer)
    same(run(form, everything, targets, scorer), want, everything)
    same(run(form, everything[::-1].copy(), targets, scorer), want, everything[::-1])
    for _ in range(3):
        some = rng.permutation(T)[: rng.integers(1, T + 1)]
        same(run(form, some, targets, scorer), want, some)
        same(run(form, np.concatenate([some, some, some]), targets, scorer), want, np.concatenate([some, some, some]))
    for row in {0, T // 2, T - 1}:
        one = np.array([row])
        same(run(form, one, targets, scorer), want, one)
    for threads in (1, 2, 3, 8):
        same(run(form, everything, targets, scorer, num_threads=threads), want, everything)
        same(run(form, everything[:1], targets, scorer, num_threads=threads), want, everything[:1])
    # Named by their ids out of the whole, in an order of their own.
    some = rng.permutation(T)[: T // 2 + 1]
    found = rk.answer_logprobs(**form, targets=targets[some], rows=some, want=EVERYTHING, backend=scorer)
    by_row = ("lse", "max", "entropy")
    found = {name: np.asarray(getattr(found, name)) for name in EVERYTHING}
    same({name: x[some] if name in by_row else x for name, x in found.items()}, want, some)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "T{}-V{}".format(*s))
def test_rows_of_logits_have_their_bits_in_any_batch(host_scorer, dtype, shape):
    T, V = shape
    T = 3 if host_scorer == "reference" and V > 40000 else T  # it is slow
    check({"logits": logits(T, V, dtype)[0]}, T, V, host_scorer)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", LINEAR, ids=lambda s: "T{}-V{}-D{}".format(*s))
def test_rows_of_hidden_states_have_their_bits_in_any_batch(host_scorer, dtype, shape):
    T, V, D = shape
    if host_scorer == "reference":  # a loop over rows, and slow
        T = 3 if V > 2000 else 9
    form, _, floor = linear(T, V, D, dtype, dtype)
    promised = host_scorer != "numpy" or blas_keeps_bits(V, D)
    check(form, T, V, host_scorer, same if promised else close(floor))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_have_their_bits_in_any_tile(compiled_scorer, dtype):
    """Several runs of dimensions, every place among the tokens; columns read in place, by their ids and as targets."""
    T, V, D = 70, 1000, 1100
    form, z, _ = linear(T, V, D, dtype, dtype)
    check(form, T, V, compiled_scorer)
    rows, targets = np.repeat(np.arange(T), 30), np.random.default_rng(1).integers(0, V, 30 * T)
    want = rk.answer_logprobs(**form, targets=targets, rows=rows, want=EVERYTHING, backend=compiled_scorer)
    by_ids = {"allowed": np.arange(V), "targets": targets, "rows": rows, "want": EVERYTHING, "backend": compiled_scorer}
    found = rk.answer_logprobs(**form, **by_ids)
    for name in EVERYTHING:
        np.testing.assert_array_equal(getattr(found, name), getattr(want, name), err_msg=name)
    # A target's own value is the one that enters: the largest has nothing above it, and is the maximum.
    best = z.argmax(1)
    found = rk.answer_logprobs(**form, targets=best, want=("rank", "max"), backend=compiled_scorer)
    parts = rk.logprob_partials(**form, targets=best, vocab_size=V, backend=compiled_scorer)
    top = np.asarray(found.rank) == 0
    assert top.sum() > T // 2  # rounding may exchange the two largest
    np.testing.assert_array_equal(np.asarray(parts.target)[top], np.asarray(found.max)[top])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_strange_neighbours_in_a_tile_change_no_bit(compiled_scorer, dtype):
    torch = pytest.importorskip("torch")
    arrays = linear(20, 100, 40, dtype, dtype)[0]
    form = {name: x if isinstance(x, torch.Tensor) else torch.tensor(x) for name, x in arrays.items()}
    targets = np.arange(20)
    want = run(form, targets, targets, compiled_scorer)
    hidden, weight = form["hidden"].clone(), form["weight"]
    hidden[[1, 3, 5, 18]] = torch.tensor([np.nan, np.inf, -np.inf, 3e38], dtype=hidden.dtype)[:, None]
    good = np.setdiff1d(targets, [1, 3, 5, 18])
    got = run({"hidden": hidden, "weight": weight}, targets, targets, compiled_scorer)
    same({name: values[good] for name, values in got.items()}, want, good)
    padded = torch.cat([weight, torch.full((30, 40), np.nan, dtype=weight.dtype)])
    got = run({"hidden": form["hidden"], "weight": padded}, targets, targets, compiled_scorer, vocab_size=100)
    same(got, want, targets)


def test_strange_neighbours_change_no_bit(scorer):
    x = np.array(logits(12, 5000)[0])
    targets = np.arange(12) * 400
    want = run({"logits": x}, np.arange(12), targets, scorer)
    x[[1, 3, 5, 7, 9]] = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38], np.float32)[:, None]
    good = np.array([0, 2, 4, 6, 8, 10, 11])
    got = run({"logits": x}, np.arange(12), targets, scorer)
    same({name: values[good] for name, values in got.items()}, want, good)


def test_other_targets_of_a_row_change_no_bit(scorer):
    x, _ = logits(4, 5000)
    alone = rk.answer_logprobs(x, targets=[7, 8, 9, 10], want=EVERYTHING, backend=scorer)
    rows, targets = np.array([3, 0, 0, 1, 2, 0, 3, 3]), np.array([10, 1, 7, 8, 9, 4999, 2, 3])
    together = rk.answer_logprobs(x, targets=targets, rows=rows, want=EVERYTHING, backend=scorer)
    for name in ("lse", "max", "entropy"):
        np.testing.assert_array_equal(getattr(together, name), getattr(alone, name))
    for name in ("logp", "rank"):
        np.testing.assert_array_equal(getattr(together, name)[[2, 3, 4, 0]], getattr(alone, name))


def test_wanting_more_changes_no_bit(scorer):
    for form in ({"logits": logits(6, 5000)[0]}, linear(6, 3000, 40)[0]):
        targets = np.arange(6) * 499
        plain = rk.answer_logprobs(**form, targets=targets, reduce=("sum",), backend=scorer)
        full = rk.answer_logprobs(**form, targets=targets, want=EVERYTHING, backend=scorer)
        np.testing.assert_array_equal(plain.logp, full.logp)
        np.testing.assert_array_equal(plain.sum, full.sum)


def test_answers_have_their_bits_in_any_batch(scorer):
    x, _ = logits(40, 300)
    rng = np.random.default_rng(0)
    targets, cu = rng.integers(0, 300, 40), np.array([0, 1, 1, 12, 30, 40])
    want = rk.answer_logprobs(x, targets=targets, cu_answers=cu, backend=scorer)
    for a in range(5):
        rows = np.arange(cu[a], cu[a + 1])
        alone = rk.answer_logprobs(x, targets=targets[rows], rows=rows, backend=scorer)
        for name in ("sum", "mean", "count", "greedy"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(want, name)[a], err_msg=name)


def test_element_types_that_hold_the_same_values_agree(scorer):
    """Widening is exact; only the order of a sum may differ."""
    values = np.round(np.random.default_rng(0).standard_normal((5, 5000)) * 16) / 8  # exact in bfloat16
    forms = [stored(values, dtype)[0] for dtype in DTYPES]
    first, *others = (rk.token_logprobs(x, [0, 1, 2, 3, 4999], backend=scorer) for x in forms)
    for other in others:
        np.testing.assert_allclose(np.asarray(other), first, atol=4e-6)
