"""Each instruction set of this processor picks right; others are refused by name."""

import importlib.util
import itertools
import platform
import re
import shutil
import subprocess

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, testing

DTYPES = ("float32", "float16") if importlib.util.find_spec("torch") is None else ("float32", "float16", "bfloat16")
LANES = (4, 8, 16)
DIMS = sorted({1, 2, 3, 100, 384, *(n * w + d for w in LANES for n in (1, 2, 3) for d in (-1, 0, 1))})


def check(method, problem):
    testing.check_selection(method, problem, getattr(rk, method)(**problem, backend="cpu", num_threads=1))


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
def test_every_instruction_set_picks_right(isa):
    for seed, (D, dtype) in enumerate(itertools.product(DIMS, DTYPES)):
        problem = testing.selection_problem(2, 5 + seed % 9, 4, D, dtype=dtype, seed=seed, bias=True, ragged=True)
        problem["metric"] = ("cosine", "dot")[seed // 2 % 2]
        if seed % 2:  # neighbouring D, and the types of each, by turns
            del problem["bias"]
            check("vrsd", problem)
        else:
            check("mmr", problem)
    for D, dtype, kind in itertools.product((3, 16, 33), ("float32", "float16"), testing.KINDS):
        problem = testing.selection_problem(3, 70, 12, D, dtype=dtype, kind=kind, groups=True, seed=D)
        check("mmr", {**problem, "initial": np.array([[0], [-1], [5]])})


@pytest.mark.parametrize("width", [1, 8, 16])
def test_half_floats_of_every_class_are_ranked_right(isa, width):
    """Subnormal, normal, extreme."""
    values = np.arange(65536, dtype=np.uint16).view(np.float16)
    values = values[np.isfinite(values)]
    rows = np.zeros((len(values), width), np.float16)
    rows[:, -1] = values
    for n, k in ((len(values), 9), (2000, 1999)):
        query = np.ones((1, width), np.float32)
        found = rk.mmr(query, rows[:n], k, metric="dot", lambda_d=1, backend="cpu")
        order = np.argsort(-values[:n].astype(np.float32), kind="stable")[:k]
        np.testing.assert_array_equal(found.indices[0], order)
        np.testing.assert_array_equal(found.scores[0], values[order].astype(np.float32))


def test_every_instruction_set_finds_the_best_rows(isa):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((20000, 21)).astype(np.float32)
    corpus = rk.Corpus(rows, bias=rng.standard_normal(20000))
    indices, scores = corpus.search(rows[:7], 50, lambda_b=0.9)
    values = (corpus.data.astype(np.float64) @ corpus.data[:7].T.astype(np.float64)).T * 0.9 + corpus.bias * 0.1
    best = -np.sort(-values, axis=1)[:, :50]
    np.testing.assert_allclose(np.take_along_axis(values, indices, 1), best, rtol=0, atol=1e-6)
    np.testing.assert_allclose(scores, best, rtol=0, atol=1e-6)


def test_widest_instruction_set_is_taken_unless_one_is_named(compiled, monkeypatch):
    assert compiled.ISAS[0] == compiled.SUPPORTED_ISAS[0] == "base"
    assert set(compiled.SUPPORTED_ISAS) <= set(compiled.ISAS)
    monkeypatch.delenv("RAGSYS_KERNELS_ISA", raising=False)
    assert _dispatch.isa() == compiled.SUPPORTED_ISAS[-1]
    monkeypatch.setenv("RAGSYS_KERNELS_ISA", "")
    assert _dispatch.isa() == compiled.SUPPORTED_ISAS[-1]
    for isa in compiled.SUPPORTED_ISAS:
        monkeypatch.setenv("RAGSYS_KERNELS_ISA", isa)
        assert _dispatch.isa() == isa


def test_the_named_instruction_set_is_the_one_that_runs(compiled, monkeypatch):
    """Sums in another order have other last bits: if all sets gave the same, the name would be without effect."""
    if len(compiled.SUPPORTED_ISAS) == 1:
        pytest.skip("this processor has one instruction set")
    problem = testing.selection_problem(20, 50, 10, 67, seed=1)
    bits = []
    for isa in compiled.SUPPORTED_ISAS:
        monkeypatch.setenv("RAGSYS_KERNELS_ISA", isa)
        bits.append(rk.mmr(**problem, backend="cpu").scores)
    assert all((a != b).any() for i, a in enumerate(bits) for b in bits[:i])
    np.testing.assert_allclose(bits[0], bits[-1], atol=1e-6)


def nearly_cancelling(seed):
    """Rows, some long, and nearly their opposites: sums of picks get far shorter than what they are made of."""
    rng = np.random.default_rng(seed)
    D, P, Q = int(rng.choice([3, 8, 40, 384])), int(rng.integers(6, 80)), 4
    length = rng.choice([1, 30, 1000, 1e4])
    half = rng.standard_normal((P // 2 + 1, D)) * rng.choice([1, length], (P // 2 + 1, 1))
    near = rng.choice([0.1, 0.01, 1e-3]) * rng.standard_normal(half.shape)
    rows = np.concatenate([half, -half + near * np.linalg.norm(half, axis=1, keepdims=True) / np.sqrt(D)])[:P]
    metric = str(rng.choice(["cosine", "dot"]))
    problem = {"queries": rng.standard_normal((Q, D)).astype(np.float32), "metric": metric}
    S = int(rng.integers(1, 6)) if rng.random() < 0.5 else 0
    problem["initial"] = np.stack([rng.permutation(P)[:S] for _ in range(Q)])
    problem["k"] = min(P - S, int(rng.integers(3, 60)))
    if rng.random() < 0.3:
        problem["relevance"] = rng.uniform(-1, 1, (Q, P)).astype(np.float32)
    rows = rows.astype(np.float32)
    kept = rng.random() < 0.4
    problem["embeddings"] = rk.Corpus(rows, metric=metric, dtype=str(rng.choice(["float32", "int8"]))) if kept else rows
    return problem


def cosines_of_sums(problem, indices):
    """What VRSD says its scores are, in double."""
    rows = problem["embeddings"]
    if isinstance(rows, rk.Corpus):
        rows = rows.vectors(slice(None))
    elif problem["metric"] == "cosine":
        rows = rows / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    rows = rows.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    scores = np.empty(indices.shape)
    for q, (query, picks) in enumerate(zip(problem["queries"].astype(np.float64), indices, strict=True)):
        query = query / np.linalg.norm(query)
        shown = problem["initial"][q]
        sums = rows[shown].sum(axis=0) + np.cumsum(rows[picks], axis=0)
        products = rows[picks] @ query
        if "relevance" in problem:
            products = problem["relevance"][q, picks] * lengths[picks]
        norms = np.linalg.norm(sums, axis=1)
        norms[norms <= 1e-6 * (lengths[shown].sum() + np.cumsum(lengths[picks]))] = np.inf  # a zero sum has cosine 0
        scores[q] = (rows[shown].sum(axis=0) @ query + np.cumsum(products)) / norms
    return scores


@pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning")
def test_scores_of_sums_that_nearly_cancel(isa):
    """The float32 products that VRSD chooses by leave an error of up to 4e-3 in the cosines of such sums."""
    for seed in range(60):
        problem = nearly_cancelling(seed)
        found = rk.vrsd(**problem, backend="cpu")
        exact = cosines_of_sums(problem, found.indices)
        assert (np.abs(found.scores - exact) <= 1e-6 * np.maximum(1, np.abs(exact))).all(), seed
        if "relevance" not in problem:
            assert np.abs(found.scores).max() <= 1 + 4 * np.finfo(np.float32).eps
        for bounds in ("dense", "pruned"):
            same, _ = testing.selection_work("vrsd", problem, bounds=bounds)
            np.testing.assert_array_equal(same.indices, found.indices)
            np.testing.assert_array_equal(same.scores, found.scores)


CALLS = {
    "mmr": lambda: rk.mmr(**testing.selection_problem(2, 8, 3, 5), backend="cpu"),
    "vrsd": lambda: rk.vrsd(**testing.selection_problem(2, 8, 3, 5), backend="cpu"),
    "search": lambda: rk.Corpus(np.eye(3, dtype=np.float32)).search(np.eye(3, dtype=np.float32), 2, backend="cpu"),
}


@pytest.mark.parametrize("name", ["sse9", "wide"])
@pytest.mark.parametrize("call", CALLS)
def test_instruction_set_that_is_not_here_is_refused(compiled, monkeypatch, call, name):
    class Lesser:
        ISAS = ("base", "wide")
        SUPPORTED_ISAS = ("base",)

        def __getattr__(self, name):
            return getattr(compiled, name)

    monkeypatch.setenv("RAGSYS_KERNELS_ISA", name)
    monkeypatch.setattr(_dispatch, "extension", Lesser)
    with pytest.raises(rk.BackendUnavailableError) as caught:
        CALLS[call]()
    reason = "this processor lacks it" if name == "wide" else "it is not built in"
    assert str(caught.value) == (
        f"RAGSYS_KERNELS_ISA: instruction set {name!r} was requested but cannot run here: {reason}. Available: base"
    )


def test_the_kernels_refuse_an_instruction_set_that_is_not_there(compiled, monkeypatch):
    """What protects memory is checked once more in C++."""
    for index in (-1, len(compiled.ISAS)):
        monkeypatch.setattr(_dispatch, "kernels", lambda index=index: (compiled, index))
        with pytest.raises(ValueError, match=f"^instruction set {index} is not available on this machine$"):
            CALLS["mmr"]()


def test_reference_ignores_the_instruction_set(monkeypatch):
    monkeypatch.setenv("RAGSYS_KERNELS_ISA", "sse9")
    rk.mmr(**testing.selection_problem(2, 8, 3, 5), backend="reference")


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("objdump"), reason="needs x86-64 and objdump")
def test_no_other_code_has_instructions_of_a_region(compiled):
    """What all processors run has none that an old one lacks: a template of the standard library, compiled for a region
    and shared with the rest by the linker, would end such a process."""
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", compiled.__file__], capture_output=True, text=True, check=True
    ).stdout
    functions = re.findall(r"^[0-9a-f]+ <(\S+)>:\n((?:[ \t].*\n)+)", listing + "\n", re.MULTILINE)
    encoded = {name for name, code in functions if re.search(r":\t(v[a-z]|[^\n]*%[yz]mm)", code)}
    outside = {name for name in encoded if not re.match(r"_ZZ?NK?3rsk(4avx2|6avx512|11avx512_bf16|3amx)", name)}
    assert len(encoded) > 100
    assert not outside
