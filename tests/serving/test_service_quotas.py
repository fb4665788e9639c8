"""Caps and minima of single groups, and ``unmet`` of the picks: those of the library, on every wire."""

import json

import numpy as np
import pyarrow as pa
import pytest
import servers

import ragsys_kernels as rk
from ragsys_kernels.serving import InvalidRequestError, batcher, kernel
from ragsys_kernels.serving.ray_serve import answered

pytestmark = pytest.mark.filterwarnings("ignore:.* names groups that no row")

N, D, K, Q = 90, 8, 5, 4
RNG = np.random.default_rng(5)
ROWS, QUERIES = (RNG.standard_normal((n, D), dtype=np.float32) for n in (N, Q))
NUMBERS = RNG.choice(4, N, p=[0.7, 0.24, 0.03, 0.03])
LABELS = np.array(["news", "law", "a=b", "ß"])[NUMBERS]
CORPORA = {
    "names": rk.Corpus(ROWS, groups=LABELS),
    "numbers": rk.Corpus(ROWS, groups=NUMBERS),
    "plain": rk.Corpus(ROWS),
}
QUOTAS = {
    "names": {"min_per_group": {"a=b": 2, "poems": 1, "ß": 0}, "max_per_group": {"news": 1}},
    "numbers": {"min_per_group": {2: 2, 9: 1, 3: 0}, "max_per_group": {0: 1}},
}


def as_json(quotas):
    return {
        name: {str(group): x for group, x in each.items()} if isinstance(each, dict) else each
        for name, each in quotas.items()
    }


def as_text(unmet):
    return [{str(group): x for group, x in each.items()} for each in unmet]


def posted(corpus, queries, **common):
    (answer,) = servers.posted(CORPORA, ("/v1/select", {"corpus": corpus, "k": K, **common, "queries": queries}))
    return answer.json()


@pytest.mark.parametrize("corpus", QUOTAS)
def test_every_wire_has_the_picks_and_the_words_of_the_library(corpus, monkeypatch):
    monkeypatch.setattr(batcher, "apart", None)  # which would hide that a joint call fails
    given = {"pool": 60, **QUOTAS[corpus]}
    expected = CORPORA[corpus].select(QUERIES, K, **given)
    plain = CORPORA[corpus].select(QUERIES, K, pool=60)
    assert (expected.indices != plain.indices).any()
    ids, unmet = expected.indices.tolist(), as_text(expected.unmet)
    assert unmet == [{"poems" if corpus == "names" else "9": 1}] * Q
    common = {"corpus": corpus, "k": K, "pool": 60, **as_json(QUOTAS[corpus])}
    asked, table = [{"query": query.tolist()} for query in QUERIES], pa.table({"vector": list(QUERIES)})
    vector = {"name": "vector", "shape": [Q, D], "datatype": "FP32", "data": QUERIES.ravel().tolist()}
    in_text = {name: json.dumps(x) if isinstance(x, dict) else x for name, x in common.items()}

    async def use(client, service):
        together = (await client.post("/v1/select", json={**common, "queries": asked})).json()["results"]
        own = [{**each, **as_json(QUOTAS[corpus])} for each in asked]
        alone = [
            (await client.post("/v1/select", json={"corpus": corpus, "k": K, "pool": 60, "queries": [each]})).json()
            for each in own
        ]
        arrow = await client.post("/v1/select", params=in_text, content=servers.arrow(table), headers=servers.ARROW)
        handle = await answered(service, table, common)
        parameters = {name: x for name, x in in_text.items() if name != "corpus"}
        infer = await client.post(f"/v2/models/{corpus}/infer", json={"inputs": [vector], "parameters": parameters})
        outputs = {each["name"]: each["data"] for each in infer.json()["outputs"]}
        return together, [each["results"][0] for each in alone], servers.table_of(arrow), handle, outputs

    together, alone, arrow, handle, outputs = servers.run(CORPORA, use)
    for found in (together, alone):
        assert [each["ids"] for each in found] == ids
        assert [each["unmet"] for each in found] == unmet
    assert arrow.schema.field("unmet").type == pa.map_(pa.string(), pa.int64())
    assert handle.equals(arrow)
    assert arrow["ids"].to_pylist() == ids
    assert [*map(dict, arrow["unmet"].to_pylist())] == unmet
    assert outputs["ids"] == [each for row in ids for each in row]
    assert [*map(json.loads, outputs["unmet"])] == unmet
    for wire in ("json", "arrow"):
        sent = servers.with_client(
            CORPORA,
            lambda client: client.select(QUERIES, K, corpus=corpus, **given),
            wire=wire,
        )
        assert sent.ids.tolist() == ids
        assert sent.unmet == unmet


def test_an_integer_names_the_groups_that_lack_picks():
    (result,) = posted("names", [{"query": QUERIES[0].tolist()}], min_per_group=2, pool=None)["results"]
    expected = CORPORA["names"].select(QUERIES[:1], K, pool=None, min_per_group=2)
    assert result["ids"] == expected.indices[0].tolist()
    assert result["unmet"] == expected.unmet[0]
    assert sum(result["unmet"].values()) == 3
    (usual,) = posted("names", [{"query": QUERIES[0].tolist()}], max_per_group={"news": 1})["results"]
    assert "unmet" not in usual


def test_queries_of_other_quotas_share_no_call_and_those_of_equal_ones_do(monkeypatch):
    calls, answer = [], kernel.answer

    def counted(block, *others):
        calls.append(len(block))
        return answer(block, *others)

    monkeypatch.setattr(batcher, "answer", counted)
    query = {"query": QUERIES[0].tolist()}
    quotas = [{"law": 2}, {"law": 1}, {"law": 1, "ß": 2}, {"ß": 2, "law": 1}, {"law": 1}, 2]
    found = posted("names", [{**query, "min_per_group": each} for each in quotas])["results"]
    assert sorted(calls) == [1, 1, 2, 2]
    for each, result in zip(quotas, found, strict=True):
        assert result["ids"] == CORPORA["names"].select(QUERIES[:1], K, min_per_group=each).indices[0].tolist()


def test_vectors_that_queries_bring_have_groups_of_their_own():
    """Strings have numbers within a block: those of one query, or of another request, are of no other."""
    vectors = servers.encoded(ROWS[:30])
    names, turned = LABELS[:30].tolist(), LABELS[29::-1].tolist()
    cases = [
        ({"groups": names}, {"min_per_group": {"law": 3, "z": 1}}),
        ({"groups": turned}, {"min_per_group": {"law": 3, "z": 1}, "max_per_group": 4}),
        ({"groups": turned}, {"min_per_group": {"law": 3, "z": 1}}),
        ({"groups": NUMBERS[:30].tolist()}, {"min_per_group": {0: 1, 7: 2}}),
        ({"groups": names}, {"min_per_group": 2}),
        ({"groups": names}, {"max_per_group": {"news": 0}}),
    ]
    query = {"query": QUERIES[0].tolist(), "vectors": vectors}
    queries = [{**query, **of_items, **as_json(rule)} for of_items, rule in cases]
    none = {"query": QUERIES[0].tolist(), "vectors": {"b64": "", "shape": [0, D]}, "groups": []}
    queries.append({**none, "min_per_group": {"q": 2, "w": 0}})
    together = servers.posted({}, ("/v1/select", {"k": K, "queries": queries}))[0].json()["results"]
    alone = [
        servers.posted({}, ("/v1/select", {"k": K, "queries": [each]}))[0].json()["results"][0] for each in queries
    ]
    assert together == alone
    for (of_items, rule), result in zip(cases, together, strict=False):
        expected = rk.mmr(QUERIES[:1], ROWS[:30], K, **of_items, **rule)
        assert result["ids"] == expected.indices[0, : expected.lengths[0]].tolist()
        if "min_per_group" in rule:
            assert [result["unmet"]] == as_text(expected.unmet)
    assert (together[-1]["ids"], together[-1]["unmet"]) == ([], {"q": 2})


def test_a_query_that_fails_has_none_and_others_have_theirs(monkeypatch):
    """Also where the joint call fails, and each is answered by itself."""
    queries = [{"query_id": 1}, {"query_id": 10**9}, {"query_id": 2, "k": 2}]
    minima = QUOTAS["names"]["min_per_group"]
    lists = [list(range(60)), list(range(60)), [4, 4]]  # which the kernels find
    table, answer = pa.table({"query_id": [1, 10**9, 2], "candidates": lists}), kernel.answer

    def fails(block, *others):
        if len(block) > 1:
            raise MemoryError
        return answer(block, *others)

    for call in (answer, fails):
        monkeypatch.setattr(kernel, "answer", call)
        monkeypatch.setattr(batcher, "answer", call)
        one, bad, two = posted("names", queries, min_per_group=minima)["results"]
        assert one["unmet"] == CORPORA["names"].select(ROWS[1:2], K, min_per_group=minima).unmet[0]
        assert two["unmet"] == CORPORA["names"].select(ROWS[2:3], 2, min_per_group=minima).unmet[0]
        assert "unmet" not in bad

        async def use(client, _):
            url = {"corpus": "names", "k": K, "min_per_group": json.dumps(minima)}
            return await client.post("/v1/select", params=url, content=servers.arrow(table), headers=servers.ARROW)

        found = servers.table_of(servers.run(CORPORA, use))["unmet"].to_pylist()
        assert found == [[*one["unmet"].items()], None, None]
    sent = servers.with_client(
        CORPORA,
        lambda client: client.select(query_ids=[1, 10**9], corpus="names", min_per_group=minima, on_error="skip"),
    )
    assert sent.unmet == [one["unmet"], {}]


@pytest.mark.parametrize(
    ("corpus", "given", "message"),
    [
        ("names", {"min_per_group": {"law": -1}}, "min_per_group must be at least 0 for each group, got -1"),
        ("names", {"min_per_group": 0}, "min_per_group must be at least 1, got 0"),
        ("names", {"min_per_group": 2**63}, "min_per_group must be within [1, 9223372036854775807], got 92233"),
        ("names", {"min_per_group": {"law": 2**63}}, "min_per_group must be within [0, 9223372036854775807] for each"),
        ("names", {"min_per_group": {"law": 10**30}}, "min_per_group must be an integer of 64 bits for each group"),
        ("names", {"pool": "all"}, "pool must be an integer, or null for the whole corpus, got 'all'"),
        ("names", {"max_per_group": {"law": 1.0}}, "max_per_group must be an integer for each group, got 1.0"),
        ("names", {"max_per_group": {"law": True}}, "max_per_group must be an integer for each group, got True"),
        ("names", {"max_per_group": {"law": {}}}, "max_per_group must be an integer for each group, got an object"),
        (
            "names", {"max_per_group": [1]},
            "max_per_group must be an integer, or an object with one for each group, got a list",
        ),
        (
            "names", {"max_per_group": dict.fromkeys(map(str, range(10_001)), 1)},
            "max_per_group must name 0 to 10000 groups, got 10001",
        ),
        (
            "numbers", {"min_per_group": {"law": 1}},
            "min_per_group must name groups by integers, as groups are, got 'law'",
        ),
        ("numbers", {"min_per_group": {"01": 1}}, "min_per_group must name groups by integers, as groups are, got '01"),
        (
            "names", {"max_per_group": {"law": 1}, "min_per_group": {"law": 2}},
            "min_per_group must be at most max_per_group, got 2 above 1 for 'law'",
        ),
        (
            "names", {"max_per_group": 1, "min_per_group": 2},
            "min_per_group must be at most max_per_group, got 2 above 1",
        ),
        ("plain", {"max_per_group": {"law": 1}}, "max_per_group must be left out: the corpus has no groups, got an"),
        ("plain", {"max_per_group": {}}, "max_per_group must be left out: the corpus has no groups, got an object"),
        ("names", {"method": "gist", "min_per_group": {"law": 1}}, "min_per_group must be left out: gist has none"),
    ],
)  # fmt: skip
def test_refused_for_its_query_alone(corpus, given, message):
    good = {"query": QUERIES[0].tolist()}
    usual, refused, again = posted(corpus, [good, {**good, **given}, good])["results"]
    assert refused["error"]["message"].startswith(f"select: {message}")
    assert refused["error"]["argument"] == message.split()[0]
    assert usual == again
    assert usual == posted(corpus, [good])["results"][0]


def test_refused_in_urls_parameters_and_by_the_client():
    vector = {"name": "vector", "shape": [Q, D], "datatype": "FP32", "data": QUERIES.ravel().tolist()}
    table = servers.arrow(pa.table({"vector": list(QUERIES)}))
    words = "must be an integer, or an object with one for each group, got "
    for bad in ("x", '{"law": 1', "[1]", "1.0"):
        answers = servers.posted(
            CORPORA,
            (f"/v1/select?corpus=names&max_per_group={bad}", table, servers.ARROW),
            ("/v2/models/names/infer", {"inputs": [vector], "parameters": {"max_per_group": bad}}),
        )
        assert f"select: max_per_group {words}{bad!r}" in answers[0].json()["error"]["message"]
        assert answers[1].json()["error"].startswith(f"infer: parameters.max_per_group {words}{bad!r}")
    one = {"inputs": [vector], "parameters": {"k": 2}, "outputs": [{"name": "unmet"}]}
    (without,) = servers.posted(CORPORA, ("/v2/models/names/infer", one))
    assert without.json()["error"] == (
        "infer: outputs must have unmet with the parameter min_per_group alone, got it without"
    )
    with pytest.raises(
        InvalidRequestError, match="max_per_group must name groups by integers, as groups are, got 'law'"
    ):
        servers.with_client(CORPORA, lambda client: client.select(QUERIES, corpus="numbers", max_per_group={"law": 1}))


def test_a_corpus_on_a_device_has_one_cap_alone(monkeypatch):
    """Where no kernel has them, the query says so before it waits for one."""
    monkeypatch.setattr(rk.Corpus, "device", "cuda:0")
    for given in ({"min_per_group": 1}, {"max_per_group": {"law": 1}}):
        body = {"corpus": "names", "queries": [{"query": QUERIES[0].tolist(), **given}]}
        (answer,) = servers.posted(CORPORA, ("/v1/select", body))
        told = "max_per_group must be one integer, of groups of one level, on a device"
        assert answer.json()["results"][0]["error"]["message"].startswith(f"select: {told}")


def test_a_path_and_documents_have_caps_of_single_groups():
    candidates = list(range(40))
    for corpus, caps in (("names", {"news": 1, "poems": 2}), ("numbers", {"0": 1, "9": 2})):
        query = {"query": QUERIES[0].tolist(), "candidates": candidates, "k": 4, "max_per_group": caps}
        body = {"model": corpus, "query": QUERIES[0].tolist(), "documents": candidates, "top_n": 4}
        path, ranked = servers.posted(
            CORPORA,
            ("/v1/path", {"corpus": corpus, **query}),
            ("/rerank", {**body, "max_per_group": caps, "method": "mmr", "lambda_d": 0.4}),
        )
        picks = rk.mmr(
            QUERIES[:1], ROWS, 4, candidates=np.arange(40)[None], groups=LABELS, lambda_d=0.4,
            max_per_group={"news": 1},
        ).indices[0].tolist()  # fmt: skip
        assert sum(LABELS[picks] == "news") == 1
        found = [each["ids"] for each in path.json()["segments"] if each["low"] <= np.float32(0.4) <= each["high"]]
        assert found == [picks]
        assert [each["index"] for each in ranked.json()["results"]][:4] == picks
