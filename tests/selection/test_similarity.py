"""Similarities in the place of vectors: the picks of the vectors they are of, of a plain oracle for any others."""

import re

import numpy as np
import pytest

import ragsys_kernels as rk
from ragsys_kernels import similarity
from ragsys_kernels._base import arrays as _arrays
from ragsys_kernels.selection import by_similarity as given
from ragsys_kernels.selection import validate
from ragsys_kernels.selection.request import Request

pytestmark = pytest.mark.filterwarnings("ignore::ragsys_kernels.selection.validate.PoolSizeWarning")

Q, P, D, K = 7, 23, 6, 5


def made(seed=0):
    rng = np.random.default_rng(seed)
    pools = rng.standard_normal((Q, P, D))
    pools /= np.linalg.norm(pools, axis=2, keepdims=True)
    pools = pools.astype(np.float32)
    wide = pools.astype(np.float64)
    return pools, wide @ wide.transpose(0, 2, 1), rng.uniform(0, 1, (Q, P)).astype(np.float32)


POOLS, S, RELEVANCE = made()
rng = np.random.default_rng(1)
GROUPS = rng.integers(0, 4, (Q, P))
OPTIONS = {
    "plain": {},
    "weights": {"lambda_d": np.linspace(0.1, 1, Q), "k": np.array([1, 5, 2, 5, 3, 4, 9])},
    "bias": {"bias": rng.standard_normal((Q, P)).astype(np.float32), "lambda_b": 0.7},
    "groups": {"groups": GROUPS, "query_groups": np.arange(Q) % 5, "max_per_group": 1, "k": 6},
    "initial": {"initial": np.array([[3, -1, 5]] * Q), "groups": GROUPS, "max_per_group": 2, "k": 30},
    "filters": {"allowed": rng.random((Q, P)) < 0.6, "exclude": np.array([0, 4, 9])},
    "budget": {"costs": rng.uniform(0, 3, (Q, P)), "budget": np.linspace(1, 9, Q), "k": 12},
    "ceiling": {"max_similarity": np.linspace(-0.5, 0.9, Q), "initial": np.full((Q, 1), 2), "k": 12},
}
RULES = {
    "mmr": (rk.mmr, {}),
    "msd": (rk.msd, {}),
    "dpp": (rk.dpp, {}),
    "dpp_quality": (rk.dpp, {"quality": rng.uniform(0.5, 2, (Q, P)).astype(np.float32)}),
    "dpp_window": (rk.dpp, {"window": 2}),
    "facility": (rk.coverage, {}),
    "cover": (rk.coverage, {"kind": "cover", "gamma": 0.7}),
    "xquad": (rk.coverage, {"kind": "xquad"}),
}


def check(found, expected, tolerance=2e-5):
    np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    for name in ("scores", "relevance", "redundancy"):
        one, other = getattr(found, name), getattr(expected, name)
        assert one.dtype == np.float32
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=tolerance, err_msg=name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("backend", ["reference", "cpu", "auto"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rule", RULES)
def test_picks_are_those_of_the_vectors(rule, options, backend):
    function, own = RULES[rule]
    call = {"k": K, "relevance": RELEVANCE, **OPTIONS[options], **own}
    expected = function(None, POOLS, **call, backend="reference")
    assert (expected.lengths > 0).any()
    found = function(similarity=S, **call, backend=backend)
    check(found, expected)
    if "budget" in call:
        np.testing.assert_allclose(found.cost, expected.cost)


def test_the_cost_is_that_of_the_picks_whatever_their_names_are():
    call = {"similarity": S, "relevance": RELEVANCE, **OPTIONS["budget"]}
    expected = rk.mmr(**call)
    for names in (np.arange(P)[::-1], 1000 - np.arange(P)):  # of other positions, and of none
        found = rk.mmr(**call, candidates=np.tile(names, (Q, 1)))
        np.testing.assert_array_equal(found.indices, np.where(expected.indices < 0, -1, names[expected.indices]))
        np.testing.assert_array_equal(found.cost, expected.cost)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("rule", RULES)
def test_torch_makes_the_same_picks(rule, options):
    """What runs on a device, here with torch's arrays on the host."""
    torch = pytest.importorskip("torch")
    function, own = RULES[rule]
    call = {"k": K, "relevance": RELEVANCE, **OPTIONS[options], **own}
    expected = function(similarity=S, **call, backend="cpu")
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        select = given._select

        def on_torch(problem):
            seen.append(problem)
            return _arrays_of(select(_arrays.tensors(problem)))

        patch.setattr(given, "_COMPILED", ())
        patch.setattr(given, "_select", on_torch)
        found = function(similarity=S, **call, backend="cpu")
    assert seen
    assert torch.is_tensor(_arrays.tensors(seen[0]).rows.similarity)
    check(found, expected)


def _arrays_of(picks):
    return rk.Selection(*(field.numpy() for field in picks))


def mmr_oracle(relevance, pairs, k, weight):
    picks = []
    for _ in range(k):
        values = []
        for i in range(len(relevance)):
            redundancy = max((pairs[j][i] for j in picks), default=0)
            value = weight * relevance[i] - (1 - weight) * redundancy if picks else relevance[i]
            values.append(-np.inf if i in picks else value)
        picks.append(int(np.argmax(values)))
    return picks


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_any_matrix_is_taken_as_it_is(backend):
    """Neither symmetric nor of any vectors, with ties: small integers, whose sums are exact."""
    pairs = np.random.default_rng(3).integers(-4, 5, (Q, P, P)).astype(np.float32)
    relevance = np.random.default_rng(4).integers(0, 4, (Q, P)).astype(np.float32)
    found = rk.mmr(similarity=pairs, relevance=relevance, k=8, lambda_d=0.5, backend=backend)
    for q in range(Q):
        assert found.indices[q].tolist() == mmr_oracle(relevance[q], pairs[q], 8, 0.5)
    found = rk.msd(similarity=pairs, relevance=relevance, k=8, lambda_d=0.5, backend=backend, metric="dot")
    for q in range(Q):
        picks = []
        for _ in range(8):
            value = 0.5 * relevance[q] - 0.5 * pairs[q][picks].sum(axis=0) if picks else relevance[q]
            value = [-np.inf if i in picks else x for i, x in enumerate(value)]
            picks.append(int(np.argmax(value)))
        assert found.indices[q].tolist() == picks


def coverage_oracle(relevance, pairs, k, weight, added, take, state, share):
    """Greedy picks by the definition: row i of ``pairs`` has what item i is worth for each aspect."""
    state, picks = np.full(len(relevance), state), []
    for _ in range(k):
        values = weight * relevance + (1 - weight) * (share * added(pairs, state)).sum(axis=1)
        values[picks] = -np.inf
        picks.append(int(np.argmax(values)))
        state = take(state, pairs[picks[-1]])
    return picks


COVERED = {
    "facility": (lambda S, m: np.maximum(S - m, 0), np.maximum, 0.0, 1 / P, {}),
    "cover": (lambda S, A: (A + S) ** 0.5 - A**0.5, np.add, 0.0, 1, {}),
    "power": (lambda S, A: (A + S) ** 0.3 - A**0.3, np.add, 0.0, 1, {"kind": "cover", "gamma": 0.3}),
    "xquad": (lambda S, r: S * r, lambda r, S: r * (1 - S), 1.0, 1 / P, {}),
}


@pytest.mark.parametrize("backend", ["reference", "cpu", "numpy"])
@pytest.mark.parametrize("kind", COVERED)
def test_coverage_of_any_matrix(kind, backend, monkeypatch):
    *rule, share, own = COVERED[kind]
    pairs = np.random.default_rng(3).uniform(-0.5, 1, (Q, P, P)).astype(np.float32)
    if backend == "numpy":
        monkeypatch.setattr(given, "_COMPILED", ())
        backend = "cpu"
    call = {"similarity": pairs, "relevance": RELEVANCE, "lambda_d": 0.2, "backend": backend, "kind": kind, **own}
    found = rk.coverage(**call, k=15)
    wide = pairs.astype(np.float64).clip(0)
    for q in range(Q):
        assert found.indices[q].tolist() == coverage_oracle(RELEVANCE[q], wide[q], 15, 0.2, *rule, share)


@pytest.mark.parametrize("kind", ["facility", "cover", "xquad"])
def test_equal_items_go_to_the_first_of_them(kind):
    """Sums of equal rows have equal bits, whatever was renewed before."""
    pairs = np.repeat(np.repeat(np.random.default_rng(5).uniform(0, 1, (3, 19, 19)), 2, axis=1), 2, axis=2)
    relevance = np.repeat(np.random.default_rng(6).uniform(0, 1, (3, 19)), 2, axis=1).astype(np.float32)
    picks = rk.coverage(similarity=pairs, relevance=relevance, k=12, lambda_d=0.5, kind=kind).indices
    for q in range(3):
        for at, pick in enumerate(picks[q]):
            assert pick % 2 == 0 or pick - 1 in picks[q][:at]


@pytest.mark.parametrize("backend", ["reference", "cpu", "numpy"])
def test_coverage_reads_all_that_may_be_picked(backend, monkeypatch):
    if backend == "numpy":
        monkeypatch.setattr(given, "_COMPILED", ())
        backend = "cpu"
    pairs = S.astype(np.float32)
    least = int(np.argmin(RELEVANCE[2]))
    pairs[2, least, 4] = np.nan
    call = {"similarity": pairs, "relevance": RELEVANCE, "backend": backend}
    with pytest.raises(ValueError, match=f"NaN or inf for query 2, of position 4 with {least}"):
        rk.coverage(**call, k=1, lambda_d=0.9)
    for left_out in (4, least):
        found = rk.coverage(**call, k=K, exclude=np.array([left_out]))
        expected = rk.coverage(**call | {"similarity": S}, k=K, exclude=np.array([left_out]))
        np.testing.assert_array_equal(found.indices, expected.indices)
    pairs[:, :, 4] = np.inf
    call |= {"kind": "cover", "gamma": 0.3, "metric": "dot", "exclude": np.array([4])}
    found = rk.coverage(**call, k=K)
    np.testing.assert_array_equal(found.indices, rk.coverage(**call | {"similarity": S}, k=K).indices)


CANDIDATES = np.stack([np.random.default_rng(q).permutation(60)[:P] for q in range(Q)])
CANDIDATES[2, 15:] = -1


@pytest.mark.parametrize("rule", RULES)
def test_candidates_name_the_positions_and_functions_are_asked_for_them(rule):
    function, own = RULES[rule]
    vectors = np.random.default_rng(6).standard_normal((60, D))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors = vectors.astype(np.float32)
    whole = vectors.astype(np.float64) @ vectors.T
    calls = []

    def asked(ids, one):
        calls.append((len(ids), one))
        return whole[ids, one]

    given_rows = np.where(CANDIDATES[:, :, None] < 0, 0, whole[CANDIDATES[:, :, None], CANDIDATES[:, None, :]])
    call = {"k": K, "relevance": RELEVANCE, "candidates": CANDIDATES, "groups": GROUPS, "max_per_group": 2, **own}
    expected = function(
        None, vectors[CANDIDATES.clip(0)], **{**call, "candidates": None}, backend="reference",
        exclude=np.where(CANDIDATES < 0, np.arange(P), -1),
    )  # fmt: skip
    named = np.where(expected.indices < 0, -1, np.take_along_axis(CANDIDATES, expected.indices.clip(0), axis=1))
    for pairs in (given_rows, asked):
        found = function(similarity=pairs, **call)
        check(found, expected._replace(indices=named))
    if rule == "mmr":
        assert len(calls) == Q * K  # one row a pick, never all pairs


def test_sparse_rows():
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.random(60, 200, 0.1, random_state=0, dtype=np.float32).tocsr()
    dense = matrix.toarray().astype(np.float64)
    call = {"k": K, "relevance": RELEVANCE, "candidates": CANDIDATES}
    for metric in ("cosine", "dot"):
        rows = dense / np.linalg.norm(dense, axis=1, keepdims=True) if metric == "cosine" else dense
        for form in (matrix, matrix.tocsc(), sparse.csr_array(matrix)):
            found = rk.mmr(similarity=form, metric=metric, **call)
            expected = rk.mmr(similarity=lambda ids, one, rows=rows: rows[ids] @ rows[one], metric=metric, **call)
            check(found, expected)


def test_jaccard():
    sparse = pytest.importorskip("scipy.sparse")
    words = [frozenset(np.random.default_rng(i).integers(0, 30, i % 9).tolist()) for i in range(60)]
    table = np.array([[each in some for each in range(30)] for some in words])
    found = similarity.jaccard(words, CANDIDATES)
    np.testing.assert_array_equal(similarity.jaccard(sparse.csr_matrix(table), CANDIDATES), found)
    for q in range(Q):
        for j, a in enumerate(CANDIDATES[q]):
            for i, b in enumerate(CANDIDATES[q]):
                both = words[a] | words[b] if min(a, b) >= 0 else ()
                exact = len(words[a] & words[b]) / len(both) if both else 0
                assert found[q, j, i] == np.float32(exact)
    assert similarity.jaccard(words).shape == (1, 60, 60)


TOKENS = [np.eye(3, dtype=np.float32)]
NO_SETS = "jaccard: sets must be collections of"
NO_SIMILARITIES = {
    "texts": (lambda: similarity.jaccard(["ab", "ba"]), f"{NO_SETS} tokens, got str in place 0; split texts first"),
    "None among sets": (lambda: similarity.jaccard([{1}, None]), f"{NO_SETS} hashable tokens, got NoneType in place 1"),
    "nested": (lambda: similarity.jaccard([[["a"], ["b"]]]), f"{NO_SETS} hashable tokens, got list in place 0"),
    "a text": (lambda: similarity.jaccard("ab"), "jaccard: sets must be a sequence, .* got str"),
    "no sets": (lambda: similarity.jaccard(None), "jaccard: sets must be a sequence, .* got NoneType"),
    "no documents": (lambda: similarity.maxsim(None), "maxsim: documents must be a sequence, .* got NoneType"),
    "no queries": (
        lambda: similarity.maxsim_relevance(3, TOKENS), "maxsim_relevance: queries must be a sequence, .* got int",
    ),
    "pools of other queries": (
        lambda: similarity.maxsim_relevance(2 * TOKENS, TOKENS, [[0]]),
        r"maxsim_relevance: candidates must have shape \(2, any\), got \(1, 1\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NO_SIMILARITIES)
def test_what_has_no_similarities_is_named(case):
    call, message = NO_SIMILARITIES[case]
    with pytest.raises((TypeError, ValueError), match=f"^{message}"):
        call()


def test_a_device_that_is_not_here_is_named():
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=r"^maxsim: device must be one of torch's that is here, got 'gpu': "):
        similarity.maxsim(TOKENS, device="gpu")


@pytest.mark.parametrize("device", [None, "cpu"])
def test_maxsim(device):
    if device:
        torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    documents = [rng.standard_normal((1 + i % 4, D)).astype(np.float32) for i in range(60)]
    queries = [rng.standard_normal((2 + q % 3, D)).astype(np.float32) for q in range(Q)]
    unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in documents]
    found = similarity.maxsim(documents, CANDIDATES, device=device)
    relevance = similarity.maxsim_relevance(queries, documents, CANDIDATES, device=device)
    if device:
        assert torch.is_tensor(found)
        assert torch.is_tensor(relevance)
        found, relevance = found.numpy(), relevance.numpy()
    for q in range(Q):
        asked = queries[q] / np.linalg.norm(queries[q], axis=1, keepdims=True)
        for j, a in enumerate(CANDIDATES[q]):
            exact = np.mean([max(token @ other for other in unit[a]) for token in asked]) if a >= 0 else 0
            assert relevance[q, j] == pytest.approx(exact, abs=1e-6)
            for i, b in enumerate(CANDIDATES[q]):
                exact = 0
                if min(a, b) >= 0:
                    products = unit[a] @ unit[b].T
                    exact = (products.max(axis=1).mean() + products.max(axis=0).mean()) / 2
                assert found[q, j, i] == pytest.approx(exact, abs=1e-6)
    picks = rk.mmr(similarity=found, relevance=relevance, candidates=CANDIDATES, k=3)
    assert np.isin(picks.indices, CANDIDATES).all()


def with_nan(*at):
    pairs = S.astype(np.float32)
    pairs[at] = np.nan
    return pairs


REFUSED = {
    "queries": ({"queries": np.ones((Q, D), np.float32)}, ValueError, "queries must be left out with similarity"),
    "embeddings": ({"embeddings": POOLS}, ValueError, "embeddings must be left out with similarity, got an array"),
    "relevance": ({"relevance": None}, ValueError, "relevance must come with similarity, got relevance=None"),
    "no_k": ({"k": None}, TypeError, "k must be an integer or an array of integers, got None"),
    "rank": ({"similarity": S[0]}, ValueError, "similarity must have shape (Q, P, P), got (23, 23); use"),
    "shape": ({"similarity": S[:, :, 1:]}, ValueError, "similarity must have shape (Q, P, P), got (7, 23, 22)"),
    "pools": ({"similarity": S[:3]}, ValueError, "relevance must have shape (Q, P) = (3, 23), got (7, 23)"),
    "integers": ({"similarity": S.astype(int)}, TypeError, "similarity must be floating point, got int64"),
    "nan": (
        {"similarity": with_nan(2, int(np.argmax(RELEVANCE[2])), 4)}, ValueError,
        f"similarity must be finite, got NaN or inf for query 2, of position 4 with {int(np.argmax(RELEVANCE[2]))}",
    ),
    "nan_relevance": ({"relevance": RELEVANCE * np.nan}, ValueError, "relevance must be finite, got NaN or inf"),
    "initial": ({"initial": np.full((Q, 1), P)}, ValueError, "initial must be -1 or positions of the pool, below"),
    "candidates": ({"candidates": CANDIDATES[:, 1:]}, ValueError, "candidates must have shape (Q, P) = (7, 23) as"),
    "function": ({"similarity": lambda *_: 0}, ValueError, "candidates must come with similarity that is a function"),
    "wrong_function": (
        {"similarity": lambda *_: np.zeros(2), "candidates": CANDIDATES}, ValueError,
        "similarity must give one value for each of 23 ids, got shape (2,)",
    ),
    "triton": (
        {"backend": "triton"}, rk.BackendUnavailableError,
        "backend 'triton' was requested but its kernels take no similarity; 'cpu' and 'reference' do",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    change, error, message = REFUSED[case]
    with pytest.raises(error, match=f"^mmr: {re.escape(message)}"):
        rk.mmr(**{"k": K, "relevance": RELEVANCE, "similarity": S, **change})


def test_bad_queries_can_be_skipped():
    bad = RELEVANCE.copy()
    bad[3, 5] = np.nan
    found = rk.mmr(similarity=S, relevance=bad, k=K, on_error="skip")
    assert list(found.errors) == [3]
    expected = rk.mmr(similarity=S, relevance=RELEVANCE, k=K)
    others = np.delete(np.arange(Q), 3)
    np.testing.assert_array_equal(found.indices[others], expected.indices[others])
    assert (found.indices[3] == -1).all()


def unlike(kind):
    """Matrices that are none of a DPP in query 2; which picks and pairs show it."""
    vectors = np.random.default_rng(9).standard_normal((4, 12, 20))
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    pairs = vectors @ vectors.transpose(0, 2, 1)
    if kind == "asymmetric":
        pairs[2] = np.triu(pairs[2])
    elif kind == "of the first pick":  # no neighbours
        pairs[2, 0, 5] += 0.3
    elif kind == "without itself":
        pairs[2] -= np.eye(12)
    elif kind == "negative":
        pairs[2] *= -1
    elif kind == "indefinite":  # though no pair is: three that are alike, two of which are opposite
        pairs[2] = np.eye(12)
        for i, j, x in ((0, 3, 0.8), (0, 6, 0.8), (3, 6, -0.8)):
            pairs[2, i, j] = pairs[2, j, i] = x
    return pairs.astype(np.float32)


UNLIKE = {
    "asymmetric": "similarity must be symmetric, got .* of position 1 with 0 and 0 of 0 with 1",
    "of the first pick": "similarity must be symmetric, got .* of position 5 with 0 and .* of 0 with 5",
    "without itself": "similarity must have no negative eigenvalue, got a negative determinant",
    "negative": "similarity must have no negative eigenvalue, got a negative determinant",
    "indefinite": "similarity must have no negative eigenvalue, got a negative determinant",
}


@pytest.mark.parametrize("form", ["cpu", "reference", "numpy", "function"])
@pytest.mark.parametrize("kind", UNLIKE)
def test_dpp_refuses_what_is_no_kernel_of_one(kind, form, monkeypatch):
    pairs, positions = unlike(kind), np.arange(12)
    relevance = np.tile(np.linspace(1, 0, 12, dtype=np.float32), (4, 1))
    call = {"similarity": pairs, "relevance": relevance, "k": 11, "lambda_d": 0.2}
    if form == "function":
        if kind in ("asymmetric", "without itself"):
            return  # neighbours are looked at in matrices alone
        call |= {"similarity": lambda ids, one: pairs[one // 12][one % 12, ids % 12]}
        call |= {"candidates": positions + 12 * np.arange(4)[:, None]}
    if form == "numpy":
        monkeypatch.setattr(given, "_COMPILED", ())
    else:
        call["backend"] = "reference" if form == "function" else form
    with pytest.raises(ValueError, match=f"^dpp: {UNLIKE[kind]} for query 2"):
        rk.dpp(**call)
    found = rk.dpp(**call, on_error="skip")
    assert list(found.errors) == [2]
    assert re.match(f"dpp: {UNLIKE[kind]}(;|$)", found.errors[2])
    good = [0, 1, 3]
    expected = rk.dpp(similarity=pairs[good], relevance=relevance[good], k=11, lambda_d=0.2).indices
    np.testing.assert_array_equal(found.indices[good] % 12, expected)
    if form != "function":
        rk.mmr(**call)
        rk.msd(**call)
        rk.coverage(**call)


@pytest.mark.parametrize("form", ["cpu", "reference", "numpy"])
def test_dpp_looks_at_nothing_that_may_not_be_picked(form, monkeypatch):
    pairs = unlike("plain")
    pairs[:, 4, :] = pairs[:, :, 7] = 9.0
    pairs[:, 4, 4] = -1
    if form == "numpy":
        monkeypatch.setattr(given, "_COMPILED", ())
    call = {"relevance": np.ones((4, 12), np.float32), "k": 11, "backend": "auto" if form == "numpy" else form}
    left = np.setdiff1d(np.arange(12), [4, 7])
    expected = rk.dpp(**call | {"relevance": call["relevance"][:, left]}, similarity=pairs[:, left[:, None], left])
    found = rk.dpp(**call, similarity=pairs, exclude=np.array([4, 7]))
    np.testing.assert_array_equal(found.indices, np.where(expected.indices < 0, -1, left[expected.indices]))


@pytest.mark.parametrize("form", ["cpu", "reference", "numpy"])
def test_the_pairs_that_dpp_looks_at_are_those_of_what_a_query_may_pick(form, monkeypatch):
    """Every third of 20 items and the next one, wherever they are among others, and whatever stands beside them."""
    if form == "numpy":
        monkeypatch.setattr(given, "_COMPILED", ())
    call = {"k": 1, "backend": "auto" if form == "numpy" else form, "on_error": "skip"}
    vectors = np.random.default_rng(5).standard_normal((20, 30))
    plain = np.float32(vectors @ vectors.T / 30)
    alone = np.stack([plain] * 20)
    alone[np.arange(19), np.arange(19), np.arange(1, 20)] += 1
    own = np.sort(np.random.default_rng(6).permutation(60)[:21])
    beside = np.full((20, 60, 60), 9, np.float32)
    beside[:, own[:20, None], own[:20]] = alone
    names = np.full((20, 60), -1)
    names[:, own[:20]] = np.arange(20)
    shown = np.where(np.arange(60) == own[20], 20, names)
    beside[:, own[20], own[20]] = 1
    for given_too in (
        {"similarity": alone, "relevance": np.ones((20, 20), np.float32)},
        {"similarity": beside, "relevance": np.ones((20, 60), np.float32), "candidates": names},
        {"similarity": beside, "relevance": np.ones((20, 60), np.float32), "candidates": shown, "exclude": own[20:]},
    ):
        assert sorted(rk.dpp(**call, **given_too).errors) == [0, 3, 6, 9, 12, 15, 18]


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16"])
@pytest.mark.parametrize("D", [2, 8, 64])
def test_dpp_takes_similarities_that_were_rounded(D, dtype, monkeypatch):
    rng = np.random.default_rng(D)
    vectors = rng.standard_normal((30, 20, D))[:, rng.integers(0, 20, 60)] + 0.01 * rng.standard_normal((30, 60, D))
    vectors /= np.linalg.norm(vectors, axis=2, keepdims=True)
    pairs = vectors @ vectors.transpose(0, 2, 1)
    if dtype == "bfloat16":
        pairs = _arrays.widen(_arrays.narrow(pairs.astype(np.float32), dtype), dtype)
    else:
        pairs = pairs.astype(dtype)
    relevance = rng.random((30, 60)).astype(np.float32)
    for backend in ("cpu", "reference", "numpy"):
        if backend == "numpy":
            monkeypatch.setattr(given, "_COMPILED", ())
            backend = "cpu"
        picks = rk.dpp(similarity=pairs, relevance=relevance, k=20, scale=2.0, backend=backend)
        assert (picks.lengths >= min(D, 16)).all()


def test_dpp_on_a_device_is_checked_where_that_is_asked_for(monkeypatch):
    """By what `check_values=True` looks at."""
    torch = pytest.importorskip("torch")
    place = _arrays.Torch("cpu")  # stands for a device
    monkeypatch.setattr(_arrays, "place_of", lambda *_: place)
    monkeypatch.setattr(_arrays, "to_host", lambda x: x.numpy() if torch.is_tensor(x) else x)
    asked = Request("dpp", None, None, 3, relevance=torch.ones(4, 12), lambda_d=0.5, lambda_b=0.5)

    def problem_of(kind):
        return given.problem_of(asked.changed(similarity=torch.from_numpy(unlike(kind))), place, None, None, True)[0]

    for kind in ("asymmetric", "without itself", "negative"):
        problem = problem_of(kind)
        with pytest.raises(ValueError, match=f"^dpp: {UNLIKE[kind]} for query 2"):
            validate.device_values(problem)
    validate.device_values(problem_of("plain"))


BAD_NAMES = {
    "repeated": ([5, 5, 7], "candidates must not repeat an id within a query, got 5 twice"),
    "negative": ([5, -2, 7], "candidates must be -1 or at least 0, got -2"),
    "beyond": ([5, 8, 7], "candidates must be -1 or rows of the corpus, below N = 8, got 8"),
}


@pytest.mark.parametrize("form", ["matrix", "sparse", "function", "torch", "reference", "numpy"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bad", BAD_NAMES)
def test_names_are_checked_like_rows(bad, rule, form, monkeypatch):
    """A repeated one would be picked twice. Only rows of a sparse matrix have a largest name."""
    names, message = BAD_NAMES[bad]
    function, own = RULES[rule]
    if bad == "beyond":
        if form != "sparse":
            return
    elif form == "sparse":
        message = message.replace("at least 0", "rows of the corpus, below N = 8")
    pairs = np.tile(np.eye(3, dtype=np.float32), (3, 1, 1))
    if form == "sparse":
        pairs = pytest.importorskip("scipy.sparse").eye(8).tocsr()
    if form == "function":
        pairs = lambda ids, one: (ids == one).astype(float)  # noqa: E731
    candidates = np.array([[4, 5, 6], names, [1, -1, -1]])
    if form == "torch":
        torch = pytest.importorskip("torch")
        pairs, candidates = torch.from_numpy(pairs), torch.from_numpy(candidates)
    if form == "numpy":
        monkeypatch.setattr(given, "_COMPILED", ())
    call = {"similarity": pairs, "relevance": np.array([[0.9, 0.8, 0.1]] * 3, np.float32), "k": 3, **own}
    if "quality" in own:
        call["quality"] = own["quality"][:3, :3]
    if form == "reference":
        call["backend"] = "reference"
    with pytest.raises(ValueError, match=f"^{function.__name__}: {re.escape(message)} for query 1$"):
        function(**call, candidates=candidates)
    found = function(**call, candidates=candidates, on_error="skip")
    assert found.errors == {1: f"{function.__name__}: {message}"}
    assert np.asarray(found.indices)[1].tolist() == [-1, -1, -1]
    for q in (0, 2):
        one = {name: x[q : q + 1] if getattr(x, "ndim", 0) > 1 and form != "sparse" else x for name, x in call.items()}
        one["relevance"] = call["relevance"][q : q + 1]
        if "quality" in own:
            one["quality"] = call["quality"][q : q + 1]
        alone = function(**one, candidates=candidates[q : q + 1])
        for field, expected in zip(found, alone, strict=True):
            np.testing.assert_array_equal(np.asarray(field)[q], np.asarray(expected)[0])


def test_names_on_a_device_are_checked_where_that_is_asked_for():
    torch = pytest.importorskip("torch")
    place = _arrays.Torch("cpu")  # stands for a device
    relevance, names = torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[5, 5, 7]])
    asked = Request("mmr", None, None, 1, names, relevance, similarity=torch.eye(3)[None])
    _, unchecked = given.rows_of(asked, place, None, False)
    assert unchecked.tolist() == [[5, 5, 7]]
    with pytest.raises(ValueError, match=r"^mmr: candidates must not repeat an id within a query, got 5 twice for"):
        given.rows_of(asked, place, None, True)
    errors = {}
    _, left = given.rows_of(asked, place, errors, True)
    assert left.tolist() == [[-1, -1, -1]]
    assert list(errors) == [0]


def test_bad_similarities_can_be_skipped():
    found = rk.mmr(similarity=with_nan(2, slice(None), 4), relevance=RELEVANCE, k=K, on_error="skip")
    assert list(found.errors) == [2]
    assert re.match(r"mmr: similarity must be finite, got NaN or inf, of position 4 with \d+$", found.errors[2])
    expected = rk.mmr(similarity=S, relevance=RELEVANCE, k=K)
    others = np.delete(np.arange(Q), 2)
    np.testing.assert_array_equal(found.indices[others], expected.indices[others])


def test_rules_over_vectors_alone_have_no_similarity():
    with pytest.raises(TypeError, match="similarity"):
        rk.ssd(None, None, K, relevance=RELEVANCE, similarity=S)
    assert validate.MOST_PADDED


def test_dpp_refuses_a_pair_at_the_edge_of_what_differs():
    check_second_is_refused((1, 1, 2), 52, "be symmetric, got 52 of position 2 with 1", "cpu")


@pytest.mark.parametrize("form", ["cpu", "reference", "numpy"])
def test_dpp_refuses_a_diagonal_that_no_vectors_have(form, monkeypatch):
    if form == "numpy":
        monkeypatch.setattr(given, "_COMPILED", ())
    backend = "auto" if form == "numpy" else form
    check_second_is_refused((1, 0, 0), np.nan, "be finite", backend)
    check_second_is_refused((1, 3, 3), -0.1, "have no negative eigenvalue", backend)


def check_second_is_refused(place, value, rule, backend):
    call = {"relevance": np.array([[0.9, 0.8, 0.3, 0.2]] * 2, np.float32), "k": 3, "backend": backend}
    similarity = np.stack([50 * (np.eye(4) + 1)] * 2).astype(np.float32)
    similarity[place] = value
    with pytest.raises(ValueError, match=f"dpp: similarity must {rule}"):
        rk.dpp(similarity=similarity, **call)
    picks = rk.dpp(similarity=similarity, **call, on_error="skip")
    assert set(picks.errors) == {1}
    assert picks.lengths.tolist() == [3, 0]


def test_aspects_need_vectors():
    with pytest.raises(ValueError, match=r"^coverage: aspects must be left out with similarity"):
        rk.coverage(relevance=RELEVANCE, similarity=S, k=2, aspects=np.ones((Q, 2, 1), np.float32))
