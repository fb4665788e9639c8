"""Each instruction set of this processor, in a process of its own, picks right; others are refused by name."""

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, testing

# Prints the instruction set in force and a digest of the bits of every result.
PROBLEMS = """
import hashlib, itertools, warnings
import numpy as np
import ragsys_kernels as rk
from ragsys_kernels import _dispatch, testing

warnings.simplefilter("ignore", rk.PoolSizeWarning)
digest = hashlib.sha256()

def check(method, problem):
    result = getattr(rk, method)(**problem, backend="cpu", num_threads=1)
    testing.check_selection(method, problem, result)
    for field in result:
        digest.update(field.tobytes())

lanes = (4, 8, 16)
dims = sorted({1, 2, 3, 100, 384, *(n * w + d for w in lanes for n in (1, 2, 3) for d in (-1, 0, 1))})
for seed, (D, dtype, metric) in enumerate(itertools.product(dims, ("float32", "float16"), ("cosine", "dot"))):
    problem = testing.selection_problem(2, 5 + seed % 9, 4, D, dtype=dtype, seed=seed, bias=True, ragged=True)
    check("mmr", {**problem, "metric": metric})
    del problem["bias"]
    check("vrsd", {**problem, "metric": metric})
for D, dtype, kind in itertools.product((3, 16, 33), ("float32", "float16"), testing.KINDS):
    problem = testing.selection_problem(3, 70, 12, D, dtype=dtype, kind=kind, groups=True, seed=D)
    check("mmr", {**problem, "initial": np.array([[0], [-1], [5]])})

# Half floats of every class: subnormal, normal, extreme.
values = np.arange(65536, dtype=np.uint16).view(np.float16)
values = values[np.isfinite(values)]
ones = np.ones((1, 1), np.float32)
for width in (1, 8, 16):
    rows = np.zeros((len(values), width), np.float16)
    rows[:, -1] = values
    query = np.ones((1, width), np.float32)
    found = rk.mmr(query, rows, 9, metric="dot", lambda_d=1, backend="cpu")
    order = np.argsort(-values.astype(np.float32), kind="stable")[:9]
    assert found.indices[0].tolist() == order.tolist()
    found = rk.mmr(query, rows[:2000], 1999, metric="dot", lambda_d=1, backend="cpu")
    order = np.argsort(-values[:2000].astype(np.float32), kind="stable")[:1999]
    assert (found.scores[0] == values[order].astype(np.float32)).all()

rng = np.random.default_rng(0)
rows = rng.standard_normal((20000, 21)).astype(np.float32)
corpus = rk.Corpus(rows, bias=rng.standard_normal(20000))
indices, scores = corpus.search(rows[:7], 50, lambda_b=0.9)
values = (corpus.data.astype(np.float64) @ corpus.data[:7].T.astype(np.float64)).T * 0.9 + corpus.bias * 0.1
best = -np.sort(-values, axis=1)[:, :50]
assert np.abs(np.take_along_axis(values, indices, 1) - best).max() < 1e-6
assert np.abs(scores - best).max() < 1e-6
digest.update(indices.tobytes() + scores.tobytes())
print(_dispatch.isa(), digest.hexdigest())
"""


def supported():
    module = _dispatch.extension()
    return module.SUPPORTED_ISAS if module else ()


@pytest.mark.parametrize("isa", supported())
def test_every_instruction_set_picks_right_and_repeats_itself(run_python, isa):
    first, second = (run_python(PROBLEMS, RAGSYS_KERNELS_ISA=isa).stdout for _ in range(2))
    assert first == second
    assert first.split()[0] == isa


def test_widest_instruction_set_is_taken_unless_one_is_named(compiled, monkeypatch):
    monkeypatch.delenv("RAGSYS_KERNELS_ISA", raising=False)
    assert _dispatch.isa() == compiled.SUPPORTED_ISAS[-1]
    monkeypatch.setenv("RAGSYS_KERNELS_ISA", "")
    assert _dispatch.isa() == compiled.SUPPORTED_ISAS[-1]
    for isa in compiled.SUPPORTED_ISAS:
        monkeypatch.setenv("RAGSYS_KERNELS_ISA", isa)
        assert _dispatch.isa() == isa


def test_base_is_always_there(compiled):
    assert compiled.ISAS[0] == compiled.SUPPORTED_ISAS[0] == "base"
    assert set(compiled.SUPPORTED_ISAS) <= set(compiled.ISAS)


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


CALLS = {
    "mmr": lambda: rk.mmr(**testing.selection_problem(2, 8, 3, 5), backend="cpu"),
    "vrsd": lambda: rk.vrsd(**testing.selection_problem(2, 8, 3, 5), backend="cpu"),
    "search": lambda: rk.Corpus(np.eye(3, dtype=np.float32)).search(np.eye(3, dtype=np.float32), 2, backend="cpu"),
}


@pytest.mark.parametrize("call", CALLS)
def test_unknown_instruction_set_is_refused(compiled, monkeypatch, call):
    monkeypatch.setenv("RAGSYS_KERNELS_ISA", "sse9")
    with pytest.raises(rk.BackendUnavailableError) as caught:
        CALLS[call]()
    assert str(caught.value) == (
        "RAGSYS_KERNELS_ISA: instruction set 'sse9' was requested but cannot run here: it is not built in. "
        f"Available: {', '.join(compiled.SUPPORTED_ISAS)}"
    )


@pytest.mark.parametrize("call", CALLS)
def test_instruction_set_that_the_processor_lacks_is_refused(compiled, monkeypatch, call):
    class Lesser:
        ISAS = ("base", "wide")
        SUPPORTED_ISAS = ("base",)

        def __getattr__(self, name):
            return getattr(compiled, name)

    monkeypatch.setenv("RAGSYS_KERNELS_ISA", "wide")
    monkeypatch.setattr(_dispatch, "extension", Lesser)
    with pytest.raises(rk.BackendUnavailableError) as caught:
        CALLS[call]()
    assert str(caught.value) == (
        "RAGSYS_KERNELS_ISA: instruction set 'wide' was requested but cannot run here: this processor lacks it. "
        "Available: base"
    )


def test_the_kernels_refuse_an_instruction_set_that_is_not_there(compiled, monkeypatch):
    """What protects memory is checked once more in C++."""
    monkeypatch.setattr(_dispatch, "isa", lambda: "base")
    for index in (-1, len(compiled.ISAS)):
        monkeypatch.setattr(_dispatch, "extension", lambda index=index: type("M", (), {
            "ISAS": type("I", (), {"index": lambda self, name: index})(), "select": compiled.select,
        }))  # fmt: skip
        with pytest.raises(ValueError, match=f"^instruction set {index} is not available on this machine$"):
            CALLS["mmr"]()


def test_reference_ignores_the_instruction_set(monkeypatch):
    monkeypatch.setenv("RAGSYS_KERNELS_ISA", "sse9")
    rk.mmr(**testing.selection_problem(2, 8, 3, 5), backend="reference")
