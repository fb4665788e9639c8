"""Caps by group and level, and minima: what they let queries pick, by definition and in every kernel on the host."""

import warnings

import numpy as np
import pytest
from helpers import quotas as definition
from helpers.rule_problems import OPTIONS, problem_of

import ragsys_kernels as rk
from ragsys_kernels.selection import quotas
from ragsys_kernels.selection.request import Request
from ragsys_kernels.testing import check_selection

pytestmark = [
    pytest.mark.filterwarnings("ignore::ragsys_kernels.PoolSizeWarning"),
    pytest.mark.filterwarnings("ignore:.* names groups that no row"),
]

BACKENDS = ("cpu", "reference")
Q, N, D = 5, 60, 12


def made(seed=0, rows=N):
    rng = np.random.default_rng(seed)
    return rng, rng.standard_normal((rows, D), dtype=np.float32), rng.standard_normal((Q, D), dtype=np.float32)


def function_of(method, problem, **more):
    return getattr(rk, method)(**problem, **more)


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_label_is_picked_at_least_once(backend):
    rng = np.random.default_rng(0)
    query = rng.standard_normal((1, 8)).astype(np.float32)
    near = query + 0.5 * rng.standard_normal((40, 8)).astype(np.float32)
    far = rng.standard_normal((4, 8)).astype(np.float32)
    far -= (far @ query[0])[:, None] * query / (query @ query.T)
    rows, labels = np.concatenate([near, far]), np.array(["pos"] * 20 + ["neg"] * 20 + ["neutral"] * 4)
    given = {"lambda_d": 0.9, "groups": labels, "backend": backend}
    without = rk.mmr(query, rows, 4, **given, max_per_group=4)
    assert "neutral" not in labels[without.indices[0]]
    assert without.unmet is None
    each = rk.mmr(query, rows, 4, **given, min_per_group=1)
    assert set(labels[each.indices[0]]) == {"pos", "neg", "neutral"}
    assert each.unmet == [{}]
    few = rk.mmr(query, rows, 2, **given, min_per_group=1)
    assert [len(x) for x in few.unmet] == [1]
    more = rk.mmr(query, rows, 4, **given, min_per_group={"neutral": 3, "mixed": 2}, max_per_group={"pos": 0, "neg": 2})
    assert labels[more.indices[0]].tolist() == ["neg", "neutral", "neutral", "neutral"]
    assert more.unmet == [{"mixed": 2}]


@pytest.mark.parametrize("seed", range(60))
def test_picks_are_those_that_leave_groups_lacking_least(seed):
    """Of tiny pools, against all sets of picks that may follow each pick."""
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(2, 9)), int(rng.integers(1, 5))
    rows = rng.standard_normal((n, 4)).astype(np.float32)
    groups = rng.integers(0, 4, n)
    minima = {g: int(rng.integers(0, 3)) for g in range(5)}
    caps = {g: int(rng.integers(minima[g], 4)) for g in range(5) if rng.random() < 0.5}
    weight = float(rng.choice([0.2, 0.5, 1.0]))
    given, of = {}, {}
    if rng.random() < 0.4:
        of["initial"] = rng.permutation(n)[: int(rng.integers(1, 3))].tolist()
        given["initial"] = np.array([of["initial"]])
    if rng.random() < 0.4:
        of["costs"], of["budget"] = rng.integers(0, 5, n).astype(float), float(rng.integers(1, 8))
        given.update(costs=of["costs"], budget=of["budget"])
    if rng.random() < 0.4:
        of["ceiling"] = float(rng.uniform(-0.3, 0.7))
        given["max_similarity"] = of["ceiling"]
    vectors = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    relevance = rng.standard_normal(n).astype(np.float32)
    expected, unmet = definition.mmr(vectors, relevance, weight, k, groups.tolist(), minima, caps, **of)
    similarity = (vectors @ vectors.T)[None].astype(np.float32)
    for backend in BACKENDS:
        shared = {"lambda_d": weight, "min_per_group": minima, "max_per_group": caps, "backend": backend}
        found = rk.mmr(None, rows, k, groups=groups, relevance=relevance[None], **shared, **given)
        assert found.indices[0, : found.lengths[0]].tolist() == expected
        assert found.unmet == [unmet]
        of_pools = {name: x[None] if name == "costs" else x for name, x in given.items()}
        by_matrix = rk.mmr(
            None, None, k, groups=groups[None], relevance=relevance[None], similarity=similarity, **shared, **of_pools
        )
        assert by_matrix.indices[0, : by_matrix.lengths[0]].tolist() == expected
        assert by_matrix.unmet == [unmet]


def with_quotas(problem, seed, levels=False):
    """Return a problem of random groups with quotas of all kinds, in turn."""
    rng = np.random.default_rng(seed)
    embeddings = problem["embeddings"]
    shape = embeddings.shape[:2] if np.ndim(embeddings) == 3 else (len(embeddings),)
    groups = rng.integers(0, 6, shape)
    caps = {0: 2, 3: 0, 5: 1}
    problem = {name: x for name, x in problem.items() if name not in ("query_groups", "max_per_group")}
    if levels:
        both = np.stack([groups, rng.integers(6, 9, shape)], axis=-1)
        return {**problem, "groups": both, "max_per_group": ({0: 1, 4: 2}, 3) if seed % 2 else 2}
    kinds = (
        {"max_per_group": caps},
        {"min_per_group": 1},
        {"min_per_group": {1: 2, 4: 1, 77: 1}, "max_per_group": caps},
        {"min_per_group": {2: 3, 0: 2}, "max_per_group": 3, "query_groups": np.arange(len(problem["queries"])) % 6},
    )
    return {**problem, "groups": groups, **kinds[seed % len(kinds)]}


@pytest.mark.parametrize("shape", ["plain", "everything", "dense pools", "relevance"])
@pytest.mark.parametrize("rule", OPTIONS)
def test_every_rule_keeps_to_them(rule, shape):
    for seed in range(6):
        dtype = None if shape == "dense pools" else (None, "int8", "float16")[seed % 3]
        method, problem = problem_of(rule, shape, seed, dtype, initial=seed > 2)
        problem = with_quotas(problem, seed, levels=seed > 3)
        if seed == 3:
            problem["k"] = np.array([7, 1, 4, 2])
        if shape == "plain" and seed % 2:
            problem["min_relevance"] = -0.1
        found = function_of(method, problem, backend="cpu")
        check_selection(method, problem, found)
        expected = function_of(method, problem, backend="reference")
        check_selection(method, problem, expected)
        np.testing.assert_array_equal(found.indices, expected.indices)
        assert found.unmet == expected.unmet
        assert (found.unmet is None) == ("min_per_group" not in problem)


@pytest.mark.parametrize("rule", ["mmr", "vrsd", "msd", "dpp", "ssd", "sift", "coverage"])
def test_signs_and_explicit_bounds(rule):
    rng, rows, queries = made(2, 80)
    packed = rk.Corpus(np.packbits(rows @ rng.standard_normal((D, 64)) > 0, axis=1), dtype="binary")
    given = {"queries": rng.standard_normal((Q, 64)).astype(np.float32), "embeddings": packed, "k": 9}
    problem = {**given, "groups": rng.integers(0, 5, 80), "min_per_group": 2, "max_similarity": 0.4}
    check_selection(rule, problem, function_of(rule, problem, backend="cpu"))
    corpus = rk.Corpus(rows)
    problem = {**problem, "embeddings": corpus, "queries": queries}
    from ragsys_kernels import testing

    picks = [testing.selection_work(rule, problem, bounds=bounds)[0] for bounds in ("dense", "pruned", "coded")]
    for found in picks:
        np.testing.assert_array_equal(found.indices, function_of(rule, problem).indices)


@pytest.mark.parametrize("rule", ["mmr", "msd", "dpp", "coverage"])
def test_of_given_similarities(rule):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        pools = rng.standard_normal((Q, 14, 5))
        pools /= np.linalg.norm(pools, axis=2, keepdims=True)
        problem = {
            "queries": None, "embeddings": None, "k": 6, "similarity": pools @ pools.transpose(0, 2, 1),
            "relevance": rng.random((Q, 14)).astype(np.float32), "groups": rng.integers(0, 4, (Q, 14)),
            "min_per_group": 2 if seed % 2 else {0: 1, 3: 3},
            "max_per_group": None if seed < 2 else {1: 2, 3: 4} if seed % 2 else {1: 2, 2: 0, 3: 4},
            "candidates": np.where(rng.random((Q, 14)) < 0.2, -1, np.arange(100, 114)),
        }  # fmt: skip
        if seed > 4:
            problem.update(costs=rng.integers(0, 5, (Q, 14)).astype(float), budget=8.0, max_similarity=0.7)
        if seed == 7:
            problem.update(min_relevance=0.4)
        found, expected = (function_of(rule, problem, backend=backend) for backend in BACKENDS)
        np.testing.assert_array_equal(found.indices, expected.indices)
        assert found.unmet == expected.unmet
        shown = {}
        for q in range(Q):
            names = problem["candidates"][q]
            real = names >= 0
            shown[q] = set(problem["groups"][q][real].tolist())
            if seed % 2:
                assert set(found.unmet[q]) <= shown[q]
    levels = {**problem, "groups": rng.integers(0, 3, (Q, 14, 2)), "min_per_group": None, "max_per_group": [None, 1]}
    found, expected = (function_of(rule, levels, backend=backend) for backend in BACKENDS)
    np.testing.assert_array_equal(found.indices, expected.indices)
    for q, row in enumerate(found.indices):
        of_picks = levels["groups"][q, row[row >= 0] - 100, 1].tolist()
        assert len(set(of_picks)) == len(of_picks)


def test_without_compiled_kernels_the_reference_answers(monkeypatch):
    rng = np.random.default_rng(1)
    given = {"relevance": rng.random((1, 9)), "groups": rng.integers(0, 3, (1, 9)), "min_per_group": 1}
    similarity = np.eye(9)[None]
    expected = rk.mmr(None, None, 4, similarity=similarity, **given)
    from ragsys_kernels import _dispatch

    monkeypatch.setattr(_dispatch, "why_not", lambda name: "it was not built" if name == "cpu" else None)
    np.testing.assert_array_equal(rk.mmr(None, None, 4, similarity=similarity, **given).indices, expected.indices)
    with pytest.raises(rk.BackendUnavailableError, match=r"^mmr: max_per_group must be one .*it was not built"):
        rk.mmr(None, None, 4, similarity=similarity, **given, backend="cpu")


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_of_a_whole_corpus_in_stages_and_out_of_pools(dtype):
    """Caps by group and level go in stages; minima look at all rows."""
    rng, rows, queries = made(4, 3000)
    corpus = rk.Corpus(rows, dtype=dtype)
    source, document = rng.integers(0, 4, 3000), rng.integers(0, 900, 3000)
    levels = np.stack([document, source], axis=1)
    everything = np.tile(np.arange(3000), (Q, 1))
    for given in (
        {"groups": source, "max_per_group": {0: 1, 1: 0, 2: 5}},
        {"groups": levels, "max_per_group": [1, 4]},
        {"groups": levels, "max_per_group": [{}, {3: 2}], "initial": rng.integers(0, 3000, (Q, 1))},
        {"groups": source, "min_per_group": {0: 4, 3: 3}, "exclude": np.arange(0, 3000, 7)},
        {"groups": source, "min_per_group": 2, "allowed": rng.permutation(3000)[:90]},
    ):
        found = rk.mmr(queries, corpus, 8, **given)
        expected = rk.mmr(queries, corpus, 8, **given, candidates=everything, backend="reference")
        np.testing.assert_array_equal(found.indices, expected.indices)
        assert found.unmet == expected.unmet
        pools = corpus.select(queries, 8, pool=200, **given)
        names = {name: given[name] for name in ("allowed", "exclude") if name in given}
        shown = given.get("initial")
        retrieved = corpus.search(queries, 200 + (shown is not None), **names).indices
        same = rk.mmr(queries, corpus, 8, candidates=retrieved, **given)
        np.testing.assert_array_equal(pools.indices, same.indices)
        assert pools.unmet == same.unmet
        assert (pools.certified is None) == ("min_per_group" in given)
        if "min_per_group" not in given:
            certified = corpus.select(queries, 8, pool="certified", **given)
            np.testing.assert_array_equal(certified.indices, found.indices)
    own = corpus.select(queries, 8, groups=levels, max_per_group=[None, 2], query_groups=document[:Q])
    assert all(document[q] not in document[row] for q, row in enumerate(own.indices))
    assert all(np.bincount(source[row]).max() <= 2 for row in own.indices)


def test_names_of_a_corpus_and_memory_that_it_may_take(tmp_path):
    rng, rows, queries = made(5, 9000)
    names = np.array(["news", "law", "code", "notes"])[rng.choice(4, 9000, p=[0.5, 0.3, 0.19, 0.01])]
    rk.Corpus(rows, groups=names).save(tmp_path / "c")
    given = {"min_per_group": {"notes": 2, "poems": 1}, "max_per_group": {"news": 1, "poems": 3}}
    for corpus in (rk.Corpus.load(tmp_path / "c"), rk.Corpus.load(tmp_path / "c", memory=300_000)):
        found = corpus.select(queries, 6, pool=800, **given)
        assert found.unmet == [{"poems": 1}] * Q
        for row in found.indices:
            assert (names[row] == "notes").sum() >= 2
            assert (names[row] == "news").sum() <= 1
        every = corpus.select(queries, 6, pool=800, min_per_group=1)
        assert every.unmet == [{}] * Q
        assert all(len(set(names[row])) == 4 for row in every.indices)
        levels = np.stack([names, np.arange(9000).astype("U")], axis=1)
        capped = corpus.select(queries, 6, pool=800, groups=levels, max_per_group=[{"news": 0}, None])
        plain = corpus.select(queries, 6, pool=800, max_per_group={"news": 0})
        np.testing.assert_array_equal(capped.indices, plain.indices)
    check_selection("mmr", {"queries": queries, "embeddings": rk.Corpus.load(tmp_path / "c"), "k": 6, **given},
                    rk.mmr(queries, rk.Corpus.load(tmp_path / "c"), 6, **given))  # fmt: skip


def test_levels_are_caps_of_each():
    rng, rows, queries = made(6)
    document, source = rng.integers(0, 12, N), rng.integers(20, 23, N)
    levels = np.stack([document, source], axis=1)
    same = {"max_per_group": 2}
    for backend in BACKENDS:
        one = rk.mmr(queries, rows, 8, groups=document, backend=backend, **same)
        for groups in (document[:, None], np.stack([document, np.arange(100, 100 + N)], axis=1)):
            found = rk.mmr(queries, rows, 8, groups=groups, backend=backend, **same)
            np.testing.assert_array_equal(found.indices, one.indices)
            np.testing.assert_array_equal(found.scores, one.scores)
        both = rk.mmr(queries, rows, 9, groups=levels, max_per_group=[1, {20: 2, 21: 3}], backend=backend)
        for row in both.indices:
            row = row[row >= 0]
            assert np.bincount(document[row]).max() == 1
            assert (source[row] == 20).sum() <= 2
            assert (source[row] == 21).sum() <= 3
        text = rk.mmr(queries, rows, 9, groups=np.array([["d", "s"]])[[0] * N].tolist(), max_per_group={"s": 3},
                      backend=backend)  # fmt: skip
        assert text.lengths.tolist() == [3] * Q
    dense = rng.standard_normal((Q, 9, D)).astype(np.float32)
    groups = rng.integers(0, 3, (Q, 9, 2))
    found = rk.msd(queries, dense, 6, groups=groups, max_per_group=[2, 3])
    check_selection("msd", {"queries": queries, "embeddings": dense, "k": 6, "groups": groups, "max_per_group": [2, 3]},
                    found)  # fmt: skip
    alone = [rk.msd(queries[q : q + 1], dense[q : q + 1], 6, groups=groups[q : q + 1], max_per_group=[2, 3])
             for q in range(Q)]  # fmt: skip
    np.testing.assert_array_equal(found.indices, np.concatenate([each.indices for each in alone]))


def test_paths_have_caps_by_group_and_level():
    rng, rows, queries = made(7, 20)
    levels = rng.integers(0, 4, (20, 2))
    for given in (
        {"groups": levels[:, 0], "max_per_group": {0: 1, 2: 0}},
        {"groups": levels[:, 0] // 3, "max_per_group": {0: 3}, "initial": np.array([[3, -1]] * Q)},
        {"groups": levels, "max_per_group": [2, 1]},
    ):
        for backend in BACKENDS:
            path = rk.mmr_path(queries, rows, 5, backend=backend, **given)
            for weight in (0.1, 0.37, 0.8):
                found = rk.mmr(queries, rows, 5, lambda_d=weight, backend=backend, **given)
                np.testing.assert_array_equal(path.at(np.float32(weight)), found.indices)


def test_unmet_is_of_what_a_query_may_pick():
    """Not of its own group, of what is excluded or of padding; of items of too little relevance it is."""
    rows = np.eye(4, dtype=np.float32)
    groups = np.array([0, 1, 2, 3])
    relevance = np.array([[0.9, 0.8, 0.1, 0.7]] * 2, np.float32)
    given = {"groups": groups, "query_groups": np.array([0, 9]), "min_per_group": 1, "min_relevance": 0.5}
    for backend in BACKENDS:
        found = rk.mmr(None, rows, 4, relevance=relevance, exclude=np.array([3]), backend=backend, **given)
        assert found.unmet == [{2: 1}, {2: 1}]
        pools = np.array([[1, 2, -1], [0, 2, 3]])
        some = rk.mmr(None, rows, 3, relevance=relevance[:, :3], candidates=pools, backend=backend, **given)
        assert some.unmet == [{}, {3: 1}]
        computed = rk.mmr(relevance, rows, 4, exclude=np.array([3]), backend=backend, **given)
        assert computed.unmet == [{2: 1}, {2: 1}]
        shown = rk.mmr(relevance, rows, 2, initial=np.array([[1], [1]]), groups=groups, min_per_group=1,
                       backend=backend)  # fmt: skip
        assert [len(x) for x in shown.unmet] == [1, 1]
        bad = np.where([[True], [False]], np.nan, relevance)
        skipped = rk.mmr(bad, rows, 1, groups=groups, min_per_group={3: 1}, on_error="skip", backend=backend)
        assert skipped.unmet == [{}, {}]
        assert list(skipped.errors) == [0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rule", ["dpp", "sift", "mmr"])
def test_items_that_a_rule_or_a_ceiling_bars_do_not_count_as_what_a_group_has(rule, backend):
    """All items of the group with a minimum are those of another once more, the first pick."""
    rows = np.eye(5, 8, dtype=np.float32)[[0, 1, 0, 0, 0]]
    rows[1, 0] = 0.2
    options = {"dpp": {}, "sift": {"min_gain": 1e-3, "noise": 1e-4}, "mmr": {"max_similarity": 0.99}}[rule]
    given = {"groups": np.array([0, 0, 1, 1, 1]), "min_per_group": {1: 2}, "backend": backend, **options}
    query, relevance = np.eye(1, 8, dtype=np.float32), np.array([[1, 0.6, 1, 1, 1]], np.float32)
    query[0, 1] = 0.5
    k = 3  # at the first pick it has three items and lacks two, then none that may be picked
    found = getattr(rk, rule)(query, rows, k, relevance=relevance, **given)
    assert found.indices.tolist() == [[0, 1, -1]]
    assert found.unmet == [{1: 2}]
    if rule != "sift":
        similarity = (rows @ rows.T / np.linalg.norm(rows, axis=1) / np.linalg.norm(rows, axis=1)[:, None])[None]
        matrix = {**given, "groups": given["groups"][None]}
        same = getattr(rk, rule)(None, None, k, relevance=relevance, similarity=similarity, **matrix)
        assert same.indices.tolist() == [[0, 1, -1]]
        assert same.unmet == [{1: 2}]


@pytest.mark.parametrize("backend", BACKENDS)
def test_items_that_were_held_back_since_the_first_pick_are_chosen_by_their_values(backend):
    """The group with a minimum of 2 has a second item that costs more than the first leaves."""
    rows = np.eye(6, dtype=np.float32)
    rows[5] = 0.5
    given = {"groups": np.array([0, 0, 1, 1, 1, 1]), "min_per_group": {0: 2}, "costs": [3, 4, 1, 1, 1, 1], "budget": 5}
    for kind in ("facility", "xquad"):
        found = rk.coverage(np.ones((1, 6), np.float32), rows, 2, lambda_d=0, kind=kind, backend=backend, **given)
        assert found.indices.tolist() == [[0, 5]]
        assert found.unmet == [{0: 1}]


@pytest.mark.parametrize("backend", BACKENDS)
def test_queries_beside_one_that_fails(backend):
    rng, _, queries = made(8)
    dense = rng.standard_normal((Q, 12, D)).astype(np.float32)
    bad = queries.copy()
    bad[1] = np.nan
    others = np.arange(Q) != 1
    for given in (
        {"groups": rng.integers(0, 4, (Q, 12)), "min_per_group": {0: 3, 2: 1}},
        {"groups": rng.integers(0, 4, (Q, 12, 2)), "max_per_group": [1, {0: 2}]},
    ):
        expected = rk.mmr(queries, dense, 5, backend=backend, **given)
        found = rk.mmr(bad, dense, 5, backend=backend, on_error="skip", **given)
        np.testing.assert_array_equal(found.indices[others], expected.indices[others])
        assert list(found.errors) == [1]
        if "min_per_group" in given:
            assert found.unmet == [{} if q == 1 else each for q, each in enumerate(expected.unmet)]


def test_a_request_takes_the_groups_of_dense_pools_alone():
    levels = np.arange(24).reshape(3, 4, 2)
    dense = Request("mmr", None, np.zeros((3, 4, 2)), 2, groups=levels).take(np.array([1]))
    assert dense.groups.tolist() == levels[1:2].tolist()
    matrix = Request("mmr", None, None, 2, groups=levels, similarity=np.zeros((3, 4, 4))).take(np.array([1]))
    assert matrix.groups.tolist() == levels[1:2].tolist()
    of_rows = Request("mmr", np.zeros((3, 2)), np.zeros((3, 2)), 2, groups=levels[0]).take(np.array([1]))
    assert of_rows.groups.tolist() == levels[0].tolist()


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"min_per_group": 0}, ValueError, "min_per_group must be at least 1, got 0"),
        ({"min_per_group": True}, TypeError, "min_per_group must be an integer, got True"),
        ({"min_per_group": 1.0}, TypeError, "min_per_group must be an integer, got float"),
        ({"min_per_group": {0: -1}}, ValueError, "min_per_group must be at least 0 for each group, got -1 for 0"),
        ({"min_per_group": {0: 1.5}}, TypeError, "min_per_group must be an integer for each group, got float"),
        ({"min_per_group": {"a": 1}}, TypeError, "min_per_group must name groups by integers, as groups are, got 'a'"),
        ({"max_per_group": {2.0: 1}}, TypeError, "max_per_group must name groups by integers, as groups are, got 2.0"),
        (
            {"min_per_group": {True: 1}}, TypeError,
            "min_per_group must name groups by integers, as groups are, got True",
        ),
        ({"max_per_group": {0: -1}}, ValueError, "max_per_group must be at least 0 for each group, got -1 for 0"),
        ({"max_per_group": [1]}, TypeError, "max_per_group must be an integer, got list"),
        ({"max_per_group": np.array([1])}, TypeError, "max_per_group must be an integer, got ndarray"),
        (
            {"max_per_group": 1, "min_per_group": 2}, ValueError,
            "min_per_group must be at most max_per_group, got 2 above 1",
        ),
        (
            {"max_per_group": {3: 1}, "min_per_group": {3: 2, 4: 9}}, ValueError,
            "min_per_group must be at most max_per_group, got 2 above 1 for 3",
        ),
        (
            {"max_per_group": {3: 0}, "min_per_group": 1}, ValueError,
            "min_per_group must be at most max_per_group, got 1 above 0 for 3",
        ),
        (
            {"groups": np.zeros((N, 2), int), "min_per_group": 1}, ValueError,
            "min_per_group must come with groups of one level, got 2",
        ),
        (
            {"groups": np.zeros((N, 2), int), "max_per_group": [1]}, ValueError,
            "max_per_group must have one value for each of 2 levels of groups, got 1",
        ),
        (
            {"groups": np.zeros((N, 2), int), "max_per_group": [0, 1]}, ValueError,
            "max_per_group must be at least 1, got 0",
        ),
        (
            {"groups": np.zeros((3, 2), int), "max_per_group": 1}, ValueError,
            "groups must have shape (N, L) = (60, 2), got (3, 2)",
        ),
        (
            {"groups": np.array(["a"] * N), "max_per_group": {0: 1}}, TypeError,
            "max_per_group must name groups by strings, as groups are, got 0",
        ),
        ({"groups": None, "min_per_group": 1}, ValueError, "min_per_group must come with groups, got groups=None"),
        (
            {"min_per_group": 1, "outside": -np.inf, "candidates": np.zeros((Q, 1), int)}, ValueError,
            "outside must come without min_per_group, got both",
        ),
    ],
)  # fmt: skip
def test_refused(given, error, message):
    rng, rows, queries = made()
    with pytest.raises(error) as raised:
        rk.mmr(queries, rows, 4, **{"groups": rng.integers(0, 4, N), **given})
    assert str(raised.value) == f"mmr: {message}"


def test_where_they_are_not():
    rng, rows, queries = made()
    groups = rng.integers(0, 4, N)
    with pytest.raises(ValueError, match=r"^gist: min_per_group must be left out with the rule 'gist', got 1$"):
        rk.gist(queries, rows, 4, groups=groups, min_per_group=1)
    with pytest.raises(TypeError, match="min_per_group"):
        rk.mmr_path(queries, rows, 4, groups=groups, min_per_group=1)
    with pytest.raises(ValueError, match=r"^select: pool 'certified' must come without min_per_group, got both$"):
        rk.Corpus(rows, groups=groups).select(queries, 4, pool="certified", min_per_group=1)


def test_kernels_that_lack_them_are_refused_by_name(monkeypatch):
    rng, rows, queries = made()
    monkeypatch.setattr(quotas, "BACKENDS", ("reference",))
    for given in ({"max_per_group": {0: 1}}, {"groups": rng.integers(0, 4, (N, 2)), "max_per_group": 1}):
        with pytest.raises(rk.BackendUnavailableError, match="one integer, of groups of one level, with backend 'cpu'"):
            rk.mmr(queries, rows, 4, **{"groups": rng.integers(0, 4, N), **given}, backend="cpu")


def test_a_name_that_no_row_of_a_corpus_has_is_told_once():
    rng = np.random.default_rng(3)
    rows, numbers = rng.standard_normal((40_000, 4), dtype=np.float32), rng.integers(0, 3, 40_000)
    numbers[-1] = 9
    names = np.array([*"abc", *"xxxxxx", "d"])[numbers]
    for groups, known, unknown, shown in (
        (names, ["a", "d"], ["A", "w", "y", "z"], "'A', 'w', 'y', ..."),
        (numbers, [0, np.int64(9)], [4, 2**70], f"4, {2**70}"),
    ):
        corpus = rk.Corpus(rows, groups=groups)
        for op, call in (
            ("select", lambda **given: corpus.select(rows[:2], 3, pool=20, **given)),  # noqa: B023
            ("subset", lambda **given: corpus.subset(3, **given)),  # noqa: B023
        ):
            for name in ("max_per_group", "min_per_group"):
                with warnings.catch_warnings(record=True) as told:
                    warnings.simplefilter("always")
                    call(**{name: dict.fromkeys(known, 1)})
                    call(**{name: 1})
                    assert not told
                    call(**{name: dict.fromkeys([*known, *unknown], 1)})
                assert [str(each.message) for each in told] == [
                    f"{op}: {name} names groups that no row of the corpus has: {shown}"
                ]
                assert told[0].filename == __file__
