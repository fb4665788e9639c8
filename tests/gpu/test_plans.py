"""Plans of calls on a device, interpreted on CPU tensors that are taken for a device's: the same bits, nothing shared.

``TRITON_INTERPRET=1 pytest tests/gpu/test_plans.py`` runs the tests here, without the variable they run in a process
that has it.
"""

import gc
import weakref

import interpreted
import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import _dispatch, corpus
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels._gpu import cuda_module, plans

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

pytestmark = pytest.mark.slow

if interpreted.HERE:
    import proof_problems
    from cuda_on_cpu import emulator
    from cuda_selection import kernels

    from ragsys_kernels._gpu import recording
    from ragsys_kernels.selection.cuda import backend as cuda_kernels

Q, N, P, D, K = 3, 40, 12, 24, 4


@pytest.fixture
def device(place, monkeypatch):
    """CPU tensors are those of a device, and calls with them are planned; gives the plans that ran."""
    monkeypatch.setattr(corpus.search, "Torch", lambda device: place)
    for module in (corpus, corpus.retrieve):
        monkeypatch.setattr(module, "place_of", lambda op, device: _arrays.HOST if device == "cpu" else place)
    monkeypatch.setattr(plans, "_watching", True)
    monkeypatch.setattr(plans, "_hosts", True)
    monkeypatch.setattr(plans, "_plans", {})
    ran, run = [], recording.Plan.run
    monkeypatch.setattr(recording.Plan, "run", lambda self, tensors: ran.append(self) or run(self, tensors))
    return ran


def selection(seed, dtype=torch.float16, **options):
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=rng)

    def pools(width):
        return torch.stack([torch.randperm(N, generator=rng)[:width] for _ in range(Q)])

    made = {
        "bias": lambda: normal(N),
        "of_item_bias": lambda: normal(Q, P),
        "relevance": lambda: normal(Q, P),
        "groups": lambda: torch.randint(0, 3, (N,), generator=rng),
        "query_groups": lambda: torch.randint(0, 3, (Q,), generator=rng),
        "initial": lambda: pools(2),
        "lambda_d": lambda: torch.rand(Q, generator=rng),
        "max_similarity": lambda: torch.rand(Q, generator=rng),
    }
    given = {"queries": normal(Q, D), "embeddings": normal(N, D).to(dtype), "k": K, "candidates": pools(P)}
    for name, value in options.items():
        given[name.removeprefix("of_item_")] = made[name]() if value is True and name in made else value
    if given.pop("dense", None):
        given["embeddings"], given["candidates"] = normal(Q, P, D).to(dtype), None
    return given


def same(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.dtype == b.dtype
            assert torch.equal(a.nan_to_num(nan=7.0), b.nan_to_num(nan=7.0))


def fields(result):
    return result if isinstance(result, tuple) else (result,)


def check(ran, call):
    """Calls with other contents: the third and fourth by a plan, with the bits of calls that have none."""
    expected = []
    for seed in range(4):
        plans.clear_plans()
        expected.append(fields(call(seed)))
    plans.clear_plans()
    assert not ran
    found = [fields(call(seed)) for seed in range(4)]
    assert len(ran) == 2
    for one, other in zip(found, expected, strict=True):
        same(one, other)
    assert not all(torch.equal(found[2][i], found[3][i]) for i in range(len(found[2])) if found[2][i] is not None)


CASES = {
    "mmr": ("mmr", {}),
    "mmr, float32 rows": ("mmr", {"dtype": torch.float32, "bias": True}),
    "mmr, options": ("mmr", {"of_item_bias": True, "groups": True, "query_groups": True, "initial": True}),
    "mmr, weights": ("mmr", {"lambda_d": True, "max_similarity": True, "metric": "dot"}),
    "mmr, relevance": ("mmr", {"relevance": True, "lambda_d": 0.3, "backend": "triton"}),
    "mmr, dense pools": ("mmr", {"dense": 1}),
    "mmr, whole corpus": ("mmr", {"candidates": None}),
    "vrsd": ("vrsd", {"initial": True}),
    "msd": ("msd", {}),
    "dpp": ("dpp", {}),
    "ssd": ("ssd", {"window": 2}),
    "sift": ("sift", {}),
    "coverage": ("coverage", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_planned_selection_has_the_same_bits(device, case):
    op, options = CASES[case]
    check(device, lambda seed: getattr(rk, op)(**selection(seed, **options)))


@pytest.mark.parametrize("slots", [128, 4])
def test_a_planned_selection_of_large_pools_has_the_same_bits(device, monkeypatch, slots):
    from ragsys_kernels.selection.triton import gram as triton_gram

    monkeypatch.setattr(triton_gram, "GRAM_SLOTS", slots)
    for op in ("mmr", "vrsd"):
        check(device, lambda seed, op=op: getattr(rk, op)(**selection(seed)))
        device.clear()


def test_a_planned_proof_has_the_same_bits(device, monkeypatch):
    """Some queries are proven, others are left: a plan launches the same for either."""
    proof_problems.make_small(monkeypatch.setattr)

    def call(seed):
        given = selection(seed, candidates=None, k=2, lambda_d=0.6)
        rows = torch.randn(270, D, generator=torch.Generator().manual_seed(seed)).half()
        rows[200:240] = rows[seed]  # more than a pool has room for
        given["queries"][0] = rows[seed]
        return rk.mmr(**{**given, "embeddings": rows})

    check(device, call)
    plans.clear_plans()
    with proof_problems.counted() as counts:
        call(2)
        call(3)
    assert all(0 < each[-1] < Q for each in counts), counts


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_planned_search_and_selection_out_of_a_corpus_have_the_same_bits(device, dtype):
    rng = np.random.default_rng(0)
    held = rk.Corpus(rng.standard_normal((200, D), np.float32), rng.random(200), dtype=dtype, device="cuda")
    other = rk.Corpus(rng.standard_normal((200, D), np.float32), rng.random(200), dtype=dtype, device="cuda")

    def queries(seed):
        return torch.randn(Q, D, generator=torch.Generator().manual_seed(seed))

    calls = [lambda c, s: c.search(queries(s), 7), lambda c, s: c.select(queries(s), K, pool=20)]
    for call in [*calls, lambda c, s: c.select(queries(s), K, method="vrsd", pool=15)]:
        for each in (held, other):
            check(device, lambda seed, call=call, each=each: call(each, seed))
            device.clear()


def scored(seed, hidden=False, dtype=torch.float32):
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 32 if hidden else 100, generator=rng).to(dtype)
    targets = torch.randint(0, 100, (6,), generator=rng)
    if not hidden:
        return {"logits": x, "targets": targets}
    return {"hidden": x, "weight": torch.randn(100, 32, generator=rng).to(dtype), "targets": targets}


def answers(seed, hidden=False, dtype=torch.float32, **options):
    return rk.answer_logprobs(
        **scored(seed, hidden, dtype),
        cu_answers=torch.tensor([0, 2, 6]),
        rows=torch.tensor([0, 1, 2, 3, 5, 5]),
        **options,
    )


SCORING = {
    "tokens": lambda seed: rk.token_logprobs(**scored(seed), backend="triton"),
    "tokens, bfloat16": lambda seed: rk.token_logprobs(
        **scored(seed, dtype=torch.bfloat16), return_lse=True, backend="triton"
    ),
    "answers": lambda seed: answers(seed, want=("logp", "rank", "entropy", "max")),
    "answers, hidden": lambda seed: answers(seed, hidden=True, dtype=torch.float16, temperature=0.7),
    "partials": lambda seed: rk.logprob_partials(**scored(seed), vocab_size=100),
    "best": lambda seed: rk.top_logprobs(scored(seed)["logits"], k=5, temperature=0.7),
    "best, hidden": lambda seed: rk.top_logprobs(
        **{name: x for name, x in scored(seed, hidden=True).items() if name != "targets"}, k=5
    ),
    "labels": lambda seed: rk.label_posteriors(
        scored(seed)["logits"], label_ids=torch.tensor([3, 7, 20, 4]), cu_labels=torch.tensor([0, 2, 4])
    ),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, for elements that no kernel stores
@pytest.mark.parametrize("case", SCORING)
def test_planned_log_probabilities_have_the_same_bits(device, case):
    check(device, SCORING[case])


def test_a_planned_selection_by_cuda_has_the_same_bits(device, monkeypatch):
    if reason := emulator.why_not():
        pytest.skip(reason)
    choose = _dispatch.choose
    found = {"cuda": ("cuda", cuda_kernels)}
    monkeypatch.setattr(_dispatch, "choose", lambda *given, **lacking: found.get(given[3]) or choose(*given, **lacking))
    monkeypatch.setattr(cuda_module, "load", lambda source: kernels(source, "float16"))
    check(device, lambda seed: rk.mmr(**selection(seed, groups=True, query_groups=True), backend="cuda"))


CHANGES = {
    "k": {"k": 3},
    "a weight": {"lambda_d": 0.3},
    "a type": {"dtype": torch.bfloat16},
    "an option": {"bias": True},
    "another option": {"groups": True, "query_groups": True},
    "a metric": {"metric": "dot"},
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_kind_of_call_is_not_taken_for_one_that_has_a_plan(device, change):
    for seed in range(3):
        rk.mmr(**selection(seed))
    assert len(device) == 1
    expected = rk.mmr(**selection(5, **CHANGES[change]), check_values=False)
    device.clear()
    same(rk.mmr(**selection(5, **CHANGES[change])), expected)
    assert not device


def test_shapes_strides_and_alignment_are_part_of_the_kind(device, monkeypatch):
    given = selection(0)
    for _ in range(3):
        expected = rk.mmr(**given)
    assert len(device) == 1
    rows = given["embeddings"]
    wide = torch.zeros(N, D + 8, dtype=rows.dtype)
    wide[:, :D] = rows
    shifted = torch.zeros(N * D + 1, dtype=rows.dtype)[1:].view(N, D)
    shifted[:] = rows
    for other in (wide[:, :D], shifted, torch.cat([rows, rows[:1]])):
        assert torch.equal(rk.mmr(**{**given, "embeddings": other}).indices, expected.indices)
    assert len(device) == 1
    monkeypatch.setenv("RAGSYS_KERNELS_VARIANTS", "corpus=dense")
    rk.mmr(**given)
    assert len(device) == 1


def test_a_tensor_given_twice_is_not_taken_for_two(device):
    rows = torch.randn(6, D)
    for _ in range(4):
        rk.mmr(rows, rows, 2)
    others = rk.mmr(torch.randn(6, D), torch.randn(6, D), 2)
    assert not device
    assert len(others.indices) == 6


def test_calls_that_warn_warn_each_time(device):
    given = selection(0)
    given["k"] = P
    for _ in range(4):
        with pytest.warns(rk.PoolSizeWarning):
            rk.mmr(**given)
    assert not device


def test_errors_are_those_of_calls_without_plans(device):
    for _ in range(3):
        rk.mmr(**selection(0))
    for changes in ({"lambda_d": 1.5}, {"k": 0}, {"candidates": torch.zeros(Q, P)}):
        with pytest.raises((ValueError, TypeError), match=r"^mmr: "):
            rk.mmr(**{**selection(0), **changes})
    with pytest.raises(TypeError, match=r"^mmr: got an unexpected keyword argument 'fetch_k'"):
        rk.mmr(**selection(0), fetch_k=3)


def test_results_and_arguments_belong_to_the_caller(device):
    given = selection(0)
    results = [rk.mmr(**given) for _ in range(4)]
    kept = [field.clone() for field in results[2]]
    for field in results[3]:
        field.zero_()
    same(results[2], kept)
    dead = [weakref.ref(given["queries"]), weakref.ref(given["candidates"]), weakref.ref(results[1].scores)]
    del given, results, field
    gc.collect()
    assert [each() for each in dead] == [None] * 3


def test_a_profiler_of_launches_is_told_of_each(device, monkeypatch):
    given = selection(0)
    for _ in range(3):
        rk.mmr(**given)
    hook = recording.triton.knobs.runtime.launch_enter_hook
    hook.add(print)
    try:
        rk.mmr(**given)
    finally:
        hook.remove(print)
    assert len(device) == 1


def test_long_calls_are_not_planned(device, monkeypatch):
    monkeypatch.setattr(recording, "MOST_BYTES", 100)
    for _ in range(4):
        rk.mmr(**selection(0))
    assert not device


def test_nothing_is_recorded_while_a_graph_is_captured(device, monkeypatch):
    monkeypatch.setattr(plans, "_captured", lambda tensor: True)
    for _ in range(3):
        rk.mmr(**selection(0))
    assert not device
    monkeypatch.setattr(plans, "_captured", lambda tensor: False)
    for _ in range(2):
        rk.mmr(**selection(0))
    assert len(device) == 1


def test_old_kinds_are_forgotten(device, monkeypatch):
    monkeypatch.setattr(plans, "MOST_PLANS", 4)
    for k in (1, 2, 3, 4, 5):
        rk.mmr(**{**selection(0), "k": k})
    assert len(plans._plans) <= 4


@pytest.fixture
def graphs(device, monkeypatch):
    """Capture planned calls: gives one list a call, of weak references to what its launches read and nobody was given.

    A graph has the addresses of these for as long as it is replayed.
    """
    captured, run = [], recording.Plan.run

    def capture(self, tensors):
        given = len(tensors)
        result = run(self, tensors)
        captured.append([weakref.ref(x) for x in tensors[given:]])
        return result

    monkeypatch.setattr(recording.Plan, "run", capture)
    return captured


def shared(one, other):
    """Return what both calls read, where neither made it."""
    return [a for a in one if a() is not None and any(a() is b() for b in other)]


def forgotten(monkeypatch):
    plans.clear_plans()
    gc.collect()


def displaced(monkeypatch):
    monkeypatch.setattr(plans, "MOST_PLANS", 2)
    for k in (1, 2):
        rk.mmr(**{**selection(0), "k": k})
    gc.collect()


@pytest.mark.parametrize("loss", [forgotten, displaced])
def test_a_captured_graph_has_its_memory_when_the_plan_is_gone(device, graphs, monkeypatch, loss):
    for seed in range(4):
        rk.mmr(**selection(seed, lambda_d=0.625, bias=True, lambda_b=0.375))
    held = shared(*graphs)
    assert {float(x()[0]) for x in held} == {0.625, 0.375}
    plan = weakref.ref(next(plan for plan in plans._plans.values() if isinstance(plan, recording.Plan)))
    device.clear()
    loss(monkeypatch)
    assert plan() is None
    assert [x() is not None for x in held] == [True] * len(held)


def test_plans_share_their_constants(graphs, monkeypatch):
    monkeypatch.setattr(recording, "_constants", recording._Constants())
    for k in (2, 3):
        for seed in range(3):
            rk.mmr(**{**selection(seed, lambda_d=0.625), "k": k})
    assert [float(x()[0]) for x in shared(*graphs)] == [0.625]


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_constants_that_compare_equal_keep_their_bits(value):
    assert str(float(recording._constants.like(torch.empty(3), value)[0])) == str(value)


def test_constants_beyond_their_memory_are_made_anew_at_each_call(device, graphs, monkeypatch):
    monkeypatch.setattr(recording, "_constants", recording._Constants())
    monkeypatch.setattr(recording, "MOST_CONSTANT_BYTES", recording._ALLOCATED)
    for weight in (0.125, 0.25):
        given = selection(0, lambda_d=weight)
        expected = rk.mmr(**given)
        for _ in range(3):
            same(rk.mmr(**given), expected)
    assert len(device) == 4
    assert [len(shared(*graphs[i : i + 2])) for i in (0, 2)] == [1, 0]


@pytest.mark.filterwarnings("ignore::ragsys_kernels.RelevanceRangeWarning")
@pytest.mark.parametrize("pool", [P, None])
def test_ages_are_those_of_each_call(device, monkeypatch, pool):
    """Of calls that are alike in all but the time at which they are made; with a bias, which pools are retrieved by."""
    rng = np.random.default_rng(1)
    rows, queries = rng.standard_normal((N, D), np.float32), rng.standard_normal((Q, D), np.float32)
    columns = {"time": rng.uniform(0, 100, N), "bias": rng.normal(0, 0.1, N).astype(np.float32)}
    there, here = rk.Corpus(rows, **columns, device="cuda"), rk.Corpus(rows, **columns)
    for now in (100.0, 100.0, 100.0, 150.0, 900.0):
        monkeypatch.setattr(corpus.recency.time, "time", lambda now=now: now)
        found = there.select(torch.from_numpy(queries), K, pool=pool, half_life=40.0, decay_floor=0.01)
        expected = here.select(queries, K, pool=pool, half_life=40.0, now=now, decay_floor=0.01)
        np.testing.assert_array_equal(found.indices, expected.indices)
        np.testing.assert_allclose(found.relevance, expected.relevance, atol=1e-6)


interpreted.elsewhere(globals())
