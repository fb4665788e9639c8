"""The CUDA kernels of scoring, run on the CPU: what only kernels can get wrong.

Tests of `scorer` in tests/scoring ask of them all that is asked of every backend.
"""

import dataclasses
import mmap
import re
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest
from cuda_on_cpu import emulator, scoring
from scoring_oracle import EVERYTHING, check_logits
from scoring_problems import DTYPES, stored

import ragsys_kernels as rk
from ragsys_kernels import _dispatch
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels._gpu import counters, cuda_module
from ragsys_kernels.scoring import reference
from ragsys_kernels.scoring.cuda import backend as cuda_kernels
from ragsys_kernels.scoring.cuda import configuration as cuda_configuration
from ragsys_kernels.scoring.problem import Pairs, Partials, ScoringProblem

SOURCES = Path(__file__).parents[2] / "csrc" / "cuda"
SOURCE = cuda_configuration.SOURCE
INF, NAN = np.inf, np.nan

pytestmark = [pytest.mark.sampled(5), pytest.mark.skipif(scoring.why_not() is not None, reason=str(scoring.why_not()))]


EMPTY = _arrays.empty


@pytest.fixture(scope="module", autouse=True)
def module():
    """The kernels, with the package's own launcher on NumPy arrays."""
    with scoring.on_host_arrays() as kernels:
        yield kernels


@pytest.fixture(autouse=True)
def schedule(module):
    module.seed, module.removed = 1, 0


# --- Against the reference, field by field.


def problem(logits=None, hidden=None, weight=None, *, rows, columns, dtype="float32", **options):
    """A problem of host arrays; ``columns`` are the targets of each slot, bfloat16 its bits."""
    form = {"logits": logits, "logits_dtype": dtype if logits is not None else ""}
    if hidden is not None:
        form |= {"hidden": hidden, "hidden_dtype": dtype, "weight": weight, "weight_dtype": dtype}
    options.setdefault("num_columns", (logits if hidden is None else weight.T).shape[1])
    options.setdefault("inverse_temperature", np.ones(len(rows), np.float32))
    return ScoringProblem(
        rows=np.asarray(rows, np.int64),
        pair_begin=np.cumsum([0, *map(len, columns)]).astype(np.int64),
        columns=np.array([c for slot in columns for c in slot], np.int64),
        **form,
        **options,
    )


def bits(values, dtype):
    """Elements as a problem has them."""
    return _arrays.narrow(np.asarray(values, np.float32), dtype)


def check(found, wanted, floor=2e-6):
    """Partials against those of the reference; references may differ."""
    strange = np.isnan(wanted.sum)
    np.testing.assert_array_equal(np.isnan(found.sum), strange)
    np.testing.assert_array_equal(np.isnan(found.max), strange)
    np.testing.assert_array_equal(found.sum == 0, wanted.sum == 0)
    some = ~strange & (wanted.sum > 0)
    np.testing.assert_array_equal(found.ref[~strange & ~some], -INF)
    lse = [p.ref[some] + np.log(p.sum[some]) for p in (found, wanted)]
    scale = np.maximum(1, np.abs(lse[1]))
    np.testing.assert_array_less(np.abs(lse[0] - lse[1]) / scale, floor)
    np.testing.assert_allclose(found.max[some], wanted.max[some], rtol=1e-6, atol=floor)
    np.testing.assert_allclose(found.target, wanted.target, rtol=1e-6, atol=floor)
    if wanted.weighted is not None:
        entropy = [np.log(p.sum[some]) - p.weighted[some] / p.sum[some] for p in (found, wanted)]
        np.testing.assert_allclose(entropy[0], entropy[1], rtol=0, atol=1e-5)
    if wanted.rank is not None:
        np.testing.assert_array_equal(found.rank, wanted.rank)


@pytest.mark.parametrize("form", ["logits", "linear"])
def test_jobs_without_a_row_and_targets_without_a_job_are_written(form):
    """What a device's layout has, whose shapes depend on no value (`ScoringProblem`)."""
    rng = np.random.default_rng(0)
    x = {"logits": rng.standard_normal((3, 40)).astype(np.float32)}
    if form == "linear":
        x = {name: rng.standard_normal((n, 8)).astype(np.float32) for name, n in (("hidden", 3), ("weight", 40))}
    options = {"entropy": True, "rank": True}
    whole = problem(**x, rows=[2, 0], columns=[[5, 39], [7]], **options)
    expected = cuda_kernels.partials(whole, 1)
    padded = problem(**x, rows=[2, 0, -1], columns=[[5, 39], [7], []], **options)
    padded.columns = np.append(padded.columns, [-1, -1])
    found = cuda_kernels.partials(padded, 1)
    for name, wanted in zip(FIELDS, expected, strict=False):
        np.testing.assert_array_equal(getattr(found, name)[: len(wanted)], wanted, err_msg=name)
    assert found.sum[2] == 0
    assert found.ref[2] == -INF
    assert found.target[3:].tolist() == [-INF, -INF]
    assert found.rank[3:].tolist() == [0, 0]


FIELDS = Partials._fields[:6]  # CUDA C++ has none of the largest z


def of_each(part, change):
    """Partials with each field changed."""
    return part._replace(**{name: change(getattr(part, name)) for name in FIELDS})


def same_bits(found, wanted):
    for name in Partials._fields:
        x, y = getattr(found, name), getattr(wanted, name)
        assert (x is None) == (y is None)
        if x is not None:
            np.testing.assert_array_equal(x.view(np.uint8), y.view(np.uint8), err_msg=name)


def run(p):
    return cuda_kernels.partials(p, 1)


def part(p, slots):
    """The problem of some of the slots."""
    pairs = [range(*p.pair_begin[j : j + 2]) for j in slots]
    every = [pair for slot in pairs for pair in slot]
    return dataclasses.replace(
        p,
        rows=p.rows[slots],
        inverse_temperature=p.inverse_temperature[slots],
        pair_begin=np.cumsum([0, *map(len, pairs)]).astype(np.int64),
        columns=p.columns[every],
        target_logits=None if p.target_logits is None else p.target_logits[every],
    )


def anything(rng, form, dtype, V, T=4):
    """A problem with everything that there is, integers so that ranks and products are exact."""
    slots = int(rng.integers(1, 6))
    allowed = np.sort(rng.choice(V, int(rng.integers(1, V + 1)), replace=False)) if rng.random() < 0.5 else None
    num_columns = V if allowed is None or rng.random() < 0.5 else int(allowed[-1]) + 1
    entering = np.arange(num_columns) if allowed is None else allowed
    columns = [rng.choice(np.append(entering, -1), int(rng.integers(0, 5))) for _ in range(slots)]
    options = {
        "rows": np.sort(rng.integers(0, T, slots)),
        "columns": columns,
        "num_columns": num_columns,
        "allowed": None if allowed is None else allowed.astype(np.int64),
        "inverse_temperature": rng.choice([1, 0.5, 2], slots).astype(np.float32),
        "logit_scale": float(rng.choice([1, 0.25])),
        "entropy": bool(rng.random() < 0.7),
        "rank": bool(rng.random() < 0.7),
        "dtype": dtype,
    }
    if rng.random() < 0.3:
        size = sum(map(len, columns))
        options["target_logits"] = rng.integers(-5, 5, size).astype(np.float32)
        options["rank"] = True
    if form == "logits":
        # Rows at every distance from a multiple of 16 bytes.
        gap, shift = rng.integers(0, 9, 2)
        memory = np.full(T * (V + gap) + shift, bits(NAN, dtype))
        logits = memory[shift:].reshape(T, V + gap)[:, :V]
        logits[:] = bits(rng.integers(-20, 20, (T, V)), dtype)
        return problem(logits, **options)
    D = int(rng.integers(1, 80))
    hidden, weight = (bits(rng.integers(-2, 3, (n, D)), dtype) for n in (T, V))
    bias = rng.integers(-9, 9, V).astype(np.float32) if rng.random() < 0.5 else None
    return problem(hidden=hidden, weight=weight, head_bias=bias, **options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["logits", "hidden"])
def test_any_problem_in_any_schedule(module, form, dtype):
    rng = np.random.default_rng(DTYPES.index(dtype))
    sizes = [1, 2, 17, 300, 1000] + ([4099, 8191, 8192, 8193, 20000] if form == "logits" else [511, 513, 1100])
    for i in range(40):
        p = anything(rng, form, dtype, int(rng.choice(sizes)))
        module.seed = 0
        found = run(p)
        check(found, reference.partials(p, 1))
        module.seed = i + 1
        same_bits(run(p), found)


@pytest.mark.parametrize("V", [17, 1000, 8191, 8192, 8203, 16384 + 5])
def test_low_logits_beside_high_ones_that_do_not_enter(V):
    """The columns that fill up a block must not count as zeros, nor what lies behind the row."""
    rng = np.random.default_rng(V)
    memory = np.full((4, V + 9), 50, np.float32)
    memory[:, :V] = rng.standard_normal((4, V)) - 200
    p = problem(memory[:, :V], rows=range(4), columns=[[V - 1], [0], [V // 2], [1]], rank=True, entropy=True)
    check(run(p), reference.partials(p, 1))


def test_many_targets_of_a_job():
    """More than one round of ranks."""
    rng = np.random.default_rng(0)
    for form in ("logits", "hidden"):
        p = anything(rng, form, "float32", 600)
        columns = [rng.integers(-1, 600, n) for n in (100, 0, 33, 32)]
        every = np.concatenate(columns)
        begin = np.cumsum([0, *map(len, columns)]).astype(np.int64)
        p = dataclasses.replace(p, rows=np.arange(4), inverse_temperature=np.ones(4, np.float32), pair_begin=begin)
        p = dataclasses.replace(p, columns=every, num_columns=600, allowed=None, target_logits=None, rank=True)
        check(run(p), reference.partials(p, 1))


@pytest.mark.parametrize("form", ["logits", "hidden"])
def test_nothing_to_do(module, form):
    rng = np.random.default_rng(0)
    p = dataclasses.replace(anything(rng, form, "float32", 50), entropy=True, rank=True)
    launches = len(module.launches)
    empty = run(part(p, []))
    assert [x.shape for x in empty[:6]] == [(0,)] * 6
    assert len(module.launches) == launches
    none = run(dataclasses.replace(p, num_columns=0, allowed=None, target_logits=None))
    R, M = len(p.rows), len(p.columns)
    for name, size, value in (("ref", R, -INF), ("max", R, -INF), ("sum", R, 0), ("target", M, -INF), ("rank", M, 0)):
        np.testing.assert_array_equal(getattr(none, name), np.full(size, value), err_msg=name)


@pytest.mark.parametrize("form", ["logits", "hidden"])
def test_ids_out_of_range_are_not_read(form):
    """Values are not checked on a device: a bad row gives nothing, a bad target or column does not enter."""
    rng = np.random.default_rng(3)
    p = dataclasses.replace(anything(rng, form, "float32", 300), entropy=True, rank=True, target_logits=None)
    p = dataclasses.replace(p, num_columns=300, allowed=None, logit_scale=1.0)
    p = dataclasses.replace(
        p,
        rows=np.array([0, 1 << 40, 2, -1]),
        inverse_temperature=np.ones(4, np.float32),
        pair_begin=np.array([0, 2, 3, 5, 6]),
        columns=np.array([299, 300, 4, -7, 1 << 50, 5]),
    )
    found = run(p)
    good = dataclasses.replace(p, rows=np.array([0, 0, 2, 2]), columns=np.array([299, -1, -1, -1, -1, -1]))
    wanted = reference.partials(good, 1)
    for name in ("ref", "max", "sum", "weighted"):
        np.testing.assert_allclose(getattr(found, name)[[0, 2]], getattr(wanted, name)[[0, 2]], rtol=1e-5, err_msg=name)
    np.testing.assert_array_equal(found.sum[[1, 3]], 0)
    np.testing.assert_array_equal(found.ref[[1, 3]], -INF)
    np.testing.assert_array_equal(found.target[1:], -INF)
    np.testing.assert_array_equal(found.rank[[2, 5]], 0)
    narrow = dataclasses.replace(good, allowed=np.array([-5, 3, 200, 300, 1 << 45]))
    some = dataclasses.replace(good, allowed=np.array([3, 200]), columns=np.full(6, -1))
    wanted = reference.partials(dataclasses.replace(some, rank=False), 1)
    check(run(dataclasses.replace(narrow, rank=False, columns=some.columns)), wanted)


# --- Bits.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("V", [1000, 8192, 20011])
def test_a_row_has_its_bits_at_any_address_in_any_batch(dtype, V):
    rng = np.random.default_rng(V)
    values = bits(rng.standard_normal(V) * 4, dtype)
    T = 9  # of an odd width: every distance from a multiple of 16 bytes
    gap = 1 - V % 2
    logits = bits(rng.standard_normal((T, V + gap)), dtype)[:, :V]
    logits[:] = values
    whole = run(problem(logits, dtype=dtype, rows=range(T), columns=[[V // 3, V - 1]] * T, rank=True, entropy=True))
    for name in FIELDS:
        field = getattr(whole, name).reshape(T, -1)
        np.testing.assert_array_equal(field.view(np.uint8), np.tile(field[:1].view(np.uint8), (T, 1)), err_msg=name)
    alone = run(problem(logits[4:5], dtype=dtype, rows=[0], columns=[[V // 3, V - 1]], rank=True, entropy=True))
    same_bits(alone, Partials(*(x[: len(y)] for x, y in zip(whole[:6], alone[:6], strict=True))))


def test_hidden_states_have_their_bits_in_tiles_of_either_height(module):
    rng = np.random.default_rng(1)
    T, V, D = 70, 600, 72
    hidden, weight = rng.standard_normal((T, D)).astype(np.float32), rng.standard_normal((V, D)).astype(np.float32)
    every = rng.integers(0, V, T)
    p = problem(hidden=hidden, weight=weight, rows=range(T), columns=every[:, None], rank=True, entropy=True)
    found = run(p)
    assert module.launches[-1][0] == "rsk_score_hidden_64"
    for slots in ([69], [0, 5, 5, 63, 64], list(range(40, 56)), list(range(30, 70))[::-1]):
        same_bits(run(part(p, slots)), of_each(found, itemgetter(slots)))
    assert {name for name, *_ in module.launches[-12:]} >= {"rsk_score_hidden_16", "rsk_score_hidden_64"}
    # Rows that do not begin at multiples of 16 bytes are copied element by element.
    odd = np.zeros((T, D + 1), np.float32)[:, 1:]
    odd[:] = hidden
    same_bits(run(dataclasses.replace(p, hidden=odd)), found)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_hidden_states_have_their_bits_whatever_the_number_of_rows(dtype):
    rng = np.random.default_rng(2)
    T, V, D = 512, 140, 40
    hidden, weight = (bits(rng.standard_normal((n, D)), dtype) for n in (T, V))
    columns = rng.integers(0, V, (T, 1))

    def some(rows):
        given = {"hidden": hidden[rows], "weight": weight, "dtype": dtype, "entropy": True, "rank": True}
        return run(problem(**given, rows=range(len(columns[rows])), columns=columns[rows]))

    found = some(slice(0, T))
    for few in (1, 16, 17, 64, 65):
        for rows in (slice(0, few), slice(T - few, T)):
            same_bits(some(rows), of_each(found, itemgetter(rows)))


def test_the_largest_target_of_a_row_is_its_maximum():
    """A target is the very number that entered the sum, so that log p is never positive."""
    rng = np.random.default_rng(2)
    T, V, D = 20, 700, 150
    hidden, weight = rng.standard_normal((T, D)).astype(np.float32), rng.standard_normal((V, D)).astype(np.float32)
    best = (hidden.astype(np.float64) @ weight.T.astype(np.float64)).argmax(axis=1)
    for softcap in (None, 20.0):
        p = problem(hidden=hidden, weight=weight, rows=range(T), columns=best[:, None], softcap=softcap, rank=True,
                    inverse_temperature=rng.uniform(0.3, 3, T).astype(np.float32))  # fmt: skip
        found = run(p)
        np.testing.assert_array_equal(found.target, found.max)
        np.testing.assert_array_equal(found.rank, 0)
        assert (found.sum >= 1).all()


@pytest.mark.parametrize("form", ["logits", "hidden"])
def test_offsets_beyond_2_to_the_31(form):
    """Two rows so far apart, in memory that is reserved but not there."""
    stride = (1 << 31) + 8
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        memory = mmap.mmap(-1, 2 * (stride + 4096), flags=flags)
    except (OSError, ValueError) as error:
        pytest.skip(f"no room for the addresses: {error}")
    elements = np.frombuffer(memory, np.uint16)
    far = np.lib.stride_tricks.as_strided(elements, (2, 64), (2 * stride, 2))
    rng = np.random.default_rng(0)
    far[:] = bits(rng.integers(-3, 4, (2, 64)), "bfloat16")
    near = far.copy()
    if form == "logits":
        some, wanted = (problem(x, dtype="bfloat16", rows=[0, 1], columns=[[5], [63]]) for x in (far, near))
    else:
        hidden = bits(rng.integers(-3, 4, (2, 64)), "bfloat16")
        some, wanted = (
            problem(hidden=h, weight=w, dtype="bfloat16", rows=[0, 1], columns=[[1], [0]])
            for h, w in ((hidden, far), (hidden, near))
        )
        np.testing.assert_array_equal(run(dataclasses.replace(some, hidden=far, weight=hidden)).target,
                                      run(dataclasses.replace(some, hidden=near, weight=hidden)).target)  # fmt: skip
    same_bits(run(some), run(wanted))


@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_give_tensors(monkeypatch, dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    for form in ("logits", "hidden"):
        p = dataclasses.replace(anything(rng, form, dtype, 400), entropy=True, rank=True)
        wanted = run(p)
        with monkeypatch.context() as patch:
            patch.setattr(_arrays, "empty", EMPTY)
            found = run(_arrays.tensors(p))
        assert all(isinstance(x, torch.Tensor) for x in found[:6])
        same_bits(of_each(found, lambda x: x.numpy()), wanted)


def test_more_columns_than_a_grid_has_are_refused():
    row = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (1, 1 << 30), (0, 0))
    with pytest.raises(ValueError, match=r"^backend 'cuda' takes up to 536862720 columns .*, got 1073741824 and 1$"):
        run(problem(row, rows=[0], columns=[[0]]))


@pytest.mark.slow
def test_error_with_the_approximate_exponential_of_a_device(tmp_path):
    """Every term off by two units in the last place, all in one direction; 2^0 is exact."""
    for file in (*SOURCES.glob("*.cuh"), SOURCES / f"{SOURCE}.cu"):
        kept = re.sub(r"^RSK_(LOGITS\((f16|bf16|f32_)|HIDDEN).*\n", "", file.read_text(), flags=re.MULTILINE)
        (tmp_path / file.name).write_text(kept)
    header = tmp_path / "answer_logprob.cuh"
    exact, text = "exp2f(d * kLog2e)", header.read_text()
    assert exact in text
    header.write_text(text.replace(exact, "(d == 0.0f ? 1.0f : exp2f(d * kLog2e) * (1.0f + 0x1p-22f))"))
    with pytest.MonkeyPatch.context() as patch:
        approximate = emulator.Module(SOURCE, sources=tmp_path)
        patch.setattr(cuda_module, "load", lambda name: approximate)
        patch.setattr(_dispatch, "choose", lambda *arguments: ("cuda", cuda_kernels))
        for V, scale in ((17, 4), (50257, 30), (262144, 4)):
            x, z = stored(np.random.default_rng(V).standard_normal((2, V)) * scale, "float32")
            targets = [V - 1, int(z[1].argmax())]
            want = EVERYTHING
            check_logits(rk.answer_logprobs(x, targets=targets, want=want), z, targets)


# --- Memory and barriers, each launch in a process of its own under a sanitizer.


def launches_of_every_kernel(rng):
    """Small problems that go through every kernel of the source and every way of reading."""
    for dtype in DTYPES:
        yield dataclasses.replace(anything(rng, "logits", dtype, 2, T=3), softcap=30.0)
        yield anything(rng, "logits", dtype, 333, T=3)
    yield problem(rng.standard_normal((2, 8200)).astype(np.float32), rows=[0, 1], columns=[[8199], [0] * 40], rank=True)
    yield anything(rng, "hidden", "bfloat16", 150, T=3)
    hidden, weight = rng.standard_normal((18, 40)).astype(np.float32), rng.standard_normal((530, 40)).astype(np.float32)
    yield problem(hidden=hidden, weight=weight, rows=range(18), columns=[[1, 529]] * 18, rank=True, entropy=True)


def results_of_every_kernel(rng, times=1):
    """Results of pairs that name their rows, and of pairs that each have a row of their own."""
    targets, rows = np.tile([5, -1, 7, 3, 39], times), np.tile([2, 0, 2, 7, 0], times)
    named = Pairs(targets, rows, 3, -100, 0.7, True, None, None, None, 1)
    own = Pairs(targets[:3], None, 3, 7, np.array([0.5, 2.0], np.float32), True, np.array([0, 1, 3]), None, None, 2)
    calls = [(named, "logits", "float32", None), (named, "hidden", "float32", None), (own, "hidden", "float16", None)]
    calls += [(own, "logits", dtype, softcap) for dtype in DTYPES for softcap in (None, 30.0)]
    for pairs, form, dtype, softcap in calls:
        p = dataclasses.replace(anything(rng, form, dtype, 40, T=3), target_logits=None, entropy=True, rank=True)
        slots = {"rows": None, "inverse_temperature": None, "pair_begin": None, "columns": pairs.targets}
        wanted = frozenset((*EVERYTHING, "sum", "mean", "count", "greedy"))
        cuda_kernels.results(dataclasses.replace(p, **slots, softcap=softcap), pairs, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_no_access_beyond_an_array_and_no_race(sanitizer):
    checked = emulator.Module(SOURCE, sanitizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_module, "load", lambda name: checked)
        for seed, p in enumerate(launches_of_every_kernel(np.random.default_rng(0))):
            checked.seed = seed
            run(p)
        results_of_every_kernel(np.random.default_rng(0))
    assert {name for name, *_ in checked.launches} == set(emulator.kernels(SOURCE))


@pytest.mark.slow
def test_address_sanitizer_finds_a_row_that_is_too_short():
    checked = emulator.Module(SOURCE, "address")
    p = problem(np.zeros((1, 1000), np.float32), rows=[0], columns=[[0]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_module, "load", lambda name: checked)
        run(p)
        with pytest.raises(emulator.LaunchError, match="heap-buffer-overflow"):
            run(dataclasses.replace(p, num_columns=1001))


def barriers():
    return sorted(int(number) for number in re.findall(r"\bSYNC\((\d+)\)", cuda_module.source(SOURCE)))


@pytest.mark.slow
@pytest.mark.parametrize("removed", barriers())
def test_a_missing_barrier_is_found(removed):
    """With all of them there is no race, see above."""
    checked = emulator.Module(SOURCE, "thread")
    rng = np.random.default_rng(0)
    if removed <= 4 or removed >= 16:
        # One part, whose threads read what one of them left; two, for the last of which one says that it is the last.
        V = 8200 if removed == 19 else 700
        x = rng.standard_normal((1, V)).astype(np.float32)
        p = problem(x, rows=[0], columns=[range(80)], rank=removed <= 4)
    elif removed <= 8:
        hidden, weight = (rng.standard_normal((n, 72)).astype(np.float32) for n in (2, 300))
        p = problem(hidden=hidden, weight=weight, rows=[0, 1], columns=[[0], [1]], rank=True)
    else:
        checked.removed = removed
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cuda_module, "load", lambda name: checked)
            with pytest.raises(emulator.LaunchError, match="data race"):
                results_of_every_kernel(rng, 300 if removed == 11 else 1)  # pairs for a second round
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_module, "load", lambda name: checked)
        checked.removed = removed
        with pytest.raises(emulator.LaunchError, match="data race"):
            run(p)


def of_several_parts(rng):
    """Of several slots and targets each, whose parts the last block of a slot or of a tile merges."""
    options = {"rank": True, "entropy": True}
    x = rng.standard_normal((4, 20000)).astype(np.float32)
    yield problem(x, rows=[3, 0, 1], columns=[[5, 19999], [7], rng.integers(0, 20000, 50)], **options)
    hidden, weight = (rng.standard_normal((n, 16)).astype(np.float32) for n in (20, 1100))
    yield problem(hidden=hidden, weight=weight, rows=range(20), columns=[[1, 1099]] * 20, **options)


@pytest.mark.parametrize(
    "removed", [int(number) for number in re.findall(r"\bFENCE\((\d+)\)", cuda_module.source(SOURCE))]
)
def test_a_missing_fence_is_found(module, removed):
    """The last block of a slot does not see what others have left, or not all of it."""
    for p in of_several_parts(np.random.default_rng(0)):
        module.removed = 0
        wanted = run(p)
        check(wanted, reference.partials(p, 1))
        module.removed = removed
        assert not np.array_equal(run(p).sum, wanted.sum)
        assert not np.array_equal(run(p).rank, wanted.rank)


def test_counts_are_zero_after_a_call(monkeypatch):
    """So the next call finds them so, with other contents and other shapes."""
    monkeypatch.setattr(counters, "_counts", {})
    for seed in range(3):
        for p in of_several_parts(np.random.default_rng(seed)):
            some = part(p, list(range(seed, 3)))
            check(run(some), reference.partials(some, 1))
    (held,) = counters._counts.values()
    assert not held.any()


def test_blocks_have_the_shared_memory_that_they_need_not_ask_for():
    assert max(map(cuda_configuration.hidden_shared, (16, 64))) <= 48 << 10
