"""A row's bits depend on nothing but the row: not on its neighbours, its place, the threads or the run."""

import numpy as np
import pytest
from scoring_oracle import EVERYTHING
from scoring_problems import DTYPES, blas_keeps_bits, linear, logits

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
def test_rows_of_logits_have_their_bits_in_any_batch(scorer, dtype, shape):
    T, V = shape
    T = 3 if scorer == "reference" and V > 40000 else T  # it is slow
    check({"logits": logits(T, V, dtype)[0]}, T, V, scorer)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", LINEAR, ids=lambda s: "T{}-V{}-D{}".format(*s))
def test_rows_of_hidden_states_have_their_bits_in_any_batch(scorer, dtype, shape):
    T, V, D = shape
    if scorer == "reference":  # a loop over rows, and slow
        T = 3 if V > 2000 else 9
    form, _, floor = linear(T, V, D, dtype, dtype)
    promised = scorer != "numpy" or blas_keeps_bits(V, D)
    check(form, T, V, scorer, same if promised else close(floor))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_columns_by_their_ids_have_the_bits_of_those_in_place(compiled_scorer, dtype):
    """Several runs of dimensions, many targets of a row."""
    T, V, D = 9, 1000, 1100
    form, _, _ = linear(T, V, D, dtype, dtype)
    call = {**form, "rows": np.repeat(np.arange(T), 30), "want": EVERYTHING, "backend": compiled_scorer}
    call["targets"] = np.random.default_rng(1).integers(0, V, 30 * T)
    want, found = rk.answer_logprobs(**call), rk.answer_logprobs(**call, allowed=np.arange(V))
    for name in EVERYTHING:
        np.testing.assert_array_equal(getattr(found, name), getattr(want, name), err_msg=name)


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
