"""The linear form: hidden states and an output matrix, without logits, against float64 products."""

from pathlib import Path

import numpy as np
import pytest
from scoring_oracle import EVERYTHING, assert_close, check_linear, logp
from scoring_problems import DTYPES, blas_keeps_bits, linear

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, _info

pytestmark = pytest.mark.sampled(8)

INF, NAN = np.inf, np.nan


# T, V, D: every pair of element types; any number of dimensions; any vocabulary; blocks, tiles, panels and runs, whole
# and not, of few tokens and of many.
SHAPES = [
    *((5, 1500, 96, h, w, (i + j) % 2 == 0) for i, h in enumerate(DTYPES) for j, w in enumerate(DTYPES)),
    *((3, 130, D, dtype, dtype, False) for D in (1, 2, 3, 7, 9, 15, 16, 17, 31, 63, 65, 257) for dtype in DTYPES),
    *(
        (T, V, 24, "float32", "float32", False)
        for T in (1, 7)
        for V in (1, 2, 3, 5, 63, 65, 127, 129, 1023, 1025, 5000)
    ),
    *((T, 2100, 20, dtype, dtype, False) for T in (2, 31, 32, 33, 70) for dtype in ("float32", "bfloat16")),
    *(
        (T, V, D, dtype, dtype, True)
        for T, V, most in ((1, 1, 4097), (2, 17, 4097), (17, 32, 1024), (33, 300, 1024), (65, 500, 640))
        for D in (1, 7, 31, 32, 33, 64, 100, 512, 513, 640, 1024, 4097)
        for dtype in ("float32", "bfloat16")
        if most >= D
    ),
    (3, 50257, 64, "bfloat16", "bfloat16", False),
]


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("T", "V", "D", "hidden", "weight", "bias"), SHAPES)
def test_fields_are_those_of_the_definition(scorer, T, V, D, hidden, weight, bias):
    arguments, z, floor = linear(T, V, D, hidden, weight, bias)
    targets = [*((V - 1) * (t + 1) // T for t in range(T - 1)), int(z[-1].argmax())]
    found = rk.answer_logprobs(**arguments, targets=targets, want=EVERYTHING, backend=scorer)
    check_linear(found, z, targets, floor)
    assert found.rank[-1] == 0
    if V == 1:
        assert (np.asarray(found.logp) == 0).all()


def test_the_matrix_unit_is_used_where_there_is_one(compiled):
    units = {isa: compiled.bf16_unit(number) for number, isa in enumerate(compiled.ISAS)}
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    assert not any(units[isa] for isa in units if isa != "avx512")
    if "avx512" in compiled.SUPPORTED_ISAS:
        dot = "avx512_bf16" if "avx512_bf16" in flags else None
        assert units["avx512"] == ("amx" if {"amx_tile", "amx_bf16"} <= set(flags) else dot)
        assert f"products of bfloat16: {compiled.bf16_unit(_dispatch.isa_index()) or 'as float32'}" in _info.config()


@pytest.mark.parametrize(("dtype", "units"), [("float32", 8), ("bfloat16", 4)])
@pytest.mark.parametrize("D", [4096, 16384])
def test_a_long_sum_is_no_worse(compiled_scorer, D, dtype, units):
    """Off by some units in the last place of z, whatever D: sums are of parts, not one chain."""
    arguments, z, _ = linear(16, 300, D, dtype, dtype)
    found = rk.answer_logprobs(**arguments, targets=z.argmax(1), want=("max",), backend=compiled_scorer)
    assert_close(np.asarray(found.max), z.max(1), units * 2.0**-24 * np.abs(z).max())


def test_rows_targets_temperature_and_scales(scorer):
    arguments, z, floor = linear(6, 3000, 48, bias=True)
    rows, targets = np.array([4, 0, 4, 4, 2]), [3, 2999, 0, 1500, 7]
    options = {"temperature": 0.7, "logit_scale": 0.5, "softcap": 15.0}
    z = 15 * np.tanh(0.5 * z / 15) / 0.7
    found = rk.answer_logprobs(
        **arguments, targets=targets, rows=rows, want=EVERYTHING, **options, cu_answers=[0, 2, 5], backend=scorer
    )
    check_linear(found, z, targets, 4 * floor, rows)
    assert np.isnan(found.lse[[1, 3, 5]]).all()


def test_padding_and_allowed_columns(scorer):
    arguments, z, floor = linear(4, 2000, 33, bias=True)
    arguments["weight"] = np.array(arguments["weight"])
    arguments["weight"][1900:] = NAN
    targets = [0, 1899, 900, 5]
    found = rk.answer_logprobs(**arguments, targets=targets, vocab_size=1900, want=EVERYTHING, backend=scorer)
    check_linear(found, z[:, :1900], targets, floor)
    allowed = np.array([0, 5, 17, 900, 1200, 1899])
    arguments["weight"][np.setdiff1d(np.arange(2000), allowed)] = NAN
    found = rk.answer_logprobs(**arguments, targets=[0, 1, 900, 5], allowed=allowed, want=EVERYTHING, backend=scorer)
    masked = np.full_like(z, -INF)
    masked[:, allowed] = z[:, allowed]
    assert_close(found.logp, [logp(masked[r], t) for r, t in enumerate([0, 1, 900, 5])], floor)
    assert found.logp[1] == -INF


def test_a_bias_of_minus_infinity_masks(scorer):
    arguments, z, floor = linear(3, 6000, 16, bias=True)
    arguments["bias"][:5500] = -INF
    z[:, :5500] = -INF
    found = rk.answer_logprobs(**arguments, targets=[5999, 5500, 3], want=EVERYTHING, backend=scorer)
    assert_close(found.logp, [logp(z[0], 5999), logp(z[1], 5500), -INF], floor)
    assert int(found.rank[2]) == 500


def test_a_bad_row_spoils_no_other(scorer):
    arguments, z, floor = linear(40, 700, 24)
    arguments["hidden"] = np.array(arguments["hidden"])
    arguments["hidden"][3, 5] = NAN
    arguments["hidden"][20, 0] = INF
    arguments["hidden"][35] = 0
    z[35] = 0
    found = rk.answer_logprobs(**arguments, targets=np.arange(40), want=EVERYTHING, backend=scorer)
    good = np.setdiff1d(np.arange(40), [3, 20])
    assert np.isnan(found.logp[[3, 20]]).all()
    assert found.rank[[3, 20]].tolist() == [-1, -1]
    assert_close(found.logp[good], [logp(z[r], r) for r in good], floor)
    assert found.rank[35] == 0  # all logits are equal


def test_a_nan_in_the_matrix_or_an_infinite_bias_is_in_every_row(scorer):
    arguments, _, _ = linear(3, 700, 24)
    arguments["weight"] = np.array(arguments["weight"])
    arguments["weight"][650, 2] = NAN
    assert np.isnan(rk.answer_logprobs(**arguments, targets=[0, 1, 2], backend=scorer).logp).all()
    arguments["weight"][650, 2] = 0
    arguments["bias"] = np.where(np.arange(700) == 7, np.float32(INF), np.float32(0))
    assert np.isnan(rk.logprob_partials(**arguments, targets=[0, 1, 2], vocab_size=700, backend=scorer).sum).all()


def test_equal_rows_of_the_matrix_tie(scorer):
    arguments, _, floor = linear(9, 4000, 40)
    weight = np.array(arguments["weight"])
    weight[[1, 700, 3999]] = weight[2000]
    rows, targets = np.repeat(np.arange(9), 4), np.tile([1, 700, 2000, 3999], 9)
    found = rk.answer_logprobs(
        hidden=arguments["hidden"], weight=weight, targets=targets, rows=rows, want=("rank", "logp"), backend=scorer
    )
    rank, logp = found.rank.reshape(9, 4), found.logp.reshape(9, 4)
    if scorer != "numpy" or blas_keeps_bits(4000, 40):
        assert (rank == rank[:, :1]).all()
        assert (logp == logp[:, :1]).all()
    else:  # each may be above the others
        assert (np.ptp(rank, 1) <= 3).all()
        assert (np.ptp(logp, 1) <= 2 * floor).all()


def test_a_target_is_never_above_itself(scorer):
    """Whatever the place of its row in the product that gave it: the largest of a row has rank 0 and is the maximum."""
    T = 150 if scorer == "numpy" else 5  # others look at one row at a time
    arguments, z, _ = linear(T, 1500, 1100)
    for allowed in (None, np.arange(0, 1500, 3)):
        best = z.argmax(1) if allowed is None else allowed[z[:, allowed].argmax(1)]
        options = {"targets": best, "allowed": allowed, "backend": scorer}
        found = rk.answer_logprobs(**arguments, **options, want=("rank", "max"), reduce=("greedy",))
        parts = rk.logprob_partials(**arguments, **options, vocab_size=1500)
        enters = z if allowed is None else z[:, allowed]
        clear = np.ptp(np.partition(enters, -2, 1)[:, -2:], 1) > 1e-4
        assert clear.sum() > 0.9 * T
        assert (found.rank[clear] == 0).all()
        np.testing.assert_array_equal(parts.target[clear].astype(np.float32), found.max[clear])


def test_products_beyond_float32(scorer):
    """Logits that overflow are infinite: the row is NaN, its neighbours are not."""
    hidden = np.array([[1e30, 1e30], [1, 1]], np.float32)
    weight = np.array([[1e10, 1], [1, 2], [0, 1]], np.float32)
    found = rk.answer_logprobs(hidden=hidden, weight=weight, targets=[1, 1], backend=scorer)
    if scorer != "reference":  # which has the range of float64
        assert np.isnan(found.logp[0])
    assert np.isfinite(found.logp[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_rows_are_read_in_place(scorer, dtype):
    torch = pytest.importorskip("torch")
    arguments, _, _ = linear(20, 900, 70, dtype, dtype)
    want = rk.answer_logprobs(**arguments, targets=np.arange(20), backend=scorer)
    form = {}
    for name, x in arguments.items():
        x = torch.as_tensor(np.array(x)) if dtype != "bfloat16" else x
        wide = torch.full((2 * len(x), 77), NAN, dtype=x.dtype)
        form[name] = wide[::2, 3:73]
        form[name].copy_(x)
    found = rk.answer_logprobs(**form, targets=np.arange(20), backend=scorer)
    np.testing.assert_array_equal(np.asarray(found.logp), np.asarray(want.logp))
