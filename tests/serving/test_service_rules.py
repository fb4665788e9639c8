"""Every rule of the library by the service: the same picks, with budgets and ceilings, in JSON and in Arrow."""

import asyncio

import numpy as np
import pyarrow as pa
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels.selection import METHODS
from ragsys_kernels.selection.parameters import BY_NAME, OPTIONS
from ragsys_kernels.serving.fields import NUMBERS
from ragsys_kernels.serving.http import schemas
from ragsys_kernels.serving.queries.rules import SHARED
from ragsys_kernels.serving.ray_serve import answered

N, D, K = 300, 16, 4
LIMITS = ({}, {"budget": 9.0}, {"max_similarity": 0.2}, {"budget": 7.5, "max_similarity": 0.3})


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(3)
    return rk.Corpus(rng.standard_normal((N, D), dtype=np.float32), bias=rng.normal(size=N), costs=rng.uniform(1, 5, N))


@pytest.mark.parametrize("method", METHODS)
def test_picks_are_those_of_the_library(corpus, method):
    """All of a round in one request and each alone: the bits of `Corpus.select`, with the rule's own default weight."""
    queries = np.random.default_rng(4).standard_normal((3, D), dtype=np.float32)
    pools = np.random.default_rng(5).permuted(np.tile(np.arange(N), (3, 1)), axis=1)[:, :60]

    def body(limits, *rows):
        asked = [{"query": queries[q].tolist(), "candidates": pools[q].tolist(), **limits} for q in rows]
        return {"method": method, "k": K, "queries": asked}

    some = LIMITS if method != "gist" else LIMITS[:1]  # which takes none

    async def use(client, _):
        found = []
        for limits in LIMITS[len(some) :]:
            refused = await client.post("/v1/select", json=body(limits, 0))
            (result,) = refused.json()["results"]
            assert (refused.status_code, result["error"]["argument"]) == (422, next(iter(limits)))
        for limits in some:
            answer = await client.post("/v1/select", json=body(limits, 0, 1, 2))
            assert answer.status_code == 200, answer.text
            found.append(answer.json()["results"])
            alone = await client.post("/v1/select", json=body(limits, 1))
            assert alone.json()["results"] == found[-1][1:2]
        return found

    for limits, results in zip(some, servers.run({"docs": corpus}, use), strict=True):
        expected = corpus.select(queries, K, method=method, candidates=pools, num_threads=1, **limits)
        for q, result in enumerate(results):
            n = int(expected.lengths[q])
            assert result["ids"] == expected.indices[q, :n].tolist()
            assert np.array(result["scores"], "f4").tobytes() == expected.scores[q, :n].tobytes()
            assert ("cost" in result) == ("budget" in limits)
            if "budget" in limits:
                assert result["cost"] == expected.cost[q] <= limits["budget"]
            if "max_similarity" in limits:
                rows = corpus.vectors(np.array(result["ids"], np.int64))
                assert (np.triu(rows @ rows.T, 1) <= limits["max_similarity"] + 1e-6).all()


def test_the_cost_of_picks_is_that_of_each_request_in_a_call(corpus):
    """Of requests that come together, one of which fails, and of those alone."""
    bodies = [{"k": k, "queries": [{"query_id": q, "budget": 3 * k}]} for q, k in ((1, 2), (2, 3), (3, 4))]
    far = {"query": [3e38] * D, "candidates": [1, 2, 3], "budget": 5}
    bodies += [{"k": 2, "queries": [{"query_id": 4, "candidates": [5, 6, 7], "budget": 4}]}, {"k": 2, "queries": [far]}]

    async def use(client, _):
        together = await asyncio.gather(*(client.post("/v1/select", json=body) for body in bodies))
        return [each.json() for each in together], [(await client.post("/v1/select", json=x)).json() for x in bodies]

    together, alone = servers.run({"docs": corpus}, use)
    assert together == alone
    for content in together[:4]:
        [result] = content["results"]
        rows = np.array(result["ids"])
        assert result["cost"] == pytest.approx(corpus.costs[rows].sum())
        assert result["cost"] > 0


def test_queries_with_limits_of_their_own_and_without_in_one_request(corpus):
    asked = [
        {"query_id": 1},
        {"query_id": 1, "budget": 6},
        {"query_id": 1, "budget": None},
        {"query_id": 1, "budget": 9.5},
    ]
    table = pa.table({"query_id": [1, 1], "budget": [6.0, 9.5]})
    answer, arrow, common = servers.posted(
        {"docs": corpus},
        ("/v1/select", {"k": K, "pool": 50, "queries": asked}),
        (f"/v1/select?k={K}&pool=50", servers.arrow(table), servers.ARROW),
        ("/v1/select", {"k": K, "pool": 50, "budget": 6, "queries": [{"query_id": 1}]}),
    )
    results = answer.json()["results"]
    query = corpus.vectors(np.array([1])).astype(np.float32)
    for result, limits in zip(results, ({}, {"budget": 6}, {}, {"budget": 9.5}), strict=True):
        picks = corpus.select(query, K, pool=50, **limits)
        assert result["ids"] == picks.indices[0, : picks.lengths[0]].tolist()
    assert len({tuple(result["ids"]) for result in results}) == 3
    assert servers.table_of(arrow)["ids"].to_pylist() == [results[1]["ids"], results[3]["ids"]]
    assert common.json()["results"][0] == results[1]


@pytest.mark.parametrize("name", ["candidates", "initial", "allowed", "exclude"])
def test_a_list_of_ids_beside_the_queries_holds_for_all_of_them(corpus, name):
    """In JSON, and beside columns, where a column goes before it."""
    listed, own = list(range(0, N, 7)), [[3, 4, 5, 6, 8], [9, 10, 12]]
    common = {"k": K, "pool": 30, name: listed}

    async def use(client, service):
        alike = await client.post("/v1/select", json={**common, "queries": [{"query_id": q} for q in (1, 2)]})
        queries = [{"query_id": q, name: ids} for q, ids in zip((1, 2), own, strict=True)]
        owned = await client.post("/v1/select", json={**common, "queries": queries})
        tables = pa.table({"query_id": [1, 2]}), pa.table({"query_id": [1, 2], name: own})
        return alike.json(), owned.json(), [await answered(service, table, common) for table in tables]

    *given, tables = servers.run({"docs": corpus}, use)
    for content, table in zip(given, tables, strict=True):
        assert table["ids"].to_pylist() == [result["ids"] for result in content["results"]]
    query = corpus.vectors(np.array([1, 2])).astype(np.float32)
    filters = {name: np.array([listed] * 2), **({} if name == "candidates" else {"pool": 30})}
    picks = corpus.select(query, K, **filters)
    assert tables[0]["ids"].to_pylist() == picks.indices.tolist()


@pytest.mark.parametrize(
    "rules",
    [
        {"exclude": "rubbish"},
        {"allowed": 3},
        {"initial": ["doc-1"]},
        {"exclude": [N]},
        {"relevance": [1.0]},
        {"query": [1.0] * D},
        {"query_id": 1},
        {"cursor": "n"},
    ],
)
def test_what_cannot_hold_for_all_rows_of_columns_is_refused(corpus, rules):
    async def use(_, service):
        with pytest.raises(ValueError, match=f"^select: {next(iter(rules))} must "):
            await answered(service, pa.table({"query_id": [1, 2]}), rules)

    servers.run({"docs": corpus}, use)


LACKS = [(m, w) for m in METHODS for w in ("lambda_d", "lambda_b") if w not in METHODS[m].parameters]


@pytest.mark.parametrize(("method", "weight"), [*LACKS, ("gist", "budget"), ("gist", "max_similarity")])
def test_a_default_that_the_rule_of_a_query_lacks_is_refused_as_its_own(corpus, method, weight):
    """For that query alone; where it is the rule of all queries, for all."""
    plain, own = {"query_id": 1}, {"query_id": 1, "method": method}
    mixed, alone, refused = servers.posted(
        {"docs": corpus},
        ("/v1/select", {"k": K, weight: 0.5, "queries": [plain, own, {**own, weight: 0.5}]}),
        ("/v1/select", {"k": K, "queries": [{**plain, weight: 0.5}, {"query_id": 1, "method": method}]}),
        (f"/v1/select?k={K}&method={method}&{weight}=0.5", servers.arrow(pa.table({"query_id": [1]})), servers.ARROW),
    )
    first, *others = mixed.json()["results"]
    assert (first, [each["error"]["argument"] for each in others]) == (alone.json()["results"][0], [weight] * 2)
    assert "ids" in alone.json()["results"][1]
    assert refused.status_code == 422
    if weight.startswith("lambda"):
        words = f"select: {weight} must be left out: {method} has none, got 0.5"
        assert [each["error"]["message"] for each in others] == [f"{words} for all queries", words]
        assert refused.json()["error"]["message"] == f"{words} for all queries"


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_a_metric_is_that_of_the_corpus_or_comes_with_vectors(metric):
    rows = np.random.default_rng(6).standard_normal((N, D), dtype=np.float32) * np.arange(1, N + 1)[:, None]
    corpora = {"docs": rk.Corpus(rows.astype(np.float32), metric=metric)}
    vectors, query = servers.encoded(rows[:9].astype("f4")), {"query": rows[3].tolist(), "k": 3}
    table = servers.arrow(pa.table({"query_id": [3]}))
    vector = {"name": "vector", "shape": [1, D], "datatype": "FP32", "data": rows[3].tolist()}
    for asked in ("cosine", "dot"):
        given, common, columns, tensors = servers.posted(
            corpora,
            ("/v1/select", {"queries": [{**query, "metric": asked}, {**query, "metric": asked, "vectors": vectors}]}),
            ("/v1/select", {"metric": asked, "queries": [query, {**query, "vectors": vectors}]}),
            (f"/v1/select?metric={asked}", table, servers.ARROW),
            ("/v2/models/docs/infer", {"inputs": [vector], "parameters": {"metric": asked}}),
        )
        for answer in (given, common):
            of_corpus, of_vectors = answer.json()["results"]
            assert ("ids" in of_corpus, "ids" in of_vectors) == (asked == metric, True)
        assert [answer.status_code for answer in (columns, tensors)] == [200 if asked == metric else 422] * 2
        if asked != metric:
            words = f"metric must be left out without vectors: that of the corpus is {metric!r}, got {asked!r}"
            found = [of_corpus["error"]["message"], servers.table_of(columns)["error"][0].as_py()]
            assert [*found, tensors.json()["error"]] == [f"select: {words}"] * 3


def test_the_error_of_an_unknown_field_names_those_that_may_stand_there(corpus):
    """Each of them may: it is not what is wrong."""

    def named(message):
        return set(message.partition(" must be one of ")[2].partition(", got ")[0].split(", "))

    async def use(client, service):
        one = await client.post("/v1/select", json={"queries": [{"query_id": 1, "lamda": 1}]})
        whole = await client.post("/v1/select", json={"lamda": 1, "queries": [{"query_id": 1}]})
        table = pa.table({"query_id": [1]})
        url = await client.post("/v1/select?lamda=1", content=servers.arrow(table), headers=servers.ARROW)
        with pytest.raises(ValueError, match="lamda must be one of") as of_handle:
            await answered(service, table, {"lamda": 1})
        errors = one.json()["results"][0]["error"], whole.json()["error"], url.json()["error"]
        assert {error["argument"] for error in errors} == {"lamda"}
        return [named(message) for message in (*(error["message"] for error in errors), str(of_handle.value))]

    of_query, beside, of_url, of_handle = servers.run({"docs": corpus}, use)
    assert of_query == set(schemas.Query.model_fields)
    assert beside == set(schemas.SelectRequest.model_fields)
    assert of_url == {"corpus", "k", *NUMBERS, *SHARED}
    assert of_handle == of_url | {"candidates", "initial", "allowed", "exclude"}


def test_a_default_is_the_error_of_those_queries_alone_whose_rule_lacks_it(corpus):
    own, other = {"query_id": 7, "method": "ssd"}, {"query_id": 7}
    expected, mixed, fits = servers.posted(
        {"docs": corpus},
        ("/v1/select", {"k": K, "queries": [{**own, "gamma": 0.2}]}),
        ("/v1/select", {"k": K, "gamma": 0.2, "queries": [own, other]}),
        ("/v1/select", {"k": K, "gamma": 0.2, "queries": [own]}),
    )
    assert fits.json() == expected.json()
    found, error = mixed.json()["results"]
    assert found == expected.json()["results"][0]
    assert error["error"]["message"] == "select: gamma must be left out: mmr has none, got 0.2 for all queries"


def test_what_a_rule_lacks_is_told_before_what_else_is_wrong_with_it(corpus):
    queries = [
        {"query_id": 1, "weights": [1.0]},
        {"query_id": 1, "method": "vrsd", "lambda_d": "x"},
        {"query_id": 1, "method": "gist", "initial": ["x"]},
        {"query_id": 1, "method": "gist", "cursor": "nonsense"},
    ]
    (answer,) = servers.posted({"docs": corpus}, ("/v1/select", {"queries": queries}))
    assert [each["error"]["message"] for each in answer.json()["results"]] == [
        "select: weights must be left out: mmr has none, got a list",
        "select: lambda_d must be left out: vrsd has none, got 'x'",
        "select: initial must be left out: gist has none, got a list",
        "select: cursor must be left out: gist has none, got 'nonsense'",
    ]


def test_gist_which_takes_nothing_shown_before_has_no_pages(corpus):
    query = {"query_id": 1, "candidates": list(range(60)), "k": 2}  # as many as GIST picks
    answers = servers.posted(
        {"docs": corpus},
        *(("/v1/select", {"method": method, "queries": [query] * n}) for method in METHODS for n in (1, 2)),
    )
    for method, one, two in zip(METHODS, answers[::2], answers[1::2], strict=True):
        results = [*one.json()["results"], *two.json()["results"]]
        assert [len(result["ids"]) for result in results] == [2] * 3
        assert [result["cursor"] is None for result in results] == [method == "gist"] * 3, method


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("k=2&k=3", "k must stand once in the URL, got '2' and '3'"),
        ("method=ssd&gamma=.5&gamma=.6", "gamma must stand once in the URL, got '.5' and '.6'"),
        ("corpus=docs&corpus=docs", "corpus must stand once in the URL, got 'docs' and 'docs'"),
        ("method=ssd&window=1.0", "window must be an integer, got '1.0'"),
        ("k=x", "k must be an integer, got 'x'"),
        ("pool=None", "pool must be an integer, or all, got 'None'"),
        ("lambda_d=all", "lambda_d must be a number, got 'all'"),
        ("density=1", "density must be true or false, got '1'"),
        ("fusion_weights=1;2", "fusion_weights must be numbers with commas, got '1;2'"),
        ("lamda=1", "got '1'"),
    ],
)
def test_what_a_url_of_arrow_cannot_say(corpus, url, words):
    table = servers.arrow(pa.table({"query_id": [1]}))
    (answer,) = servers.posted({"docs": corpus}, (f"/v1/select?{url}", table, servers.ARROW))
    assert answer.status_code == 422
    assert words in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/select", "/v1/path", "/v1/texts", "/v1/encode"])
def test_fields_in_the_url_of_json_are_refused(corpus, path):
    (answer,) = servers.posted({"docs": corpus}, (f"{path}?lambda_b=0.1", {}))
    op = path.rpartition("/")[2]
    assert answer.status_code == 422
    assert answer.json()["error"]["message"] == (
        f"{op}: lambda_b must stand in the body, which is JSON, got it in the URL"
    )


@pytest.mark.parametrize("name", ["window", "max_per_group"])
def test_a_count_may_be_as_large_as_in_the_library(name):
    rng = np.random.default_rng(9)
    grouped = rk.Corpus(rng.standard_normal((N, D), dtype=np.float32), groups=np.arange(N) % 9)
    large, plain, beyond = servers.posted(
        {"docs": grouped},
        ("/v1/select", {"method": "ssd", name: 2**63 - 1, "queries": [{"query_id": 1}]}),
        ("/v1/select", {"method": "ssd", "queries": [{"query_id": 1}]}),
        ("/v1/select", {"method": "ssd", name: 2**63, "queries": [{"query_id": 1}]}),
    )
    assert large.json() == plain.json()
    assert beyond.json()["error"]["argument"] == name


OPTIONS_OF = {
    "dpp": {"scale": 3.0},
    "ssd": {"gamma": 0.2, "window": 2},
    "sift": {"noise": 2.5, "min_gain": 0.01},
    "coverage": {"kind": "cover", "gamma": 0.9, "density": True, "budget": 9.0},
    "gist": {"eps": 1.0},
}


def test_the_options_are_those_of_the_table():
    assert {name for given in OPTIONS_OF.values() for name in given} == {*(each.name for each in OPTIONS), "budget"}


@pytest.mark.parametrize("method", OPTIONS_OF)
def test_options_of_a_rule_have_the_bits_of_calls_in_process(corpus, method):
    """In a query, beside the queries, in a URL, beside columns, as parameters of tensors; alone and beside others."""
    options = OPTIONS_OF[method]
    queries = np.random.default_rng(4).standard_normal((2, D), dtype=np.float32)
    pools = np.random.default_rng(5).permuted(np.tile(np.arange(N), (2, 1)), axis=1)[:, :60]
    asked = [{"query": q.tolist(), "candidates": p.tolist()} for q, p in zip(queries, pools, strict=True)]
    table = pa.table({"vector": list(queries), "candidates": pools.tolist()})
    as_text = "&".join(f"{name}={str(x).lower()}" for name, x in options.items())
    tensors = [
        {"name": "vector", "shape": [2, D], "datatype": "FP32", "data": queries.ravel().tolist()},
        {"name": "candidates", "shape": [2, 60], "datatype": "INT64", "data": pools.ravel().tolist()},
    ]
    common = {"method": method, "k": K, **options}

    async def use(client, service):
        found = []
        for body in (
            {**common, "queries": asked},
            {"k": K, "queries": [{"method": method, **options, **each} for each in asked]},
            {"k": K, "queries": [{"method": method, **options, **asked[0]}, {"method": method, **asked[1]}]},
        ):
            answer = await client.post("/v1/select", json=body)
            found.append([result.get("ids") or result for result in answer.json()["results"]])
        url = f"/v1/select?method={method}&k={K}&{as_text}"
        arrow = await client.post(url, content=servers.arrow(table), headers=servers.ARROW)
        of_handle = await answered(service, table, common)
        infer = await client.post("/v2/models/docs/infer", json={"inputs": tensors, "parameters": common})
        assert infer.status_code == 200, infer.text
        ids, lengths = (
            next(x["data"] for x in infer.json()["outputs"] if x["name"] == name) for name in ("ids", "lengths")
        )
        of_tensors = [row[:n] for row, n in zip(np.reshape(ids, (2, -1)).tolist(), lengths, strict=True)]
        return found, [servers.table_of(arrow)["ids"].to_pylist(), of_handle["ids"].to_pylist(), of_tensors]

    (common_ids, own, mixed), others = servers.run({"docs": corpus}, use)
    picks, usual = (
        corpus.select(queries, K, method=method, candidates=pools, num_threads=1, **given) for given in (options, {})
    )
    expected, default = (
        [row[:n].tolist() for row, n in zip(found.indices, found.lengths, strict=True)] for found in (picks, usual)
    )
    assert expected != default  # the options count
    assert [common_ids, own, *others] == [expected] * 5
    assert mixed == [expected[0], default[1]]


@pytest.mark.parametrize("name", [each.name for each in OPTIONS])
def test_an_option_that_a_rule_lacks_or_that_is_bad_is_refused(corpus, name):
    """For the query that has it alone."""
    value = next(options[name] for options in OPTIONS_OF.values() if name in options)
    option = BY_NAME[name]
    plain = {"query_id": 1}
    for method in METHODS:
        asked = {**plain, "method": method, name: value, **({"budget": 9.0} if name == "density" else {})}
        if method == "gist":
            asked.pop("budget", None)
        own, common = servers.posted(
            {"docs": corpus},
            ("/v1/select", {"queries": [plain, asked]}),
            ("/v1/select", {name: value, "method": method, "queries": [plain]}),
        )
        good, other = own.json()["results"]
        assert "ids" in good
        if method not in option.rules:
            assert other["error"]["message"] == f"select: {name} must be left out: {method} has none, got {value!r}"
            (refused,) = common.json()["results"]  # its own error too, of a default that it cannot have
            assert (common.status_code, refused["error"]["argument"]) == (422, name)
            continue
        assert "ids" in other
        bad = {"number": [-1.0, 1e39, True, "x"], "count": [0, 1.5, True], "choice": ["x", 1], "flag": [1, "true"]}
        for got in bad[option.kind]:
            (refused,) = servers.posted(
                {"docs": corpus}, ("/v1/select", {"queries": [plain, {**plain, "method": method, name: got}]})
            )
            good, other = refused.json()["results"]
            assert "ids" in good
            assert other["error"]["message"].startswith(f"select: {name} must be "), got


def test_density_needs_a_budget(corpus):
    (answer,) = servers.posted(
        {"docs": corpus}, ("/v1/select", {"method": "coverage", "density": True, "queries": [{"query_id": 1}]})
    )
    assert answer.json()["results"][0]["error"]["message"] == (
        "select: density must come with a budget, got density alone"
    )


def test_the_quality_of_candidates_goes_to_dpp(corpus):
    """By JSON, Arrow, tensors and the client, lists of several lengths; alone and beside others."""
    rng = np.random.default_rng(8)
    queries, sizes = rng.standard_normal((3, D), dtype=np.float32), (60, 5, 2)
    pools = [rng.permutation(N)[:n] for n in sizes]
    quality = [rng.uniform(0.1, 3, n).astype(np.float32) for n in sizes]
    lists, values = [p.tolist() for p in pools], [x.tolist() for x in quality]
    asked = [
        {"query": q.tolist(), "candidates": p, "quality": x} for q, p, x in zip(queries, lists, values, strict=True)
    ]
    padded = np.full((3, 60), -1), np.ones((3, 60), np.float32)
    for q, n in enumerate(sizes):
        padded[0][q, :n], padded[1][q, :n] = pools[q], quality[q]
    tensors = [
        {"name": "vector", "shape": [3, D], "datatype": "FP32", "data": queries.ravel().tolist()},
        {"name": "candidates", "shape": [3, 60], "datatype": "INT64", "data": padded[0].ravel().tolist()},
        {"name": "quality", "shape": [3, 60], "datatype": "FP32", "data": padded[1].ravel().tolist()},
    ]

    async def use(client, service):
        together = await client.post("/v1/select", json={"method": "dpp", "k": K, "queries": asked})
        alone = [await client.post("/v1/select", json={"method": "dpp", "k": K, "queries": [each]}) for each in asked]
        table = servers.arrow(pa.table({"vector": list(queries), "candidates": lists, "quality": values}))
        columns = await client.post(f"/v1/select?method=dpp&k={K}", content=table, headers=servers.ARROW)
        parameters = {"method": "dpp", "k": K}
        infer = await client.post("/v2/models/docs/infer", json={"inputs": tensors, "parameters": parameters})
        of_tensors = {each["name"]: each["data"] for each in infer.json()["outputs"]}
        rows = np.reshape(of_tensors["ids"], (3, -1)).tolist()
        return [
            [result["ids"] for result in together.json()["results"]],
            [answer.json()["results"][0]["ids"] for answer in alone],
            servers.table_of(columns)["ids"].to_pylist(),
            [row[:n] for row, n in zip(rows, of_tensors["lengths"], strict=True)],
        ]

    found = servers.run({"docs": corpus}, use)
    with pytest.warns(rk.PoolSizeWarning):
        expected = [
            corpus.select(
                queries[q : q + 1], K, method="dpp", candidates=pools[q][None], quality=quality[q][None], num_threads=1
            )
            for q in range(3)
        ]
    assert found == [[each.indices[0, : each.lengths[0]].tolist() for each in expected]] * 4
    usual = corpus.select(queries[:1], K, method="dpp", candidates=pools[0][None])
    assert usual.indices[0].tolist() != found[0][0]


def test_quality_is_above_0_with_candidates_and_of_dpp(corpus):
    asked = {"query_id": 1, "candidates": [2, 3, 4], "k": 2}
    wrong = {
        "be finite and above 0, got 0.0": {"method": "dpp", "quality": [1, 0, 2]},
        "have a number for each of the candidates, got 2 for 3": {"method": "dpp", "quality": [1, 2]},
        "be left out: mmr has none, got a list": {"quality": [1, 2, 3]},
        "come with candidates, got quality alone": {"method": "dpp", "quality": [1], "candidates": None},
    }
    queries = [{**asked, **changes} for changes in wrong.values()]
    (answer,) = servers.posted({"docs": corpus}, ("/v1/select", {"queries": [asked, *queries]}))
    good, *others = answer.json()["results"]
    assert "ids" in good
    assert [each["error"]["message"] for each in others] == [f"select: quality must {words}" for words in wrong]
